"""The agents that are asked: how they are, one more in the configuration, and their answers on the command line."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cstp_grpc.gen.cstp.v1 import access_pb2, options_pb2
from cstp_grpc.platform.config import ConfigError, load_settings
from tests.certificates import make_certificate
from tests.cli.conftest import Invoke, Server, enter_home, run_command
from tests.client.scripted import scripted_server
from tests.harness import TOKENS, GrpcCaller, bridging, running
from tests.modules.federation.agents import PEER_TOKEN, agent_settings, peer

PRODUCTION = {"id": "no-production", "when": "context.production", "message": "Not there", "suggestion": "Ask first"}
RISK = {"id": "no-risk", "when": "context.risky"}
CONFIGURATION = """\
# The agents of the house.
agent: {name: a}   # that is us

federation:
  max_hops: 1  # nobody else's peers
"""


@dataclass(frozen=True)
class Elsewhere:
    """An agent that can be a peer: where it speaks gRPC, and where its bridge is."""

    grpc: str
    bridge: str

    @property
    def card(self) -> str:
        return f"{self.bridge}/.well-known/agent-card.json"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """An agent that tests share, for they only ask it."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patched:
        enter_home(patched, folder)
        wanted = agent_settings(folder / "b", "security", PRODUCTION)
        with running(wanted) as app, bridging(wanted, app.target) as url:
            yield Elsewhere(f"grpc://{app.target}", url)


@pytest.fixture
def configuration(home: Path) -> Path:
    path = home / "cstp.yaml"
    path.write_text(CONFIGURATION)
    path.chmod(0o640)
    return path


def write(path: Path, *peers: dict[str, Any], **federation: Any) -> Path:
    content = {"agent": {"name": "a"}, "federation": {"peers": list(peers), **federation}}
    path.write_text(yaml.safe_dump(content))
    return path


class TestListing:
    def test_each_agent_is_shown_with_what_is_known_of_it(
        self, invoke: Invoke, home: Path, elsewhere: Elsewhere, free_port: int
    ) -> None:
        path = write(
            home / "cstp.yaml",
            peer("b", elsewhere.grpc, role="required", categories=["deployment"]),
            peer("c", elsewhere.bridge),
            peer("d", elsewhere.card, token="not-the-token"),
            peer("e", f"grpc://127.0.0.1:{free_port}"),
        )
        result = invoke("peers", "--config", path, "--timeout", 10, "--json")
        assert result.exit_code == 0, result.output
        found = {each["name"]: each for each in json.loads(result.stdout)["agents"]}
        assert list(found) == ["b", "c", "d", "e"]
        assert {name: each["status"] for name, each in found.items()} == {
            "b": "answered",
            "c": "answered",
            "d": "refused",
            "e": "unreachable",
        }
        assert [each["healthy"] for each in found.values()] == [True, True, False, False]
        assert [each["role"] for each in found.values()] == ["required", *["advisory"] * 3]
        assert found["b"]["categories"] == ["deployment"]
        assert found["b"]["agent"] == "security"
        assert found["b"]["requestingAgent"] == "friend"
        assert found["b"]["permissions"] == ["announce", "check", "query"]
        assert found["b"]["version"] == found["c"]["version"] != ""
        assert found["b"]["latencyMs"] > 0
        assert "card" not in found["b"]
        assert found["c"]["card"]["name"] == found["d"]["card"]["name"] == "security"
        assert found["c"]["card"]["skills"] >= 3
        assert found["d"]["error"]["reason"] == "AUTHENTICATION_REQUIRED"
        assert found["e"]["error"]["reason"] == "UNAVAILABLE"

    def test_people_read_it_too(self, invoke: Invoke, home: Path, elsewhere: Elsewhere, free_port: int) -> None:
        path = write(home / "cstp.yaml", peer("b", elsewhere.bridge), peer("c", f"grpc://127.0.0.1:{free_port}"))
        shown = invoke("peers", "--config", path, "--timeout", 10).stdout
        assert "healthy" in shown
        assert "b (security)" in shown
        assert "Decision intelligence" in shown
        assert "knows us as friend" in shown
        assert "unreachable" in shown
        assert "UNAVAILABLE: It cannot be reached or fails" in shown

    @pytest.mark.parametrize(("role", "code"), [("required", 3), ("advisory", 0)])
    def test_a_required_agent_that_is_unwell_is_exit_code_3(
        self, invoke: Invoke, home: Path, free_port: int, role: str, code: int
    ) -> None:
        path = write(home / "cstp.yaml", peer("b", f"http://127.0.0.1:{free_port}", role=role))
        assert invoke("peers", "--config", path).exit_code == code

    def test_what_may_not_be_asked_is_pointed_out(self, invoke: Invoke, home: Path, server: Server) -> None:
        path = write(home / "cstp.yaml", {"name": "b", "url": server.url, "token": TOKENS["reader"]})
        assert "does not permit us to announce" in invoke("peers", "--config", path).stdout

    def test_permissions_of_a_later_contract_are_left_out(self, invoke: Invoke, home: Path) -> None:
        known = options_pb2.PERMISSION_QUERY
        access = access_pb2.GetAccessResponse(agent="later", version="9.0.0", permissions=[known, 99])  # type: ignore[list-item]
        with scripted_server(access) as server:
            path = write(home / "cstp.yaml", peer("b", f"grpc://{server.target}"))
            result = invoke("peers", "--config", path, "--json")
        (found,) = json.loads(result.stdout)["agents"]
        assert (found["version"], found["permissions"]) == ("9.0.0", ["query"])

    @pytest.mark.parametrize(
        "access",
        [
            access_pb2.GetAccessResponse(agent="b", requesting_agent="x" * 501),
            access_pb2.GetAccessResponse(agent="b", version="xxx\u202e"),
        ],
        ids=["too long", "unprintable"],
    )
    def test_an_agent_that_says_what_cannot_be_shown_is_unwell(
        self, invoke: Invoke, home: Path, access: access_pb2.GetAccessResponse
    ) -> None:
        with scripted_server(access) as server:
            path = write(home / "cstp.yaml", peer("b", f"grpc://{server.target}", role="required"))
            result = invoke("peers", "--config", path)
        assert result.exit_code == 3
        assert "not understood" in result.stdout
        assert "xxx" not in result.stdout

    def test_an_agent_with_our_own_name_is_pointed_out(self, invoke: Invoke, home: Path, elsewhere: Elsewhere) -> None:
        path = write(home / "cstp.yaml", peer("b", elsewhere.grpc))
        path.write_text(path.read_text().replace("name: a\n", "name: security\n"))
        result = invoke("peers", "--config", path)
        assert "give each an agent.name of its own" in result.stderr

    def test_a_configuration_without_agents_says_how_to_add_one(self, invoke: Invoke) -> None:
        result = invoke("peers")
        assert result.exit_code == 0
        assert "cstp peers add URL" in result.stdout
        assert json.loads(invoke("peers", "--json").stdout) == {"agents": []}


class TestAdding:
    def test_the_agent_of_a_card_is_written_and_all_else_stays(
        self, invoke: Invoke, configuration: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arguments = ("--role", "required", "--category", "deployment", "--category", "architecture")
        result = invoke("peers", "add", elsewhere.bridge, *arguments, "--config", configuration)
        assert result.exit_code == 0, result.output
        assert configuration.read_text() == CONFIGURATION + (
            "  peers:\n"
            "    - name: security\n"
            f"      url: {elsewhere.card}\n"
            "      token: ${CSTP_TOKEN_SECURITY}\n"
            "      role: required\n"
            "      categories:\n"
            "        - deployment\n"
            "        - architecture\n"
        )
        assert stat.S_IMODE(configuration.stat().st_mode) == 0o640
        assert "set CSTP_TOKEN_SECURITY to the token" in result.stdout
        assert "restart the server" in result.stdout
        with pytest.raises(ConfigError, match="CSTP_TOKEN_SECURITY"):
            load_settings(configuration)
        monkeypatch.setenv("CSTP_TOKEN_SECURITY", PEER_TOKEN)
        assert load_settings(configuration).federation.peers[0].role == "required"
        listed = invoke("peers", "--config", configuration)
        assert listed.exit_code == 0, listed.output
        assert "knows us as friend" in listed.stdout

    @pytest.mark.parametrize("kind", ["card", "site", "bridge"])
    def test_a_card_is_found_where_people_look_for_it(
        self, invoke: Invoke, configuration: Path, elsewhere: Elsewhere, kind: str
    ) -> None:
        url = {"card": elsewhere.card, "site": f"{elsewhere.bridge}/", "bridge": f"{elsewhere.bridge}/cstp"}[kind]
        result = invoke("peers", "add", url, "--config", configuration, "--json")
        answer = json.loads(result.stdout)
        assert answer["peer"]["url"] == elsewhere.card
        assert (answer["tokenVariable"], answer["tokenIsSet"]) == ("CSTP_TOKEN_SECURITY", False)
        assert answer["written"] is True

    def test_an_agent_that_speaks_grpc_is_asked_for_its_name(
        self, invoke: Invoke, configuration: Path, elsewhere: Elsewhere
    ) -> None:
        result = invoke(
            *("peers", "add", elsewhere.grpc, "--token-env", "SECRET", "--config", configuration),
            env={"SECRET": PEER_TOKEN},
        )
        assert result.exit_code == 0, result.output
        (added,) = yaml.safe_load(configuration.read_text())["federation"]["peers"]
        assert added == {"name": "security", "url": elsewhere.grpc, "token": "${SECRET}", "role": "advisory"}
        assert PEER_TOKEN not in configuration.read_text() + result.output
        assert "Next: restart the server" in result.stdout

    def test_without_a_token_an_agent_that_speaks_grpc_must_be_named(
        self, invoke: Invoke, configuration: Path, elsewhere: Elsewhere
    ) -> None:
        target = elsewhere.grpc.removeprefix("grpc://")
        result = invoke("peers", "add", target, "--config", configuration)
        assert result.exit_code == 2
        assert "--name" in result.stderr
        result = invoke("peers", "add", target, "--name", "qa.1", "--config", configuration)
        assert result.exit_code == 0, result.output
        (added,) = yaml.safe_load(configuration.read_text())["federation"]["peers"]
        assert (added["name"], added["url"]) == ("qa.1", elsewhere.grpc)
        assert added["token"] == "${CSTP_TOKEN_QA_1}"

    def test_a_dry_run_shows_the_difference_and_changes_nothing(
        self, invoke: Invoke, configuration: Path, elsewhere: Elsewhere
    ) -> None:
        result = invoke("peers", "add", elsewhere.bridge, "--dry-run", "--config", configuration)
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        assert lines[1:3] == ["+  peers:", "+    - name: security"]
        assert all(line.startswith(("@@", "+")) for line in lines)
        assert configuration.read_text() == CONFIGURATION

    def test_authorities_are_found_from_the_configuration_file(
        self, invoke: Invoke, home: Path, elsewhere: Elsewhere
    ) -> None:
        make_certificate(home)
        for folder, written in ((home / "etc", str(home / "certificate.pem")), (home, "certificate.pem")):
            folder.mkdir(exist_ok=True)
            (folder / "cstp.yaml").write_text(CONFIGURATION)
            arguments = ("--ca-file", "certificate.pem", "--config", folder / "cstp.yaml")
            result = invoke("peers", "add", elsewhere.bridge, *arguments)
            assert result.exit_code == 0, result.output
            (added,) = yaml.safe_load((folder / "cstp.yaml").read_text())["federation"]["peers"]
            assert added["ca_file"] == written

    def test_an_agent_is_added_once(self, invoke: Invoke, configuration: Path, elsewhere: Elsewhere) -> None:
        environment = {"CSTP_TOKEN_SECURITY": PEER_TOKEN}
        added = ("peers", "add", "--config", configuration)
        assert invoke(*added, elsewhere.bridge, env=environment).exit_code == 0
        before = configuration.read_text()
        for url, arguments, said in (
            (elsewhere.bridge, (), "already, as security"),
            (elsewhere.grpc, ("--name", "security"), "Name the new one differently with --name"),
            (f"{elsewhere.bridge}/", ("--name", "other"), "as security"),
            (elsewhere.card, ("--name", "other"), "as security"),
        ):
            result = invoke(*added, url, *arguments, env=environment)
            assert (result.exit_code, said in result.stderr) == (1, True), result.output
        assert configuration.read_text() == before

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--name", "no spaces"), "federation.peers.0.name"),
            (("--ca-file", "absent.pem"), "absent.pem: cannot be read"),
            (("--name", "a"), "a is the name of this agent itself"),
        ],
    )
    def test_what_would_not_be_sound_is_not_written(
        self, invoke: Invoke, configuration: Path, elsewhere: Elsewhere, arguments: tuple[str, ...], said: str
    ) -> None:
        result = invoke("peers", "add", elsewhere.bridge, *arguments, "--config", configuration)
        assert result.exit_code == 1
        assert said in result.stderr
        assert configuration.read_text() == CONFIGURATION

    def test_a_url_that_nobody_can_call_is_wrong_usage(self, invoke: Invoke, configuration: Path) -> None:
        result = invoke("peers", "add", "ftp://me:secret@files.example.com", "--config", configuration)
        assert result.exit_code == 2
        assert "Invalid value for 'URL': must begin with grpc://, grpcs://, http:// or https://" in result.stderr
        assert "secret" not in result.stderr

    def test_peers_of_the_environment_are_not_shadowed(
        self, invoke: Invoke, configuration: Path, elsewhere: Elsewhere
    ) -> None:
        environment = {"CSTP_FEDERATION__PEERS": '[{"name": "x", "url": "grpc://127.0.0.1:1"}]'}
        result = invoke("peers", "add", elsewhere.bridge, "--config", configuration, env=environment)
        assert (result.exit_code, "the environment sets federation.peers" in result.stderr) == (1, True)

    def test_where_nobody_answers_it_says_so(self, invoke: Invoke, configuration: Path, free_port: int) -> None:
        for scheme in ("grpc", "http"):
            url = f"{scheme}://127.0.0.1:{free_port}"
            result = invoke("peers", "add", url, "--name", "b", "--config", configuration, "--timeout", 10)
            assert result.exit_code == 1
            assert f"is {url} its address" in result.stderr
        assert configuration.read_text() == CONFIGURATION

    def test_a_token_that_is_not_known_is_told_with_where_it_is_from(
        self, invoke: Invoke, configuration: Path, elsewhere: Elsewhere
    ) -> None:
        arguments = ("--token-env", "SECRET", "--config", configuration)
        result = invoke("peers", "add", elsewhere.grpc, *arguments, env={"SECRET": "not-the-token"})
        assert result.exit_code == 1
        assert "The token that was sent is from SECRET" in result.stderr
        assert "not-the-token" not in result.output

    def test_the_configuration_must_be_named(self, invoke: Invoke) -> None:
        result = invoke("peers", "add", "https://b.example.com")
        assert (result.exit_code, "--config FILE or CSTP_CONFIG" in result.stderr) == (2, True)

    def test_a_variable_must_have_the_name_of_one(self, invoke: Invoke, configuration: Path) -> None:
        result = invoke("peers", "add", "grpc://b:1", "--token-env", "a b", "--config", configuration)
        assert (result.exit_code, "not the name of an environment variable" in result.stderr) == (2, True)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Agent a with the peers b and c, of which two votes decide what is critical, and a peer that nobody reaches."""
    folder = tmp_path_factory.mktemp("house")
    with ExitStack() as opened:
        enter_home(opened.enter_context(pytest.MonkeyPatch.context()), folder)
        apps = {
            name: opened.enter_context(running(agent_settings(folder / name, name, rule)))
            for name, rule in {"b": PRODUCTION, "c": RISK}.items()
        }
        peers = [peer(name, f"grpc://{app.target}", role="required") for name, app in apps.items()]
        quorums = [{"stakes": ["critical"], "allow": 1}]
        a = opened.enter_context(running(agent_settings(folder / "a", "a", peers=peers, quorums=quorums)))
        caller = GrpcCaller(apps["b"].target)
        opened.callback(caller.close)
        decision = {"title": "Use a queue", "visibility": "shared", "outcome": "failure"}
        assert caller.call("cstp.recordDecision", {"decision": decision}).result
        yield Server(a, run_command)


class TestAsking:
    def test_a_check_shows_what_each_peer_says(self, house: Server) -> None:
        result = house("check", "Ship it", "--scope", "federated", "--context", "production=true")
        assert result.exit_code == 3
        assert "b/no-production: Not there" in result.stdout
        lines = [line.split() for line in result.stdout.splitlines()]
        rows = {line[0]: " ".join(line[1:]) for line in lines if line and line[0] in ("b", "c")}
        assert rows["b"].startswith("answered blocks it by no-production, ")
        assert rows["c"].startswith("answered allows it, ")
        assert "Peers" not in house.ok("check", "Ship it", "--context", "production=true")

    def test_a_quorum_is_shown_with_its_votes(self, house: Server) -> None:
        shown = house.ok("check", "Ship it", "--ask", "b", "--stakes", "critical", "--context", "production=true")
        assert "1 of 2 required peers allow it, 1 must" in shown
        assert "  b votes against" in shown
        assert "  c votes for" in shown
        assert "warns  b/no-production" in shown

    def test_a_query_shows_whose_memory_it_is(self, house: Server) -> None:
        shown = house.ok("query", "use a queue", "--scope", "federated")
        assert "from b" in shown
        assert "found 1" in shown
        only = house.ok("query", "use a queue", "--ask", "c")
        assert "No decision resembles this" in only
        assert "found 0" in only

    def test_an_announcement_shows_what_peers_remember_and_suggest(self, house: Server) -> None:
        result = house("announce", "Use a queue", "--scope", "federated", "--metadata", "production=true")
        assert result.exit_code == 3
        assert "from b" in result.stdout
        assert "Ask first" in result.stdout
        assert "remembers 1" in result.stdout

    def test_json_is_the_result_of_the_method(self, house: Server) -> None:
        answer = house.json("query", "use a queue", "--scope", "federated", "--ask", "b")
        assert [each["origin"] for each in answer["decisions"]] == ["b"]
        assert [each["agent"] for each in answer["responses"]] == ["b"]

    def test_a_peer_that_there_is_not_is_a_mistake(self, house: Server) -> None:
        result = house("check", "Ship it", "--ask", "nobody")
        assert (result.exit_code, "--ask accepts the names in federation.peers" in result.stderr) == (1, True)

    def test_a_peer_that_does_not_answer_is_shown_with_why(
        self, invoke: Invoke, tmp_path: Path, free_port: int
    ) -> None:
        peers = [peer("gone", f"grpc://127.0.0.1:{free_port}", role="required")]
        with running(agent_settings(tmp_path / "alone", "alone", peers=peers)) as app:
            result = Server(app, invoke)("check", "Ship it", "--scope", "federated")
        assert result.exit_code == 3
        assert "gone/federation-unreachable" in result.stdout
        assert "UNAVAILABLE: It cannot be reached or fails" in result.stdout
