"""The commands that try rulebooks on a server: on actions, and on recorded checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from cstp_grpc.cli.command_decorators import instant_option, with_client
from cstp_grpc.cli.local_check import RULES_PATH, read_action
from cstp_grpc.cli.typed_times import parse_past
from cstp_grpc.common.lazy_imports import LazyModule

if TYPE_CHECKING:
    from cstp_grpc.cli import replay_output, rule_output
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.gen.cstp.v1 import guardrails_pb2
else:
    replay_output = LazyModule("cstp_grpc.cli.replay_output")
    rule_output = LazyModule("cstp_grpc.cli.rule_output")

EXIT_STOPPED = 3
"""The exit code if actions are not allowed, or that were allowed would not be; also for rulebooks with problems."""


def read_rulebook_texts(path: Path) -> list[dict[str, Any]]:
    """Return the rulebooks at a path with those that they extend, for a request. Raises click.ClickException."""
    from cstp_grpc.core.guardrails.rulebook import read_rulebooks, rulebook_root
    from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path

    files, problems = read_rulebooks(path, accepts_pipe=True)
    if problems:
        raise click.ClickException("\n".join(map(str, problems)))
    root, texts = rulebook_root(path), []
    for file in files:
        is_named = file.path.parent == root or file.path == path
        if not is_named and file.path == packaged_rulebook_path(file.path.stem):
            continue  # the server has it
        try:
            text = file.content.decode()
        except UnicodeDecodeError as error:
            raise click.ClickException(f"{file.path} is not UTF-8 text") from error
        # A pipe has no name that says what it is.
        is_yaml = file.path.suffix.lower() in (".yaml", ".yml")
        texts.append({"name": str(file.path.relative_to(root)) if is_yaml else "", "text": text})
    return texts


@click.command(name="try")
@click.argument("path", type=RULES_PATH)
@click.option(
    "--action",
    "action_files",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    multiple=True,
    help="JSON file with an action, as for `explain`; repeatable.",
)
@click.option("--command", "commands", metavar="TEXT", multiple=True, help="Shell command to evaluate; repeatable.")
@with_client
def try_command(
    client: CstpClient, out: Output, path: Path, action_files: tuple[Path, ...], commands: tuple[str, ...]
) -> None:
    """Try a rulebook on actions. PATH is a rulebook or folder, which is sent to the server; nothing is stored.

    Prints the verdict on each action with the deciding conditions, and runs the tests in the rulebook. Needs the
    permission admin. Exit code 0 means that every action is allowed and every test passes, 3 that not, or that the
    rulebook has problems, 1 an error.

    \b
    Examples:
      cstp guardrails try rules.yaml --command "terraform destroy"
      cstp guardrails try guardrails/ --action action.json --json
    """
    actions = [read_action(file) for file in action_files]
    actions += [{"description": text, "command": text} for text in commands]
    answer = client.try_rulebook(read_rulebook_texts(path), actions=actions)
    out.answer(answer, lambda console, found: rule_output.print_trial(console, found))
    is_stopped = any(not each.verdict.allowed for each in answer.actions)
    if answer.problems or is_stopped or not all(each.passed for each in answer.tests):
        click.get_current_context().exit(EXIT_STOPPED)


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

    The actions are those of recorded checks and announcements on the server, which evaluates them too; nothing is
    recorded. Each action is checked as of its own instant, for its own agent. Unknown inputs are handled as the server
    is configured. Needs the permission admin. Exit code 0 means that all allowed actions stay allowed, as far as
    can be determined, 3 that some do not, 1 an error.

    \b
    Examples:
      cstp guardrails replay guardrails/
      cstp guardrails replay new-rules.yaml --since 30d --by emerson
      cstp guardrails replay new-rules.yaml --since 2026-01-01 --json
    """
    until = until or datetime.now(UTC)
    parts = client.replay_rulebook(
        rulebooks=read_rulebook_texts(new),
        after=since,
        before=until,
        requesting_agent=requesting_agent,
        examples=examples,
        resume=False,
    )
    report: guardrails_pb2.ReplayReport | None = None
    with progress_through_time(out, since, until) as advance:
        for part in parts:
            if part.HasField("report"):
                report = part.report
            else:
                advance(part.progress)
    assert report is not None, "the stream ends with it"
    out.answer(report, lambda console, found: replay_output.print_report(console, found))
    if report.newly_stopped:
        click.get_current_context().exit(EXIT_STOPPED)


class Advance(Protocol):
    """Shows the progress of a replay."""

    def __call__(self, progress: guardrails_pb2.ReplayProgress) -> None:
        """Advance to it."""


@contextmanager
def progress_through_time(out: Output, since: datetime, until: datetime) -> Iterator[Advance]:
    """Show a progress bar on a terminal; how many actions there are is not known before, only their span of time."""
    from rich.progress import BarColumn, Progress, TextColumn

    told = TextColumn("{task.fields[count]} actions, back to {task.fields[at]}")
    columns = (TextColumn("replaying"), BarColumn(), told)
    with Progress(*columns, console=out.notes.rich, transient=True, disable=not out.notes.is_terminal) as bar:
        task = bar.add_task("replaying", total=max((until - since).total_seconds(), 1.0), count=0, at="")

        def advance(progress: guardrails_pb2.ReplayProgress) -> None:
            reached = progress.reached_at.ToDatetime(UTC) if progress.HasField("reached_at") else since
            done = (until - reached).total_seconds()
            bar.update(task, completed=done, count=progress.actions, at=f"{reached:%Y-%m-%d %H:%M}")

        yield advance
