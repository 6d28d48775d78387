"""What agents learned: reported, listed, reviewed.

Agents report while they are at work, so that what reviewers need is imported where it is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from cstp_grpc.cli.command import prints
from cstp_grpc.cli.options import words
from cstp_grpc.cli.output import Output, printable
from cstp_grpc.cli.project import OTHERWISE, Project, ProtocolGroup, in_project, now, opened, user
from cstp_grpc.errors import InvalidArgument
from cstp_grpc.intent_layer.model import (
    Edits,
    LearningState,
    LearningType,
    NewLearning,
    ReviewVerdict,
    UnreadableReportFile,
)
from cstp_grpc.intent_layer.pending import ENDING, MAX_TEXT, MISTAKES, LearningQuery, Learnings
from cstp_grpc.intent_layer.reports import UNKNOWN_AGENT

STANDARD_INPUT = "-"
UTF8_BYTES = 4
"""How many bytes a character has at the most."""
PERCENT = 100


def share(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Return a share, which may be given in percent."""
    return value / PERCENT if value is not None and value > 1 else value


@click.group(cls=ProtocolGroup)
def learn() -> None:
    """File what was learned at work, and review what was filed.

    These commands work on a project's folder and need no server. The project is the git work tree around the current
    folder, or the current folder where there is none; paths are meant from the current folder. With --project it is
    that folder, and paths are meant from there.
    """


@learn.command()
@click.option("--path", "paths", multiple=True, required=True, help="A file or folder that it is about; repeatable.")
@click.option("--type", "type_", type=words(LearningType), required=True, help="What kind of thing it is.")
@click.option("--title", required=True, help="In one line.")
@click.option("--detail", required=True, help="In full; - reads it from standard input.")
@click.option("--evidence", help="What shows it: output, a commit, a link.")
@click.option("--agent-id", default=UNKNOWN_AGENT, metavar="NAME", help="Who learned it.")
@click.option("--operation", help="What was being done, in one line.")
@prints
@in_project
def report(
    out: Output,
    project: Project,
    paths: tuple[str, ...],
    type_: str,
    title: str,
    detail: str,
    evidence: str | None,
    agent_id: str,
    operation: str | None,
) -> None:
    """File something for review: a pitfall, a check to make, a better pattern, or an insight. Nodes stay as they are.

    \b
    Examples:
      cstp learn report --path src/api/handlers.ts --type pitfall --title "Arrow functions in API module" \\
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
    filed = Learnings(project.tree, now).file(new)
    if out.json_wanted:
        from cstp_grpc.cli import answers

        out.message(answers.filed(filed))
        return
    out.line(printable(f"Learning report created: {filed.type}: {filed.title}"))
    out.line(f"  id      {filed.id}")
    out.line(f"  report  {printable(str(project.root / filed.file))}")
    out.line(f"  review  cstp learn review {filed.id}")


@learn.command(name="list")
@click.option("--state", "states", type=words(LearningState), multiple=True, help="In this state; repeatable.")
@click.option("--type", "types", type=words(LearningType), multiple=True, help="Of this kind; repeatable.")
@click.option("--path", help="About this file or folder, or something in it.")
@prints
@in_project
def list_command(
    out: Output, project: Project, states: tuple[str, ...], types: tuple[str, ...], path: str | None
) -> None:
    """List what was learned, latest first.

    \b
    Examples:
      cstp learn list --state pending
      cstp learn list --type pitfall --path src/api
    """
    from cstp_grpc.cli.reviewing import all_learnings, details, headline

    query = LearningQuery(
        frozenset(map(LearningState, states)),
        frozenset(map(LearningType, types)),
        None if path is None else project.path(path),
    )
    unreadable: list[UnreadableReportFile] = []
    found = list(all_learnings(Learnings(project.tree, now), query, out, unreadable))
    if out.json_wanted:
        from cstp_grpc.cli import answers

        out.message(answers.learnings(found, unreadable))
    for each in found:
        out.line(headline(each))
        out.line(details(each))
    if not found:
        out.line("There are no such learnings.")


@learn.command()
@click.argument("named", nargs=-1, metavar="[ID|FILE]...")
@click.option("--all", "everything", is_flag=True, help="All that is pending.")
@click.option("--accept", is_flag=True, help="Merge it into the node that covers its paths.")
@click.option("--reject", is_flag=True, help="Put it away.")
@click.option("--defer", is_flag=True, help="Leave it pending, and say so in the report.")
@click.option("--reason", default="", help="Why.")
@click.option("--reviewer", metavar="NAME", help="Who reviews; whoever runs the command when absent.")
@click.option("--title", help="Merge it with this title.")
@click.option("--detail", help="Merge it with this text; - reads it from standard input.")
@click.option("--section", metavar="NAME", help="Merge it into this section, not the one of its kind.")
@click.option("--edit", is_flag=True, help="Edit title, section and text in $EDITOR before they are merged.")
@click.option("--force", is_flag=True, help="Merge it even though the node says likely the same.")
@click.option("--reject-duplicates", is_flag=True, help="Reject what says the same as one that is accepted with it.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, PERCENT),
    callback=share,
    metavar="N",
    help="From which overlap of words it is a likely duplicate, 0 to 1 or in percent; 0.6 when absent.",
)
@click.option("--dry-run", is_flag=True, help="Show what would happen.")
@click.option("--check-only", is_flag=True, help="Only look for likely duplicates.")
@prints
@in_project
def review(
    out: Output,
    project: Project,
    named: tuple[str, ...],
    everything: bool,
    accept: bool,
    reject: bool,
    defer: bool,
    reason: str,
    reviewer: str | None,
    title: str | None,
    detail: str | None,
    section: str | None,
    edit: bool,
    force: bool,
    reject_duplicates: bool,
    threshold: float | None,
    dry_run: bool,
    check_only: bool,
) -> None:
    """Review what was filed: accept, reject or defer it. It is named by its id or by the file of its report.

    On a terminal and without a verdict it shows what is pending, one by one, with the change that accepting would make,
    and asks; what likely says the same is shown together. Several may be reviewed at once: each is, whatever comes of
    the others, and of those that likely say the same only the first is accepted. Exit code 0 is success, 2 that a node
    or another learning says likely the same and --force was not given, 1 an error.

    \b
    Examples:
      cstp learn review
      cstp learn review PITFALL-2026-02-06-a1b2c3d4e5f60718-4567 --accept --reason "Seen twice"
      cstp learn review PITFALL-2026-02-06-a1b2c3d4e5f60718-4567 --accept --edit
      cstp learn review --all --accept --reject-duplicates --dry-run
      cstp learn review .intent-layer/mistakes/pending/CHECK-2026-02-06-0f3a9b2c4d5e6f70-4567.md --accept --dry-run
    """
    from cstp_grpc.cli.batch_review import BatchReview
    from cstp_grpc.cli.learning_editor import edit_learning
    from cstp_grpc.cli.reviewing import Conversation, Terms, pending, review_one
    from cstp_grpc.intent_layer.duplicates import THRESHOLD
    from cstp_grpc.intent_layer.grouping import group_duplicates
    from cstp_grpc.intent_layer.reviewing import Reviewer

    project, ids = named_learnings(project, named)
    verdict = verdict_of(accept=accept, reject=reject, defer=defer)
    edits = Edits(title, read_input() if detail == STANDARD_INPUT else detail, section)
    check_review_options(ids, verdict, edits, everything=everything, edit=edit, reject_duplicates=reject_duplicates)
    terms = Terms(reviewer or user(), reason, edits, force, dry_run or check_only)
    alike = THRESHOLD if threshold is None else threshold
    by = Reviewer(project.tree, now, threshold=alike)
    filed = Learnings(project.tree, now)
    with_diff = dry_run and not check_only
    if verdict is None:
        require_terminal(out)
    elif len(ids) == 1:
        if edit:
            terms = replace(terms, edits=edit_learning(filed.get(ids[0]), edits))
        if not review_one(out, by, terms, ids[0], verdict, with_diff=with_diff):
            click.get_current_context().exit(OTHERWISE)
        return
    unreadable: list[UnreadableReportFile] = []
    if verdict is None:
        found = [filed.get(each) for each in ids] if ids else pending(filed, out, unreadable)
        Conversation(out, by, terms).review(group_duplicates(project.tree, found, alike))
        return
    batch = BatchReview(out, by, terms, verdict, edit, with_diff, reject_duplicates)
    found = batch.find(filed, ids) if ids else pending(filed, out, unreadable)
    batch.review(group_duplicates(project.tree, found, alike))
    batch.print_summary()
    click.get_current_context().exit(1 if unreadable else batch.exit_code)


def named_learnings(project: Project, named: Sequence[str]) -> tuple[Project, list[str]]:
    """Return the project and the identifiers of learnings, each once. Raises InvalidArgument and click.UsageError."""
    base, ids = project, []
    for each in named:
        if each.endswith(ENDING):
            other, identifier = of_report(base, each)
            if len(named) > 1 and other.root.resolve() != base.root.resolve():
                raise click.UsageError(f"{each} is a report of another project; review those of one at a time.")
            project = other
            ids.append(identifier)
        else:
            ids.append(each)
    return project, list(dict.fromkeys(ids))


def check_review_options(
    ids: Sequence[str],
    verdict: ReviewVerdict | None,
    edits: Edits,
    *,
    everything: bool,
    edit: bool,
    reject_duplicates: bool,
) -> None:
    """Raise click.UsageError for options that do not go together."""
    if everything and ids:
        raise click.UsageError("--all reviews all that is pending; leave the IDs out.")
    if verdict and not ids and not everything:
        raise click.UsageError(
            f"Say what to {verdict}: its ID, which `cstp learn list` shows, the file of its report, or --all."
        )
    if (edit or edits.title is not None or edits.detail is not None) and verdict is not ReviewVerdict.ACCEPT:
        raise click.UsageError("--title, --detail and --edit change what is merged; give --accept too.")
    if (edits.title is not None or edits.detail is not None) and len(ids) != 1:
        raise click.UsageError("--title and --detail are for one ID; --edit asks for each.")
    if reject_duplicates and verdict is not ReviewVerdict.ACCEPT:
        raise click.UsageError(
            "--reject-duplicates rejects what says the same as something accepted; give --accept too."
        )


def read_input() -> str:
    """Return standard input, or enough of it to see that it is too long."""
    # Python has None for a stream that was closed before it started.
    content = sys.stdin.buffer.read(UTF8_BYTES * MAX_TEXT + 1) if sys.stdin else b""
    return content.decode(errors="surrogateescape").rstrip("\n")


def of_report(project: Project, written: str) -> tuple[Project, str]:
    """Return the project and the identifier of a report's file. Raises InvalidArgument."""
    file = Path(os.path.abspath(project.base / written))  # noqa: PTH100
    root = file.parents[3] if len(file.parents) > 3 else file.parent
    if file.parent.parent != root / MISTAKES:
        raise InvalidArgument.field("id", f"{written} is no report: those are in {MISTAKES}/{LearningState.PENDING}")
    return opened(root), file.name.removesuffix(ENDING)


def verdict_of(*, accept: bool, reject: bool, defer: bool) -> ReviewVerdict | None:
    """Return the one verdict that was given, if any. Raises click.UsageError for several."""
    chosen = {ReviewVerdict.ACCEPT: accept, ReviewVerdict.REJECT: reject, ReviewVerdict.DEFER: defer}
    given = [verdict for verdict, wanted in chosen.items() if wanted]
    if len(given) > 1:
        raise click.UsageError(f"--{given[0]} and --{given[1]} exclude each other.")
    return given[0] if given else None


def require_terminal(out: Output) -> None:
    """Raise click.UsageError where nobody can be asked."""
    if out.json_wanted or not (sys.stdin and sys.stdin.isatty() and out.console.is_terminal):
        raise click.UsageError(
            "There is no terminal to ask on: give an ID or --all, and --accept, --reject or --defer."
        )
