"""Targets that name a data folder to use in this process, in place of a server to call."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER_SCHEME: Final = "local:"
"""What such a target begins with; the path of the folder follows."""


def is_folder_target(target: str) -> bool:
    """Return whether a target names a data folder; a number after `local:` is the port of a host with that name."""
    return target.startswith(FOLDER_SCHEME) and not target.removeprefix(FOLDER_SCHEME).isdigit()


def folder_of_target(target: str) -> Path | None:
    """Return the folder that a target names; None for `local:` alone, which means the configured one."""
    path = target.removeprefix(FOLDER_SCHEME)
    return Path(path).expanduser() if path else None
