"""What docs/liaison.md says of errors and commands."""

from __future__ import annotations

import re

import click

from cstp_grpc.cli.main import main
from cstp_grpc.contract import errors
from tests.snippets import ROOT

GUIDE = (ROOT / "docs" / "liaison.md").read_text(encoding="utf-8")


def test_every_error_of_the_guide_is_one() -> None:
    written = re.findall(r"^- ([A-Z_]+):", GUIDE, re.MULTILINE)
    known = {each.reason for each in vars(errors).values() if isinstance(each, type) and hasattr(each, "reason")}
    assert set(written) <= known
    assert {"MISSING_PARAMETER", "INVALID_PILLAR", "SESSION_NOT_FOUND", "LIAISON_AGENT_UNAVAILABLE"} <= set(written)


def test_every_command_is_in_the_guide() -> None:
    commands = main.get_command(click.Context(main), "liaison")
    assert isinstance(commands, click.Group)
    (listed,) = re.findall(r"^`cstp liaison` has (.*?);", GUIDE, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == set(commands.commands)


def test_every_command_that_the_guide_shows_exists() -> None:
    commands = main.get_command(click.Context(main), "liaison")
    assert isinstance(commands, click.Group)
    assert set(re.findall(r"cstp liaison (\w+)", GUIDE)) <= set(commands.commands)
