"""Which server is called, and what is said when that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Invoke, Server
from tests.harness import TOKENS, bridging, settings


def agents_file(path: Path, *agents: dict[str, str], **more: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"agents": list(agents), **more}))
    return path


@pytest.fixture
def server(shared_server: Server) -> Server:
    """The server that all tests here ask."""
    return shared_server


def agent(server: Server, name: str = "policy", token: str = TOKENS["alice"]) -> dict[str, str]:
    return {"name": name, "url": server.url, "token": token}


@pytest.mark.parametrize("place", ["agents.yaml", ".config/cstp/agents.yaml", "var/agents.yaml"])
def test_a_name_is_looked_up_where_agents_files_are(place: str, server: Server, invoke: Invoke, home: Path) -> None:
    agents_file(home / place, agent(server))
    assert invoke("query", "x", "--agent", "policy").exit_code == 0


def test_the_first_file_that_has_the_name_wins(server: Server, invoke: Invoke, home: Path) -> None:
    agents_file(home / "agents.yaml", agent(server, "other", "wrong-token"))
    agents_file(home / ".config/cstp/agents.yaml", agent(server))
    agents_file(home / "var/agents.yaml", agent(server, token="wrong-token"))
    assert invoke("query", "x", "--agent", "policy").exit_code == 0


def test_a_file_can_be_named_and_then_its_only_agent_needs_no_name(server: Server, invoke: Invoke, home: Path) -> None:
    path = agents_file(home / "elsewhere.yaml", agent(server))
    assert invoke("query", "x", "--agents-file", path).exit_code == 0
    assert invoke("query", "x", env={"CSTP_AGENTS_FILE": str(path)}).exit_code == 0
    agents_file(path, agent(server), agent(server, "second"))
    result = invoke("query", "x", "--agents-file", path)
    assert result.exit_code == 2
    assert f"Choose an agent of {path} with --agent: policy, second." in result.stderr
    agents_file(path, agent(server), agent(server, "approver"))
    assert invoke("query", "x", "--agents-file", path).exit_code == 0


def test_tokens_may_come_from_the_environment_and_only_the_one_used_must_be_set(
    server: Server, invoke: Invoke, home: Path
) -> None:
    agents_file(home / "agents.yaml", agent(server, token="${TOKEN_A}"), agent(server, "second", "${TOKEN_B}"))
    assert invoke("query", "x", "--agent", "policy", env={"TOKEN_A": TOKENS["alice"]}).exit_code == 0
    result = invoke("query", "x", "--agent", "policy")
    assert result.exit_code == 1
    assert "policy in agents.yaml: not set in the environment: TOKEN_A" in result.stderr


def test_authorities_are_relative_to_the_agents_file(invoke: Invoke, home: Path, free_port: int) -> None:
    entry = {"name": "policy", "url": f"grpcs://127.0.0.1:{free_port}", "ca_file": "absent.pem"}
    path = agents_file(home / "etc/agents.yaml", entry)
    result = invoke("query", "x", "--agents-file", path.relative_to(home))
    assert result.exit_code == 1
    assert "etc/absent.pem: cannot be read" in result.stderr


def test_an_unknown_name_lists_those_there_are(invoke: Invoke, home: Path, server: Server) -> None:
    assert "there is no agents.yaml" in invoke("query", "x", "--agent", "policy").stderr
    agents_file(home / "agents.yaml", agent(server))
    result = invoke("query", "x", "--agent", "nobody")
    assert result.exit_code == 2
    assert "there is: policy" in result.stderr


def test_a_key_that_is_given_twice_is_refused(invoke: Invoke, home: Path) -> None:
    (home / "agents.yaml").write_text("agents: []\ndefaults: {}\nagents: []\n")
    result = invoke("query", "x", "--agent", "policy")
    assert result.exit_code == 1
    assert "agents.yaml: line 3: the key `agents` is given twice; the first is on line 1" in result.stderr


def test_mistakes_in_an_agents_file_are_named(invoke: Invoke, home: Path) -> None:
    agents_file(home / "agents.yaml", {"name": "policy", "uri": "grpc://x:1"})
    result = invoke("query", "x", "--agent", "policy")
    assert result.exit_code == 1
    assert "agents.yaml: agents.0.uri: is not a known setting" in result.stderr


def test_without_a_name_the_developers_server_is_called(server: Server, invoke: Invoke, home: Path) -> None:
    agents_file(home / "var/agents.yaml", agent(server, "developer"))
    assert invoke("query", "x").exit_code == 0


def test_without_any_file_the_configured_server_is_called(server: Server, invoke: Invoke, home: Path) -> None:
    content = {"grpc": {"port": server.app.port}, "auth": {"tokens": [{"name": "alice", "token": TOKENS["alice"]}]}}
    (home / "cstp.yaml").write_text(yaml.safe_dump(content))
    assert invoke("query", "x", "--config", "cstp.yaml").exit_code == 0
    assert invoke("query", "x", env={"CSTP_CONFIG": "cstp.yaml"}).exit_code == 0
    environment = {"CSTP_GRPC__PORT": str(server.app.port), "CSTP_TOKEN": TOKENS["alice"]}
    assert invoke("query", "x", env=environment).exit_code == 0


def test_the_token_of_the_environment_is_for_servers_that_no_file_describes(
    server: Server, invoke: Invoke, home: Path
) -> None:
    agents_file(home / "agents.yaml", {"name": "policy", "url": server.url})
    environment = {"CSTP_TOKEN": TOKENS["alice"]}
    assert invoke("query", "x", "--agent", server.url, env=environment).exit_code == 0
    assert invoke("query", "x", "--agent", "policy", env=environment).exit_code == 1
    assert invoke("query", "x", "--agent", "policy", "--token", TOKENS["alice"]).exit_code == 0


def test_no_server_tells_how_to_start_one(invoke: Invoke, free_port: int) -> None:
    result = invoke("query", "x", env={"CSTP_GRPC__PORT": str(free_port)})
    assert result.exit_code == 1
    assert f"No server answers at grpc://127.0.0.1:{free_port}" in result.stderr
    assert "cstp serve --dev" in result.stderr


def test_an_address_of_the_other_protocol_is_named_with_the_right_scheme(
    server: Server, invoke: Invoke, tmp_path: Path
) -> None:
    result = invoke("list", "--agent", f"http://{server.app.target}", "--token", TOKENS["alice"])
    assert result.exit_code == 1
    assert "speaks gRPC and not HTTP" in result.stderr
    assert f"Call it by grpc://{server.app.target}" in result.stderr
    with bridging(settings(tmp_path), server.app.target) as url:
        address = url.removeprefix("http://")
        result = invoke("list", "--agent", f"grpc://{address}", "--token", TOKENS["alice"])
        assert "speaks HTTP and not gRPC" in result.stderr
        assert f"Call it by http://{address}" in result.stderr
        assert "speaks HTTP and not gRPC" in invoke("health", "--target", address).stdout


def test_no_token_tells_how_to_give_one(server: Server, invoke: Invoke) -> None:
    result = invoke("query", "x", "--agent", server.url)
    assert result.exit_code == 1
    assert "--token" in result.stderr
    assert "CSTP_TOKEN" in result.stderr


def test_a_refused_token_tells_where_it_is_from(server: Server, invoke: Invoke, home: Path) -> None:
    agents_file(home / "agents.yaml", agent(server, token="wrong-token"))
    assert "policy in agents.yaml" in invoke("query", "x", "--agent", "policy").stderr
    result = invoke("query", "x", "--agent", server.url, env={"CSTP_TOKEN": "wrong-token"})
    assert "is from CSTP_TOKEN" in result.stderr
    assert "wrong-token" not in result.stderr


def test_errors_as_json_have_their_reason_and_a_hint(server: Server, invoke: Invoke) -> None:
    result = invoke("query", "x", "--agent", server.url, "--json")
    error = json.loads(result.stderr)["error"]
    assert error["reason"] == "AUTHENTICATION_REQUIRED"
    assert error["requestId"]
    assert "--token" in error["hint"]
    assert result.stdout == ""


def test_a_certificate_that_cannot_be_read_is_named(invoke: Invoke, home: Path) -> None:
    agents_file(home / "agents.yaml", {"name": "policy", "url": "grpcs://localhost:1", "ca_file": "missing.pem"})
    result = invoke("query", "x", "--agent", "policy")
    assert result.exit_code == 1
    assert "missing.pem: cannot be read" in result.stderr
