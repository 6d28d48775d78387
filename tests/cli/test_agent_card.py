"""agent-card --verify, and agents whose card must be signed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Invoke
from tests.harness import bridging, running, settings
from tests.modules.federation.agents import PEER_TOKEN, agent_settings, peer
from tests.signing_keys import write_keys

CARD = "/.well-known/agent-card.json"


@dataclass(frozen=True)
class Signing:
    """A bridge that signs its cards, and the keys: its own private and public one, and another public one."""

    url: str
    private: Path
    public: Path
    other: Path


@pytest.fixture
def signing(tmp_path: Path) -> Iterator[Signing]:
    (private, public), (_, other) = write_keys(tmp_path), write_keys(tmp_path, name="other")
    tokens = agent_settings(tmp_path / "b", "security").auth.model_dump()
    wanted = settings(
        tmp_path / "b",
        agent={"name": "security", "card_signing": {"key_file": private}},
        server={"public_url": "http://127.0.0.1"},
        auth=tokens,
    )
    with running(wanted) as app, bridging(wanted, app.target) as url:
        yield Signing(url, private, public, other)


def test_a_card_that_is_signed_by_the_key_is_shown(invoke: Invoke, signing: Signing) -> None:
    for url in (signing.url, f"{signing.url}/cstp", signing.url + CARD, f"{signing.url}/.well-known/agent.json"):
        result = invoke("agent-card", url, "--verify", "--key", signing.public)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["name"] == "security"
        assert result.stderr.startswith("Verified: signed by the key ")


def test_what_is_shown_is_what_is_signed(invoke: Invoke, signing: Signing) -> None:
    plain = json.loads(invoke("agent-card", signing.url, "--json").stdout)
    shown = json.loads(invoke("agent-card", signing.url, "--verify", "--key", signing.public, "--json").stdout)
    assert plain["capabilities"]["cstp"]
    assert "cstp" not in shown["capabilities"]
    assert shown["supportedInterfaces"] == plain["supportedInterfaces"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_card_that_another_key_signed_is_exit_code_3(invoke: Invoke, signing: Signing, as_json: bool) -> None:
    result = invoke("agent-card", signing.url, "--verify", "--key", signing.other, *["--json"] * as_json)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "The card is signed by another key." in result.stderr
    if as_json:
        assert json.loads(result.stderr)["error"]["reason"] == "CARD_NOT_VERIFIED"


def test_a_card_that_is_not_signed_is_exit_code_3(invoke: Invoke, tmp_path: Path) -> None:
    _, public = write_keys(tmp_path)
    wanted = settings(tmp_path / "data")
    with running(wanted) as app, bridging(wanted, app.target) as url:
        result = invoke("agent-card", url, "--verify", "--key", public)
        assert invoke("agent-card", url).exit_code == 0
    assert (result.exit_code, result.stdout) == (3, "")
    assert "The card is not signed." in result.stderr


def test_the_configuration_has_keys_too(invoke: Invoke, signing: Signing, home: Path) -> None:
    pinned = [peer("b", signing.url + CARD, card_key=str(signing.public))]
    path = home / "cstp.yaml"
    path.write_text(yaml.safe_dump({"federation": {"peers": pinned}}))
    assert invoke("agent-card", signing.url, "--verify", "--config", path).exit_code == 0
    host, _, port = signing.url.removeprefix("http://").partition(":")
    own = {
        "agent": {"card_signing": {"key_file": str(signing.private)}},
        "server": {"host": host, "port": int(port), "public_url": "http://127.0.0.1"},
    }
    path.write_text(yaml.safe_dump(own))
    assert invoke("agent-card", "--verify", "--config", path).exit_code == 0


def test_without_a_key_nothing_can_be_verified(invoke: Invoke, free_port: int, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port}"
    private, public = write_keys(tmp_path)
    for arguments in ([url, "--verify"], ["--verify"], [url, "--key", public]):
        result = invoke("agent-card", *arguments)
        assert result.exit_code == 2
        assert "--key" in result.stderr
    refused = invoke("agent-card", url, "--verify", "--key", private)
    assert refused.exit_code == 1
    assert "holds a private key" in refused.stderr
    assert invoke("agent-card", url, "--verify", "--key", tmp_path / "none").exit_code == 1
    assert invoke("agent-card", url, "--verify", "--key", public).exit_code == 1


def test_an_agent_is_added_with_the_key_of_its_card(invoke: Invoke, signing: Signing, home: Path) -> None:
    path = home / "cstp.yaml"
    path.write_text("agent: {name: a}\n")
    given = ("peers", "add", signing.url, "--config", path, "--card-key")
    refused = invoke(*given, signing.other, env={"CSTP_TOKEN_SECURITY": PEER_TOKEN})
    assert refused.exit_code == 1
    assert "signed by none of the keys" in refused.stderr
    added = invoke(*given, signing.public, env={"CSTP_TOKEN_SECURITY": PEER_TOKEN})
    assert added.exit_code == 0, added.output
    [entry] = yaml.safe_load(path.read_text())["federation"]["peers"]
    assert (entry["url"], entry["card_key"]) == (signing.url + CARD, str(signing.public))
    listed = invoke("peers", "--config", path, "--json", env={"CSTP_TOKEN_SECURITY": PEER_TOKEN})
    [found] = json.loads(listed.stdout)["agents"]
    assert (found["status"], found["card"]["name"]) == ("answered", "security")
    path.write_text("agent: {name: a}\n")
    over_grpc = invoke("peers", "add", "grpc://127.0.0.1:1", "--config", path, "--card-key", signing.public)
    assert over_grpc.exit_code == 2


def test_the_signing_key_is_checked_with_the_configuration(invoke: Invoke, home: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    path = home / "cstp.yaml"
    for key, code in ((private, 0), (public, 1), (tmp_path / "none", 1)):
        path.write_text(
            yaml.safe_dump(
                {
                    "agent": {"card_signing": {"key_file": str(key)}},
                    "server": {"public_url": "https://agent.example.com"},
                }
            )
        )
        result = invoke("config", "check", "--config", path)
        assert result.exit_code == code, result.output
        assert ("agent.card_signing.key_file" in result.stderr) == bool(code)
