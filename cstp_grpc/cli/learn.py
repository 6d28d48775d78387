"""The `cstp learn` commands: report, list and review learnings.

Agents report while they work, so what only reviewers need is imported where it is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from cstp_grpc.cli.command_decorators import enum_choice, with_output
from cstp_grpc.cli.output import Output, to_printable
from cstp_grpc.cli.project_folder import (
    ProjectCommandGroup,
    ProjectFolder,
    current_user,
    open_project,
    utc_now,
    with_project,
)
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.modules.intent_layer import learning_store
from cstp_grpc.modules.intent_layer.model import (
    LearningEdits,
    LearningState,
    LearningType,
    NewLearning,
    ReviewVerdict,
    UnreadableReportFile,
)
from cstp_grpc.modules.intent_layer.report_format import UNKNOWN_AGENT

STANDARD_INPUT = "-"
UTF8_BYTES = 4
"""Maximum bytes of a character in UTF-8, RFC 3629, section 3."""
PERCENT = 100


def to_fraction(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    return value / PERCENT if value is not None and value > 1 else value


@click.group(cls=ProjectCommandGroup)
def learn_group() -> None:
    """Report and review learnings.

    These commands work on a project's folder and need no server. The project is the git work tree around the current
    folder, or the current folder outside git; paths are relative to the current folder. With --project it is that
    folder, and paths are relative to it.
    """


@learn_group.command()
@click.option("--path", "paths", multiple=True, required=True, help="A file or folder that it is about; repeatable.")
@click.option("--type", "type_", type=enum_choice(LearningType), required=True, help="The kind of learning.")
@click.option("--title", required=True, help="Title, in one line.")
@click.option("--detail", required=True, help="Full text; - reads it from standard input.")
@click.option("--evidence", help="The evidence: output, a commit, a link.")
@click.option("--agent-id", default=UNKNOWN_AGENT, metavar="NAME", help="Who learned it.")
@click.option("--operation", help="The task during which it was learned, in one line.")
@with_output
@with_project
def report_command(
    out: Output,
    project: ProjectFolder,
    paths: tuple[str, ...],
    type_: str,
    title: str,
    detail: str,
    evidence: str | None,
    agent_id: str,
    operation: str | None,
) -> None:
    """Report a learning for review. It is a pitfall, a check to make, a better pattern, or an insight. Nodes stay
    as they are.

    \b
    Examples:
      cstp learn report --path src/api/handlers.ts --type pitfall --title "Arrow functions in API module" \
          --detail "All handlers use arrow syntax, not function declarations" --agent-id swarm-worker-3
      git log -1 --format=%B | cstp learn report --path src --type insight --title "Why src is flat" --detail -
    """
    new = NewLearning(
        type=LearningType(type_),
        paths=project.paths(paths),
        title=title,
        detail=read_input() if detail == STANDARD_INPUT else detail,
        agent_id=agent_id,
        evidence=evidence,
        operation=operation,
    )
    filed = learning_store.LearningStore(project.tree, utc_now).file(new)
    if out.json_wanted:
        from cstp_grpc.modules.intent_layer import servicer

        out.message(servicer.report_message(filed))
        return
    out.line(to_printable(f"Learning report created: {filed.type}: {filed.title}"))
    out.line(f"  id      {filed.id}")
    out.line(f"  report  {to_printable(str(project.root / filed.file))}")
    out.line(f"  review  cstp learn review {filed.id}")


@learn_group.command(name="list")
@click.option("--state", "states", type=enum_choice(LearningState), multiple=True, help="In this state; repeatable.")
@click.option("--type", "types", type=enum_choice(LearningType), multiple=True, help="Of this kind; repeatable.")
@click.option("--path", help="About this file or folder, or something in it.")
@with_output
@with_project
def list_command(
    out: Output, project: ProjectFolder, states: tuple[str, ...], types: tuple[str, ...], path: str | None
) -> None:
    """List learnings, latest first.

    \b
    Examples:
      cstp learn list --state pending
      cstp learn list --type pitfall --path src/api
    """
    from cstp_grpc.cli.review_learnings import iter_learnings, learning_details, learning_headline

    query = learning_store.LearningQuery(
        frozenset(map(LearningState, states)),
        frozenset(map(LearningType, types)),
        None if path is None else project.path(path),
    )
    unreadable: list[UnreadableReportFile] = []
    found = list(iter_learnings(learning_store.LearningStore(project.tree, utc_now), query, out, unreadable))
    if out.json_wanted:
        from cstp_grpc.modules.intent_layer import servicer

        out.message(servicer.learnings_message(found, unreadable))
    for each in found:
        out.line(learning_headline(each))
        out.line(learning_details(each))
    if not found:
        out.line("No matching learnings.")


@learn_group.command()
@click.argument("named", nargs=-1, metavar="[ID|FILE]...")
@click.option("--all", "everything", is_flag=True, help="All that is pending.")
@click.option("--accept", is_flag=True, help="Merge it into the node that covers its paths.")
@click.option("--reject", is_flag=True, help="Put it away.")
@click.option("--defer", is_flag=True, help="Leave it pending, and say so in the report.")
@click.option("--reason", default="", help="Why.")
@click.option("--reviewer", metavar="NAME", help="Reviewer. [default: you]")
@click.option("--title", help="Merge it with this title.")
@click.option("--detail", help="Merge it with this text; - reads it from standard input.")
@click.option("--section", metavar="NAME", help="Merge it into this section, not the one of its kind.")
@click.option("--edit", is_flag=True, help="Edit title, section and text in $EDITOR before they are merged.")
@click.option("--force", is_flag=True, help="Merge it even if the node likely contains it.")
@click.option("--reject-duplicates", is_flag=True, help="Reject duplicates of learnings that are accepted with them.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, PERCENT),
    callback=to_fraction,
    metavar="N",
    help="Overlap of words that makes a likely duplicate, 0 to 1 or in percent. [default: 0.6]",
)
@click.option("--dry-run", is_flag=True, help="Show the changes without making them.")
@click.option("--check-only", is_flag=True, help="Only look for likely duplicates.")
@with_output
@with_project
def review_command(
    out: Output,
    project: ProjectFolder,
    named: tuple[str, ...],
    reason: str,
    reviewer: str | None,
    title: str | None,
    detail: str | None,
    section: str | None,
    threshold: float | None,
    **flags: bool,
) -> None:
    """Accept, reject or defer a learning. It is named by its id or by the file of its report.

    On a terminal and without a verdict it shows the pending learnings one by one, with the change that accepting would
    make, and asks; likely duplicates are shown together. You may review several at once: a failure of one does not stop
    the others, and of likely duplicates only the first is accepted. Exit code 0 is success, 2 that a node or another
    learning is likely a duplicate and --force was not given, 1 an error.

    \b
    Examples:
      cstp learn review
      cstp learn review PITFALL-2026-02-06-a1b2c3d4e5f60718-4567 --accept --reason "Seen twice"
      cstp learn review PITFALL-2026-02-06-a1b2c3d4e5f60718-4567 --accept --edit
      cstp learn review --all --accept --reject-duplicates --dry-run
      cstp learn review .intent-layer/mistakes/pending/CHECK-2026-02-06-0f3a9b2c4d5e6f70-4567.md --accept --dry-run
    """
    from cstp_grpc.cli.review_learnings import ReviewOptions, review_learnings
    from cstp_grpc.modules.intent_layer.duplicate_search import WORD_OVERLAP_THRESHOLD

    project, ids = resolve_named_learnings(project, named)
    verdict = chosen_verdict(flags)
    edits = LearningEdits(title, read_input() if detail == STANDARD_INPUT else detail, section)
    check_review_options(ids, verdict, edits, flags)
    if verdict is None:
        require_terminal(out)
    code = review_learnings(
        out,
        project,
        ids,
        verdict,
        ReviewOptions(
            reviewer or current_user(), reason, edits, flags["force"], flags["dry_run"] or flags["check_only"]
        ),
        WORD_OVERLAP_THRESHOLD if threshold is None else threshold,
        edit=flags["edit"],
        with_diff=flags["dry_run"] and not flags["check_only"],
        reject_duplicates=flags["reject_duplicates"],
    )
    click.get_current_context().exit(code)


def resolve_named_learnings(project: ProjectFolder, named: Sequence[str]) -> tuple[ProjectFolder, list[str]]:
    """Return the project and the identifiers of learnings, each once. Raises InvalidArgument and click.UsageError."""
    base, ids = project, []
    for each in named:
        if each.endswith(learning_store.REPORT_SUFFIX):
            other, identifier = parse_report_path(base, each)
            if len(named) > 1 and other.root.resolve() != base.root.resolve():
                raise click.UsageError(f"{each} is a report of another project; review those of one at a time.")
            project = other
            ids.append(identifier)
        else:
            ids.append(each)
    return project, list(dict.fromkeys(ids))


def check_review_options(
    ids: Sequence[str], verdict: ReviewVerdict | None, edits: LearningEdits, flags: Mapping[str, bool]
) -> None:
    """Raise click.UsageError for options that exclude each other."""
    if flags["everything"] and ids:
        raise click.UsageError("--all reviews every pending learning; leave the IDs out.")
    if verdict and not ids and not flags["everything"]:
        raise click.UsageError(
            f"Name the learning to {verdict}: its ID, which `cstp learn list` shows, the file of its report, or --all."
        )
    if (flags["edit"] or edits.title is not None or edits.detail is not None) and verdict is not ReviewVerdict.ACCEPT:
        raise click.UsageError("--title, --detail and --edit change the merged text; give --accept too.")
    if (edits.title is not None or edits.detail is not None) and len(ids) != 1:
        raise click.UsageError("--title and --detail are for one ID; --edit asks for each.")
    if flags["reject_duplicates"] and verdict is not ReviewVerdict.ACCEPT:
        raise click.UsageError("--reject-duplicates rejects duplicates of accepted learnings; give --accept too.")


def read_input() -> str:
    """Return standard input, read only as far as needed to see that it is too long."""
    # sys.stdin is None if the descriptor was closed before Python started.
    content = sys.stdin.buffer.read(UTF8_BYTES * learning_store.MAX_TEXT + 1) if sys.stdin else b""
    return content.decode(errors="surrogateescape").rstrip("\n")


def parse_report_path(project: ProjectFolder, written: str) -> tuple[ProjectFolder, str]:
    """Return the project and the learning's identifier for the path of a report. Raises InvalidArgument."""
    # Not resolve(): a report in a folder that is a link belongs to the project that has the link.
    file = Path(os.path.abspath(project.base / written))  # noqa: PTH100
    # ROOT/.intent-layer/mistakes/STATE/ID.md
    root = file.parents[3] if len(file.parents) > 3 else file.parent
    if file.parent.parent != root / learning_store.REPORTS_FOLDER:
        raise InvalidArgument.field(
            "id", f"{written} is not a report: reports are in {learning_store.REPORTS_FOLDER}/{LearningState.PENDING}"
        )
    return open_project(root), file.name.removesuffix(learning_store.REPORT_SUFFIX)


def chosen_verdict(flags: Mapping[str, bool]) -> ReviewVerdict | None:
    """Return the verdict given, or None. Raises click.UsageError for several."""
    given = [verdict for verdict in (ReviewVerdict.ACCEPT, ReviewVerdict.REJECT, ReviewVerdict.DEFER) if flags[verdict]]
    if len(given) > 1:
        raise click.UsageError(f"--{given[0]} and --{given[1]} exclude each other.")
    return given[0] if given else None


def require_terminal(out: Output) -> None:
    """Raise click.UsageError without a terminal to prompt on."""
    if out.json_wanted or not (sys.stdin and sys.stdin.isatty() and out.console.is_terminal):
        raise click.UsageError("No terminal to prompt on: give an ID or --all, and --accept, --reject or --defer.")
