"""Times as people type them: `7d`, `yesterday`, `2026-11-17`, "last tuesday"."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cstp_grpc.common.extras import EXTRAS, install_command

LENGTHS: Final = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
LENGTH: Final = re.compile(r"(?:\d{1,9}[smhdw])+")
PART: Final = re.compile(r"(\d+)([smhdw])")
DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
WEEKDAY: Final = re.compile(rf"(last |next )?({'|'.join(WEEKDAYS)})")
AGO: Final = re.compile(r"(\d{1,9}) (second|minute|hour|day|week)s? ago")
WORD: Final = re.compile(r"[A-Za-z]{3}")
"""A word, without which dateparser is not asked: it reads single letters and bare numbers as some day of a month."""
MAX_CHARACTERS: Final = 100


class TypedTime(NamedTuple):
    """An instant in UTC, and whether words were interpreted, which may mean something else to people."""

    instant: datetime
    is_from_words: bool


def parse_time(text: str, now: datetime, *, is_future: bool) -> TypedTime:
    """Parse a time in UTC unless it has an offset; days begin at midnight UTC. Raises ValueError.

    A length such as `7d` or a weekday is in the past, or in the future.
    """
    parsers: tuple[Callable[[str, datetime, bool], datetime | None], ...] = (parse_simple_form, parse_iso, parse_words)
    # The first and the last day of all may lie outside of the years 1 to 9999 in UTC.
    with suppress(OverflowError):
        for parse in parsers:
            if len(text) <= MAX_CHARACTERS and (found := parse(text.strip(), now, is_future)) is not None:
                instant = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
                return TypedTime(instant, parse is parse_words)
    raise ValueError(f"{text!r} is not a time like 7d, yesterday, 2026-01-31 or 2026-01-31T12:00:00Z")


def parse_simple_form(text: str, now: datetime, is_future: bool) -> datetime | None:
    """Parse a length of time, or the name of a day."""
    word, midnight = text.lower(), now.replace(hour=0, minute=0, second=0, microsecond=0)
    if word == "now":
        return now
    if word in DAYS:
        return midnight + timedelta(days=DAYS[word])
    if found := WEEKDAY.fullmatch(word):
        # From 1 to 7 days away, so that a weekday is never today.
        ahead = (WEEKDAYS.index(found[2]) - now.weekday() - 1) % 7 + 1
        goes_on = is_future if found[1] is None else found[1] == "next "
        return midnight + timedelta(days=ahead if goes_on else ahead - 7 or -7)
    if found := AGO.fullmatch(word):
        return now - int(found[1]) * LENGTHS[found[2][0]]
    if not LENGTH.fullmatch(word):
        return None
    length = sum((int(count) * LENGTHS[unit] for count, unit in PART.findall(word)), timedelta())
    return now + length if is_future else now - length


def parse_iso(text: str, _now: datetime, _is_future: bool) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def parse_words(text: str, now: datetime, is_future: bool) -> datetime | None:
    """Parse everything else, such as `last tuesday`, `2 weeks ago` and `17 nov 10:00`."""
    if not WORD.search(text):
        return None
    if importlib.util.find_spec("dateparser") is None:
        raise ValueError(f"{text!r}: {EXTRAS['times'].purpose} needs {install_command('times')}")
    # Not loaded for the simple forms: it takes half a second.
    import dateparser

    found: datetime | None = dateparser.parse(
        text,
        languages=["en"],
        settings={
            "RELATIVE_BASE": now.replace(tzinfo=None),
            "TIMEZONE": "UTC",
            "RETURN_AS_TIMEZONE_AWARE": True,
            "PREFER_DATES_FROM": "future" if is_future else "past",
            # A month begins with its first day; the library would take today's.
            "PREFER_DAY_OF_MONTH": "first",
        },
    )
    return found
