"""List, read and copy rulebook files."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass

logger = logging.getLogger(__name__)

RULEBOOK_SUFFIXES: Final = (".yaml", ".yml")
MAX_RULEBOOK_BYTES: Final = 1_048_576
"""Maximum size of a file. Chosen: some thousand guardrails; more is not a rulebook."""


@dataclass(frozen=True, slots=True)
class RulebookFile:
    """The content of a file, truncated if the file is too large."""

    path: Path
    content: bytes


def packaged_rulebook_path(name: str) -> Path:
    """Return the path of a rulebook shipped with the package, in an installation or a checkout."""
    installed = Path(__file__).with_name("packaged")
    folder = installed if installed.exists() else Path(__file__).parents[3] / "guardrails"
    return folder / f"{name}.yaml"


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


class RulebookCopy:
    """A file with the rulebooks that one of several server processes loaded last.

    A worker begins with it that starts while the files are invalid. They are the same rulebooks, so whichever process
    has written it last, it holds a valid set.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, files: Sequence[RulebookFile]) -> None:
        """Replace the copy; if that fails, the log says so, and the former one stays."""
        # Loaded files are UTF-8.
        content = json.dumps([[str(file.path), file.content.decode()] for file in files])
        # Renamed when it is whole: a process that is killed here leaves the former copy.
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            unfinished.write_text(content, encoding="utf-8")
            unfinished.replace(self._path)
        except OSError as error:
            logger.warning("the rulebooks cannot be copied to %s: %s", self._path, error.strerror)

    def read(self) -> Sequence[RulebookFile] | None:
        try:
            content = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return [RulebookFile(Path(path), text.encode()) for path, text in json.loads(content)]

    def remove(self) -> None:
        """Remove the copy, which is that of an earlier run."""
        self._path.unlink(missing_ok=True)
