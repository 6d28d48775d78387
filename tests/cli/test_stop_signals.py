"""A signal stops the server whatever it was doing when the signal came."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

ROUNDS = 200
BOUND = 60.0
"""Seconds after which a process that should have ended has not."""
WAITING = f"""
from queue import Empty

from cstp_grpc.cli.serve import receive_signals

for _ in range({ROUNDS}):
    with receive_signals() as events:
        # It never sleeps, so that the signal comes while it is about to; and it is long at it when the signal comes.
        waited = 0
        heard = None
        while heard is None:
            try:
                heard = events.get(timeout=0)
            except Empty:
                waited += 1
                if waited == 2000:
                    print("waiting", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_heard_at_any_moment_of_waiting(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as process:
        # One that no longer hears signals can only be killed.
        deadline = threading.Timer(BOUND, process.kill)
        deadline.start()
        assert process.stdout is not None
        heard = 0
        for line in process.stdout:
            assert line == "waiting\n"
            heard += 1
            process.send_signal(number)
        deadline.cancel()
    assert (heard, process.returncode) == (ROUNDS, 0)
