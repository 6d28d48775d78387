"""The commands on decisions: record, show, list, review, share, link, graph, compact, think, delete, export, watch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cstp_grpc.cli import command_decorators as shared
from cstp_grpc.cli.rpc_commands import call_rpc, calls_rpc, lists_items, watches_changes
from cstp_grpc.cli.short_ids import DECISION_ID
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cstp_grpc.cli import decision_output, graph_rendering
    from cstp_grpc.cli.command_decorators import Decorator
    from cstp_grpc.cli.console import Console
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.contract import json_codec
    from cstp_grpc.gen.cstp.v1 import journal_pb2
else:
    decision_output = LazyModule("cstp_grpc.cli.decision_output")
    graph_rendering = LazyModule("cstp_grpc.cli.graph_rendering")
    journal_pb2 = LazyModule("cstp_grpc.gen.cstp.v1.journal_pb2")
    json_codec = LazyModule("cstp_grpc.contract.json_codec")

LINKS = ("supersedes", "depends_on", "relates_to")
"""The kinds of links, as the contract and the parameters of commands name them."""

id_argument = click.argument("id", metavar="ID", type=DECISION_ID)
oversee_option = click.option(
    "--oversee", is_flag=True, help="Read private decisions of every agent too. Needs the permission oversee."
)
decision_argument = click.argument("decision_id", metavar="ID", type=DECISION_ID)


def link_options(*descriptions: str) -> Decorator:
    return shared.stack_options(
        *(
            click.option(f"--{name.replace('_', '-')}", type=DECISION_ID, multiple=True, metavar="ID", help=description)
            for name, description in zip(LINKS, descriptions, strict=True)
        )
    )


def print_decision_of(answer: Any, out: Output) -> None:
    out.answer(answer, lambda console, found: decision_output.print_decision(console, found.decision))


def to_reasons(pairs: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"type": kind, "text": text} for kind, text in pairs]


@click.command()
@click.argument("title")
@click.option("--context", metavar="TEXT", help="The circumstances; only you will be able to read them.")
@shared.judged_options
@click.option("--status", type=shared.enum_choice(DecisionStatus), help="Status of the decision. [default: decided]")
@click.option("--outcome", type=shared.enum_choice(Outcome), help="Outcome, if known.")
@shared.instant_option("--date", "When it was decided. [default: now]")
@click.option("--notes", metavar="TEXT", help="The lesson.")
@click.option("--reason", "reasons", type=shared.parse_key_value, multiple=True, metavar="TYPE=TEXT", help="Why.")
@click.option("--tag", "tags", multiple=True, help="A tag; repeatable.")
@click.option("--project", help="The project it belongs to.")
@click.option("--share", is_flag=True, help="Share it with every agent.")
@link_options(
    "A decision that this one replaces.", "A decision that this one builds on.", "A related decision worth reading."
)
@shared.instant_option("--review-by", "When to review it; `cstp review --due` lists it.", is_future=True)
@click.option("--request-id", help="Idempotency key. [default: random]")
@shared.with_client
def record_command(client: CstpClient, out: Output, reasons: Any, share: bool, **fields: Any) -> None:
    """Record a decision. It is private until it is shared.

    \b
    Examples:
      cstp record "Use PostgreSQL for orders" --category database --confidence 0.8 --tag orders
      cstp record "Put the API behind a CDN" --reason "analysis=cuts p95 by half" --share
      cstp record "Try the new cache for a quarter" --review-by 2027-03-31
    """
    links = {name: fields.pop(name) for name in LINKS}
    visibility = Visibility.SHARED if share else None
    answer = call_rpc(
        client, "record_decision", **fields, reasons=to_reasons(reasons), links=links, visibility=visibility
    )
    print_decision_of(answer, out)


REMOVABLE_FIELDS = ("context", "category", "stakes", "confidence", "reasons", "tags", "project", "review-by")
"""The fields that an update can remove, as options name them."""


@click.command()
@decision_argument
@click.option("--title", help="The decision.")
@click.option("--context", metavar="TEXT", help="The circumstances; only you will be able to read them.")
@click.option("--category", help="The kind of decision, for instance architecture.")
@click.option("--stakes", type=shared.enum_choice(Stakes), help="Stakes of the decision.")
@click.option("--confidence", type=shared.CONFIDENCE, help="Your confidence, 0 to 1.")
@click.option("--status", type=shared.enum_choice(DecisionStatus), help="Status of the decision.")
@shared.instant_option("--date", "When it was decided.")
@click.option(
    "--reason",
    "reasons",
    type=shared.parse_key_value,
    multiple=True,
    metavar="TYPE=TEXT",
    help="Why; replaces all reasons.",
)
@click.option("--tag", "tags", multiple=True, help="A tag; repeatable; replaces all tags.")
@click.option("--project", help="The project it belongs to.")
@shared.instant_option("--review-by", "When to review it.", is_future=True)
@click.option(
    "--remove", "removed", type=click.Choice(REMOVABLE_FIELDS), multiple=True, help="Field to clear; repeatable."
)
@click.option("--revision", type=click.IntRange(1), help="Change it only at this revision, as `cstp show` prints it.")
@shared.with_client
def update_command(
    client: CstpClient, out: Output, decision_id: str, removed: tuple[str, ...], revision: int | None, **values: Any
) -> None:
    """Change a decision of yours. The former content stays in its history.

    \b
    Examples:
      cstp update dec-0f3a9b2c4d5e6f708192 --title "Use PostgreSQL 18 for orders" --remove category
      cstp update dec-0f3a9b2c4d5e6f708192 --status decided --revision 3
    """
    values["reasons"] = to_reasons(values["reasons"])
    # An option that may be repeated is empty, not None, if it is not given.
    given = {name: value for name, value in values.items() if value not in (None, (), [])}
    cleared = [name.replace("-", "_") for name in removed]
    if not given and not cleared:
        raise click.UsageError("nothing to change: give an option such as --title or --remove category.")
    mask = [*given, *cleared]
    answer = call_rpc(client, "update_decision", id=decision_id, **given, update_mask=mask, expected_revision=revision)
    print_decision_of(answer, out)


@click.command()
@decision_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared.with_client
def delete_command(client: CstpClient, out: Output, decision_id: str, yes: bool) -> None:
    """Delete a decision of yours. Its reviews and former contents go, too; only its id stays.

    It cannot be undone. Importing its source again restores it only with --restore-deleted.

    \b
    Example:
      cstp delete dec-0f3a9b2c4d5e6f708192 --yes
    """
    if not yes:
        click.confirm(f"Delete {decision_id} for good?", abort=True, err=True)
    answer = client.delete_decision(decision_id)
    out.answer(answer, f"{answer.id} is deleted.")


@click.command()
@id_argument
@oversee_option
@calls_rpc("get_decision")
def show_command(console: Console, answer: journal_pb2.GetDecisionResponse) -> None:
    """Show a decision. Shows all of your own, and another agent's shared one without its private parts.

    \b
    Example:
      cstp show dec-0f3a9b2c4d5e6f708192
    """
    decision_output.print_decision(console, answer.decision)


@click.command()
@shared.filter_options
@oversee_option
@lists_items("list_decisions")
def list_command(console: Console, answer: journal_pb2.ListDecisionsResponse) -> None:
    """List decisions, latest first. Lists those that you may read.

    \b
    Examples:
      cstp list --outcome failure --limit 20
      cstp list --tag auth --after 2026-01-01 --json
    """
    decision_output.print_decisions(console, answer.decisions)


@click.command()
@click.argument("decision_id", metavar="ID", type=DECISION_ID, required=False)
@click.option("--outcome", type=shared.enum_choice(Outcome), help="How it turned out.")
@click.option("--notes", metavar="TEXT", help="Lesson. [default: unchanged]")
@click.option("--due", is_flag=True, help="List your decisions whose review is due instead, the longest due first.")
@shared.with_client
def review_command(
    client: CstpClient, out: Output, decision_id: str | None, outcome: str | None, notes: str | None, due: bool
) -> None:
    """Review how a decision turned out.

    Earlier reviews stay in its history, which `cstp show` prints.

    \b
    Examples:
      cstp review dec-0f3a9b2c4d5e6f708192 --outcome partial --notes "Needed a second index"
      cstp review --due
    """
    if due:
        if decision_id or outcome or notes is not None:
            raise click.UsageError("--due lists decisions and takes neither an ID nor --outcome and --notes.")
        print_due_reviews(client, out)
        return
    if decision_id is None or outcome is None:
        raise click.UsageError("a review needs the ID of a decision and --outcome; --due lists due decisions.")
    answer = call_rpc(client, "review_decision", id=decision_id, outcome=outcome, notes=notes)
    print_decision_of(answer, out)


def print_due_reviews(client: CstpClient, out: Output) -> None:
    found = sorted(client.list_decisions(review_due=True, page_size=1000), key=lambda item: item.review_by.ToDatetime())
    out.answer(journal_pb2.ListDecisionsResponse(decisions=found), decision_output.print_due_reviews)


@click.command()
@id_argument
@calls_rpc("share_decision")
def share_command(console: Console, answer: journal_pb2.ShareDecisionResponse) -> None:
    """Share a decision with every agent. Its context and reasoning stay private.

    \b
    Example:
      cstp share dec-0f3a9b2c4d5e6f708192
    """
    console.print(f"{answer.decision.id} is shared.")


@click.command()
@id_argument
@calls_rpc("unshare_decision")
def unshare_command(console: Console, answer: journal_pb2.UnshareDecisionResponse) -> None:
    """Make a shared decision private again.

    \b
    Example:
      cstp unshare dec-0f3a9b2c4d5e6f708192
    """
    console.print(f"{answer.decision.id} is private.")


@click.command()
@decision_argument
@link_options("A decision that it replaces.", "A decision that it builds on.", "A related decision.")
@click.option("--remove", is_flag=True, help="Remove these links instead.")
@shared.with_client
def link_command(client: CstpClient, out: Output, decision_id: str, remove: bool, **links: tuple[str, ...]) -> None:
    """Link a decision to others. The decision is yours; you may read the others.

    \b
    Examples:
      cstp link dec-0f3a9b2c4d5e6f708192 --supersedes dec-8d1e7c6b5a4f3e2d1c0b
      cstp link dec-0f3a9b2c4d5e6f708192 --relates-to dec-8d1e7c6b5a4f3e2d1c0b --remove
    """
    if not any(links.values()):
        raise click.UsageError("give a link: --supersedes, --depends-on or --relates-to.")
    answer = call_rpc(client, "link_decisions", id=decision_id, **{"remove" if remove else "add": links})
    print_decision_of(answer, out)


@click.command()
@decision_argument
@click.option("--depth", type=click.IntRange(1, 10), default=2, show_default=True, help="Number of links to follow.")
@click.option(
    "--max-nodes", type=click.IntRange(1, 500), default=100, show_default=True, help="Maximum number of decisions."
)
@shared.choice_option("--format", ["text", "mermaid", "svg"], "Output format; `--json` prints data.", "form")
@oversee_option
@shared.with_client
def graph_command(client: CstpClient, out: Output, decision_id: str, form: str, **fields: Any) -> None:
    """Draw the decisions linked to a decision. Leaves out those that you may not read.

    \b
    Examples:
      cstp graph dec-0f3a9b2c4d5e6f708192 --depth 3
      cstp graph dec-0f3a9b2c4d5e6f708192 --format svg > decisions.svg
    """
    answer = client.get_decision_graph(decision_id, **fields)
    out.answer(answer, lambda console, graph: console.print(graph_rendering.RENDERERS[form](graph), soft_wrap=True))


@click.command()
@shared.filter_options
@click.option(
    "--similarity",
    "min_similarity",
    type=click.FloatRange(0.5, 1),
    default=0.9,
    show_default=True,
    help="Minimum similarity of duplicates.",
)
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Maximum number of groups.")
@calls_rpc("find_duplicate_decisions")
def duplicates_command(console: Console, answer: journal_pb2.FindDuplicateDecisionsResponse) -> None:
    """Find near-duplicates among your decisions.

    Superseded ones are left out. Resolve duplicates with `cstp link --supersedes` or `cstp delete`.

    \b
    Examples:
      cstp duplicates
      cstp duplicates --project shop --similarity 0.8
    """
    decision_output.print_duplicates(console, answer)


@click.command()
@shared.filter_options
@click.option(
    "--min-decisions",
    type=click.IntRange(2, 50),
    default=5,
    show_default=True,
    help="Minimum number of decisions of a topic that no summary cites yet.",
)
@click.option("--dry-run", is_flag=True, help="Show the summaries without writing them.")
@shared.with_client
def compact_command(client: CstpClient, out: Output, dry_run: bool, **fields: Any) -> None:
    """Summarize your old decisions by topic. Session contexts then show the summaries in their place.

    These are decisions with an outcome, without --before those of more than 90 days ago. They stay in the journal.

    \b
    Examples:
      cstp compact --dry-run
      cstp compact --category database --before 180d --json
    """

    def show(console: Console, answer: journal_pb2.CompactDecisionsResponse) -> None:
        for item in answer.summaries:
            decision_output.print_decision(console, item)
            console.print()
        written = f"{'Would write' if dry_run else 'Wrote'} {count_noun(len(answer.summaries), 'summary', 'summaries')}"
        console.print(f"{written} of {count_noun(answer.added, 'further decision')}.")
        if answer.truncated:
            console.print("There is more: repeat the command, or narrow it with filters.")

    out.answer(call_rpc(client, "compact_decisions", **fields, dry_run=dry_run), show)


@click.command()
@shared.filter_options
@click.option("--all", "everything", is_flag=True, help="Others' shared decisions too, without their private parts.")
@click.option(
    "--output", "path", type=click.Path(dir_okay=False, path_type=Path), help="The file. [default: standard output]"
)
@shared.with_client
def export_command(
    client: CstpClient, out: Output, filters: dict[str, Any], everything: bool, path: Path | None
) -> None:
    """Export your decisions as JSON Lines. `cstp import` reads them.

    Each line is a decision as `cstp show --json` prints it, without its history but with its provenance. Without
    options that choose decisions, it also exports the ids of those that you deleted.

    \b
    Examples:
      cstp export --output decisions.jsonl
      cstp export --project shop --all | jq .title
    """
    include_deleted = not any(value not in (None, ()) for value in filters.values())
    if not everything and filters["agent"] is None:
        filters["agent"] = client.get_access().requesting_agent
    exported = client.export_decisions(filters=filters, include_deleted=include_deleted)
    lines = (json.dumps(json_codec.to_json(item), ensure_ascii=False) + "\n" for item in exported)
    if path is None:
        for line in lines:
            out.write_verbatim(line)
        return
    out.note(f"Exported {count_noun(write_lines(path, lines), 'decision')} to {path}")


def write_lines(path: Path, lines: Iterator[str]) -> int:
    """Write lines to a file, which is replaced when they are complete, and return how many there were."""
    count = 0
    # Beside it, since a file is replaced in one step within a file system only.
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(line)
                count += 1
        partial.replace(path)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return count


@click.command()
@shared.filter_options
@click.option("--from-revision", "after", metavar="REVISION", help="Start after this journal revision.")
@click.option("--limit", type=shared.LIMIT, metavar="N", help="Stop after this number of changes.")
@watches_changes("watch_decisions", "decision", "deleted_id")
def watch_command(change: journal_pb2.WatchDecisionsResponse) -> str:
    """Watch changes of decisions. Prints each change of the decisions that you may read, until Ctrl-C.

    Without --from-revision, it starts now. If the server goes away, the watch waits and continues. With --json, each
    change is an object on a line, with the revision to resume the watch.

    \b
    Examples:
      cstp watch --outcome failure
      cstp watch --project shop --json
    """
    return decision_output.change_line(change)


decision_option = click.option("--decision", "decision_id", type=DECISION_ID, metavar="ID", help="About this decision.")
intent_option = click.option(
    "--intent", "correlation_id", metavar="ID", help="About your intent with this correlation id."
)


@click.command()
@click.argument("text")
@intent_option
@decision_option
@click.option("--share", is_flag=True, help="Share it with every agent that may read the decision.")
@click.option("--request-id", help="Idempotency key. [default: random]")
@shared.with_client
def think_command(
    client: CstpClient, out: Output, decision_id: str | None, correlation_id: str | None, share: bool, **fields: Any
) -> None:
    """Attach reasoning to an intent or a decision. It is private unless shared, and expires.

    `cstp show` prints the thoughts about a decision, and about the intents that resulted in it.

    \b
    Examples:
      cstp think "A second index and a swap avoid the lock" --intent rebuild-orders-index
      cstp think "Assumes fewer than 10 writes a second" --decision dec-0f3a9b2c4d5e6f708192 --share
    """
    if (decision_id is None) == (correlation_id is None):
        raise click.UsageError("give either --intent or --decision.")
    visibility = Visibility.SHARED if share else None
    about = {"decision_id": decision_id, "correlation_id": correlation_id}
    answer = call_rpc(client, "record_thought", **fields, **about, visibility=visibility)
    out.answer(answer, f"{answer.thought.id} is recorded.")


@click.command()
@intent_option
@decision_option
@oversee_option
@lists_items("list_thoughts")
def thoughts_command(console: Console, answer: journal_pb2.ListThoughtsResponse) -> None:
    """List thoughts, latest first. Without options, lists all of yours.

    \b
    Examples:
      cstp thoughts --intent rebuild-orders-index
      cstp thoughts --decision dec-0f3a9b2c4d5e6f708192 --json
    """
    decision_output.print_thoughts(console, answer)
