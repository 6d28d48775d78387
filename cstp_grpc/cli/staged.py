"""The judgement of what the next commit will hold: the nodes as they are staged, among the files that are tracked.

What git has staged is laid out in a temporary folder: nodes and links as they are, every other file empty, since only
whether it is there counts. What is in the work tree and not staged is not looked at. Git is run in the current folder,
since what it tells hooks of its whereabouts is meant from there.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import click

from cstp_grpc.intent_layer.imports import ENDINGS, MAX_DEPTH, find_imports
from cstp_grpc.intent_layer.library import Judgement
from cstp_grpc.intent_layer.model import Finding
from cstp_grpc.intent_layer.paths import name_of
from cstp_grpc.intent_layer.rule_severities import Severities
from cstp_grpc.intent_layer.rules import RULES_FILE
from cstp_grpc.intent_layer.tree import NODE_FILES, Tree
from cstp_grpc.intent_layer.validation import judge, select

LINK = "120000"
SUBMODULE = "160000"
MERGED = "0"
"""The stage of a file that is not in conflict."""
HARMFUL = frozenset("DT")
"""What can be wrong for nodes where it happens to a file that belongs to none: it vanishes, or becomes a link."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tracked file, by its path from the project's root."""

    mode: str
    object_id: str
    path: PurePosixPath

    @property
    def counts(self) -> bool:
        """Whether its content counts."""
        return self.mode == LINK or self.path.name in NODE_FILES or str(self.path) == RULES_FILE


def judge_staged(root: Path, severities: Severities) -> Judgement:
    """Return what is wrong with the staged nodes, and what the commit breaks in others.

    A finding about a node that is not staged counts where it did not hold of the last commit. No node is judged where
    the commit can break none. Raises ClickException where git cannot tell what is staged.
    """
    folder = _folder(root)
    fields = _list("diff", "--cached", "--name-status", "--no-renames", "-z")
    named = zip(fields[::2], fields[1::2], strict=True)
    changed = {str(path): status for status, name in named for path in _below(folder, [name])}
    if not any(
        status in HARMFUL or name_of(path) in NODE_FILES or path == RULES_FILE or path.lower().endswith(ENDINGS)
        for path, status in changed.items()
    ):
        return Judgement((), 0)
    nodes, findings = _judged(_staged(folder), severities)
    known = {_key(each) for each in findings if each.file not in changed}
    if known:
        known &= {_key(each) for each in _judged(_committed(folder), severities)[1]}
    return Judgement(tuple(each for each in findings if each.file in changed or _key(each) not in known), nodes)


def _key(finding: Finding) -> tuple[str, str, str]:
    """Return what stays the same of a finding when lines move."""
    return finding.rule, finding.file, finding.message


def _judged(entries: Sequence[_Entry], severities: Severities) -> tuple[int, tuple[Finding, ...]]:
    """Return how many nodes there are among tracked files, and what is wrong with them."""
    contents = dict(_contents([entry.object_id for entry in entries if entry.counts]))
    with tempfile.TemporaryDirectory(prefix="cstp-staged-") as folder:
        contents.update(_imported(entries, contents))
        _lay_out(entries, contents, Path(folder))
        tree = Tree(Path(folder))
        found = select(tree)
        return len(found), judge(tree, found, None, severities)


def _imported(entries: Sequence[_Entry], contents: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the files that nodes import, by their objects."""
    by_path = {str(entry.path): entry for entry in entries if entry.mode not in (LINK, SUBMODULE)}
    found: dict[str, bytes] = {}
    looked_at = [entry for entry in by_path.values() if entry.path.name in NODE_FILES]
    for _ in range(MAX_DEPTH):
        targets = {
            posixpath.normpath(entry.path.parent / each.path)
            for entry in looked_at
            for each in find_imports({**contents, **found}[entry.object_id].decode(errors="replace"))
        }
        looked_at = [by_path[path] for path in sorted(targets & by_path.keys())]
        looked_at = [entry for entry in looked_at if entry.object_id not in found and entry.object_id not in contents]
        found.update(_contents([entry.object_id for entry in looked_at]) if looked_at else ())
    return found


def _lay_out(entries: Sequence[_Entry], contents: Mapping[str, bytes], folder: Path) -> None:
    """Write tracked files below a folder; links last, so that nothing is written through one."""
    folders = {folder / (entry.path if entry.mode == SUBMODULE else entry.path.parent) for entry in entries}
    for each in sorted(folders):
        each.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        if entry.mode not in (LINK, SUBMODULE):
            (folder / entry.path).write_bytes(contents.get(entry.object_id, b""))
    for entry in entries:
        if entry.mode == LINK:
            with suppress(FileExistsError):
                (folder / entry.path).symlink_to(os.fsdecode(contents[entry.object_id]))


def _staged(folder: PurePosixPath) -> list[_Entry]:
    listed = (each.partition("\t") for each in _list("ls-files", "--stage", "--full-name", "-z", "--", ":/"))
    return [
        _Entry(mode, object_id, path)
        for about, _, name in listed
        for mode, object_id, stage in [about.split()]
        for path in _below(folder, [name])
        if stage == MERGED
    ]


def _committed(folder: PurePosixPath) -> list[_Entry]:
    if _run("rev-parse", "--verify", "--quiet", "HEAD").returncode:
        return []
    listed = (each.partition("\t") for each in _list("ls-tree", "-r", "--full-tree", "-z", "HEAD"))
    return [
        _Entry(mode, object_id, path)
        for about, _, name in listed
        for mode, _, object_id in [about.split()]
        for path in _below(folder, [name])
    ]


def _contents(object_ids: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield objects with what they hold."""
    answer = _git("cat-file", "--batch", feed="".join(f"{each}\n" for each in object_ids).encode())
    start = 0
    for object_id in object_ids:
        line_end = answer.index(b"\n", start)
        size = int(answer[start:line_end].split()[2])
        yield object_id, answer[line_end + 1 : line_end + 1 + size]
        start = line_end + size + 2


def _folder(root: Path) -> PurePosixPath:
    """Return where the project is in the work tree."""
    top = Path(os.fsdecode(_git("rev-parse", "--show-toplevel").removesuffix(b"\n")))
    try:
        return PurePosixPath(root.resolve().relative_to(top.resolve()))
    except ValueError:
        raise click.ClickException(f"{root} is not in the work tree of git around the current folder") from None


def _below(folder: PurePosixPath, names: Sequence[str]) -> Iterator[PurePosixPath]:
    """Yield the paths that lie in a folder, from there on."""
    paths = (PurePosixPath(name) for name in names)
    return (path.relative_to(folder) for path in paths if path.is_relative_to(folder))


def _list(*arguments: str) -> list[str]:
    return [os.fsdecode(each) for each in _git(*arguments).split(b"\0") if each]


def _git(*arguments: str, feed: bytes = b"") -> bytes:
    answer = _run(*arguments, feed=feed)
    if answer.returncode:
        reason = answer.stderr.decode(errors="replace").strip()
        raise click.ClickException(f"git cannot tell what is staged: {reason}")
    return answer.stdout


def _run(*arguments: str, feed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    git = shutil.which("git")
    if git is None:
        raise click.ClickException("there is no git")
    return subprocess.run([git, *arguments], input=feed, capture_output=True, check=False)
