"""Finding files, and reading text from them."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cstp_grpc.decisions.importing.results import Unreadable

MARKDOWN = (".md", ".markdown")
YAML = (".yaml", ".yml")
JSON_LINES = (".jsonl", ".ndjson")
MAX_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Found:
    """A file to read; `named` tells that it was asked for itself and not found in a folder."""

    path: Path
    named: bool


def discover(paths: Sequence[Path]) -> list[Path]:
    """Return the files that `read` goes through for the same paths, in its order."""
    return [found.path for found in find_files(paths)]


def find_files(paths: Sequence[Path]) -> Iterator[Found]:
    """Yield files and the files in folders, each once, in the order of their names.

    What is hidden within a folder is left out. A path that is missing or a folder that cannot be listed is yielded
    itself, so that reading it says what is wrong.
    """
    seen: set[Path] = set()
    waiting = [Found(path, named=True) for path in reversed(paths)]
    while waiting:
        found = waiting.pop()
        real = _identity(found.path)
        if real in seen:
            continue
        seen.add(real)
        entries = _entries(found.path)
        if entries is None:
            yield found
        else:
            waiting += [Found(entry, named=False) for entry in reversed(entries) if not entry.name.startswith(".")]


def real_path(path: Path) -> Path:
    """Return the absolute path without symbolic links. Raises Unreadable for what cannot be a path."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        raise Unreadable("it cannot be read: there is no such name") from None


def open_file(path: Path) -> BinaryIO:
    """Open a regular file; a pipe or a device, which might never end, is refused. Raises Unreadable."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise Unreadable("the folder cannot be listed")
        if not stat.S_ISREG(mode):
            raise Unreadable("it is no regular file")
        return path.open("rb")
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror}") from None
    except ValueError:
        raise Unreadable("it cannot be read: there is no such name") from None


def read_text(path: Path, limit: int = MAX_FILE_BYTES) -> str:
    """Return the text of a file with line feeds only and without a byte order mark. Raises Unreadable.

    A file of more than `limit` bytes is refused.
    """
    with open_file(path) as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise Unreadable(f"it cannot be read: {error.strerror}") from None
    if len(data) > limit:
        raise Unreadable(f"it is larger than {limit // 1024 // 1024} MiB")
    return decode(data).replace("\r\n", "\n").replace("\r", "\n")


def decode(data: bytes) -> str:
    """Return bytes as text without a byte order mark. Raises Unreadable for what is not UTF-8 text."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise Unreadable("it is UTF-16, not UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}") from None
    if "\0" in text:
        raise Unreadable(f"it is no text: NUL at offset {data.index(0)}")
    return text


def _identity(path: Path) -> Path:
    try:
        return real_path(path)
    except Unreadable:
        return path


def _entries(path: Path) -> list[Path] | None:
    """Return what is in a folder by name, None where there is no folder to list."""
    try:
        return sorted(path.iterdir())
    except (OSError, ValueError):
        return None
