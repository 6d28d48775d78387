"""The two agents of docs/federation.md, as they are written there, and what the guide says of the contract."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from cstp_grpc import config
from cstp_grpc.cli.main import main
from cstp_grpc.client.codec import from_json, to_json
from cstp_grpc.client.federation.model import QUORUM, UNREACHABLE
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.vocabulary import PeerStatus
from tests.guides import SMALL, blocks, exchanges, guide, run, serving, surroundings

GUIDE = guide("federation.md")
SECURITY, RULES, HOUSE, PEERS = blocks(GUIDE, "yaml")
(SESSION,) = blocks(GUIDE, "console")
(ANSWER,) = blocks(GUIDE, "json")
PATIENT = {"CSTP_FEDERATION__TIMEOUT_SECONDS": "30"}
VARYING = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\dZ|\d+ ms|\b[0-9a-f]{32}\b| \d+\.\d+\.\d+\b(?!:)|127\.0\.0\.1:\d+"
)


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Path]:
    """The folder of a developer, where both agents run, on free ports."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"50051": str(one.getsockname()[1]), "50061": str(other.getsockname()[1])}
    # The peer may take longer than usual, on a busy machine.
    house = HOUSE.replace("role: required}", "role: required, timeout_seconds: 30}")
    for name, text in (("security.yaml", SECURITY), ("rules.yaml", RULES), ("house.yaml", house)):
        (tmp_path / name).write_text(re.sub(r"\b500[56]1\b", lambda match: ports[match[0]], text))
    environment = surroundings(tmp_path, **SMALL, **PATIENT)
    with ExitStack() as opened:
        for name in ("security.yaml", "house.yaml"):
            opened.enter_context(serving(tmp_path, environment, "--config", name))
        yield tmp_path


def plain(text: str) -> list[list[str]]:
    """Return the words of each line that is printed, without what differs from day to day."""
    return [VARYING.sub("", line).split() for line in text.splitlines()]


def test_the_two_agents_print_what_the_guide_says(laptop: Path) -> None:
    environment = surroundings(laptop, **SMALL, **PATIENT)
    for command, expected in exchanges(SESSION):
        assert plain(run(command, laptop, environment, check=False)) == plain(expected), command
    command = "cstp check 'Rotate the signing keys' --context rotatesKeys=true --config house.yaml --scope federated"
    answer, shown = json.loads(run(f"{command} --json", laptop, environment, check=False)), json.loads(ANSWER)
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
