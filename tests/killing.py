"""Servers that are killed while they are at work."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable


def killed_at_work(work: Callable[[], object], workers: int, kill: Callable[[], object], latest: float = 1.0) -> None:
    """Kill a server within `latest` seconds of so many threads beginning to work with it, and wait for them to end."""
    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    # The moment is random on purpose; nothing is waited for.
    threading.Event().wait(random.uniform(0.05, latest))
    kill()
    for thread in threads:
        thread.join()
