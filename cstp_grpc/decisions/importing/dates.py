"""Dates as people write them.

A day without a time is midnight UTC, and so is a time without a zone in UTC. What could be two days, such as
04/09/2017, is refused rather than guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = (
    r"(?P<name>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
YEAR = r"(?P<year>\d{4})"
GAP = r"[\s./,-]+"
WEEKDAY = re.compile(r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+", re.IGNORECASE)


class DateError(Exception):
    """A text is no date, or could be more than one; the message quotes it."""


def _instant(match: re.Match[str]) -> datetime:
    zone = (match["zone"] or "Z").replace(" ", "").replace("UTC", "Z")
    return datetime.fromisoformat(f"{match['day']}T{match['time'].replace(',', '.')}{zone}").astimezone(UTC)


def _day(match: re.Match[str]) -> datetime:
    return datetime(int(match["year"]), int(match["month"]), int(match["day"]), tzinfo=UTC)


def _named(match: re.Match[str]) -> datetime:
    month = MONTHS.index(match["name"][:3].lower()) + 1
    return datetime(int(match["year"]), month, int(match["day"]), tzinfo=UTC)


def _numeric(match: re.Match[str]) -> datetime:
    first, second, year = int(match["first"]), int(match["second"]), int(match["year"])
    if match["mark"] == "." or first > 12 or first == second:
        return datetime(year, second, first, tzinfo=UTC)
    if second > 12:
        return datetime(year, first, second, tzinfo=UTC)
    raise DateError(f"{match[0]!r} could be two days")


FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], datetime]], ...] = tuple(
    (re.compile(rf"(?<!\d)(?:{pattern})(?!\d)", re.IGNORECASE), reading)
    for pattern, reading in (
        (
            r"(?P<day>\d{4}-\d\d-\d\d)(?:T|\s+)(?P<time>\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?)"
            r"(?P<zone>\s*(?:Z|UTC|[+-]\d\d:?\d\d))?",
            _instant,
        ),
        (rf"{YEAR}(?P<mark>[-/.])(?P<month>\d\d?)(?P=mark)(?P<day>\d\d?)", _day),
        (r"(?P<year>(?:19|20)\d\d)(?P<month>\d\d)(?P<day>\d\d)", _day),
        (rf"{DAY}(?:\s+of)?{GAP}{MONTH}{GAP}{YEAR}", _named),
        (rf"{MONTH}{GAP}{DAY}{GAP}{YEAR}", _named),
        (rf"{YEAR}{GAP}{MONTH}{GAP}{DAY}", _named),
        (rf"(?P<first>\d\d?)(?P<mark>[/.-])(?P<second>\d\d?)(?P=mark){YEAR}", _numeric),
    )
)
"""How dates are written, and how each is read; the more specific form comes first."""


def parse_date(text: str) -> datetime:
    """Return the instant, in UTC, that the whole text names. Raises DateError."""
    stripped = text.strip()
    stripped = stripped[match.end() :] if (match := WEEKDAY.match(stripped)) else stripped
    for pattern, reading in FORMS:
        if match := pattern.fullmatch(stripped):
            return _read(match, reading)
    raise DateError(f"{_quoted(text)} is not a date")


def find_date(text: str) -> datetime | None:
    """Return the first date that a text mentions, None where it mentions none. Raises DateError for one of two days."""
    found: list[tuple[int, int, re.Match[str]]] = []
    for rank, (pattern, _) in enumerate(FORMS):
        if match := pattern.search(text):
            found.append((match.start(), rank, match))
    if not found:
        return None
    _, rank, match = min(found, key=lambda each: each[:2])
    return _read(match, FORMS[rank][1])


def _read(match: re.Match[str], reading: Callable[[re.Match[str]], datetime]) -> datetime:
    try:
        return reading(match)
    except (ValueError, OverflowError):
        raise DateError(f"there is no day {_quoted(match[0])}") from None


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
