"""Load the rulebooks that a command names, or else the configured ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import current_state

if TYPE_CHECKING:
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
