"""Six servers, each a process of its own, and what becomes of answers when peers fail in every way."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cstp_grpc.contract.json_codec import from_json, to_json
from cstp_grpc.contract.methods import contract_methods
from tests.harness import TOKENS
from tests.modules.federation.agents import agent_settings, peer
from tests.waiting import wait_until

SHORT = 4.0
"""Seconds that the peer may take which is stopped for a while."""
DEADLINE = 20.0
"""Seconds that a call may take, with everything that fails."""
pytestmark = pytest.mark.slow
NAMES = ("well", "stopped", "killed", "stranger", "looping", "garbage")


class Server:
    """A server in a process of its own."""

    def __init__(self, folder: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.target = f"127.0.0.1:{port}"
        self.process = process

    def call(self, method: str, params: dict[str, Any], seconds: float = DEADLINE) -> dict[str, Any]:
        """Return the answer of a call. Raises grpc.RpcError."""
        rpc = contract_methods()[method]
        with grpc.insecure_channel(self.target) as channel:
            invoke = channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
            metadata = (("authorization", f"Bearer {TOKENS['alice']}"),)
            return to_json(invoke(from_json(params, rpc.request), timeout=seconds, metadata=metadata))


@contextmanager
def serving(folder: Path, name: str, port: int, *rules: dict[str, Any], **federation: Any) -> Iterator[Server]:
    """Run a server for the length of a block; it has a decision of its own."""
    wanted = agent_settings(folder / name, name, *rules, **federation)
    written = folder / name / "cstp.yaml"
    content = json.loads(wanted.model_dump_json(exclude_unset=True))
    content["grpc"]["port"] = port
    for token, configured in zip(content["auth"]["tokens"], wanted.auth.tokens, strict=True):
        token["token"] = configured.token.get_secret_value()
    for configured_peer, settings_of in zip(content["federation"]["peers"], wanted.federation.peers, strict=True):
        configured_peer["token"] = settings_of.token.get_secret_value() if settings_of.token else None
    written.write_text(json.dumps(content), encoding="utf-8")
    command = [sys.executable, "-m", "cstp_grpc", "serve", "--no-bridge", "--config", str(written)]
    with (folder / name / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        server = Server(folder / name, port, process)
        try:
            yield server
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def wait_for(server: Server) -> None:
    """Return when a server answers."""

    def answers() -> bool:
        assert server.process.poll() is None, (server.folder / "log").read_text(encoding="utf-8")
        try:
            server.call("cstp.getAccess", {})
        except grpc.RpcError:
            return False
        return True

    # Six processes start at once.
    wait_until(answers, f"{server.folder.name} answers", seconds=120)


@contextmanager
def garbage() -> Iterator[int]:
    """Run a server that answers everything with what is no answer, and yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"\x00\xffno answer at all\r\n" * 40)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def free_ports(count: int) -> list[int]:
    """Return ports that are free."""
    with ExitStack() as opened:
        held = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [port.getsockname()[1] for port in held]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """The hub and its peers, all of them well but the one that answers garbage and the one with another token."""
    folder = tmp_path_factory.mktemp("processes")
    hub, *others = free_ports(6)
    ports = dict(zip(("well", "stopped", "killed", "stranger", "looping"), others, strict=True))
    with ExitStack() as opened:
        ports["garbage"] = opened.enter_context(garbage())
        peers = [peer(name, f"grpc://127.0.0.1:{ports[name]}", role="required") for name in NAMES]
        peers[NAMES.index("stranger")]["token"] = "a-token-that-nobody-knows"
        peers[NAMES.index("stopped")]["timeout_seconds"] = SHORT
        back = [peer("hub", f"grpc://127.0.0.1:{hub}")]
        servers = {
            name: opened.enter_context(serving(folder, name, ports[name], {"id": f"rule-of-{name}", "when": condition}))
            for name, condition in {
                "well": "context.production",
                "stopped": "context.risky",
                "killed": "context.reviewed",
                "stranger": "false",
            }.items()
        }
        looping = {"id": "rule-of-looping", "when": "context.production && context.risky"}
        servers["looping"] = opened.enter_context(
            serving(folder, "looping", ports["looping"], looping, peers=back, max_hops=4)
        )
        own = {"id": "rule-of-hub", "when": "context.production && context.reviewed"}
        servers["hub"] = opened.enter_context(
            serving(folder, "hub", hub, own, peers=peers, max_hops=4, breaker_failures=1000)
        )
        for server in servers.values():
            wait_for(server)
            title = f"What {server.folder.name} decided on queues"
            server.call("cstp.recordDecision", {"decision": {"title": title, "visibility": "shared"}})
        yield servers


def check(hub: Server, agents: Sequence[str], **context: bool) -> dict[str, Any]:
    """Have an action checked by the hub and its peers, within the deadline."""
    action = {"description": "Ship it", "context": context}
    return hub.call("cstp.checkGuardrails", {"action": action, "scope": "federated", "agents": list(agents)})


def of_peers(answer: dict[str, Any]) -> dict[str, str]:
    return {response["agent"]: response["status"] for response in answer["responses"]}


def unreachable(answer: dict[str, Any]) -> set[str]:
    """Return the peers for whose sake an action is not allowed that they did not judge."""
    return {each["agent"] for each in answer["violations"] if each["guardrailId"] == "federation-unreachable"}


def test_everyone_who_is_well_is_heard(house: dict[str, Server]) -> None:
    hub = house["hub"]
    answer = check(hub, NAMES, production=True, risky=True, reviewed=True)
    assert (
        of_peers(answer)
        == {
            "well": "answered",
            "stopped": "answered",
            "killed": "answered",
            "looping": "answered",
            "stranger": "refused",
            "garbage": "unreachable",
        }
        or of_peers(answer)["garbage"] == "not_understood"
    )
    blocking = {(each["agent"], each["guardrailId"]) for each in answer["violations"]}
    assert blocking >= {(name, f"rule-of-{name}") for name in ("hub", "well", "stopped", "killed", "looping")}
    assert unreachable(answer) == {"stranger", "garbage"}
    assert answer["allowed"] is False
    found = hub.call("cstp.queryDecisions", {"query": "what was decided on queues", "scope": "federated"})
    assert {each["origin"] for each in found["decisions"]} == {"hub", "well", "stopped", "killed", "looping"}
    assert found["totals"]["well"] == 1


def test_an_agent_that_asks_back_ends_there(house: dict[str, Server]) -> None:
    before = len(checks(house["hub"]))
    answer = check(house["looping"], ["hub"], production=True, risky=True)
    assert of_peers(answer) == {"hub": "answered"}
    assert answer["allowed"] is False
    # The hub was asked, asked its peers, and answered looping, which it asked too, by itself.
    assert len(checks(house["hub"])) - before == 1


def checks(server: Server) -> list[Any]:
    """Return the checks that a server judged."""
    entries: list[Any] = server.call("cstp.listAuditEntries", {"event": "guardrail_check", "pageSize": 500})["entries"]
    return entries


def test_nothing_is_allowed_that_a_required_peer_did_not_allow(house: dict[str, Server]) -> None:
    hub = house["hub"]
    house["stopped"].process.send_signal(signal.SIGSTOP)
    house["killed"].process.kill()
    house["killed"].process.wait()
    calls: dict[str, Callable[[], dict[str, Any]]] = {
        "check": lambda: check(hub, ()),
        "announcement": lambda: hub.call("cstp.announceIntent", {"intent": "Ship it", "scope": "federated"}),
        "query": lambda: hub.call("cstp.queryDecisions", {"query": "queues", "scope": "federated"}),
    }
    answers = {name: call() for name, call in calls.items()}
    for answer in answers.values():
        statuses = of_peers(answer)
        assert {name: statuses[name] for name in ("well", "looping")} == {"well": "answered", "looping": "answered"}
        assert statuses["stopped"] == "timed_out"
        assert statuses["killed"] == "unreachable"
        assert statuses["stranger"] == "refused"
        assert statuses["garbage"] in {"unreachable", "not_understood"}
        errors = {each["agent"]: each["error"]["message"] for each in answer["responses"] if "error" in each}
        assert all(errors[name] for name in ("stopped", "killed", "stranger", "garbage"))
    for verdict in (answers["check"], answers["announcement"]["guardrailStatus"]):
        assert verdict["allowed"] is False
        assert unreachable(verdict) == {"stopped", "killed", "stranger", "garbage"}
    house["stopped"].process.send_signal(signal.SIGCONT)
    wait_until(lambda: of_peers(check(hub, ()))["stopped"] == "answered", "the stopped peer answers again")


def test_the_caller_decides_how_long_that_may_take(house: dict[str, Server]) -> None:
    params = {"action": {"description": "Ship it"}, "scope": "federated"}
    answers: list[dict[str, Any]] = []

    def answered() -> bool:
        try:
            answers.append(house["hub"].call("cstp.checkGuardrails", params, seconds=SHORT / 4))
        except grpc.RpcError as error:
            # What the hub keeps of the time for its answer is little where the machine is busy.
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:  # type: ignore[attr-defined]
                raise
        return bool(answers)

    house["stopped"].process.send_signal(signal.SIGSTOP)
    wait_until(answered, "an answer comes within the time of the caller")
    house["stopped"].process.send_signal(signal.SIGCONT)
    assert of_peers(answers[0])["stopped"] == "timed_out"
    assert answers[0]["allowed"] is False
