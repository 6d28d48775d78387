"""Validation of a project's nodes, in the work tree or as staged for the next commit, and its output.

For the next commit, the index of git is written to a temporary folder: nodes and symbolic links as they are, every
other file empty, since only its existence matters. Unstaged changes are ignored. Git runs in the current folder,
because the variables that it gives to hooks are relative to it.
"""

from __future__ import annotations

import os
import posixpath
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

import click

from cstp_grpc.cli.console import Text, TextTable
from cstp_grpc.cli.output import to_printable
from cstp_grpc.cli.project_folder import ProjectFolder
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.git_command import INHERITED_VARIABLES, git_command
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.modules.intent_layer.model import FactPlacement, FindingSeverity, ValidationFinding
from cstp_grpc.modules.intent_layer.node_imports import IMPORTABLE_SUFFIXES, MAX_DEPTH, find_imports
from cstp_grpc.modules.intent_layer.node_staleness import GitHistory
from cstp_grpc.modules.intent_layer.project_files import IgnoredFolders, name_of
from cstp_grpc.modules.intent_layer.project_service import ListedNode, ValidationReport
from cstp_grpc.modules.intent_layer.project_tree import NODE_FILES, ProjectTree
from cstp_grpc.modules.intent_layer.validation import select_nodes, validate_selected
from cstp_grpc.modules.intent_layer.validation_rules import RULES_FILE, RuleSeverities
from cstp_grpc.platform.config import inherited_environment

SEVERITY_COLOURS = {FindingSeverity.ERROR: "red", FindingSeverity.WARNING: "yellow"}


def validate_project(
    project: ProjectFolder, paths: Sequence[str], severities: RuleSeverities, *, with_history: bool
) -> ValidationReport:
    """Validate the nodes that paths select, or all. Raises InvalidArgument for a path that is not there."""
    found = select_nodes(project.tree, project.existing_paths(paths))
    history = GitHistory(project.root, inherited_environment(INHERITED_VARIABLES)) if with_history else None
    return ValidationReport(validate_selected(project.tree, found, history, severities), len(found))


def node_table(nodes: Iterable[ListedNode]) -> TextTable:
    table = TextTable("file", "tokens", "sections")
    for each in nodes:
        for file in each.node.all_files:
            sections = ", ".join(section.name for section in file.sections)
            table.add_row(to_printable(file.path), f"{file.tokens:6}", Text(to_printable(sections), style="dim"))
    return table


def finding_line(finding: ValidationFinding) -> Text:
    text = Text(to_printable(f"{finding.file}:{finding.line}: "))
    text.append(finding.severity, style=SEVERITY_COLOURS[finding.severity])
    return text.append(to_printable(f" {finding.rule}: {finding.message}"))


def summary_line(judged: ValidationReport) -> str:
    errors = sum(finding.severity is FindingSeverity.ERROR for finding in judged.findings)
    warnings = len(judged.findings) - errors
    nodes = count_noun(judged.nodes, "node")
    if not judged.findings:
        return f"{nodes} checked, nothing found."
    return f"{nodes} checked: {count_noun(errors, 'error')}, {count_noun(warnings, 'warning')}."


def missing_node_hint(placement: FactPlacement) -> str:
    covering = f" {placement.covering} covers the folder now." if placement.covering else ""
    return f"It is not there yet.{covering} `cstp context init {placement.folder}` starts it."


LINK_MODE = "120000"
SUBMODULE_MODE = "160000"
MERGED_STAGE = "0"
"""The stage of a file that is not in conflict."""
HARMFUL_STATUSES = frozenset("DT")
"""The statuses of git that matter for any file: deleted (D), since a node may name it, or changed in type (T), such as
to a link.
"""


@dataclass(frozen=True, slots=True)
class _TrackedFile:
    """A tracked file; the path is relative to the project's root."""

    mode: str
    object_id: str
    path: PurePosixPath

    @property
    def counts(self) -> bool:
        """True if the file's content matters to validation."""
        return self.mode == LINK_MODE or self.path.name in NODE_FILES or str(self.path) == RULES_FILE


def validate_staged(root: Path, severities: RuleSeverities) -> ValidationReport:
    """Return the findings about the staged nodes, and those that the commit causes in other nodes.

    A finding about an unstaged node counts if the last commit did not have it. Nothing is validated if the commit can
    affect no node. Raises ClickException if git fails.
    """
    folder = _project_folder(root)
    fields = _git_fields("diff", "--cached", "--name-status", "--no-renames", "-z")
    named = zip(fields[::2], fields[1::2], strict=True)
    changed = {str(path): status for status, name in named for path in _paths_below(folder, [name])}
    if not any(
        status in HARMFUL_STATUSES
        or name_of(path) in NODE_FILES
        or path == RULES_FILE
        or path.lower().endswith(IMPORTABLE_SUFFIXES)
        for path, status in changed.items()
    ):
        return ValidationReport((), 0)
    nodes, findings = _validate_entries(_staged_entries(folder), severities)
    known = {_finding_key(each) for each in findings if each.file not in changed}
    # The last commit is looked at only if there are findings that it may have had.
    if known:
        known &= {_finding_key(each) for each in _validate_entries(_committed_entries(folder), severities)[1]}
    return ValidationReport(
        tuple(each for each in findings if each.file in changed or _finding_key(each) not in known), nodes
    )


def _finding_key(finding: ValidationFinding) -> tuple[str, str, str]:
    """Return the identity of a finding, independent of its line."""
    return finding.rule, finding.file, finding.message


def _validate_entries(
    entries: Sequence[_TrackedFile], severities: RuleSeverities
) -> tuple[int, tuple[ValidationFinding, ...]]:
    """Return the number of nodes among tracked files, and their findings."""
    # Only what validation reads: a repository may have gigabytes of other files.
    contents = dict(_read_objects([entry.object_id for entry in entries if entry.counts]))
    with tempfile.TemporaryDirectory(prefix="cstp-staged-") as folder:
        contents.update(_read_imported(entries, contents))
        _write_entries(entries, contents, Path(folder))
        # Git tracks all of it, and so ignores none.
        tree = ProjectTree(Path(folder), read_ignored=lambda _: IgnoredFolders(frozenset()))
        found = select_nodes(tree)
        return len(found), validate_selected(tree, found, None, severities)


def _read_imported(entries: Sequence[_TrackedFile], contents: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the content of the files that nodes import, by object id."""
    by_path = {str(entry.path): entry for entry in entries if entry.mode not in (LINK_MODE, SUBMODULE_MODE)}
    found: dict[str, bytes] = {}
    looked_at = [entry for entry in by_path.values() if entry.path.name in NODE_FILES]
    # Level by level, as the resolution of imports goes: one call of git reads all files of a level.
    for _ in range(MAX_DEPTH):
        targets = {
            # Git's paths have slashes, whatever the system's separator is.
            posixpath.normpath(entry.path.parent / each.path)
            for entry in looked_at
            for each in find_imports({**contents, **found}[entry.object_id].decode(errors="replace"))
        }
        looked_at = [by_path[path] for path in sorted(targets & by_path.keys())]
        looked_at = [entry for entry in looked_at if entry.object_id not in found and entry.object_id not in contents]
        found.update(_read_objects([entry.object_id for entry in looked_at]) if looked_at else ())
    return found


def _write_entries(entries: Sequence[_TrackedFile], contents: Mapping[str, bytes], folder: Path) -> None:
    """Write tracked files below a folder; symbolic links last, so that nothing is written through one."""
    folders = {folder / (entry.path if entry.mode == SUBMODULE_MODE else entry.path.parent) for entry in entries}
    for each in sorted(folders):
        each.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        if entry.mode not in (LINK_MODE, SUBMODULE_MODE):
            (folder / entry.path).write_bytes(contents.get(entry.object_id, b""))
    for entry in entries:
        if entry.mode == LINK_MODE:
            # Some file systems take two names of git for the same; nothing that exists is written over.
            with suppress(FileExistsError):
                (folder / entry.path).symlink_to(os.fsdecode(contents[entry.object_id]))


def _staged_entries(folder: PurePosixPath) -> list[_TrackedFile]:
    for_paths = _listed_entries(folder, "ls-files", "--stage", "--full-name", "-z", "--", ":/")
    return [
        _TrackedFile(mode, object_id, path) for (mode, object_id, stage), path in for_paths if stage == MERGED_STAGE
    ]


def _committed_entries(folder: PurePosixPath) -> list[_TrackedFile]:
    if _run_git("rev-parse", "--verify", "--quiet", "HEAD").returncode:
        return []
    for_paths = _listed_entries(folder, "ls-tree", "-r", "--full-tree", "-z", "HEAD")
    return [_TrackedFile(mode, object_id, path) for (mode, _, object_id), path in for_paths]


def _listed_entries(folder: PurePosixPath, *command: str) -> Iterator[tuple[list[str], PurePosixPath]]:
    """Yield three facts about each tracked file, in the order of the command, and its path."""
    for about, _, name in (each.partition("\t") for each in _git_fields(*command)):
        yield from ((about.split(), path) for path in _paths_below(folder, [name]))


def _read_objects(object_ids: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    answer = _git_output("cat-file", "--batch", feed="".join(f"{each}\n" for each in object_ids).encode())
    start = 0
    for object_id in object_ids:
        line_end = answer.index(b"\n", start)
        size = int(answer[start:line_end].split()[2])
        yield object_id, answer[line_end + 1 : line_end + 1 + size]
        # A line feed follows the header, and another one the content.
        start = line_end + size + 2


def _project_folder(root: Path) -> PurePosixPath:
    top = Path(os.fsdecode(_git_output("rev-parse", "--show-toplevel").removesuffix(b"\n")))
    try:
        return PurePosixPath(root.resolve().relative_to(top.resolve()))
    except ValueError:
        raise click.ClickException(f"{root} is not in the work tree of git around the current folder") from None


def _paths_below(folder: PurePosixPath, names: Sequence[str]) -> Iterator[PurePosixPath]:
    paths = (PurePosixPath(name) for name in names)
    return (path.relative_to(folder) for path in paths if path.is_relative_to(folder))


def _git_fields(*arguments: str) -> list[str]:
    return [os.fsdecode(each) for each in _git_output(*arguments).split(b"\0") if each]


def _git_output(*arguments: str, feed: bytes = b"") -> bytes:
    answer = _run_git(*arguments, feed=feed)
    if answer.returncode:
        reason = answer.stderr.decode(errors="replace").strip()
        raise click.ClickException(f"git cannot list the staged files: {reason}")
    return answer.stdout


def _run_git(*arguments: str, feed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        command = git_command(*arguments)
    except FileNotFoundError:
        raise click.ClickException("there is no git") from None
    return subprocess.run(command, input=feed, capture_output=True, check=False)
