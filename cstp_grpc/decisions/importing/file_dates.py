"""The date of a file, for records that have none of their own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cstp_grpc.decisions.importing.files import real_path
from cstp_grpc.decisions.importing.history import FirstCommits, HistoryError
from cstp_grpc.decisions.importing.results import DateOrigin
from cstp_grpc.decisions.importing.sources import Sources


@dataclass(frozen=True, slots=True)
class FileDate:
    """When a file came to be, as far as can be told; `date` None means now, `remark` says what could not be asked."""

    date: datetime | None
    origin: DateOrigin
    remark: str | None = None


class FileDates:
    """Dates files by their first commit, else by their modification time."""

    def __init__(self, sources: Sources, commits: FirstCommits) -> None:
        self._sources = sources
        self._commits = commits

    def of(self, path: Path) -> FileDate:
        """Return the date of a file."""
        real = real_path(path)
        tree = self._sources.work_tree(real)
        remark = None
        if tree:
            try:
                if date := self._commits.first(tree, real):
                    return FileDate(date, DateOrigin.FIRST_COMMIT)
            except HistoryError as error:
                remark = f"its first commit is not known: {error}"
        try:
            return FileDate(datetime.fromtimestamp(real.stat().st_mtime, UTC), DateOrigin.MODIFIED, remark)
        except (OSError, ValueError, OverflowError):
            return FileDate(None, DateOrigin.IMPORT, remark)
