"""What the names and titles of files tell: identifiers, dates, and titles that say nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cstp_grpc.decisions.importing.dates import DateError, find_date
from cstp_grpc.decisions.importing.text import one_line

SERIES = r"(?P<series>adr|madr|rfc|edr|ddr|tdr|decision)"
DATED_NAME = re.compile(r"(?P<date>\d{4}-\d\d-\d\d|(?:19|20)\d{6})(?:[-_ .]+|$)")
YEAR = re.compile(r"(?:19|20)\d\d(?!\d)")
"""A number that is rather a year than the number of a record."""
NUMBERED_NAME = re.compile(rf"(?:{SERIES}[-_ ]*)?0*(?P<number>\d{{1,5}})(?:[-_ .]+|$)", re.IGNORECASE)
WRITTEN_NUMBER = re.compile(rf"\W?{SERIES}[-_ #]*0*(?P<number>\d{{1,5}})\b", re.IGNORECASE)
BARE_NUMBER = re.compile(r"#?0*(?P<number>\d{1,5})(?P<mark>\s*[.:)|]\s+|\s*[-–—]\s+|\s+)(?=\S)")

INDEXES = ("readme", "index", "_index")
PLACEHOLDER = re.compile(
    r"(?:adr[-.: ]*)?(?:(?:number|n{1,6}|x{1,6}|\d{1,6})[-.: ]*)?"
    r"(?:\{.*\}|\[.*\]|<.*>|(?:short |adr |decision |record )?title(?: of .*| here)?|short noun phrase)[.…]*",
    re.IGNORECASE,
)
PREFIX = re.compile(r"(?:adr\s*:|(?:architectur(?:e|al) )?decision record\s*[:–—-])\s*(?=\S)", re.IGNORECASE)
GENERIC_TITLES = ("adr", "title", "decision record", "architecture decision record", "architectural decision record")


@dataclass(frozen=True, slots=True)
class Identifier:
    """The number of a record in its series, such as 12 of `adr`."""

    series: str
    number: int

    def __str__(self) -> str:
        return f"{self.series}:{self.number}"


@dataclass(frozen=True, slots=True)
class Title:
    """A title without the bare number that opened it; `written` is that number, or one in words like ADR-12."""

    text: str
    written: Identifier | None = None


def stem_of(path: Path) -> str:
    """Return the name that speaks for a file: its own without the ending, its folder's for a README or an index."""
    return path.parent.name if path.stem.lower() in INDEXES else path.stem


def identifier_of(path: Path) -> Identifier | None:
    """Return the identifier in the name of a file."""
    stem = stem_of(path)
    match = None if DATED_NAME.match(stem) or YEAR.match(stem) else NUMBERED_NAME.match(stem)
    return Identifier(_series(match), int(match["number"])) if match else None


def date_of(path: Path) -> datetime | None:
    """Return the date that the name of a file begins with."""
    match = DATED_NAME.match(stem_of(path))
    try:
        return find_date(match["date"]) if match else None
    except DateError:
        return None


def title_of_name(path: Path) -> str:
    """Return a title made of the name of a file."""
    stem = stem_of(path)
    match = DATED_NAME.match(stem) or NUMBERED_NAME.match(stem)
    words = one_line(re.sub(r"[-_]+", " ", stem[match.end() :] if match else stem))
    return words[:1].upper() + words[1:] if words else stem


def read_title(heading: str, expected: Identifier | None) -> Title:
    """Return the title in a heading, without what only says that it is a decision record.

    A bare number, as in `3 ways to log in`, is taken off only where it is the `expected` one.
    """
    text = one_line(heading)
    text = text[prefix.end() :] if (prefix := PREFIX.match(text)) else text
    if match := WRITTEN_NUMBER.match(text):
        return Title(text, Identifier(_series(match), int(match["number"])))
    match = BARE_NUMBER.match(text)
    if match and (match["mark"].strip() or match[0][0] in "#0" or _is(expected, match)):
        return Title(text[match.end() :], Identifier("adr", int(match["number"])))
    return Title(text)


def is_placeholder(title: str) -> bool:
    """Tell whether a title still waits to be filled in."""
    return PLACEHOLDER.fullmatch(title.strip()) is not None


def is_generic(title: str) -> bool:
    """Tell whether a title only says that this is a decision record."""
    return title.strip(" :.#").lower() in GENERIC_TITLES


def _is(expected: Identifier | None, match: re.Match[str]) -> bool:
    return expected is not None and expected.number == int(match["number"])


def _series(match: re.Match[str]) -> str:
    series = (match["series"] or "adr").lower()
    return "adr" if series in ("madr", "decision") else series
