"""The command that coding agents run as their hook, with all its options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cstp_grpc.agents.hooks.event_handler import ApprovalPolicy, FailurePolicy
from cstp_grpc.agents.hooks.hosts import HOSTS
from cstp_grpc.cli import command_decorators as shared
from cstp_grpc.cli.hook_run import HookRun, answer_wrong_usage, run_hook
from cstp_grpc.cli.resident_client import DEFAULT_SECONDS

if TYPE_CHECKING:
    from cstp_grpc.cli.server_choice import ServerChoice


def hook_options(command: shared.Command) -> shared.Command:
    """Add the options that say how events are answered."""
    return shared.stack_options(
        click.option("--project", metavar="NAME", help="Project name on the server. [default: its only one]"),
        shared.choice_option("--on-failure", FailurePolicy, "Answer to a tool call that cannot be evaluated."),
        shared.choice_option(
            "--approvals", ApprovalPolicy, "Who approves: the user of the agent, or (deny) people on the server only."
        ),
        click.option(
            "--headless",
            is_flag=True,
            expose_value=False,
            help="Deny instead of asking, because no user is present. [default: as the agent was started]",
        ),
        click.option("--tools", "tools_file", type=shared.FILE, help="The table of tools. [default: the packaged one]"),
        click.option(
            "--resident/--no-resident",
            default=None,
            help="Leave a process that answers the next hooks sooner, and ends by itself; for servers that are not"
            " called over HTTP, and data folders.",
        ),
    )(command)


GIVEN_ARGUMENTS: Final = f"{__name__}.given_arguments"
"""Where the context has the arguments of the hook."""


class HookCommand(click.Command):
    """A command whose wrong options are an answer, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        ctx.meta[GIVEN_ARGUMENTS] = given
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if not given or given[0] not in HOSTS or sys.stdin.isatty():
                raise
            # The exit code of wrong usage, 2, would keep agents from ending a turn, again and again.
            # Which option has the word is not known here: the stricter policy is never wrong.
            denies = any(word.rpartition("=")[2] == FailurePolicy.DENY for word in given)
            policy = FailurePolicy.DENY if denies else FailurePolicy.ASK
            answer_wrong_usage(given, error.format_message(), policy)
            ctx.exit()


@click.command(cls=HookCommand)
@click.argument("host", type=click.Choice(HOSTS))
@hook_options
@shared.server_options
@shared.config_option
def hook_command(
    host: str,
    project: str | None,
    on_failure: str,
    approvals: str,
    tools_file: Path | None,
    resident: bool | None,
    choice: ServerChoice,
    timeout: float | None,
) -> None:
    """Answer a hook of a coding agent. It checks tool calls, adds the rules for files, and files learnings.

    It reads the event from standard input and writes the answer to standard output, as HOST has them. `cstp install`
    puts it into the settings of HOST.

    \b
    Example:
      cstp hook claude-code < event.json
    """
    run_hook(
        HookRun(
            click.get_current_context().meta[GIVEN_ARGUMENTS],
            host,
            choice,
            shared.current_state(),
            project,
            FailurePolicy(on_failure),
            ApprovalPolicy(approvals),
            tools_file,
            resident,
            DEFAULT_SECONDS if timeout is None else timeout,
        )
    )
