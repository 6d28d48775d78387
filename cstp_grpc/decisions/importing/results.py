"""What comes of reading: records, and what was skipped and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cstp_grpc.decisions.model import ImportRecord


class DateOrigin(StrEnum):
    """Where the date of a record was found."""

    FRONT_MATTER = "front matter"
    DATE_LINE = "date line"
    STATUS = "status section"
    FILE_NAME = "file name"
    FIELD = "field"
    FIRST_COMMIT = "first commit"
    MODIFIED = "modification time"
    IMPORT = "time of import"


@dataclass(frozen=True, slots=True)
class Parsed:
    """A record that can be imported.

    `line` counts from 1 and is None where the record is its whole file; `notes` says what was guessed or left out.
    """

    record: ImportRecord
    path: Path
    line: int | None
    date_from: DateOrigin
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that is not imported; `error` tells a broken record from what is simply none, such as a README."""

    path: Path
    line: int | None
    reason: str
    error: bool


ReadResult = Parsed | Skipped


class Unreadable(Exception):
    """A file or an entry of it cannot be imported; the message says why, `line` counts from 1."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


class NoDecision(Unreadable):
    """A file is no decision record and does not try to be one."""
