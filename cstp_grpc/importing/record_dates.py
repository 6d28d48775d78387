"""Dates of records: as people write them, and those of the files.

A day without a time is midnight UTC, and a time without a zone is in UTC. A text that could be two days, such as
04/09/2017, is refused instead of guessed.
"""

from __future__ import annotations

import re
import subprocess
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
"""Time limit of git. Measured: the log of a very large repository with rename detection takes some ten seconds."""
COMMIT = "\x1e"
"""Starts a commit in the log: the ASCII record separator, with which no path of a record starts."""


class DateError(Exception):
    """A text is not a date or could be two dates; the message quotes it."""


FORMS = tuple(
    re.compile(rf"(?<!\d)(?:{form})(?!\d)", re.IGNORECASE)
    for form in (
        r"(?P<iso>\d{4}-\d\d-\d\d)(?:T|\s+)(?P<time>\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?)"
        r"(?P<zone>\s*(?:Z|UTC|[+-]\d\d:?\d\d))?",
        rf"{YEAR}(?P<mark>[-/.])(?P<month>\d\d?)(?P=mark)(?P<day>\d\d?)",
        r"(?P<year>(?:19|20)\d\d)(?P<month>\d\d)(?P<day>\d\d)",
        rf"{DAY}(?:\s+of)?{GAP}{MONTH}{GAP}{YEAR}",
        rf"{MONTH}{GAP}{DAY}{GAP}{YEAR}",
        rf"{YEAR}{GAP}{MONTH}{GAP}{DAY}",
        rf"(?P<first>\d\d?)(?P<mark>[/.-])(?P<second>\d\d?)(?P=mark){YEAR}",
    )
)
"""The accepted forms of dates; of two that match at the same offset the first counts."""


def parse_date(text: str) -> datetime:
    """Return the instant in UTC that the whole text names. Raises DateError."""
    stripped = text.strip()
    stripped = stripped[match.end() :] if (match := WEEKDAY.match(stripped)) else stripped
    for form in FORMS:
        if match := form.fullmatch(stripped):
            return _to_instant(match)
    raise DateError(f"{quote_start(text)} is not a date")


def find_date(text: str) -> datetime | None:
    """Return the first date in a text, or None. Raises DateError if it could be two days or does not exist."""
    matches = [match for form in FORMS if (match := form.search(text))]
    return _to_instant(min(matches, key=lambda match: match.start())) if matches else None


def _to_instant(match: re.Match[str]) -> datetime:
    parts = match.groupdict()
    try:
        if "iso" in parts:
            zone = (parts["zone"] or "Z").replace(" ", "").replace("UTC", "Z")
            return datetime.fromisoformat(f"{parts['iso']}T{parts['time'].replace(',', '.')}{zone}").astimezone(UTC)
        if "first" in parts:
            month, day = _month_and_day(match)
        else:
            month = MONTHS.index(parts["name"][:3].lower()) + 1 if "name" in parts else int(parts["month"])
            day = int(parts["day"])
        return datetime(int(parts["year"]), month, day, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise DateError(f"there is no day {quote_start(match[0])}") from None


def _month_and_day(match: re.Match[str]) -> tuple[int, int]:
    first, second = int(match["first"]), int(match["second"])
    # With points the day comes first by convention; otherwise only a number above 12 decides.
    if match["mark"] == "." or first > 12 or first == second:
        return second, first
    if second > 12:
        return first, second
    raise DateError(f"{match[0]!r} could be two days")


@dataclass(frozen=True, slots=True)
class RecordDate:
    """The date of a record, None for the time of the import; `remark` says why a better one is unknown."""

    date: datetime | None
    origin: DateOrigin
    remark: str | None = None


class FileDates:
    """Dates files by their first commit, otherwise by their modification time."""

    def __init__(self, sources: SourceNames, timeout: float = GIT_TIMEOUT_SECONDS) -> None:
        self._sources = sources
        self._timeout = timeout
        self._histories: dict[Path, tuple[dict[str, datetime], str | None]] = {}

    def date_of(self, path: Path) -> RecordDate:
        """Return the date of a file."""
        real = real_path(path)
        remark = None
        if tree := self._sources.work_tree(real):
            dates, problem = self._read_history(tree)
            if date := dates.get(real.relative_to(tree).as_posix()):
                return RecordDate(date, DateOrigin.FIRST_COMMIT)
            remark = problem and f"its first commit is not known: {problem}"
        try:
            return RecordDate(datetime.fromtimestamp(real.stat().st_mtime, UTC), DateOrigin.MODIFIED, remark)
        except (OSError, ValueError, OverflowError):
            return RecordDate(None, DateOrigin.IMPORT, remark)

    def _read_history(self, tree: Path) -> tuple[dict[str, datetime], str | None]:
        """Return the dates of first commits by path, or why they are unknown."""
        if tree not in self._histories:
            try:
                self._histories[tree] = _parse_log(_read_log(tree, self._timeout)), None
            except FileNotFoundError:
                self._histories[tree] = {}, "git is not installed"
            except subprocess.TimeoutExpired:
                self._histories[tree] = {}, f"git took longer than {self._timeout:g} s"
            except subprocess.CalledProcessError as error:
                lines = error.stderr.decode(errors="replace").splitlines()
                self._histories[tree] = {}, f"git says: {lines[0] if lines else f'exit code {error.returncode}'}"
            except OSError as error:
                self._histories[tree] = {}, f"git cannot be run: {error.strerror}"
        return self._histories[tree]


def _read_log(tree: Path, timeout: float) -> str:
    """Return the log of added and renamed files, the oldest commit first. Raises OSError and SubprocessError."""
    options = ["--topo-order", "--reverse", "--find-renames", "--diff-filter=AR", "--name-status"]
    # The patterns limit the log to files that can be records, which keeps reading a large history fast.
    patterns = [f":(icase,glob)**/*{suffix}" for suffix in SUFFIXES]
    command = git_command("-C", str(tree), "log", *DIFF_OPTIONS, *options, f"--format={COMMIT}%aI %D", "--", *patterns)
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=True)
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
            # The first commit of a shallow clone is marked `grafted`. It seems to add every file; its date is unused.
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
