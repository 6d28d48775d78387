"""List and read rulebook files."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RULEBOOK_SUFFIXES: Final = (".yaml", ".yml")
MAX_RULEBOOK_BYTES: Final = 1_048_576
"""Maximum size of a file. Chosen: some thousand guardrails; more is not a rulebook."""


@dataclass(frozen=True, slots=True)
class RulebookFile:
    """The content of a file, truncated if the file is too large."""

    path: Path
    content: bytes


def default_rulebook_path() -> Path:
    """Return the path of the rulebook shipped with the package, in an installation or a checkout."""
    installed = Path(__file__).with_name("default.yaml")
    return installed if installed.exists() else Path(__file__).parents[2] / "guardrails" / "default.yaml"


def list_rulebook_files(path: Path) -> list[Path]:
    """Return a file, or every *.yaml and *.yml in a folder by name, without hidden ones. Raises OSError."""
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.iterdir()) if file.suffix.lower() in RULEBOOK_SUFFIXES and file.name[0] != "."]


def read_rulebook_file(path: Path, *, accepts_pipe: bool = False) -> RulebookFile:
    """Read a file; `accepts_pipe` says that it may be a pipe, as shells make of a command. Raises OSError."""
    opener = None if accepts_pipe else open_regular_file
    with open(path, "rb", opener=opener) as stream:
        # One byte more than allowed, by which the parser knows that the file is too large.
        return RulebookFile(path, stream.read(MAX_RULEBOOK_BYTES + 1))


def open_regular_file(path: str, flags: int) -> int:
    """Open a file and return its descriptor. Raises OSError if it is a pipe or a device."""
    # Without O_NONBLOCK, which files ignore, opening a pipe waits until something writes to it, perhaps for ever.
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "Not a regular file")
