"""The files that records are read from: finding them, reading their text and naming them as sources."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cstp_grpc.git_command import find_work_tree
from cstp_grpc.importing.model import MAX_LENGTHS, RecordError, storage_problem

MARKDOWN_SUFFIXES = (".md", ".markdown")
YAML_SUFFIXES = (".yaml", ".yml")
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
SUFFIXES = (*MARKDOWN_SUFFIXES, *YAML_SUFFIXES, *JSON_LINES_SUFFIXES)
MAX_FILE_BYTES = 16 * 1024 * 1024
"""Maximum bytes of a YAML file: 16 MiB. Chosen: it is parsed as a whole, into many times its size in memory."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file to read; `named` is True if the caller named it, False if it was found in a folder."""

    path: Path
    named: bool


def find_record_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that `read_records` reads for the same paths, in its order."""
    return [file.path for file in find_input_files(paths)]


def find_input_files(paths: Sequence[Path]) -> Iterator[InputFile]:
    """Yield files and the files in folders, each once, in the order of their names.

    Hidden files and folders within a folder are left out. A missing path or a folder that cannot be listed is yielded
    itself, so that reading it gives the reason.
    """
    # By real path: links may lead to the same file twice, or to a folder above.
    seen: set[Path] = set()
    waiting = [InputFile(path, named=True) for path in reversed(paths)]
    while waiting:
        file = waiting.pop()
        try:
            identity = real_path(file.path)
        except RecordError:
            identity = file.path
        if identity in seen:
            continue
        seen.add(identity)
        try:
            entries = sorted(file.path.iterdir(), reverse=True)
        except (OSError, ValueError):
            yield file
        else:
            waiting += [InputFile(entry, named=False) for entry in entries if not entry.name.startswith(".")]


def real_path(path: Path) -> Path:
    """Return the absolute path without symbolic links. Raises RecordError if no file can have such a path."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        raise RecordError("it cannot be read: there is no such name") from None


def open_file(path: Path) -> BinaryIO:
    """Open a regular file; pipes and devices, which might never end, are refused. Raises RecordError."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise RecordError("the folder cannot be listed")
        if not stat.S_ISREG(mode):
            raise RecordError("it is no regular file")
        return path.open("rb")
    except OSError as error:
        raise RecordError(f"it cannot be read: {error.strerror}") from None
    except ValueError:
        raise RecordError("it cannot be read: there is no such name") from None


def read_text(path: Path, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a file, with line feeds only and without a byte order mark. Raises RecordError."""
    with open_file(path) as file:
        try:
            data = file.read(max_bytes + 1)
        except OSError as error:
            raise RecordError(f"it cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise RecordError(f"it is larger than {max_bytes // 1024 // 1024} MiB")
    return decode_text(data).replace("\r\n", "\n").replace("\r", "\n")


def decode_text(data: bytes) -> str:
    """Return UTF-8 bytes as text without a byte order mark. Raises RecordError."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise RecordError("it is UTF-16, not UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError(f"it is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}") from None
    if "\0" in text:
        raise RecordError(f"it is no text: NUL at offset {data.index(0)}")
    return text


class SourceNames:
    """Names files as the sources of records; remembers the work trees it has found."""

    def __init__(self) -> None:
        self._work_trees: dict[Path, Path | None] = {}

    def source_of(self, path: Path) -> str:
        """Return the source of a file, the same for every path that leads to it. Raises RecordError.

        In a git work tree it is the name of the tree's folder and the path within, so that clones with the same name
        agree; elsewhere it is the absolute path.
        """
        real = real_path(path)
        tree = self.work_tree(real)
        return check_source((Path(tree.name) / real.relative_to(tree) if tree and tree.name else real).as_posix())

    def work_tree(self, path: Path) -> Path | None:
        """Return the root of the git work tree that an absolute path is in, or None."""
        if path.parent not in self._work_trees:
            self._work_trees[path.parent] = find_work_tree(path.parent)
        return self._work_trees[path.parent]


def check_source(source: str) -> str:
    """Return a source that the journal can hold. Raises RecordError."""
    if storage_problem(source):
        raise RecordError("its name is not UTF-8 text")
    if len(source) > MAX_LENGTHS["source"]:
        limit = MAX_LENGTHS["source"]
        raise RecordError(f"its source would have {len(source)} characters, at most {limit} are possible")
    return source
