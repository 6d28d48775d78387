"""The command that checks recorded actions against another rulebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import current_state, instant_option, with_client
from cstp_grpc.cli.local_check import RULES_PATH, open_rules
from cstp_grpc.cli.typed_times import parse_past
from cstp_grpc.common.lazy_imports import LazyModule

if TYPE_CHECKING:
    from pathlib import Path

    from cstp_grpc.cli import replay_output
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.core.guardrails.evaluator import UnknownInputPolicy
    from cstp_grpc.core.guardrails.model import Action
    from cstp_grpc.core.guardrails.replay import RecordedAction
    from cstp_grpc.gen.cstp.v1 import audit_pb2
else:
    replay_output = LazyModule("cstp_grpc.cli.replay_output")

EXIT_STOPPED = 3
"""The exit code where actions that were allowed would not be."""
PAGE_SIZE = 200
"""Actions in a page: the most that the contract gives."""


@click.command(name="replay")
@click.argument("new", type=RULES_PATH)
@click.option(
    "--since", type=parse_past, metavar="TIME", default="7d", show_default=True, help="Checked then or later."
)
@instant_option("--until", "Checked then or earlier.")
@click.option("--by", "requesting_agent", metavar="AGENT", help="Checked or announced by exactly this agent.")
@click.option(
    "--examples", type=click.IntRange(0, 100), default=3, show_default=True, help="Number of examples of each change."
)
@with_client
def replay_command(
    client: CstpClient,
    out: Output,
    new: Path,
    since: datetime,
    until: datetime | None,
    requesting_agent: str | None,
    examples: int,
) -> None:
    """Replay recorded checks on new rules. Checks recorded actions against the rulebook or folder NEW, and reports
    the verdicts that would change.

    The actions are those of recorded checks and announcements on the server; the rules run here, and nothing is
    recorded. Each action is checked as of its own instant, for its own agent. Unknown inputs are handled as
    configured. Needs the permission admin. Exit code 0 means that all allowed actions stay allowed, as far as
    can be determined, 3 that some do not, 1 an error.

    \b
    Examples:
      cstp guardrails replay guardrails/
      cstp guardrails replay new-rules.yaml --since 30d --by emerson
      cstp guardrails replay new-rules.yaml --since 2026-01-01 --json
    """
    from cstp_grpc.core.guardrails.replay import ReplaySummary, RulebookReplay

    rules = open_rules(new)
    replay = RulebookReplay(rules, configured_policy())
    summary = ReplaySummary.of_rules(rules, examples)
    until = until or datetime.now(UTC)
    listed = client.list_judged_actions(
        requesting_agent=requesting_agent, after=since, before=until, page_size=PAGE_SIZE
    )
    with progress_through_time(out, since, until) as advance:
        for item in listed:
            recorded = recorded_action(item)
            summary.add(replay.judge(recorded))
            advance(recorded.judged_at)
    if out.json_wanted:
        out.document(replay_output.summary_to_json(summary, rules.version))
    else:
        out.show(lambda console: replay_output.print_summary(console, summary, rules.version))
    if summary.newly_stopped:
        click.get_current_context().exit(EXIT_STOPPED)


def configured_policy() -> UnknownInputPolicy:
    """Return the configured policy about unknown inputs. Raises ConfigError."""
    from cstp_grpc.core.guardrails.evaluator import UnknownInputPolicy

    configured = current_state().settings().cstp.guardrails
    return UnknownInputPolicy(configured.undeclared, configured.unknown_action)


def recorded_action(item: audit_pb2.JudgedAction) -> RecordedAction:
    from cstp_grpc.core.guardrails.replay import RecordedAction, VerdictKind

    entry = item.entry
    otherwise = VerdictKind.ALLOWED if entry.allowed else VerdictKind.BLOCKED
    return RecordedAction(
        entry_id=entry.id,
        request_id=entry.request_id,
        judged_at=entry.timestamp.ToDatetime(UTC),
        agent=entry.requesting_agent,
        description=entry.action if entry.HasField("action") else None,
        action=action_to_judge(item) if item.HasField("action") else None,
        # Also where people have approved it: the rules asked for that.
        kind=VerdictKind.APPROVAL_REQUIRED if item.approval_required else otherwise,
        fired=frozenset((*entry.violations, *entry.warnings, *entry.dryrun_violations)),
        rule_set_version=entry.rule_set_version,
    )


def action_to_judge(item: audit_pb2.JudgedAction) -> Action:
    """Return a recorded action for guardrails, as of its instant and without the facts that are not recorded."""
    from cstp_grpc.contract.caller import Caller
    from cstp_grpc.contract.enums import Permission
    from cstp_grpc.contract.proto_values import EnumMapping
    from cstp_grpc.core.guardrails.messages import parse_action
    from cstp_grpc.core.guardrails.model import NO_CODE, CodeFacts
    from cstp_grpc.gen.cstp.v1 import options_pb2

    agent = item.entry.requesting_agent
    permissions = EnumMapping(options_pb2.Permission, Permission).words(item.permissions)
    paths = tuple(item.paths)
    return replace(
        parse_action(item.action, Caller(agent, agent, frozenset(permissions))),
        announced_context=item.announced_context,
        code=CodeFacts(paths, unreadable="facts about it are not recorded") if paths else NO_CODE,
        now=item.entry.timestamp.ToDatetime(UTC),
    )


@contextmanager
def progress_through_time(out: Output, since: datetime, until: datetime) -> Iterator[Callable[[datetime], None]]:
    """Show a progress bar on a terminal; how many actions there are is not known before, only their span of time."""
    from rich.progress import BarColumn, Progress, TextColumn

    told = TextColumn("{task.fields[count]} actions, back to {task.fields[at]}")
    columns = (TextColumn("replaying"), BarColumn(), told)
    with Progress(*columns, console=out.notes, transient=True, disable=not out.notes.is_terminal) as bar:
        task = bar.add_task("replaying", total=max((until - since).total_seconds(), 1.0), count=0, at="")
        count = 0

        def advance(instant: datetime) -> None:
            nonlocal count
            count += 1
            done = (until - instant).total_seconds()
            bar.update(task, completed=done, count=count, at=f"{instant:%Y-%m-%d %H:%M}")

        yield advance
