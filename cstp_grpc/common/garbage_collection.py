"""Garbage collection in short processes."""

from __future__ import annotations

import atexit
import gc

GC_THRESHOLD = 100_000
"""Object allocations between two garbage collections. Chosen: most commands end before the first one."""


def spare_modules_collection() -> None:
    """Keep the garbage collector from scanning modules, which are not garbage."""
    # Measured: scanning them repeatedly takes an eighth of each command.
    gc.set_threshold(GC_THRESHOLD)
    # Python scans them all once more before it exits, a quarter of a short command's time.
    # Unregistered first, because a process may run several commands.
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
