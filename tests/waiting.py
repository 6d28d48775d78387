"""Waiting for conditions, with a bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SECONDS = 30.0


def wait_until(condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Return when a condition holds; fail, saying what was waited for, when it does not in time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds: {what}"
        pause.wait(0.01)
