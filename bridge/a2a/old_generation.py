"""What A2A 0.3 alone needs of the SDK, imported when it is first asked for: it takes 0.2 s and 20 MB."""

from __future__ import annotations

import asyncio
import importlib
from typing import Final

NEEDED: Final = ("a2a.compat.v0_3.conversions", "a2a.compat.v0_3.proto_utils")

_imported: set[str] = set()


async def load_old_generation() -> None:
    """Import it on a thread unless that was done, so that other requests go on meanwhile."""
    for name in NEEDED:
        if name not in _imported:
            await asyncio.to_thread(importlib.import_module, name)
            _imported.add(name)
