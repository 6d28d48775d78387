"""The nodes of a project, as the command line judges and shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from cstp_grpc.cli.listing import Listing
from cstp_grpc.cli.output import printable
from cstp_grpc.cli.project import Project
from cstp_grpc.config import inherited_environment
from cstp_grpc.intent_layer.git import INHERITED, GitHistory
from cstp_grpc.intent_layer.library import Judgement, ListedNode
from cstp_grpc.intent_layer.model import Finding, FindingSeverity, Placement
from cstp_grpc.intent_layer.rule_severities import Severities
from cstp_grpc.intent_layer.validation import judge, select

COLOURS = {FindingSeverity.ERROR: "red", FindingSeverity.WARNING: "yellow"}


def judge_project(project: Project, paths: Sequence[str], severities: Severities, *, with_history: bool) -> Judgement:
    """Return what is wrong with the nodes that paths stand for, or with all."""
    found = select(project.tree, project.paths(paths))
    history = GitHistory(project.root, inherited_environment(INHERITED)) if with_history else None
    return Judgement(judge(project.tree, found, history, severities), len(found))


def node_table(nodes: Iterable[ListedNode]) -> Listing:
    """Return a listing of nodes."""
    table = Listing("file", "tokens", "sections")
    for each in nodes:
        for file in each.node.all_files:
            sections = ", ".join(section.name for section in file.sections)
            table.add_row(printable(file.path), f"{file.tokens:6}", Text(printable(sections), style="dim"))
    return table


def finding_line(finding: Finding) -> Text:
    """Return a finding as compilers print theirs."""
    text = Text(printable(f"{finding.file}:{finding.line}: "))
    text.append(finding.severity, style=COLOURS[finding.severity])
    return text.append(printable(f" {finding.rule}: {finding.message}"))


def summed_up(judged: Judgement) -> str:
    """Return what was found in a line."""
    errors = sum(finding.severity is FindingSeverity.ERROR for finding in judged.findings)
    warnings = len(judged.findings) - errors
    nodes = counted(judged.nodes, "node")
    if not judged.findings:
        return f"{nodes} judged, nothing found."
    return f"{nodes} judged: {counted(errors, 'error')}, {counted(warnings, 'warning')}."


def counted(count: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def missing(placement: Placement) -> str:
    """Return what to do about a node that is not there yet."""
    covering = f" {placement.covering} covers the folder now." if placement.covering else ""
    return f"It is not there yet.{covering} `cstp context init {placement.folder}` begins it."
