"""The two agents of docs/federation.md, as they are written there, and what the guide says of the contract."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import pytest

from cstp_grpc import config
from cstp_grpc.cli.main import main
from cstp_grpc.client.codec import from_json, to_json
from cstp_grpc.client.federation.model import QUORUM, UNREACHABLE
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.vocabulary import PeerStatus

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
SECURITY, RULES, HOUSE, PEERS = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
(SESSION,) = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
(ANSWER,) = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)
BOUND = 60.0
"""Seconds after which something that should have happened has not."""
VARYING = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\dZ|\d+ ms|\b[0-9a-f]{32}\b| \d+\.\d+\.\d+\b(?!:)|127\.0\.0\.1:\d+"
)


def surroundings(folder: Path) -> dict[str, str]:
    """Return the environment of a developer who has configured nothing but what keeps the test small, and patient."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CSTP_")}
    small = {"CSTP_EMBEDDING__PROVIDER": "lexical", "CSTP_INDEX__MODE": "off"}
    patient = {"CSTP_FEDERATION__TIMEOUT_SECONDS": "30"}
    return {**kept, **small, **patient, "HOME": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}


@contextmanager
def serving(folder: Path, name: str) -> Iterator[None]:
    """Run the server of a configuration file for the length of a block."""
    command = [sys.executable, "-m", "cstp_grpc", "serve", "--config", name, "--no-bridge"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder, env=surroundings(folder)
    ) as server:
        try:
            assert server.stdout is not None
            assert any("Ctrl-C stops everything." in line for line in server.stdout)
            yield
        finally:
            server.terminate()
            assert server.wait(BOUND) == 0


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Path]:
    """The folder of a developer, where both agents run, on free ports."""
    (tmp_path / "cstp").symlink_to(ROOT / "scripts" / "cstp.sh")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"50051": str(one.getsockname()[1]), "50061": str(other.getsockname()[1])}
    # The peer may take longer than usual, on a busy machine.
    house = HOUSE.replace("role: required}", "role: required, timeout_seconds: 30}")
    for name, text in (("security.yaml", SECURITY), ("rules.yaml", RULES), ("house.yaml", house)):
        (tmp_path / name).write_text(re.sub(r"\b500[56]1\b", lambda match: ports[match[0]], text))
    with ExitStack() as opened:
        for name in ("security.yaml", "house.yaml"):
            opened.enter_context(serving(tmp_path, name))
        yield tmp_path


def run(command: str, folder: Path) -> str:
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=surroundings(folder),
        stdout=subprocess.PIPE,
        text=True,
        timeout=BOUND,
        check=False,
    ).stdout


def plain(text: str) -> list[list[str]]:
    """Return the words of each line that is printed, without what differs from day to day."""
    return [VARYING.sub("", line).split() for line in text.splitlines()]


def test_the_two_agents_print_what_the_guide_says(laptop: Path) -> None:
    for exchange in re.split(r"(?m)^\$ ", SESSION)[1:]:
        command, _, expected = exchange.partition("\n")
        assert plain(run(command, laptop)) == plain(expected), command
    command = "cstp check 'Rotate the signing keys' --context rotatesKeys=true --config house.yaml --scope federated"
    answer, shown = json.loads(run(f"{command} --json", laptop)), json.loads(ANSWER)
    shown["evaluatedAt"] = answer["evaluatedAt"]
    shown["responses"][0]["latencyMs"] = answer["responses"][0]["latencyMs"]
    assert answer == shown


def test_the_answer_is_one_of_the_contract() -> None:
    assert to_json(from_json(json.loads(ANSWER), cstp_pb2.CheckGuardrailsResponse)) == json.loads(ANSWER)


def test_the_peers_of_the_guide_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cstp.yaml"
    path.write_text(PEERS)
    for name in re.findall(r"\$\{(\w+)\}", PEERS):
        monkeypatch.setenv(name, f"{name}-value")
    assert [peer.role for peer in config.load(path).federation.peers] == ["required", "required", "advisory"]


def test_every_status_and_guardrail_is_in_the_guide() -> None:
    assert re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE) == [status.value for status in PeerStatus]
    assert f"`{UNREACHABLE}`" in GUIDE
    assert f"`{QUORUM}`" in GUIDE


def test_the_defaults_that_the_guide_names_are_those_of_the_settings() -> None:
    settings = config.FederationSettings()
    assert f"`max_hops: {settings.max_hops}`, the default" in GUIDE
    for name in re.findall(r"`federation\.(\w+)`", GUIDE):
        assert name in config.FederationSettings.model_fields
    for name in ("breaker_failures", "breaker_seconds", "max_calls", "default_for", "quorums"):
        assert f"`{name}`" in GUIDE
        assert name in config.FederationSettings.model_fields


def test_every_option_that_the_guide_shows_exists() -> None:
    for command in re.findall(r"cstp ([^`\n]+)", SESSION):
        words = command.split()
        found = main.get_command(click.Context(main), words[0])
        assert found is not None
        options = {option for each in found.params for option in each.opts}
        assert {word for word in words if word.startswith("--")} <= options, command
    agents = main.get_command(click.Context(main), "agents")
    assert isinstance(agents, click.Group)
    assert "--dry-run" in {option for each in agents.commands["add"].params for option in each.opts}
