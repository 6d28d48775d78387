"""When files were first committed, asked of git once for each work tree."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

TIMEOUT_SECONDS = 60.0
COMMIT = "\x1e"
"""Begins a commit's line in the log; no path of ours begins with it."""


class HistoryError(Exception):
    """The history of a work tree cannot be read; the message says why."""


class FirstCommits:
    """Knows when the files of work trees were first committed, under whatever name.

    `suffixes` are those of the files that matter: others are not even looked at, which keeps a large history fast.
    """

    def __init__(self, suffixes: Sequence[str], timeout: float = TIMEOUT_SECONDS) -> None:
        self._patterns = [f":(icase,glob)**/*{suffix}" for suffix in suffixes]
        self._timeout = timeout
        self._trees: dict[Path, dict[str, datetime] | HistoryError] = {}

    def first(self, tree: Path, path: Path) -> datetime | None:
        """Return when a file in a work tree was first committed, in UTC; None where that is not known.

        Both paths are absolute and without symbolic links. Raises HistoryError where git cannot tell.
        """
        if tree not in self._trees:
            try:
                self._trees[tree] = _read_log(self._log(tree))
            except HistoryError as error:
                self._trees[tree] = error
        dates = self._trees[tree]
        if isinstance(dates, HistoryError):
            raise dates
        return dates.get(path.relative_to(tree).as_posix())

    def _log(self, tree: Path) -> str:
        git = shutil.which("git")
        if git is None:
            raise HistoryError("git is not installed")
        # Settings of an unknown repository must neither start programs nor change what is printed.
        settings = ["core.fsmonitor=false", "log.showSignature=false", "log.showRoot=true", "diff.relative=false"]
        options = ["--no-ext-diff", "--no-textconv", "--no-color", "--topo-order", "--reverse", "--find-renames"]
        command = [git, "-C", str(tree), "--no-pager", *(part for each in settings for part in ("-c", each)), "log"]
        command += [*options, "--diff-filter=AR", "--name-status", "-z", f"--format={COMMIT}%aI %D", "--"]
        try:
            run = subprocess.run(
                [*command, *self._patterns],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HistoryError(f"git took longer than {self._timeout:g} s") from None
        except OSError as error:
            raise HistoryError(f"git cannot be run: {error.strerror}") from None
        if run.returncode != 0:
            lines = run.stderr.decode(errors="replace").splitlines()
            raise HistoryError(f"git says: {lines[0] if lines else f'exit code {run.returncode}'}")
        return run.stdout.decode(errors="surrogateescape")


def _read_log(log: str) -> dict[str, datetime]:
    """Return the first date of every path in a log that begins with the oldest commit."""
    dates: dict[str, datetime] = {}
    date: datetime | None = None
    fields = iter(log.split("\0"))
    for field in fields:
        field = field.lstrip("\n")
        if field.startswith(COMMIT):
            written, _, names = field[1:].partition(" ")
            # Where a shallow clone was cut, every file seems to be new.
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
