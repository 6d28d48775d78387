"""The files that records are read from, and dates: in texts, and of files.

A day without a time is midnight UTC, and a time without a zone is in UTC. A text that could be two days, such as
04/09/2017, is refused instead of guessed.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import BinaryIO

from cstp_grpc.common.git_command import DIFF_OPTIONS, find_work_tree, git_command
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.modules.importing.model import MAX_LENGTHS, DateOrigin, RecordError, quote_start, storage_problem

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
        # Asked before it is opened: opening a pipe would wait for its writer.
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise RecordError("the folder cannot be listed")
        if not stat.S_ISREG(mode):
            raise RecordError("it is not a regular file")
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
        raise RecordError(f"it is not text: NUL at offset {data.index(0)}")
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
        what = "time" if "iso" in parts and is_day(parts["iso"]) else "day"
        raise DateError(f"there is no {what} {quote_start(match[0])}") from None


def is_day(text: str) -> bool:
    """Return whether a text such as `2026-02-29` names a day that exists."""
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


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
    # In the order of the history, not of dates, which clocks of authors make: a file is added before it is renamed.
    options = ["--topo-order", "--reverse", "--find-renames", "--diff-filter=AR", "--name-status"]
    # The patterns limit the log to files that can be records, which keeps reading a large history fast.
    patterns = [f":(icase,glob)**/*{suffix}" for suffix in SUFFIXES]
    command = git_command("-C", str(tree), "log", *DIFF_OPTIONS, *options, f"--format={COMMIT}%aI %D", "--", *patterns)
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=True)
    # Paths may have any bytes; so decoded, they equal the ones that Python lists.
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
