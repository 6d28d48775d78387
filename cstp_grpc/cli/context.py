"""The `cstp context` commands: resolve, list, validate, place and create nodes.

Agents resolve paths before each edit, so what only the other commands need is imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import parse_key_value, with_output
from cstp_grpc.cli.output import Output, to_printable
from cstp_grpc.cli.project_folder import EXIT_NOT_APPLIED, ProjectCommandGroup, ProjectFolder, utc_now, with_project
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.enums import NodeRule, RuleSeverity
from cstp_grpc.modules.intent_layer.context_resolution import resolve_context
from cstp_grpc.modules.intent_layer.learning_store import LearningStore
from cstp_grpc.modules.intent_layer.model import ROOT, ContextRequest, PendingReports

if TYPE_CHECKING:
    from cstp_grpc.modules.intent_layer import servicer
else:
    # Only --json needs it.
    servicer = LazyModule("cstp_grpc.modules.intent_layer.servicer")


def parse_names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (value or "").split(",") if name.strip())


def parse_severity(text: str) -> tuple[NodeRule, RuleSeverity]:
    """Parse `rule=severity`. Raises click.BadParameter."""
    name, severity = parse_key_value(text)
    try:
        return NodeRule(name), RuleSeverity(severity)
    except ValueError:
        rules, severities = ", ".join(NodeRule), ", ".join(RuleSeverity)
        raise click.BadParameter(f"{text!r} is not one of {rules} with one of {severities}") from None


@click.group(cls=ProjectCommandGroup)
def context_group() -> None:
    """Read and check AGENTS.md files. They contain the rules for a path; CLAUDE.md files count, too.

    These commands work on a project's folder and need no server. The project is the git work tree around the current
    folder, or the current folder outside git; paths are relative to the current folder. With --project it is that
    folder, and paths are relative to it.
    """


@context_group.command(name="resolve")
@click.argument("path")
@click.option(
    "--sections",
    callback=parse_names,
    metavar="A,B",
    help="Only these sections, in this order; headings of level 3 count too.",
)
@click.option("--compact", is_flag=True, help="Leave out the title and the source files.")
@click.option(
    "--with-pending", is_flag=True, help="Add the learnings about it and its contents that are not reviewed yet."
)
@click.option("--max-tokens", type=click.IntRange(50, 1_000_000), metavar="N", help="Omit the least important parts.")
@with_output
@with_project
def resolve_command(
    out: Output,
    project: ProjectFolder,
    path: str,
    sections: tuple[str, ...],
    compact: bool,
    with_pending: bool,
    max_tokens: int | None,
) -> None:
    """Print the rules for a path, as Markdown. PATH is a file or folder that need not exist yet.

    Exit code 0 is success, 2 that no node covers PATH, 1 an error.

    \b
    Examples:
      cstp context resolve src/api/handlers.ts
      cstp context resolve src/api --sections Contracts,Pitfalls,Checks --compact
      cstp context resolve src/api --with-pending --max-tokens 2000
    """
    located = project.tree.locate(project.path(path))
    pending = LearningStore(project.tree, utc_now).pending_for_paths(located) if with_pending else PendingReports()
    resolution = resolve_context(
        project.tree, ContextRequest(located, sections, compact, with_pending, max_tokens), pending
    )
    if out.json_wanted:
        out.message(servicer.RESOLUTION.encode(resolution))
    else:
        # Unchanged for the agents that read it: no wrapping, and no replaced characters but on a terminal.
        out.write_verbatim(resolution.markdown)
        if resolution.left_out:
            named = ", ".join(f"{left.section} ({left.file})" for left in resolution.left_out)
            out.note(to_printable(f"Left out to keep within {max_tokens} tokens: {named}."))
    # After the output: with --json the empty answer is an answer too, and the exit code tells the rest.
    if not resolution.nodes:
        if not out.json_wanted:
            out.note(f"No node covers {to_printable(path)}. `cstp context init` starts one in the current folder.")
        click.get_current_context().exit(EXIT_NOT_APPLIED)


@context_group.command(name="list")
@with_output
@with_project
def list_command(out: Output, project: ProjectFolder) -> None:
    """List the nodes of the project. Shows the size and the sections of each.

    \b
    Example:
      cstp context list
    """
    from cstp_grpc.cli.node_validation import node_table
    from cstp_grpc.modules.intent_layer.model import Node
    from cstp_grpc.modules.intent_layer.project_service import with_parents
    from cstp_grpc.modules.intent_layer.project_tree import UnreadableFolder

    found = list(project.tree.walk())
    nodes = list(with_parents(each for each in found if isinstance(each, Node)))
    if out.json_wanted:
        out.message(servicer.nodes_message(nodes))
    elif nodes:
        out.show(lambda console: console.print(node_table(nodes)))
    else:
        out.line("There are no nodes. `cstp context init` starts one in the current folder.")
    for each in found:
        if isinstance(each, UnreadableFolder):
            out.note(f"{to_printable(each.folder)}: {to_printable(each.error.message)}")


@context_group.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--strict", is_flag=True, help="Fail on warnings too.")
@click.option("--without-history", is_flag=True, help="Do not ask git which nodes are older than their code.")
@click.option("--staged", is_flag=True, help="Check the contents of the next commit, and what it breaks.")
@click.option(
    "--rule",
    "severities",
    type=parse_severity,
    multiple=True,
    metavar="NAME=SEVERITY",
    help="Severity of a rule: error, warning or off; repeatable.",
)
@with_output
@with_project
def validate_command(
    out: Output,
    project: ProjectFolder,
    paths: tuple[str, ...],
    strict: bool,
    without_history: bool,
    staged: bool,
    severities: tuple[tuple[NodeRule, RuleSeverity], ...],
) -> None:
    """Check nodes against the protocol. Checks those at PATH and below, or the node that covers a file.
    [default: all]

    Each finding is a line, `file:line: severity rule: message`. Exit code 1 means that there are errors, or with
    --strict any findings. The project's .intent-layer/config.yaml sets the severities of rules; --rule
    overrides it.

    \b
    Examples:
      cstp context validate
      cstp context validate src/api --strict
      cstp context validate --rule missing-section=warning --rule stale=off
      cstp context validate --staged
    """
    from cstp_grpc.cli.node_validation import finding_line, summary_line, validate_project, validate_staged

    if staged and paths:
        raise click.UsageError("--staged checks the staged files; leave the paths out.")
    by_rule = dict(severities)
    if staged:
        judged = validate_staged(project.root, by_rule)
    else:
        judged = validate_project(project, paths, by_rule, with_history=not without_history)
    if out.json_wanted:
        out.message(servicer.REPORT.encode(judged))
    for each in judged.findings:
        out.line(finding_line(each))
    out.line(summary_line(judged))
    if not judged.valid or (strict and judged.findings):
        click.get_current_context().exit(1)


@context_group.command(name="place")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@with_output
@with_project
def place_command(out: Output, project: ProjectFolder, paths: tuple[str, ...]) -> None:
    """Print the node that a fact belongs in. It is the node of the deepest folder that contains all paths.

    A path may be a pattern like `src/api/*`, in quotes, and need not exist yet.

    \b
    Example:
      cstp context place payments/charge.py billing/invoice.py
    """
    from cstp_grpc.cli.node_validation import missing_node_hint
    from cstp_grpc.modules.intent_layer.learning_merge import place_fact

    placement = place_fact(project.tree, project.paths(paths))
    if out.json_wanted:
        out.message(servicer.PLACEMENT.encode(placement))
        return
    out.line(to_printable(placement.file))
    if not placement.exists:
        out.note(to_printable(missing_node_hint(placement)))


@context_group.command()
@click.argument("path", default=ROOT)
@click.option("--dry-run", is_flag=True, help="Print the node without writing it.")
@with_output
@with_project
def init_command(out: Output, project: ProjectFolder, path: str, dry_run: bool) -> None:
    """Start a node for a folder. Describes the files at PATH. [default: the current folder]

    If the node exists, it stays unchanged and the command fails.

    \b
    Examples:
      cstp context init src/api --dry-run
      cstp context init src/api
    """
    from cstp_grpc.modules.intent_layer.node_skeleton import create_node, node_skeleton

    folder = project.path(path)
    made = node_skeleton(project.tree, folder) if dry_run else create_node(project.tree, folder)
    if out.json_wanted:
        out.message(servicer.SKELETON.encode(made))
    elif dry_run:
        out.write_verbatim(made.content)
    else:
        out.line(to_printable(f"Wrote {made.file}. Complete its sections, then: cstp context validate"))
