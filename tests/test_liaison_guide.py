"""The session and the agent of docs/liaison.md, as they are written there, and what its tables say."""

from __future__ import annotations

import os
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
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs" / "liaison.md").read_text(encoding="utf-8")
BOUND = 60.0
"""Seconds after which something that should have happened has not."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z")
KEY = re.compile(r"\b[0-9a-f]{64}\b")
ENVIRONMENT = {
    "CSTP_GRPC__PORT": "0",
    "CSTP_EMBEDDING__PROVIDER": "lexical",
    "CSTP_INDEX__MODE": "off",
}


def block(language: str) -> str:
    """Return the first block of the guide in a language."""
    return str(re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)[0])


def plain(text: str) -> str:
    """Return what is printed without what differs from day to day, and without the ends of tables' cells."""
    return "\n".join(line.rstrip() for line in KEY.sub("KEY", MOMENT.sub("MOMENT", text)).splitlines())


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Path]:
    """The folder of a developer, where `cstp serve --dev` runs."""
    (tmp_path / "cstp").symlink_to(ROOT / "scripts" / "cstp.sh")
    command = [sys.executable, "-m", "cstp_grpc", "serve", "--dev", "--no-bridge"]
    environment = {**surroundings(tmp_path), **ENVIRONMENT}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            assert any("Ctrl-C stops everything." in line for line in server.stdout)
            yield tmp_path
        finally:
            server.terminate()
            assert server.wait(BOUND) == 0


def surroundings(folder: Path) -> dict[str, str]:
    """Return the environment of a developer who has configured nothing."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CSTP_")}
    return {**kept, "HOME": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}


def run(command: str, folder: Path) -> str:
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=surroundings(folder),
        stdout=subprocess.PIPE,
        text=True,
        timeout=BOUND,
        check=True,
    ).stdout


def test_the_session_of_the_guide_prints_what_the_guide_says(laptop: Path) -> None:
    for exchange in re.split(r"(?m)^\$ ", block("console"))[1:]:
        command, _, expected = exchange.partition("\n")
        assert plain(run(command, laptop)) == plain(expected), command


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
    run("cstp liaison open --user ada --session s-1 && cstp liaison say 'How do I move my reports?' --user ada", laptop)
    with agent_of_the_guide(laptop):
        wait_until(lambda: "liaison_content" in run("cstp liaison route content --user ada || true", laptop), "routed")
        wait_until(lambda: "with guide" in run("cstp liaison show --user ada", laptop), "returned")
    assert "You ask: How do I move my reports? Upload them here." in run("cstp liaison show --user ada", laptop)


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
