"""Processes and how they end."""

from __future__ import annotations

import subprocess
import sys

HANGING = """
import threading
from cstp_grpc.platform.child_process import exit_after
threading.Thread(target=threading.Event().wait, name="database").start()
exit_after(0.1)
"""


def test_a_process_that_does_not_stop_is_ended_and_says_what_it_waited_for() -> None:
    result = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "stopping took more than 0.1 s" in result.stderr
    assert "database" in result.stderr
