"""Load the rulebooks that a command names, and check an action against them, for `cstp check --rules`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cstp_grpc.cli.command_decorators import current_state, parse_json_object, stack_options
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.enums import Permission, Stakes

if TYPE_CHECKING:
    from cstp_grpc.contract.calls import Json
    from cstp_grpc.core.guardrails.model import RuleSet


RULES_PATH = click.Path(path_type=Path, exists=True)
"""The type of options and arguments that name a rulebook, or a folder of them."""


def locate_rules(path: Path | None) -> Path:
    """Return the path, or else that of the configured or default rules. Raises ConfigError."""
    from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path

    if path is not None:
        return path
    guardrails = current_state().settings().cstp.guardrails
    return guardrails.config_path or packaged_rulebook_path(guardrails.preset)


def open_rules(path: Path | None) -> RuleSet:
    """Load the rules at a path, or else the configured or default ones. Raises click.ClickException."""
    from cstp_grpc.core.guardrails.rulebook import RulebookError, load_rule_set

    try:
        disabled = () if path is not None else current_state().settings().cstp.guardrails.disabled_packs
        return load_rule_set(locate_rules(path), disabled=disabled)
    except RulebookError as error:
        raise click.ClickException(str(error)) from error


def read_action(path: Path) -> dict[str, Any]:
    """Return the action in a file, which may also hold the params of a check. Raises click.ClickException."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        document = parse_json_object(text)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{path} is not UTF-8 text") from error
    except click.BadParameter as error:
        raise click.ClickException(f"{path}: {error.message}") from error
    nested = document.get("action")
    return nested if isinstance(nested, dict) else document


@dataclass(frozen=True, slots=True)
class RulesChoice:
    """The rules of a check without a server, and the permissions of the acting agent."""

    path: Path
    permissions: frozenset[str]


def rules_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for a check against rules alone, passed to the command as `rules`: None without --rules."""

    @functools.wraps(command)
    def wrapper(*args: Any, rules: Path | None, permissions: tuple[str, ...], **kwargs: Any) -> None:
        if rules is None and permissions:
            raise click.UsageError("--permission is for --rules; a server knows the permissions of the agent.")
        command(*args, rules=None if rules is None else RulesChoice(rules, frozenset(permissions)), **kwargs)

    return stack_options(
        click.option(
            "--rules", type=RULES_PATH, help="Check against this rulebook or folder alone; no server, no record."
        ),
        click.option(
            "--permission",
            "permissions",
            type=click.Choice([word.value for word in Permission]),
            multiple=True,
            help="With --rules: what the agent may do, for guardrails that read it.",
        ),
    )(wrapper)


def judge_locally(
    rules: RulesChoice,
    agent: str,
    description: str,
    context: Mapping[str, Json],
    ran: Mapping[str, Any],
    *,
    category: str | None,
    stakes: str | None,
    confidence: float | None,
    project: str | None,
) -> dict[str, Any]:
    """Return the verdict on an action as a server would answer it in JSON, but by no agent and without a record.

    `ran` is the command with its shell and folder. Raises InvalidArgument and click.ClickException.
    """
    from cstp_grpc.contract.json_codec import to_json
    from cstp_grpc.core.commands.model import Invocation
    from cstp_grpc.core.guardrails.local_rulebook import WARN_OF_UNKNOWN, Rulebook
    from cstp_grpc.core.guardrails.messages import CHECK
    from cstp_grpc.core.guardrails.model import Action, CheckResult

    action = Action(
        description,
        category,
        Stakes(stakes) if stakes else Stakes.MEDIUM,
        confidence,
        context,
        project=project,
        agent=agent,
        permissions=rules.permissions,
        invocation=Invocation.from_json({name: value for name, value in ran.items() if value}),
    )
    verdict = Rulebook(open_rules(rules.path), WARN_OF_UNKNOWN).check(action)
    return to_json(CHECK.encode(CheckResult(verdict, datetime.now(UTC))))
