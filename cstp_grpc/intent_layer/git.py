"""What git knows of the age of nodes; where it knows nothing for sure, nothing is said."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cstp_grpc.intent_layer.paths import name_of, parent_of
from cstp_grpc.intent_layer.tree import MAX_FILE_BYTES, NODE_FILES, SKIPPED

INHERITED = ("HOME", "PATH", "XDG_CONFIG_HOME")
"""Where programs and the user's settings are; nothing else of the environment may lead git elsewhere."""
SETTLED = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
"""What git is told beside that."""
TIMEOUT_SECONDS = 3.0
"""How long the history may be read; nodes that were last changed before what was read by then count as unknown."""
COMMIT = "\x1e"
"""Begins a commit in the log, where a file's status would begin with a letter."""
CHUNK_BYTES = 65_536
LINK_MODE = "120000"
SHA1_DIGITS = 40
PLAIN_NAME = re.compile(r"[\w. -]+")
"""Names that a pattern of git takes literally."""
SETTINGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "log.showSignature=false",
    "log.showRoot=true",
    "diff.relative=false",
    "diff.orderFile=/dev/null",
)
"""A project's own settings must neither start programs nor change what is printed."""
DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--ignore-submodules", "--relative", "-z")


@dataclass(frozen=True, slots=True)
class Behind:
    """What was committed in a node's folder after the node: how many commits, the files sorted, the node's date."""

    since: str
    commits: int
    files: tuple[str, ...]


@dataclass(slots=True)
class _Commit:
    date: str
    changed: list[tuple[str, str]] = field(default_factory=list)
    """The status of each file and its path."""


@dataclass(slots=True)
class _Changes:
    files: set[str] = field(default_factory=set)
    commits: int = 0


class GitHistory:
    """The history of a project that is, or lies in, a work tree of git.

    Without git, outside a work tree and in a shallow clone there is no history. No program but git is started, which
    asks nothing, fetches nothing and writes nothing.
    """

    def __init__(self, root: Path, environment: Mapping[str, str], timeout: float = TIMEOUT_SECONDS) -> None:
        """Prepare to ask git, which gets the INHERITED variables of the environment and `timeout` seconds a call."""
        self._root = root
        self._environment = {name: environment[name] for name in INHERITED if name in environment} | SETTLED
        self._timeout = timeout

    def behind(self, nodes: Mapping[str, frozenset[str]], owner: Callable[[str], str | None]) -> dict[str, Behind]:
        """Return the nodes that are older than what they cover, by their folders.

        `nodes` gives the files of each node by its folder; `owner` the folder of the node that covers a folder. A node
        that was changed since, or was never committed, is not behind. One reading of the log serves all nodes.
        """
        if not nodes or not self._has_history():
            return {}
        names = {name_of(file) for files in nodes.values() for file in files}
        uncommitted = self._uncommitted(names)
        if uncommitted is None:
            return {}
        ages = _Ages({folder: files for folder, files in nodes.items() if files.isdisjoint(uncommitted)}, owner)
        self._read_log(ages)
        return ages.behind()

    def _has_history(self) -> bool:
        answer = self._answer("rev-parse", "--is-inside-work-tree", "--is-shallow-repository", "--verify", "HEAD")
        return answer is not None and answer.split()[:2] == [b"true", b"false"]

    def _uncommitted(self, names: Iterable[str]) -> set[str] | None:
        """Return the files of these names that are not as they were committed; None where git cannot tell."""
        patterns = [f":(glob)**/{name}" for name in sorted(names) if PLAIN_NAME.fullmatch(name)]
        answer = self._answer("diff-index", *DIFF, "--raw", "--no-abbrev", "HEAD", "--", *patterns)
        if answer is None:
            return None
        fields = iter(answer.split(b"\0"))
        return {_decoded(path) for entry, path in zip(fields, fields, strict=False) if not self._is_same(entry, path)}

    def _is_same(self, entry: bytes, path: bytes) -> bool:
        """Return whether a file is as it was committed, for all that its time or place on disk says.

        Asked for this, git would start the filters that a repository names for its files.
        """
        was_mode, _, committed = _decoded(entry).lstrip(":").split(" ")[:3]
        file = self._root / os.fsdecode(path)
        try:
            if was_mode == LINK_MODE:
                return _blob_id(os.fsencode(file.readlink()), len(committed)) == committed
            if file.is_symlink() or file.stat().st_size > MAX_FILE_BYTES:
                return False
            return _blob_id(file.read_bytes(), len(committed)) == committed
        except OSError:
            return False

    def _answer(self, *arguments: str) -> bytes | None:
        """Return what git prints; None where it fails or takes too long."""
        try:
            with self._running(*arguments) as process:
                output = process.communicate()[0]
        except OSError:
            return None
        return output if process.returncode == 0 else None

    def _read_log(self, ages: _Ages) -> None:
        """Read commits, the latest first, until every node is known or the time is up."""
        try:
            with self._running("log", *DIFF, "--name-status", f"--format={COMMIT}%cs", "--", ".") as process:
                for commit in _commits(process):
                    ages.take(commit)
                    if ages.known:
                        break
        except OSError:
            return

    @contextmanager
    def _running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run git until it ends, the caller has enough, or the time is up. Raises OSError where there is none."""
        git = shutil.which("git", path=self._environment.get("PATH"))
        if git is None:
            raise FileNotFoundError("git")
        command = [git, "--no-pager", *(part for setting in SETTINGS for part in ("-c", setting)), *arguments]
        process = subprocess.Popen(
            command,
            cwd=self._root,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        timer = threading.Timer(self._timeout, process.kill)
        timer.start()
        try:
            with process:
                yield process
                process.kill()
        finally:
            process.kill()
            timer.cancel()


class _Ages:
    """What is known of the age of nodes while commits are read, the latest first."""

    def __init__(self, nodes: Mapping[str, frozenset[str]], owner: Callable[[str], str | None]) -> None:
        self._owner = owner
        self._owners: dict[str, str | None] = {}
        self._pending = {folder: _Changes() for folder in nodes}
        self._folders = {file: folder for folder, files in nodes.items() for file in files}
        self._behind: dict[str, Behind] = {}

    @property
    def known(self) -> bool:
        """Whether no further commit can tell anything."""
        return not self._pending

    def take(self, commit: _Commit) -> None:
        """Take in the commit before those already taken in; a node that it changed is older than only those."""
        for status, path in commit.changed:
            folder = self._folders.get(path)
            changes = self._pending.pop(folder, None) if folder is not None else None
            # A node that was deleted, and is here all the same, was never committed again.
            if folder is not None and changes and changes.files and status != "D":
                self._behind[folder] = Behind(commit.date, changes.commits, tuple(sorted(changes.files)))
        touched = set()
        for _, path in commit.changed if self._pending else ():
            owner = None if name_of(path) in NODE_FILES else self._owner_of(parent_of(path))
            changes = self._pending.get(owner) if owner is not None else None
            if owner is not None and changes:
                changes.files.add(path)
                touched.add(owner)
        for folder in touched:
            self._pending[folder].commits += 1

    def behind(self) -> dict[str, Behind]:
        """Return what is known to be behind."""
        return self._behind

    def _owner_of(self, folder: str) -> str | None:
        if folder not in self._owners:
            skipped = not SKIPPED.isdisjoint(folder.split("/"))
            self._owners[folder] = None if skipped else self._owner(folder)
        return self._owners[folder]


def _blob_id(content: bytes, digits: int) -> str:
    """Return what git calls a file of this content."""
    blob = b"blob %d\0%b" % (len(content), content)
    return (hashlib.sha1(blob, usedforsecurity=False) if digits == SHA1_DIGITS else hashlib.sha256(blob)).hexdigest()


def _commits(process: subprocess.Popen[bytes]) -> Iterator[_Commit]:
    """Yield the commits that git prints; the last one only where git came to an end by itself."""
    commit: _Commit | None = None
    fields = _fields(process.stdout) if process.stdout else iter(())
    for written in fields:
        text = _decoded(written).lstrip("\n")
        if text.startswith(COMMIT):
            if commit:
                yield commit
            commit = _Commit(text.removeprefix(COMMIT))
        elif text and commit:
            commit.changed.append((text, _decoded(next(fields, b""))))
    if commit and process.wait() == 0:
        yield commit


def _fields(output: IO[bytes]) -> Iterator[bytes]:
    """Yield what stands between the NULs of an output."""
    rest = b""
    while chunk := output.read(CHUNK_BYTES):
        *fields, rest = (rest + chunk).split(b"\0")
        yield from fields
    if rest:
        yield rest


def _decoded(path: bytes) -> str:
    return path.decode(errors="replace")
