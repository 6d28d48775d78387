"""FederatedClient against real servers: what several agents say, merged for their caller."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from cstp_grpc.client import CstpClient, guard
from cstp_grpc.client.guard import Blocked
from cstp_grpc.contract.errors import InvalidArgument, MethodNotFound
from cstp_grpc.gen.cstp.v1 import types_pb2
from cstp_grpc.modules.federation import Agent, FederatedClient
from tests.harness import TOKENS, running
from tests.modules.federation.agents import agent_settings
from tests.modules.federation.client.servers import SECONDS, pages
from tests.signing_keys import make_key, public_pem, sign_card

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RULES = {
    "b": {"id": "no-production", "when": "context.production", "suggestion": "Ask for a window"},
    "c": {"id": "no-risk", "when": "context.risky"},
}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("agents")
    with ExitStack() as opened:
        found = {}
        for name, rule in RULES.items():
            app = opened.enter_context(running(agent_settings(folder / name, name, rule)))
            found[name] = f"grpc://{app.target}"
            with CstpClient(app.target, TOKENS["alice"]) as client:
                client.record_decision(f"What {name} decided on queues", visibility="shared")
        yield found


def agents(targets: dict[str, str], *advisory: str) -> list[Agent]:
    return [
        Agent(name, target, TOKENS["alice"], required=name not in advisory, timeout=SECONDS)
        for name, target in sorted(targets.items())
    ]


def test_all_required_agents_must_allow_an_action(targets: dict[str, str]) -> None:
    with FederatedClient(agents(targets), name="me", now=lambda: NOW) as client:
        allowed = client.check_guardrails("Ship it")
        blocked = client.check_guardrails("Ship it", context={"production": True, "risky": True})
        narrowed = client.check_guardrails("Ship it", agents=["b"])
    assert (allowed.allowed, allowed.evaluated, allowed.agent) == (True, 2, "me")
    assert allowed.evaluated_at.ToDatetime(UTC) == NOW
    assert [(each.agent, each.guardrail_id) for each in blocked.violations] == [
        ("b", "no-production"),
        ("c", "no-risk"),
    ]
    assert [response.agent for response in blocked.responses] == ["b", "c"]
    assert [response.agent for response in narrowed.responses] == ["b", "c"]


def test_advisory_agents_warn(targets: dict[str, str]) -> None:
    with FederatedClient(agents(targets, "c")) as client:
        answer = client.check_guardrails("Ship it", context={"risky": True})
        named = client.check_guardrails("Ship it", agents=["c"])
    assert answer.allowed
    assert (answer.warnings[0].agent, answer.warnings[0].severity) == ("c", types_pb2.SEVERITY_BLOCK)
    assert len(named.responses) == 2


def test_a_quorum_is_enough(targets: dict[str, str]) -> None:
    with FederatedClient(agents(targets), quorum=1) as client:
        answer = client.check_guardrails("Ship it", context={"risky": True})
    assert answer.allowed
    assert (answer.quorum.needed, answer.quorum.allowing) == (1, 1)


def test_agents_of_other_categories_have_no_vote(targets: dict[str, str]) -> None:
    b, c = (replace(agent, categories=frozenset({agent.name})) for agent in agents(targets))
    with FederatedClient([b, c], quorum=1) as client:
        answer = client.check_guardrails("Ship it", category="c", context={"risky": True}, agents=["b"])
    assert not answer.allowed
    assert [(vote.agent, vote.allow) for vote in answer.quorum.votes] == [("c", False)]
    assert [response.agent for response in answer.responses] == ["b", "c"]


def test_decisions_come_from_all(targets: dict[str, str]) -> None:
    with FederatedClient(agents(targets)) as client:
        answer = client.query_decisions("queues", limit=5, min_score=0)
        one = client.query_decisions("queues", agents=["c"], min_score=0)
    assert {each.origin for each in answer.decisions} == {"b", "c"}
    assert dict(answer.totals) == {"b": 1, "c": 1}
    assert [response.agent for response in one.responses] == ["c"]


def test_all_agents_record_an_announcement(targets: dict[str, str]) -> None:
    with FederatedClient(agents(targets)) as client:
        answer = client.announce_intent("Put the queues in order", category="architecture")
    assert answer.received
    assert answer.guardrail_status.allowed
    for target in targets.values():
        with CstpClient(target, TOKENS["alice"]) as one:
            (kept,) = one.list_intents(correlation_id=answer.correlation_id)
            assert kept.intent == "Put the queues in order"


def test_nothing_is_allowed_where_nobody_judged(targets: dict[str, str]) -> None:
    nobody = Agent("nobody", "grpc://127.0.0.1:1", required=False, timeout=SECONDS)
    with FederatedClient([nobody]) as client:
        answer = client.check_guardrails("Ship it")
        announced = client.announce_intent("Ship it")
    assert not answer.allowed
    assert [(each.agent, each.guardrail_id) for each in answer.violations] == [("client", "federation-unreachable")]
    assert answer.responses[0].status == types_pb2.PEER_STATUS_UNREACHABLE
    assert not announced.received
    assert not announced.guardrail_status.allowed


def test_what_makes_no_sense_is_refused(targets: dict[str, str]) -> None:
    for wrong in ([], [*agents(targets), *agents(targets)]):
        with pytest.raises(InvalidArgument, match="agents"):
            FederatedClient(wrong)
    (agent,) = agents(targets, "c")[:1]
    changes: list[dict[str, Any]] = [{"trust": 1.1}, {"trust": 0.0}, {"trust": math.nan}]
    for change in (*changes, {"timeout": 0.0}, {"timeout": math.nan}):
        with pytest.raises(InvalidArgument, match=next(iter(change))):
            FederatedClient([replace(agent, **change)])
    for quorum in (0, -1, 2):
        with pytest.raises(InvalidArgument, match="quorum"):
            FederatedClient(agents(targets, "c"), quorum=quorum)
    with FederatedClient(agents(targets)) as client:
        with pytest.raises(InvalidArgument, match="scope"):
            client.check_guardrails("Ship it", scope="local")
        with pytest.raises(InvalidArgument, match="no peer nobody"):
            client.query_decisions("queues", agents=["nobody"])
        with pytest.raises(MethodNotFound):
            client.get_access()
        with pytest.raises(MethodNotFound):
            list(client.list_decisions())


@pytest.mark.parametrize(("kind", "answers"), [("signed", True), ("signed by another", False), ("unsigned", False)])
def test_a_pinned_key_must_have_signed_the_card(targets: dict[str, str], kind: str, answers: bool) -> None:
    key = make_key()
    params = {"grpcTarget": targets["b"]}
    content = {"name": "b", "capabilities": {"extensions": [{"uri": "urn:cstp:extension:v1", "params": params}]}}
    card = content if kind == "unsigned" else sign_card(content, key if kind == "signed" else make_key())
    with pages() as host:
        target = host.put("/card.json", card)
        agent = Agent("b", target, TOKENS["alice"], timeout=SECONDS, card_key=public_pem(key).encode())
        with FederatedClient([agent]) as client:
            assert client.check_guardrails("Ship it").allowed == answers


@pytest.mark.parametrize(
    ("target", "card_key"), [("grpc://127.0.0.1:1", None), ("https://b.example/card.json", b"no key")]
)
def test_a_pinned_key_that_makes_no_sense_is_refused(target: str, card_key: bytes | None) -> None:
    with pytest.raises(InvalidArgument, match="card_key"):
        FederatedClient([Agent("b", target, card_key=card_key or public_pem(make_key()).encode())])


def test_functions_are_guarded_by_all(targets: dict[str, str]) -> None:
    with FederatedClient(agents(targets)) as client:

        @guard(client, "Ship it", metadata={"risky": True}, record=False)
        def ship() -> None:
            pytest.fail("it is not allowed")

        with pytest.raises(Blocked, match="no-risk"):
            ship()


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(Agent("b", "grpc://127.0.0.1:1", "secret-token"))
