"""The example in Python."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.clients.examples import EXAMPLES, check_example


def test_the_python_example(tmp_path: Path) -> None:
    check_example([sys.executable, str(EXAMPLES / "announce.py")], tmp_path)
