"""Fan-outs and their bounds: time, loops, quorums, sizes, keys and transports."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.contract.errors import DeadlineExceeded
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2
from cstp_grpc.platform.config import AgentSettings, ConfigError, ServerSettings
from cstp_grpc.platform.config.settings import CardSigningSettings
from tests.client.scripted import scripted_server
from tests.harness import TOKENS, GrpcCaller, bridging, running
from tests.modules.federation.agents import PEER_TOKEN, agent_settings, peer
from tests.modules.federation.client.answers import check, violation
from tests.modules.federation.house import (
    OWN,
    PRODUCTION,
    RISK,
    TIMEOUT,
    at_port,
    brief,
    given,
    held,
    result_of,
    silent,
    statuses,
)
from tests.signing_keys import make_key, private_pem, public_pem, write_keys
from tests.waiting import wait_until


@pytest.mark.parametrize(("role", "allowed"), [("required", False), ("advisory", True)])
def test_who_does_not_answer_in_time_holds_nobody(tmp_path: Path, role: str, allowed: bool) -> None:
    with silent() as nowhere:
        wanted = agent_settings(tmp_path, "a", peers=[peer("mute", nowhere, role=role, timeout_seconds=0.3)])
        with running(wanted) as app:
            caller = GrpcCaller(app.target)
            params = {"action": {"description": "Ship it"}, **given("federated")}
            answer = result_of(caller, "cstp.checkGuardrails", params)
            caller.close()
    assert statuses(answer) == {"mute": "timed_out"}
    blocking, warning = ([], ["mute/federation-unreachable"])[:: 1 if allowed else -1]
    assert brief(answer) == (allowed, blocking, warning)
    assert answer["responses"][0]["error"] == {"reason": "DEADLINE_EXCEEDED", "message": "It did not answer in time"}


def test_the_answer_comes_within_the_deadline_of_the_caller(tmp_path: Path) -> None:
    with silent() as nowhere, running(agent_settings(tmp_path, "a", peers=[peer("mute", nowhere)])) as app:
        request = cstp_pb2.CheckGuardrailsRequest(
            action=cstp_pb2.Action(description="Ship it"), scope=types_pb2.SCOPE_FEDERATED
        )
        told: list[int] = []

        def answered() -> bool:
            # What the server keeps of the time for its answer is little where the machine is busy.
            with suppress(DeadlineExceeded):
                answer = client.call(contract_methods()["cstp.checkGuardrails"], request, timeout=1.0)
                assert isinstance(answer, cstp_pb2.CheckGuardrailsResponse)
                told.extend(response.status for response in answer.responses)
            return bool(told)

        with CstpClient(app.target, TOKENS["alice"]) as client:
            wait_until(answered, "an answer comes within the deadline")
    assert told == [types_pb2.PEER_STATUS_TIMED_OUT]


def test_a_refusal_of_a_required_peer_blocks(tmp_path: Path) -> None:
    with running(agent_settings(tmp_path / "b", "b")) as b:
        stranger = peer("b", f"grpc://{b.target}", role="required", token="not-the-token")
        with running(agent_settings(tmp_path / "a", "a", peers=[stranger])) as a:
            caller = GrpcCaller(a.target)
            answer = result_of(caller, "cstp.checkGuardrails", {"action": {"description": "x"}, **given("federated")})
            caller.close()
    assert statuses(answer) == {"b": "refused"}
    assert answer["responses"][0]["error"]["reason"] == "AUTHENTICATION_REQUIRED"
    assert brief(answer)[:2] == (False, ["b/federation-unreachable"])
    assert PEER_TOKEN not in str(answer)


def test_a_quorum_decides_where_it_is_configured(tmp_path: Path) -> None:
    with ExitStack() as opened:
        apps = {
            name: opened.enter_context(running(agent_settings(tmp_path / name, name, *rules)))
            for name, rules in {"b": [PRODUCTION], "c": [RISK], "d": []}.items()
        }
        peers = [peer(name, f"grpc://{app.target}", role="required") for name, app in apps.items()]
        quorums = [{"stakes": ["high"], "allow": 2}]
        a = opened.enter_context(running(agent_settings(tmp_path / "a", "a", OWN, peers=peers, quorums=quorums)))
        caller = GrpcCaller(a.target)
        opened.callback(caller.close)
        expect_quorum(caller, {}, allowed=True, votes={"b": True, "c": True, "d": True})
        expect_quorum(caller, {"production": True}, allowed=True, votes={"b": False, "c": True, "d": True})
        both = {"production": True, "risky": True}
        expect_quorum(caller, both, allowed=False, votes={"b": False, "c": False, "d": True})
        expect_quorum(caller, {"reviewed": True}, allowed=False, votes={"b": True, "c": True, "d": True})


def expect_quorum(caller: GrpcCaller, context: dict[str, bool], *, allowed: bool, votes: dict[str, bool]) -> None:
    """Check an action of high stakes, on which two of three peers must agree, and one of low stakes."""
    action = {"description": "Ship it", "stakes": "high", "context": context}
    answer = result_of(caller, "cstp.checkGuardrails", {"action": action, **given("federated")})
    veto = result_of(caller, "cstp.checkGuardrails", {"action": {**action, "stakes": "low"}, **given("federated")})
    assert answer["allowed"] is allowed, context
    assert {vote["agent"]: vote["allow"] for vote in answer["quorum"]["votes"]} == votes
    assert (answer["quorum"]["needed"], answer["quorum"]["allowing"]) == (2, sum(votes.values()))
    assert answer["allowed"] is (answer["violations"] == [])
    assert "quorum" not in veto
    assert veto["allowed"] is (context == {})


@pytest.mark.parametrize("method", ["cstp.checkGuardrails", "cstp.announceIntent"])
def test_only_peers_that_speak_for_the_category_vote(tmp_path: Path, method: str) -> None:
    with ExitStack() as opened:
        b = opened.enter_context(running(agent_settings(tmp_path / "b", "b", PRODUCTION)))
        c = opened.enter_context(running(agent_settings(tmp_path / "c", "c")))
        peers = [
            peer("b", f"grpc://{b.target}", role="required", categories=["deployment"]),
            peer("c", f"grpc://{c.target}", role="required", categories=["architecture"]),
        ]
        a = opened.enter_context(running(agent_settings(tmp_path / "a", "a", peers=peers, quorums=[{"allow": 1}])))
        caller = GrpcCaller(a.target)
        opened.callback(caller.close)

        def verdict(category: str, *agents: str) -> dict[str, Any]:
            said = {"category": category}
            params: dict[str, Any] = {"intent": "Ship it", **said, "metadata": {"production": True}}
            if method == "cstp.checkGuardrails":
                params = {"action": {"description": "Ship it", **said, "context": {"production": True}}}
            answer = result_of(caller, method, {**params, **given("federated"), "agents": list(agents)})
            judged: dict[str, Any] = answer.get("guardrailStatus", answer)
            return judged

        for agents in ((), ("c",), ("b", "c")):
            of_category = verdict("deployment", *agents)
            assert of_category["quorum"] == {"needed": 1, "allowing": 0, "votes": [{"agent": "b", "allow": False}]}
            assert brief(of_category)[:2] == (False, ["a/federation-quorum", "b/no-production"])
        assert verdict("architecture", "b")["allowed"] is True
        nobodys = verdict("staffing")
        assert nobodys["quorum"] == {"needed": 1, "allowing": 0, "votes": []}
        assert brief(nobodys) == (False, ["a/federation-quorum"], [])


def test_agents_that_ask_each_other_do_not_ask_for_ever(tmp_path: Path) -> None:
    with ExitStack() as opened:
        ports = [opened.enter_context(held()) for _ in range(3)]
        numbers = [port.getsockname()[1] for port in ports]
        callers = []
        for at, (port, number) in enumerate(zip(ports, numbers, strict=True)):
            names = [f"n{other}" for other in range(3) if other != at]
            peers = [peer(name, f"grpc://127.0.0.1:{numbers[int(name[1:])]}", role="required") for name in names]
            wanted = agent_settings(tmp_path / str(at), f"n{at}", PRODUCTION, peers=peers, max_hops=8)
            port.close()
            app = opened.enter_context(running(wanted.model_copy(update={"grpc": at_port(wanted, number)})))
            callers.append(GrpcCaller(app.target))
        answer = result_of(
            callers[0],
            "cstp.checkGuardrails",
            {"action": {"description": "Ship it", "context": {"production": True}}, **given("federated")},
        )
        counts = [len(result_of(c, "cstp.listAuditEntries", {"event": "guardrail_check"})["entries"]) for c in callers]
        for caller in callers:
            caller.close()
    assert answer["allowed"] is False
    assert set(statuses(answer).values()) == {"answered"}
    # Each agent is asked at most once by each path that does not cross itself.
    assert max(counts) <= 5


def test_calls_that_wait_for_peers_leave_room_for_others(tmp_path: Path) -> None:
    go_on = threading.Event()
    with scripted_server(check(), before=lambda *_: go_on.wait(TIMEOUT)) as slow:
        wanted = agent_settings(tmp_path, "a", peers=[peer("slow", slow.target)], max_calls=1)
        with running(wanted) as app:
            callers = [GrpcCaller(app.target) for _ in range(2)]
            params = {"action": {"description": "Ship it"}, **given("federated")}
            outcomes: list[Any] = []
            threads = [
                threading.Thread(target=lambda c=c: outcomes.append(c.call("cstp.checkGuardrails", params)))
                for c in callers
            ]
            for thread in threads:
                thread.start()
            wait_until(lambda: bool(outcomes), "one of them is refused")
            alone = callers[0].call("cstp.checkGuardrails", {"action": {"description": "Ship it"}})
            go_on.set()
            for thread in threads:
                thread.join(TIMEOUT)
            for caller in callers:
                caller.close()
    assert alone.result is not None
    assert sorted(outcome.reason or "" for outcome in outcomes) == ["", "RATE_LIMITED"]


def test_answers_that_are_too_large_together_are_refused_one_by_one(tmp_path: Path) -> None:
    large = check(*[violation(f"r{number}", message="x" * 10_000) for number in range(4)])
    with ExitStack() as opened:
        targets = {
            name: opened.enter_context(scripted_server(answer)).target
            for name, answer in {"b": check(violation("small")), "c": large, "d": large}.items()
        }
        peers = [peer(name, target, role="required") for name, target in targets.items()]
        wanted = agent_settings(tmp_path, "a", peers=peers)
        narrow = wanted.grpc.model_copy(update={"max_message_bytes": 65_536})
        app = opened.enter_context(running(wanted.model_copy(update={"grpc": narrow})))
        caller = GrpcCaller(app.target)
        opened.callback(caller.close)
        answer = result_of(caller, "cstp.checkGuardrails", {"action": {"description": "x"}, **given("federated")})
    assert statuses(answer) == {"b": "answered", "c": "not_understood", "d": "not_understood"}
    assert brief(answer)[:2] == (False, ["b/small", "c/federation-unreachable", "d/federation-unreachable"])
    assert answer["responses"][1]["error"]["message"] == "Its answer was not understood: it has more than 8192 bytes"


@pytest.mark.parametrize(("signed", "pinned"), [("b", "b"), ("b", "other"), (None, "b"), (None, None), ("b", None)])
def test_a_peer_with_a_pinned_key_is_asked_only_if_its_card_is_signed_by_it(
    tmp_path: Path, signed: str | None, pinned: str | None
) -> None:
    keys = {name: write_keys(tmp_path, name=name) for name in ("b", "other")}
    signing = CardSigningSettings(key_file=keys[signed][0]) if signed else None
    b_settings = agent_settings(tmp_path / "b", "b").model_copy(
        update={
            "agent": AgentSettings(name="b", card_signing=signing),
            "server": ServerSettings(port=0, public_url="http://127.0.0.1"),
        }
    )
    with running(b_settings) as b, bridging(b_settings, b.target) as url:
        pin = {"card_key": str(keys[pinned][1])} if pinned else {}
        peers = [peer("b", f"{url}/.well-known/agent-card.json", role="required", **pin)]
        with running(agent_settings(tmp_path / "a", "a", peers=peers)) as a:
            caller = GrpcCaller(a.target)
            answer = result_of(caller, "cstp.checkGuardrails", {"action": {"description": "x"}, **given("federated")})
            caller.close()
    trusted = pinned in (None, signed)
    assert statuses(answer) == {"b": "answered" if trusted else "not_understood"}
    assert brief(answer)[:2] == (trusted, [] if trusted else ["b/federation-unreachable"])


@pytest.mark.parametrize(
    ("content", "url", "said"),
    [
        (None, "https://b.example/card.json", "card_key: .* cannot be read"),
        ("", "https://b.example/card.json", "card_key: .* holds no public keys"),
        (
            "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----",
            "https://b.example/card.json",
            "card_key: .* no public",
        ),
        (private_pem(make_key()), "https://b.example/card.json", "card_key: .* holds a private key"),
        (public_pem(make_key()), "https://b.example", "card_key: need the URL of an agent card"),
    ],
)
def test_a_pinned_key_that_cannot_be_used_stops_the_start(
    tmp_path: Path, content: str | None, url: str, said: str
) -> None:
    path = tmp_path / "b.pub"
    if content is not None:
        path.write_text(content)
    wanted = agent_settings(tmp_path / "a", "a", peers=[peer("b", url, card_key=str(path))])
    with pytest.raises(ConfigError, match=f"federation.peers.0.{said}"), running(wanted):
        pytest.fail("it started")


@pytest.mark.parametrize("kind", ["bridge", "card"])
def test_peers_can_be_asked_through_their_bridges(tmp_path: Path, kind: str) -> None:
    b_settings = agent_settings(tmp_path / "b", "b", PRODUCTION)
    with running(b_settings) as b, bridging(b_settings, b.target) as url:
        address = url if kind == "bridge" else f"{url}/.well-known/agent-card.json"
        peers = [peer("b", address, role="required")]
        with running(agent_settings(tmp_path / "a", "a", peers=peers)) as a:
            caller = GrpcCaller(a.target)
            action = {"description": "Ship it", "context": {"production": True}}
            answer = result_of(caller, "cstp.checkGuardrails", {"action": action, **given("federated")})
            caller.close()
    assert statuses(answer) == {"b": "answered"}
    assert brief(answer)[:2] == (False, ["b/no-production"])
