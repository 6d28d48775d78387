"""The session and the agent of docs/liaison.md, as they are written there, and what its tables say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
import yaml

from cstp_grpc import config, errors
from cstp_grpc.cli.main import main
from tests.guides import ROOT, SMALL, blocks, exchanges, guide, run, serving, surroundings
from tests.waiting import wait_until

GUIDE = guide("liaison.md")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z")
KEY = re.compile(r"\b[0-9a-f]{64}\b")
ENVIRONMENT = {"CSTP_GRPC__PORT": "0", **SMALL}


def block(language: str) -> str:
    """Return the first block of the guide in a language."""
    return blocks(GUIDE, language)[0]


def plain(text: str) -> str:
    """Return what is printed without what differs from day to day, and without the ends of tables' cells."""
    return "\n".join(line.rstrip() for line in KEY.sub("KEY", MOMENT.sub("MOMENT", text)).splitlines())


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Path]:
    """The folder of a developer, where `cstp serve --dev` runs."""
    with serving(tmp_path, surroundings(tmp_path, **ENVIRONMENT), "--dev"):
        yield tmp_path


def said(command: str, laptop: Path) -> str:
    """Return what a command prints in the developer's folder."""
    return run(command, laptop, surroundings(laptop))


def test_the_session_of_the_guide_prints_what_the_guide_says(laptop: Path) -> None:
    for command, expected in exchanges(block("console")):
        assert plain(said(command, laptop)) == plain(expected), command


@contextmanager
def agent_of_the_guide(folder: Path) -> Iterator[None]:
    """Run the agent of the guide for the length of a block."""
    described = yaml.safe_load((folder / "var" / "agents.yaml").read_text())["agents"][0]
    environment = {**surroundings(folder), "CSTP_URL": described["url"], "CSTP_TOKEN": described["token"]}
    command = [sys.executable, "-c", block("python")]
    with subprocess.Popen(command, cwd=ROOT, env=environment) as agent:
        try:
            yield
            assert agent.poll() is None
        finally:
            agent.kill()


def test_the_agent_of_the_guide_answers_what_it_is_handed(laptop: Path) -> None:
    said(
        "cstp liaison open --user ada --session s-1 && cstp liaison say 'How do I move my reports?' --user ada", laptop
    )
    with agent_of_the_guide(laptop):
        wait_until(lambda: "liaison_content" in said("cstp liaison route content --user ada || true", laptop), "routed")
        wait_until(lambda: "with guide" in said("cstp liaison show --user ada", laptop), "returned")
    assert "You ask: How do I move my reports? Upload them here." in said("cstp liaison show --user ada", laptop)


def test_the_configuration_of_the_guide_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cstp.yaml"
    path.write_text(block("yaml"))
    for name in re.findall(r"\$\{(\w+)\}", block("yaml")):
        monkeypatch.setenv(name, f"{name}-value")
    assert set(config.load(path).liaison.pillars) == {"content", "insights", "journey", "solution"}


def test_every_error_of_the_guide_is_one() -> None:
    written = re.findall(r"^\| ([A-Z_]+) \|", GUIDE, re.MULTILINE)
    known = {each.reason for each in vars(errors).values() if isinstance(each, type) and hasattr(each, "reason")}
    assert set(written) <= known
    assert {"MISSING_PARAMETER", "INVALID_PILLAR", "SESSION_NOT_FOUND", "LIAISON_AGENT_UNAVAILABLE"} <= set(written)


def test_every_command_is_in_the_guide() -> None:
    commands = main.get_command(click.Context(main), "liaison")
    assert isinstance(commands, click.Group)
    (listed,) = re.findall(r"^`cstp liaison` has (.*?);", GUIDE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", listed)) == set(commands.commands)


def test_every_command_that_the_guide_shows_exists() -> None:
    commands = main.get_command(click.Context(main), "liaison")
    assert isinstance(commands, click.Group)
    assert set(re.findall(r"cstp liaison (\w+)", GUIDE)) <= set(commands.commands)
