"""Dates of records: as people write them, and those of the files.

A day without a time is midnight UTC, and a time without a zone is in UTC. A text that could be two days, such as
04/09/2017, is refused instead of guessed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cstp_grpc.git_command import DIFF_OPTIONS, git_command
from cstp_grpc.importing.model import DateOrigin, quote_start
from cstp_grpc.importing.record_files import SUFFIXES, SourceNames, real_path

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = (
    r"(?P<name>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
YEAR = r"(?P<year>\d{4})"
GAP = r"[\s./,-]+"
WEEKDAY = re.compile(r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+", re.IGNORECASE)

GIT_TIMEOUT_SECONDS = 60.0
"""Reading the log of a very large repository with rename detection takes some ten seconds."""
COMMIT = "\x1e"
"""Begins a commit's line in the log; no path of a record begins with it."""


class DateError(Exception):
    """A text is not a date or could be two dates; the message quotes it."""


def _read_instant(match: re.Match[str]) -> datetime:
    zone = (match["zone"] or "Z").replace(" ", "").replace("UTC", "Z")
    return datetime.fromisoformat(f"{match['day']}T{match['time'].replace(',', '.')}{zone}").astimezone(UTC)


def _read_day(match: re.Match[str]) -> datetime:
    return datetime(int(match["year"]), int(match["month"]), int(match["day"]), tzinfo=UTC)


def _read_named_month(match: re.Match[str]) -> datetime:
    month = MONTHS.index(match["name"][:3].lower()) + 1
    return datetime(int(match["year"]), month, int(match["day"]), tzinfo=UTC)


def _read_numeric(match: re.Match[str]) -> datetime:
    first, second, year = int(match["first"]), int(match["second"]), int(match["year"])
    # Points are used where the day comes first; of slashes and dashes one number must be too large for a month.
    if match["mark"] == "." or first > 12 or first == second:
        return datetime(year, second, first, tzinfo=UTC)
    if second > 12:
        return datetime(year, first, second, tzinfo=UTC)
    raise DateError(f"{match[0]!r} could be two days")


FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], datetime]], ...] = tuple(
    (re.compile(rf"(?<!\d)(?:{pattern})(?!\d)", re.IGNORECASE), read)
    for pattern, read in (
        (
            r"(?P<day>\d{4}-\d\d-\d\d)(?:T|\s+)(?P<time>\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?)"
            r"(?P<zone>\s*(?:Z|UTC|[+-]\d\d:?\d\d))?",
            _read_instant,
        ),
        (rf"{YEAR}(?P<mark>[-/.])(?P<month>\d\d?)(?P=mark)(?P<day>\d\d?)", _read_day),
        (r"(?P<year>(?:19|20)\d\d)(?P<month>\d\d)(?P<day>\d\d)", _read_day),
        (rf"{DAY}(?:\s+of)?{GAP}{MONTH}{GAP}{YEAR}", _read_named_month),
        (rf"{MONTH}{GAP}{DAY}{GAP}{YEAR}", _read_named_month),
        (rf"{YEAR}{GAP}{MONTH}{GAP}{DAY}", _read_named_month),
        (rf"(?P<first>\d\d?)(?P<mark>[/.-])(?P<second>\d\d?)(?P=mark){YEAR}", _read_numeric),
    )
)
"""How dates are written, and how each form is read; of two that match at one place the first counts."""


def parse_date(text: str) -> datetime:
    """Return the instant in UTC that the whole text names. Raises DateError."""
    stripped = text.strip()
    stripped = stripped[match.end() :] if (match := WEEKDAY.match(stripped)) else stripped
    for pattern, read in FORMS:
        if match := pattern.fullmatch(stripped):
            return _read_match(match, read)
    raise DateError(f"{quote_start(text)} is not a date")


def find_date(text: str) -> datetime | None:
    """Return the first date in a text, or None. Raises DateError if it could be two days or does not exist."""
    found = [(match, read) for pattern, read in FORMS if (match := pattern.search(text))]
    return _read_match(*min(found, key=lambda each: each[0].start())) if found else None


def _read_match(match: re.Match[str], read: Callable[[re.Match[str]], datetime]) -> datetime:
    try:
        return read(match)
    except (ValueError, OverflowError):
        raise DateError(f"there is no day {quote_start(match[0])}") from None


@dataclass(frozen=True, slots=True)
class RecordDate:
    """The date of a record, None for the time of the import; `remark` says why a better one is unknown."""

    date: datetime | None
    origin: DateOrigin
    remark: str | None = None


class HistoryError(Exception):
    """The history of a work tree cannot be read; the message says why."""


class FileDates:
    """Dates files by their first commit, otherwise by their modification time."""

    def __init__(self, sources: SourceNames, timeout: float = GIT_TIMEOUT_SECONDS) -> None:
        self._sources = sources
        self._timeout = timeout
        self._histories: dict[Path, dict[str, datetime] | HistoryError] = {}

    def date_of(self, path: Path) -> RecordDate:
        """Return the date of a file."""
        real = real_path(path)
        remark = None
        try:
            if date := self._first_commit(real):
                return RecordDate(date, DateOrigin.FIRST_COMMIT)
        except HistoryError as error:
            remark = f"its first commit is not known: {error}"
        try:
            return RecordDate(datetime.fromtimestamp(real.stat().st_mtime, UTC), DateOrigin.MODIFIED, remark)
        except (OSError, ValueError, OverflowError):
            return RecordDate(None, DateOrigin.IMPORT, remark)

    def _first_commit(self, path: Path) -> datetime | None:
        tree = self._sources.work_tree(path)
        if tree is None:
            return None
        if tree not in self._histories:
            try:
                self._histories[tree] = _parse_log(_read_log(tree, self._timeout))
            except HistoryError as error:
                self._histories[tree] = error
        history = self._histories[tree]
        if isinstance(history, HistoryError):
            raise history
        return history.get(path.relative_to(tree).as_posix())


def _read_log(tree: Path, timeout: float, suffixes: Sequence[str] = SUFFIXES) -> str:
    """Return what git logs of added and renamed files, the oldest commit first. Raises HistoryError."""
    options = ["--topo-order", "--reverse", "--find-renames", "--diff-filter=AR", "--name-status"]
    # Files of other kinds are not even looked at, which keeps reading a large history fast.
    patterns = [f":(icase,glob)**/*{suffix}" for suffix in suffixes]
    try:
        run = subprocess.run(
            git_command("-C", str(tree), "log", *DIFF_OPTIONS, *options, f"--format={COMMIT}%aI %D", "--", *patterns),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise HistoryError("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise HistoryError(f"git took longer than {timeout:g} s") from None
    except OSError as error:
        raise HistoryError(f"git cannot be run: {error.strerror}") from None
    if run.returncode != 0:
        lines = run.stderr.decode(errors="replace").splitlines()
        raise HistoryError(f"git says: {lines[0] if lines else f'exit code {run.returncode}'}")
    return run.stdout.decode(errors="surrogateescape")


def _parse_log(log: str) -> dict[str, datetime]:
    """Return the first date of every path in a log; a renamed file keeps the date of its old path."""
    dates: dict[str, datetime] = {}
    date: datetime | None = None
    fields = iter(log.split("\0"))
    for field in fields:
        field = field.lstrip("\n")
        if field.startswith(COMMIT):
            written, _, names = field[1:].partition(" ")
            # Where a shallow clone is cut off, every file seems to be new.
            date = None if "grafted" in names.split(", ") else datetime.fromisoformat(written).astimezone(UTC)
        elif field.startswith("R"):
            old, new = next(fields), next(fields)
            if known := dates.get(old, date):
                dates.setdefault(new, known)
        elif field:
            path = next(fields)
            if date:
                dates.setdefault(path, date)
    return dates
