"""The results of reading records, and the valid texts of a record."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import truncate_text
from cstp_grpc.core.decisions.model import ImportRecord

MAX_LENGTHS: Mapping[str, int] = {
    "title": 500,
    "context": 200_000,
    "category": 100,
    "notes": 5_000,
    "reasons.type": 100,
    "reasons.text": 20_000,
    "tags": 100,
    "project": 200,
    "id": 200,
    "source": 1_000,
}
"""Maximum characters of the fields in the contract; `id` leaves room for the name of the file in a source."""
MAX_REASONS = 100
MAX_TAGS = 50
MAX_LINKS = 100
"""Maximum numbers of reasons, tags, and links of one kind in the contract."""
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""PostgreSQL stores no NUL in texts, and UTF-8 encodes no surrogates."""


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
class ParsedRecord:
    """A record that can be imported.

    `line` counts from 1 and is None if the record is the whole file; `notes` lists guesses and omissions; `agent`
    recorded an exported decision with an identity.
    """

    record: ImportRecord
    path: Path
    line: int | None
    date_from: DateOrigin
    notes: tuple[str, ...] = ()
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class SkippedRecord:
    """A file or an entry that is not imported; `error` is False if it is not a record, such as a README."""

    path: Path
    line: int | None
    reason: str
    error: bool


ReadResult = ParsedRecord | SkippedRecord


class RecordError(Exception):
    """A file or an entry of a file cannot be imported; `line` counts from 1."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


class NotADecisionRecord(RecordError):
    """A file is not a decision record and is not meant as one."""


def storage_problem(text: str) -> str | None:
    match = UNSTORABLE.search(text)
    if match is None:
        return None
    return "it contains a NUL character" if match[0] == "\0" else "it contains half of a surrogate pair"


def quote_start(text: str) -> str:
    return repr(truncate_text(text, 60))


def collapse_spaces(text: str) -> str:
    return " ".join(text.split())


def is_blank(text: str) -> bool:
    return all(unicodedata.category(character)[0] in "ZC" for character in text)
