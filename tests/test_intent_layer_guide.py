"""The session of docs/intent-layer.md, as it is written there, and what its tables say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest

from cstp_grpc.cli.main import main
from cstp_grpc.client.contract import methods
from cstp_grpc.intent_layer.rules import RULES
from tests.guides import blocks, exchanges, guide, run, surroundings
from tests.intent_layer.repositories import needs_git

GUIDE = guide("intent-layer.md")
WRITTEN_ID = "PITFALL-2026-02-06-a1b2c3d4e5f60718-4567"
WRITTEN_ROOT = "/home/ada/shop"
ID = re.compile(r"PITFALL-\d{4}-\d\d-\d\d-[0-9a-f]{16}-\d+")


def block(language: str) -> str:
    """Return the first block of the guide in a language."""
    return blocks(GUIDE, language)[0]


@needs_git
def test_the_session_of_the_guide_prints_what_the_guide_says(tmp_path: Path) -> None:
    environment = surroundings(tmp_path)
    run(block("sh"), tmp_path, environment)
    learned = ""
    for command, expected in exchanges(block("console")):
        printed = run(command.replace(WRITTEN_ID, learned or WRITTEN_ID), tmp_path / "shop", environment)
        learned = learned or "".join(ID.findall(printed)[:1])
        shown = ID.sub(WRITTEN_ID, printed).replace(str(tmp_path / "shop"), WRITTEN_ROOT)
        assert shown == expected, command
    assert learned


@needs_git
def test_the_hook_of_the_guide_keeps_errors_out(tmp_path: Path) -> None:
    environment = surroundings(tmp_path)
    run(block("sh"), tmp_path, environment)
    (install,) = re.findall(r"^printf .*$", GUIDE, re.MULTILINE)
    commit = "git add --all && git -c user.name=Ann -c user.email=ann@example.org commit --quiet --message Begin"
    shop = tmp_path / "shop"
    run(f"{install} && {commit}", shop, environment)
    (shop / "AGENTS.md").write_text("# Nothing\n")
    with pytest.raises(subprocess.CalledProcessError):
        run(commit, shop, environment)


def test_every_rule_is_in_the_guide_as_it_is() -> None:
    rows = [f"| `{rule.name}` | {rule.severity} | {rule.meaning} | {rule.remedy} |" for rule in RULES]
    assert re.findall(r"^\| `[a-z0-9-]+` \| (?:error|warning) .*$", GUIDE, re.MULTILINE) == rows


def test_every_rpc_is_in_the_guide_with_its_permission() -> None:
    written = {
        name: permission
        for names, permission in re.findall(r"^\| (`intentLayer\..*`) \| `([a-z]+)` \|$", GUIDE, re.MULTILINE)
        for name in re.findall(r"`(intentLayer\.\w+)`", names)
    }
    served = re.findall(r"^\| `(intentLayer\.\w+)` \| (\w+) \|", guide("api.md"), re.MULTILINE)
    assert written == dict(served)
    assert set(written) == {name for name in methods() if name.startswith("intentLayer.")}


@pytest.mark.parametrize("group", ["context", "learn"])
def test_every_command_and_option_is_in_the_guide(group: str) -> None:
    context = click.Context(main)
    commands = main.get_command(context, group)
    assert isinstance(commands, click.Group)
    for name, command in commands.commands.items():
        (row,) = re.findall(rf"^\| `cstp {group} {name}\b.*$", GUIDE, re.MULTILINE)
        options = {parameter.opts[0] for parameter in command.params if isinstance(parameter, click.Option)}
        assert options - {"--json", "--project"} == set(re.findall(r"--[a-z-]+", row))
