"""Judge an action by rulebooks in this process, for `cstp check --local`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cstp_grpc.cli.command_decorators import current_state, stack_options
from cstp_grpc.cli.rulebook_loading import RULES_PATH, open_rules
from cstp_grpc.enums import Permission, Stakes

if TYPE_CHECKING:
    from cstp_grpc.contract.calls import Json
    from cstp_grpc.gen.cstp.v1 import cstp_pb2
    from cstp_grpc.guardrails.evaluator import UnknownInputPolicy


@dataclass(frozen=True, slots=True)
class LocalChoice:
    """By which rules to judge without a server, and who is said to act; without `rules`, by the configured ones."""

    rules: Path | None
    agent: str
    permissions: frozenset[str]


def local_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for judging without a server, passed to the command as `local`, which is None without --local."""

    @functools.wraps(command)
    def wrapper(
        *args: Any, local: bool, rules: Path | None, acting: str | None, permissions: tuple[str, ...], **kwargs: Any
    ) -> None:
        if not local and (rules or acting or permissions):
            raise click.UsageError("--rules, --as and --permission are for --local: a server has its own, and a token.")
        choice = LocalChoice(rules, acting or "", frozenset(permissions)) if local else None
        command(*args, local=choice, **kwargs)

    return stack_options(
        click.option("--local", is_flag=True, help="Judge here, without a server and without a record of it."),
        click.option(
            "--rules", type=RULES_PATH, help="With --local: the rulebook or folder; as configured when absent."
        ),
        click.option("--as", "acting", metavar="AGENT", help="With --local: who acts, for guardrails that read it."),
        click.option(
            "--permission",
            "permissions",
            type=click.Choice([word.value for word in Permission]),
            multiple=True,
            help="With --local: what this agent may do, for guardrails that read it.",
        ),
    )(wrapper)


def judge_locally(
    choice: LocalChoice,
    description: str,
    context: Mapping[str, Json],
    *,
    category: str | None,
    stakes: str | None,
    confidence: float | None,
    project: str | None,
) -> cstp_pb2.CheckGuardrailsResponse:
    """Return the verdict on an action as a server would answer it, but by no agent and without a record.

    Raises InvalidArgument, ConfigError and click.ClickException.
    """
    from cstp_grpc.guardrails.local_rulebook import Rulebook
    from cstp_grpc.guardrails.messages import check_message
    from cstp_grpc.guardrails.model import Action, CheckResult

    action = Action(
        description,
        category,
        Stakes(stakes) if stakes else Stakes.MEDIUM,
        confidence,
        context,
        project=project,
        agent=choice.agent,
        permissions=choice.permissions,
    )
    verdict = Rulebook(open_rules(choice.rules), unknown_input_policy(choice.rules)).check(action)
    return check_message(CheckResult(verdict, datetime.now(UTC)), agent="", check_id="")


def unknown_input_policy(rules: Path | None) -> UnknownInputPolicy:
    """Return what is said of unknown inputs: as configured, unless other rules than the configured ones are named."""
    from cstp_grpc.guardrails.evaluator import UnknownInputPolicy
    from cstp_grpc.guardrails.local_rulebook import WARN_OF_UNKNOWN

    if rules is not None:
        return WARN_OF_UNKNOWN
    configured = current_state().settings().cstp.guardrails
    return UnknownInputPolicy(configured.undeclared, configured.unknown_action)
