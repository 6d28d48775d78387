"""Garbage collection while modules are loaded, and after."""

from __future__ import annotations

import atexit
import gc

LOADING_GC_THRESHOLD = 500_000
"""Object allocations between two garbage collections. Chosen: commands end, and servers are ready, before the first."""
SERVING_GC_THRESHOLD = 100_000
"""The same of a server that is ready. Chosen: references alone free nearly everything that calls make."""


def spare_modules_collection() -> None:
    """Keep the garbage collector from scanning modules, which are not garbage."""
    # Measured: scanning them repeatedly takes an eighth of each command.
    gc.set_threshold(LOADING_GC_THRESHOLD)
    # Python scans them all once more before it exits, a quarter of a short command's time.
    # Unregistered first, because a process may run several commands.
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


def freeze_loaded_objects() -> None:
    """Exclude all present objects from garbage collections, each of which would pause every thread to scan them."""
    gc.freeze()
    gc.set_threshold(SERVING_GC_THRESHOLD)
