"""The session of docs/intent-layer.md, as it is written there, and what its tables say."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import click
import pytest

from cstp_grpc.cli.main import main
from cstp_grpc.client.contract import methods
from cstp_grpc.intent_layer.rules import RULES
from tests.intent_layer.repositories import needs_git

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs" / "intent-layer.md").read_text(encoding="utf-8")
WRITTEN_ID = "PITFALL-2026-02-06-a1b2c3d4e5f60718-4567"
WRITTEN_ROOT = "/home/ada/shop"
ID = re.compile(r"PITFALL-\d{4}-\d\d-\d\d-[0-9a-f]{16}-\d+")


def block(language: str) -> str:
    """Return the first block of the guide in a language."""
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)[0]


def run(command: str, folder: Path, path: str) -> str:
    environment = {**os.environ, "PATH": path, "HOME": str(folder)}
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=60, check=True
    ).stdout


def path_with_cstp(folder: Path) -> str:
    """Return a PATH on which the command is."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "cstp").symlink_to(ROOT / "scripts" / "cstp.sh")
    return f"{tools}:{os.environ['PATH']}"


@needs_git
def test_the_session_of_the_guide_prints_what_the_guide_says(tmp_path: Path) -> None:
    path = path_with_cstp(tmp_path)
    run(block("sh"), tmp_path, path)
    learned = ""
    for exchange in re.split(r"(?m)^\$ ", block("console"))[1:]:
        command, _, expected = exchange.partition("\n")
        printed = run(command.replace(WRITTEN_ID, learned or WRITTEN_ID), tmp_path / "shop", path)
        learned = learned or "".join(ID.findall(printed)[:1])
        shown = ID.sub(WRITTEN_ID, printed).replace(str(tmp_path / "shop"), WRITTEN_ROOT)
        assert shown == expected, command
    assert learned


@needs_git
def test_the_hook_of_the_guide_keeps_errors_out(tmp_path: Path) -> None:
    path = path_with_cstp(tmp_path)
    run(block("sh"), tmp_path, path)
    (install,) = re.findall(r"^printf .*$", GUIDE, re.MULTILINE)
    commit = "git add --all && git -c user.name=Ann -c user.email=ann@example.org commit --quiet --message Begin"
    shop = tmp_path / "shop"
    run(f"{install} && {commit}", shop, path)
    (shop / "AGENTS.md").write_text("# Nothing\n")
    with pytest.raises(subprocess.CalledProcessError):
        run(commit, shop, path)


def test_every_rule_is_in_the_guide_as_it_is() -> None:
    rows = [f"| `{rule.name}` | {rule.severity} | {rule.meaning} | {rule.remedy} |" for rule in RULES]
    assert re.findall(r"^\| `[a-z0-9-]+` \| (?:error|warning) .*$", GUIDE, re.MULTILINE) == rows


def test_every_rpc_is_in_the_guide_with_its_permission() -> None:
    written = {
        name: permission
        for names, permission in re.findall(r"^\| (`intentLayer\..*`) \| `([a-z]+)` \|$", GUIDE, re.MULTILINE)
        for name in re.findall(r"`(intentLayer\.\w+)`", names)
    }
    served = re.findall(r"^\| `(intentLayer\.\w+)` \| (\w+) \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
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
