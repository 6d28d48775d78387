"""Where tests keep temporary files."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY_FOLDER = Path("/dev/shm")
"""Where Linux keeps files in memory."""
MEMORY_BYTES = 1 << 30
"""The free space that MEMORY_FOLDER must have: a PostgreSQL of the tests uses about 150 MB, and each process of pytest
starts one; other files take less."""


def temporary_parent() -> Path:
    """Return a folder for temporary files: in memory if there is room, because a disk makes every commit wait.

    Its path is short: that of a socket holds about 100 characters, which pytest's own folders may exceed.
    """
    if MEMORY_FOLDER.is_dir() and shutil.disk_usage(MEMORY_FOLDER).free >= MEMORY_BYTES:
        return MEMORY_FOLDER
    return Path("/tmp")


def use_temporary_parent() -> None:
    """Have this process and its children keep their temporary files there, unless the environment names a folder."""
    if "TMPDIR" not in os.environ:
        os.environ["TMPDIR"] = str(temporary_parent())
        # Python looks for the folder once, and something may have asked before.
        tempfile.tempdir = None
