"""Stale nodes by git history; a node with an uncertain history is not reported."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from cstp_grpc.common.git_command import DIFF_OPTIONS, start_git
from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.modules.intent_layer.model import ROOT
from cstp_grpc.modules.intent_layer.project_files import GIT_TIMEOUT_SECONDS, NAMES_WITHOUT_GIT, name_of, parent_of
from cstp_grpc.modules.intent_layer.project_tree import MAX_FILE_BYTES, NODE_FILES

COMMIT_MARKER = "\x1e"
"""Starts a commit in the log: the ASCII record separator, since the status of a file starts with a letter."""
CHUNK_BYTES = 65_536
LINK_MODE = "120000"
"""The mode of symbolic links in git's trees."""
SHA1_DIGITS = 40
"""Hex digits of an object id; repositories with SHA-256 have 64."""
PLAIN_NAME = re.compile(r"[\w. -]+")
"""Names without characters that are special in git's pathspecs."""
LOG_DIFF_OPTIONS = (*DIFF_OPTIONS, "--no-renames", "--ignore-submodules", "--relative")


@dataclass(frozen=True, slots=True)
class StaleNode:
    """Commits in a node's folder after the node's last change.

    `since` is the date of that change, `commits` their number, `files` the changed files, sorted.
    """

    since: str
    commits: int
    files: tuple[str, ...]


@dataclass(slots=True)
class _GitCommit:
    date: str
    changed: list[tuple[str, str]] = field(default_factory=list)
    """The status of each file and its path."""


@dataclass(slots=True)
class _LaterChanges:
    files: set[str] = field(default_factory=set)
    commits: int = 0


class GitHistory:
    """The history of a project that is, or lies in, a git work tree.

    Without git, outside a work tree and in a shallow clone there is no history. Only git is started, and it prompts for
    nothing, fetches nothing and writes nothing.
    """

    def __init__(self, root: Path, environment: Mapping[str, str], timeout: float = GIT_TIMEOUT_SECONDS) -> None:
        """Set the project's folder, the environment for `start_git`, and the time limit of a call in seconds."""
        self._root = root
        self._environment = environment
        self._timeout = timeout

    def stale_nodes(
        self, nodes: Mapping[str, frozenset[str]], owner: Callable[[str], str | None]
    ) -> dict[str, StaleNode]:
        """Return the nodes that are older than the files they cover, by their folders.

        `nodes` gives the files of each node by its folder; `owner` returns the folder of the node that covers a folder.
        A node that was changed since, or was never committed, is not stale. One pass over the log serves all nodes.
        """
        if not nodes or not self._has_history():
            return {}
        names = {name_of(file) for files in nodes.values() for file in files}
        uncommitted = self._uncommitted_files(names)
        if uncommitted is None:
            return {}
        ages = _StalenessScan(
            {folder: files for folder, files in nodes.items() if files.isdisjoint(uncommitted)}, owner
        )
        self._read_log(ages)
        return ages.stale_nodes()

    def _has_history(self) -> bool:
        # A shallow clone would show the commit at its edge as the last change of everything.
        answer = self._run_git("rev-parse", "--is-inside-work-tree", "--is-shallow-repository", "--verify", "HEAD")
        return answer is not None and answer.split()[:2] == [b"true", b"false"]

    def _uncommitted_files(self, names: Iterable[str]) -> set[str] | None:
        """Return the files of these names that differ from HEAD, or None if git fails."""
        # By name and filtered afterwards: a command line could not hold the paths of all nodes.
        patterns = [f":(glob)**/{name}" for name in sorted(names) if PLAIN_NAME.fullmatch(name)]
        answer = self._run_git("diff-index", *LOG_DIFF_OPTIONS, "--raw", "--no-abbrev", "HEAD", "--", *patterns)
        if answer is None:
            return None
        fields = iter(answer.split(b"\0"))
        return {
            _decode_path(path) for entry, path in zip(fields, fields, strict=False) if not self._is_same(entry, path)
        }

    def _is_same(self, entry: bytes, path: bytes) -> bool:
        """Return whether a file has its committed content, by its hash.

        Git is not asked for this, because it would start the filters that a repository configures for its files.
        """
        was_mode, _, committed = _decode_path(entry).lstrip(":").split(" ")[:3]
        file = self._root / os.fsdecode(path)
        try:
            if was_mode == LINK_MODE:
                return _blob_id(os.fsencode(file.readlink()), len(committed)) == committed
            if file.is_symlink() or file.stat().st_size > MAX_FILE_BYTES:
                return False
            return _blob_id(file.read_bytes(), len(committed)) == committed
        except OSError:
            return False

    def _run_git(self, *arguments: str) -> bytes | None:
        """Return the output of git, or None if it fails or exceeds the time limit."""
        try:
            with self._start_git(*arguments) as process:
                output = process.communicate()[0]
        except OSError:
            return None
        return output if process.returncode == 0 else None

    def _read_log(self, ages: _StalenessScan) -> None:
        """Read commits, latest first, until the scan is complete or the time is up."""
        try:
            with self._start_git(
                "log", *LOG_DIFF_OPTIONS, "--name-status", f"--format={COMMIT_MARKER}%cs", "--", "."
            ) as process:
                for commit in _parse_commits(process):
                    ages.add_commit(commit)
                    if ages.is_complete:
                        break
        except OSError:
            return

    def _start_git(self, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return start_git(*arguments, folder=self._root, environment=self._environment, seconds=self._timeout)


class _StalenessScan:
    """The staleness of nodes, computed while commits are read, latest first."""

    def __init__(self, nodes: Mapping[str, frozenset[str]], owner: Callable[[str], str | None]) -> None:
        self._owner = owner
        self._owners: dict[str, str | None] = {}
        self._pending = {folder: _LaterChanges() for folder in nodes}
        self._folders = {file: folder for folder, files in nodes.items() for file in files}
        self._behind: dict[str, StaleNode] = {}

    @property
    def is_complete(self) -> bool:
        """Whether no further commit can change the result."""
        return not self._pending

    def add_commit(self, commit: _GitCommit) -> None:
        """Add a commit; commits are added from the latest to the earliest."""
        for status, path in commit.changed:
            folder = self._folders.get(path)
            # The first commit seen that changes a node is its last change: nothing earlier matters to it.
            changes = self._pending.pop(folder, None) if folder is not None else None
            # A node that the history deleted but that exists was not committed since, and has no last change.
            if folder is not None and changes and changes.files and status != "D":
                self._behind[folder] = StaleNode(commit.date, changes.commits, tuple(sorted(changes.files)))
        touched = set()
        for _, path in commit.changed if self._pending else ():
            # Nodes say nothing of other nodes: their changes make none stale.
            owner = None if name_of(path) in NODE_FILES else self._owner_of(parent_of(path))
            changes = self._pending.get(owner) if owner is not None else None
            if owner is not None and changes:
                changes.files.add(path)
                touched.add(owner)
        for folder in touched:
            self._pending[folder].commits += 1

    def stale_nodes(self) -> dict[str, StaleNode]:
        return self._behind

    def _owner_of(self, folder: str) -> str | None:
        if folder not in self._owners:
            owner = self._owner(folder)
            # Files that tools generate below a node do not make it stale; a node inside such a folder covers its files.
            below = folder.split("/")[0 if owner is None or owner == ROOT else owner.count("/") + 1 :]
            self._owners[folder] = owner if NAMES_WITHOUT_GIT.isdisjoint(below) else None
        return self._owners[folder]


def _blob_id(content: bytes, digits: int) -> str:
    # How git hashes the content of a file.
    blob = b"blob %d\0%b" % (len(content), content)
    return (hashlib.sha1(blob, usedforsecurity=False) if digits == SHA1_DIGITS else hashlib.sha256(blob)).hexdigest()


def _parse_commits(process: subprocess.Popen[bytes]) -> Iterator[_GitCommit]:
    """Parse the commits that git prints; the last one is yielded only if git succeeded."""
    commit: _GitCommit | None = None
    fields = _split_at_nul(process.stdout) if process.stdout else iter(())
    for written in fields:
        text = _decode_path(written).lstrip("\n")
        if text.startswith(COMMIT_MARKER):
            if commit:
                yield commit
            commit = _GitCommit(text.removeprefix(COMMIT_MARKER))
        elif text and commit:
            commit.changed.append((text, _decode_path(next(fields, b""))))
    # Git was killed, or failed, in the middle of it: its list of files may be cut off.
    if commit and process.wait() == 0:
        yield commit


def _split_at_nul(output: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while chunk := output.read(CHUNK_BYTES):
        *fields, rest = (rest + chunk).split(b"\0")
        yield from fields
    if rest:
        yield rest


def _decode_path(path: bytes) -> str:
    return path.decode(errors="replace")
