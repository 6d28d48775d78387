"""From what a record says of another one to that one's source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cstp_grpc.decisions.importing.files import MARKDOWN, real_path
from cstp_grpc.decisions.importing.names import identifier_of
from cstp_grpc.decisions.importing.relations import Reference
from cstp_grpc.decisions.importing.results import Unreadable
from cstp_grpc.decisions.importing.sources import Sources


class References:
    """Finds the Markdown records that others refer to, among the files that are there.

    Whether a file is a record is asked of `is_record`, not of what is being imported: the links of a record must be the
    same whichever files are imported with it.
    """

    def __init__(self, sources: Sources, is_record: Callable[[Path], bool]) -> None:
        self._sources = sources
        self._is_record = is_record
        self._numbers: dict[Path, dict[int, list[Path]]] = {}

    def source(self, origin: Path, reference: Reference) -> str | None:
        """Return the source of the record that the one in `origin`, a path without symbolic links, refers to."""
        for path in self._candidates(origin, reference):
            if path != origin and self._is_record(path):
                try:
                    return self._sources.name(path)
                except Unreadable:
                    return None
        return None

    def is_local(self, reference: Reference) -> bool:
        """Tell whether a reference is meant for a Markdown file or a number, and so ought to be found."""
        if reference.href is None:
            return True
        return _local_path(reference.href).lower().endswith(MARKDOWN)

    def _candidates(self, origin: Path, reference: Reference) -> Iterator[Path]:
        if reference.number is not None:
            yield from self._numbered(origin.parent, reference.number)
        path = _local_path(reference.href) if reference.href else ""
        if not path:
            return
        base = origin.parent
        if path.startswith("/"):
            base = self._sources.work_tree(origin) or base
        target = Path(os.path.normpath(base / path.lstrip("/")))
        if target.suffix.lower() not in ("", ".html", *MARKDOWN):
            return
        for name in _spellings(target):
            if name.suffix.lower() in MARKDOWN and (file := _file(name)):
                yield file
        # A record may have been renamed since; its number stays.
        if identifier := identifier_of(target):
            yield from self._numbered(target.parent, identifier.number)

    def _numbered(self, folder: Path, number: int) -> list[Path]:
        """Return the file of a number in a folder, nothing where there are several."""
        if folder not in self._numbers:
            self._numbers[folder] = _numbers(folder)
        files = self._numbers[folder].get(number, [])
        return files if len(files) == 1 else []


def _local_path(href: str) -> str:
    """Return the path of a link to a file, empty for any other link."""
    try:
        parts = urlsplit(href)
    except ValueError:
        return ""
    path = unquote(parts.path)
    return "" if parts.scheme or parts.netloc or "\0" in path else path


def _file(path: Path) -> Path | None:
    """Return the path of a file without symbolic links, None where there is none."""
    try:
        return real_path(path) if path.is_file() else None
    except (OSError, Unreadable):
        return None


def _spellings(target: Path) -> Iterator[Path]:
    """Yield a link's target as files may be named: sites leave the ending out or make it .html."""
    yield target
    if target.name:
        yield target.with_name(target.name.removesuffix(".html") + MARKDOWN[0])


def _numbers(folder: Path) -> dict[int, list[Path]]:
    numbers: dict[int, list[Path]] = {}
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in MARKDOWN)
    except OSError:
        return numbers
    for path in files:
        if (identifier := identifier_of(path)) and (file := _file(path)):
            numbers.setdefault(identifier.number, []).append(file)
    return numbers
