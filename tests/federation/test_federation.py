"""Agents that ask their peers, over both transports: verdicts, decisions and announcements, merged."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.config import AgentSettings, ConfigError, ServerSettings
from cstp_grpc.config.settings import CardSigningSettings
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.errors import DeadlineExceeded
from cstp_grpc.gen.cstp.v1 import cstp_pb2, journal_pb2, types_pb2
from tests.client.federation.answers import check, violation
from tests.client.scripted import scripted_server
from tests.federation.agents import PEER_TOKEN, agent_settings, peer
from tests.harness import TOKENS, GrpcCaller, JsonRpcCaller, bridging, running
from tests.signing_keys import make_key, private_pem, public_pem, write_keys
from tests.waiting import wait_until

PRODUCTION = {"id": "no-production", "when": "context.production", "suggestion": "Ask for a window"}
RISK = {"id": "no-risk", "when": "context.risky"}
OWN = {"id": "not-twice", "when": "context.reviewed", "message": "It was reviewed"}
SHARED = {"visibility": "shared"}
TIMEOUT = 20.0

Caller = GrpcCaller | JsonRpcCaller


@dataclass(frozen=True)
class House:
    """Agent a with its peers: b, which is required, and c, which advises; each has a decision of its own."""

    a: Caller
    b: GrpcCaller
    c: GrpcCaller
    targets: tuple[str, str]
    """Where b and c are."""

    def check(self, scope: str | None = "federated", **more: Any) -> dict[str, Any]:
        return result_of(self.a, "cstp.checkGuardrails", {**given(scope), "action": {"description": "Ship it", **more}})


def given(scope: str | None) -> dict[str, Any]:
    return {} if scope is None else {"scope": scope}


def result_of(caller: Caller, method: str, params: dict[str, Any]) -> dict[str, Any]:
    outcome = caller.call(method, params)
    assert outcome.result is not None, outcome
    return outcome.result


def brief(verdict: dict[str, Any]) -> tuple[bool, list[str], list[str]]:
    """Return whether an action is allowed, what blocks and what warns, each as `agent/guardrail`."""
    violations, warnings = (
        [f"{each.get('agent')}/{each['guardrailId']}" for each in verdict[name]] for name in ("violations", "warnings")
    )
    return verdict["allowed"], violations, warnings


def statuses(answer: dict[str, Any]) -> dict[str, str]:
    return {response["agent"]: response["status"] for response in answer["responses"]}


@pytest.fixture(scope="module", params=["grpc", "jsonrpc"])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    with ExitStack() as opened:
        b = opened.enter_context(running(agent_settings(folder / "b", "b", PRODUCTION)))
        c = opened.enter_context(running(agent_settings(folder / "c", "c", RISK)))
        peers = [
            peer("b", f"grpc://{b.target}", role="required"),
            peer("c", f"grpc://{c.target}", trust=0.5, categories=["architecture", "deployment"]),
        ]
        wanted = agent_settings(
            folder / "a",
            "a",
            OWN,
            peers=peers,
            default_for={"stakes": ["critical"], "categories": ["deployment"]},
        )
        a = opened.enter_context(running(wanted))
        front: Caller
        if request.param == "grpc":
            front = GrpcCaller(a.target)
        else:
            front = JsonRpcCaller(opened.enter_context(bridging(wanted, a.target)))
        made = House(front, GrpcCaller(b.target), GrpcCaller(c.target), (b.target, c.target))
        for caller, title in ((made.a, "Keep the queue small"), (made.b, "Use a queue"), (made.c, "Use a queue")):
            opened.callback(caller.close)
            record(caller, title)
        yield made


def record(caller: Caller, title: str, **more: Any) -> str:
    answer = result_of(caller, "cstp.recordDecision", {"decision": {"title": title, **SHARED, **more}})
    identifier: str = answer["decision"]["id"]
    return identifier


def test_what_nobody_blocks_is_allowed(house: House) -> None:
    answer = house.check(category="architecture")
    assert brief(answer) == (True, [], [])
    assert answer["evaluated"] == 3
    assert statuses(answer) == {"b": "answered", "c": "answered"}
    assert answer["responses"][0]["guardrailStatus"] == {
        "allowed": True,
        "violations": [],
        "warnings": [],
        "evaluated": 1,
    }
    assert answer["responses"][0]["latencyMs"] > 0


def test_what_a_required_peer_blocks_is_blocked(house: House) -> None:
    answer = house.check(context={"production": True, "reviewed": True})
    assert brief(answer) == (False, ["a/not-twice", "b/no-production"], [])
    assert answer["violations"][1]["suggestion"] == "Ask for a window"


def test_what_an_advisory_peer_blocks_is_a_warning(house: House) -> None:
    answer = house.check(category="architecture", context={"risky": True})
    assert brief(answer) == (True, [], ["c/no-risk"])
    assert answer["warnings"][0]["severity"] == "block"


def test_peers_are_asked_about_what_they_speak_for(house: House) -> None:
    assert statuses(house.check()) == {"b": "answered"}
    assert statuses(house.check(category="Deployment")) == {"b": "answered"}
    assert statuses(house.check(category="staffing")) == {"b": "answered"}


def test_the_scope_is_local_unless_the_settings_say_otherwise(house: House) -> None:
    assert house.check(None, stakes="high")["responses"] == []
    assert statuses(house.check(None, stakes="critical")) == {"b": "answered"}
    assert statuses(house.check(None, category="deployment")) == {"b": "answered", "c": "answered"}
    assert house.check("local", stakes="critical")["responses"] == []


def test_not_naming_a_category_is_no_way_around_a_required_peer(tmp_path: Path) -> None:
    with running(agent_settings(tmp_path / "b", "b", PRODUCTION)) as b:
        peers = [peer("b", f"grpc://{b.target}", role="required", categories=["deployment"])]
        with running(agent_settings(tmp_path / "a", "a", peers=peers)) as a:
            caller = GrpcCaller(a.target)
            action = {"description": "Ship it", "context": {"production": True}}
            silent_on_it, other = (
                result_of(caller, "cstp.checkGuardrails", {"action": {**action, **more}, **given("federated")})
                for more in ({}, {"category": "staffing"})
            )
            queried = result_of(caller, "cstp.queryDecisions", {"query": "a queue", **given("federated")})
            caller.close()
    assert brief(silent_on_it) == (False, ["b/no-production"], [])
    assert brief(other) == (True, [], [])
    assert statuses(queried) == {}


def test_naming_agents_asks_them_and_who_must_be_asked(house: House) -> None:
    action = {"description": "Ship it"}
    answer = result_of(house.a, "cstp.checkGuardrails", {"action": action, "agents": ["c"]})
    assert statuses(answer) == {"b": "answered", "c": "answered"}
    answer = result_of(house.a, "cstp.queryDecisions", {"query": "a queue", "agents": ["c"]})
    assert statuses(answer) == {"c": "answered"}


@pytest.mark.parametrize(
    ("params", "fields"),
    [
        ({"scope": "federated", "agents": ["b", "nobody"]}, ("agents[1]",)),
        ({"scope": "local", "agents": ["b"]}, ("agents",)),
        ({"agents": ["b", "b"]}, ("agents",)),
        ({"agents": [""]}, ("agents[0]",)),
    ],
)
def test_who_is_asked_must_make_sense(house: House, params: dict[str, Any], fields: tuple[str, ...]) -> None:
    for method, needed in (
        ("cstp.checkGuardrails", {"action": {"description": "Ship it"}}),
        ("cstp.queryDecisions", {"query": "a queue"}),
        ("cstp.announceIntent", {"intent": "Ship it"}),
    ):
        outcome = house.a.call(method, {**needed, **params})
        assert (outcome.reason, outcome.fields) == ("INVALID_ARGUMENT", fields)


def test_decisions_are_merged_by_score_and_trust(house: House) -> None:
    answer = result_of(house.a, "cstp.queryDecisions", {"query": "use a queue", **given("federated")})
    assert [(each["origin"], each["title"]) for each in answer["decisions"]][:2] == [
        ("b", "Use a queue"),
        ("a", "Keep the queue small"),
    ]
    answer = result_of(
        house.a, "cstp.queryDecisions", {"query": "use a queue", "agents": ["b", "c"], "limit": 2, "minScore": 0}
    )
    assert answer["total"] == 2
    assert answer["totals"] == {"a": 1, "b": 1, "c": 1}
    assert [len(response["decisions"]["decisions"]) for response in answer["responses"]] == [1, 1]


def test_the_same_decision_is_told_once(house: House) -> None:
    content = journal_pb2.DecisionContent(title="Rotate keys every month", visibility=types_pb2.VISIBILITY_SHARED)
    sources = [journal_pb2.ImportDecisionsRequest(source="adr/7", decision=content)]
    for target in house.targets:
        with CstpClient(target, TOKENS["alice"]) as client:
            assert len(list(client.import_decisions(sources))) == 1
    answer = result_of(
        house.a, "cstp.queryDecisions", {"query": "rotate keys every month", "agents": ["b", "c"], "minScore": 0.5}
    )
    assert [(each["origin"], each["title"]) for each in answer["decisions"]] == [("b", "Rotate keys every month")]
    assert [len(response["decisions"]["decisions"]) for response in answer["responses"]] == [1, 1]


def test_peers_record_what_is_announced(house: House) -> None:
    correlation_id = f"ship-{house.a.name}"
    params = {
        "intent": "Use a queue between the parts",
        "correlationId": correlation_id,
        "category": "architecture",
        "stakes": "high",
        "metadata": {"production": True},
        "agent": {"id": "claimed", "url": "https://agent.example.com/hook"},
        **given("federated"),
    }
    answer = result_of(house.a, "cstp.announceIntent", params)
    assert brief(answer["guardrailStatus"]) == (False, ["b/no-production"], [])
    assert {each["origin"] for each in answer["similarDecisions"]} >= {"a", "b", "c"}
    assert "Ask for a window" in answer["suggestions"]
    assert [response["feedback"]["receivedAt"] != "" for response in answer["responses"]] == [True, True]
    for caller in (house.b, house.c):
        (kept,) = result_of(caller, "cstp.listIntents", {"correlationId": correlation_id})["intents"]
        assert (kept["agent"], kept["claimedAgent"]) == ("friend", {"id": "claimed"})
    again = result_of(house.a, "cstp.announceIntent", params)
    assert again["receivedAt"] == answer["receivedAt"]


def test_what_was_merged_is_on_record(house: House) -> None:
    house.check(category="architecture", context={"production": True, "risky": True})
    entries = result_of(house.a, "cstp.listAuditEntries", {"event": "verdicts_merged", "pageSize": 1})["entries"]
    assert entries[0]["requestingAgent"] == "alice"
    assert entries[0]["action"] == "Ship it"
    assert entries[0]["allowed"] is False
    assert entries[0]["violations"] == ["b/no-production"]
    assert entries[0]["warnings"] == ["c/no-risk"]
    assert entries[0]["peers"] == [
        {"agent": "b", "status": "answered", "allowed": False},
        {"agent": "c", "status": "answered", "allowed": False},
    ]
    own, merged = (
        result_of(house.a, "cstp.listAuditEntries", {"requestId": entries[0]["requestId"], "event": event})["entries"]
        for event in ("guardrail_check", "verdicts_merged")
    )
    assert (own[0]["allowed"], merged[0]["allowed"]) == (True, False)


@contextmanager
def silent() -> Iterator[str]:
    """Hold a port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        yield f"grpc://127.0.0.1:{held.getsockname()[1]}"


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


@pytest.mark.parametrize(
    ("context", "allowed", "votes"),
    [
        ({}, True, {"b": True, "c": True, "d": True}),
        ({"production": True}, True, {"b": False, "c": True, "d": True}),
        ({"production": True, "risky": True}, False, {"b": False, "c": False, "d": True}),
        ({"reviewed": True}, False, {"b": True, "c": True, "d": True}),
    ],
)
def test_a_quorum_decides_where_it_is_configured(
    tmp_path: Path, context: dict[str, bool], allowed: bool, votes: dict[str, bool]
) -> None:
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
        action = {"description": "Ship it", "stakes": "high", "context": context}
        answer = result_of(caller, "cstp.checkGuardrails", {"action": action, **given("federated")})
        veto = result_of(caller, "cstp.checkGuardrails", {"action": {**action, "stakes": "low"}, **given("federated")})
    assert answer["allowed"] is allowed
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


@contextmanager
def held() -> Iterator[socket.socket]:
    """Hold a free port until it is needed."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        yield port


def at_port(wanted: Any, number: int) -> Any:
    return wanted.grpc.model_copy(update={"port": number})


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


METHODS: dict[str, dict[str, Any]] = {
    "cstp.checkGuardrails": {"action": {"description": "Ship it", "stakes": "critical", "context": {"reviewed": True}}},
    "cstp.announceIntent": {"intent": "Ship it", "stakes": "critical", "metadata": {"reviewed": True}},
    "cstp.queryDecisions": {"query": "queue"},
}


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcCaller]:
    """Serve an agent without peers, whose calls of high stakes would ask some, and which shares a part with peers."""
    wanted = agent_settings(
        tmp_path_factory.mktemp("lone"), "a", OWN, default_for={"stakes": ["critical"]}, share={"tags": ["api"]}
    )
    with running(wanted) as app:
        caller = GrpcCaller(app.target)
        yield caller
        caller.close()


@pytest.mark.parametrize("scope", ["federated", "local", None])
@pytest.mark.parametrize("method", METHODS)
def test_an_agent_without_peers_answers_alone_whatever_the_scope(
    lone: GrpcCaller, method: str, scope: str | None
) -> None:
    outcome = lone.call(method, {**METHODS[method], **given(scope)})
    assert outcome.result is not None, outcome
    assert outcome.result["responses"] == []
    verdict = outcome.result.get("guardrailStatus", outcome.result)
    if "violations" in verdict:
        assert [each["guardrailId"] for each in verdict["violations"]] == ["not-twice"]
        assert "agent" not in verdict["violations"][0]


@pytest.mark.parametrize("hops", ["id=x;hops=1;path=b", "id=x;hops=0;path=a", "nonsense"])
def test_what_hop_metadata_say_means_nothing_to_an_agent_without_peers(lone: GrpcCaller, hops: str) -> None:
    rpc = contract_methods()["cstp.checkGuardrails"]
    invoke = lone.channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
    request = cstp_pb2.CheckGuardrailsRequest(
        action=cstp_pb2.Action(description="Ship it"), scope=types_pb2.SCOPE_FEDERATED
    )
    metadata = (("authorization", f"Bearer {TOKENS['alice']}"), ("x-cstp-federation", hops))
    answer = invoke(request, timeout=TIMEOUT, metadata=metadata)
    assert isinstance(answer, cstp_pb2.CheckGuardrailsResponse)
    assert answer.allowed
    assert not answer.responses


@pytest.mark.parametrize("method", METHODS)
def test_an_agent_without_peers_has_none_to_be_named(lone: GrpcCaller, method: str) -> None:
    for scope in ("federated", None):
        outcome = lone.call(method, {**METHODS[method], **given(scope), "agents": ["b", "c"]})
        assert (outcome.reason, outcome.message) == ("INVALID_ARGUMENT", "There is no peer b")
        assert outcome.fields == ("agents[0]", "agents[1]")
    contradicting = lone.call(method, {**METHODS[method], "scope": "local", "agents": ["b"]})
    assert contradicting.fields == ("agents",)


def test_a_peer_that_reads_a_part_is_answered_by_the_agent_alone_whomever_it_names(lone: GrpcCaller) -> None:
    params = {**METHODS["cstp.queryDecisions"], "agents": ["b"]}
    assert lone.call("cstp.queryDecisions", params, token=PEER_TOKEN).result is not None
    local = lone.call("cstp.queryDecisions", {**params, "scope": "local"}, token=PEER_TOKEN)
    assert local.reason == "INVALID_ARGUMENT"
