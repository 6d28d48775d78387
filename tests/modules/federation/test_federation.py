"""Agents that ask their peers, over both transports: verdicts, decisions and announcements, merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.gen.cstp.v1 import journal_pb2, types_pb2
from tests.harness import TOKENS, GrpcCaller, running
from tests.modules.federation.agents import agent_settings, peer
from tests.modules.federation.house import PRODUCTION, SHARED, House, brief, given, result_of, statuses


def test_what_nobody_blocks_is_allowed(house: House) -> None:
    answer = house.check(category="architecture")
    assert brief(answer) == (True, [], [])
    assert answer["evaluated"] == 3
    assert statuses(answer) == {"b": "answered", "c": "answered"}
    status = answer["responses"][0]["guardrailStatus"]
    assert (status["allowed"], status["violations"], status["warnings"], status["evaluated"]) == (True, [], [], 1)
    # What the verdict of each agent rests on is its own.
    assert status["assumed"] == ["production"]
    assert status["checkId"] not in ("", answer["checkId"])
    assert status["ruleSetVersion"] not in ("", answer["ruleSetVersion"])
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
    assert statuses(queried) == {"b": "answered"}


def test_a_search_without_a_category_asks_peers_that_have_categories(house: House) -> None:
    peers = {
        category: statuses(
            result_of(house.a, "cstp.queryDecisions", {"query": "a queue", **given("federated"), **more})
        )
        for category, more in {
            None: {},
            "deployment": {"filters": {"category": "deployment"}},
            "staffing": {"filters": {"category": "staffing"}},
        }.items()
    }
    both = {"b": "answered", "c": "answered"}
    assert peers == {None: both, "deployment": both, "staffing": {"b": "answered"}}


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
        # As this agent's token names it, and not as it calls itself.
        assert (kept["agent"], kept["claimedAgent"]) == ("friend", {"id": "alice"})
    again = result_of(house.a, "cstp.announceIntent", params)
    assert again["receivedAt"] == answer["receivedAt"]


def test_agents_hear_of_what_is_intended_at_peers(house: House) -> None:
    intent = f"Rebuild the search index of {house.a.name} tonight"
    for caller, stakes in ((house.b, "low"), (house.c, "high")):
        result_of(caller, "cstp.announceIntent", {"intent": intent, "stakes": stakes, **SHARED, **given("local")})
    asked = {"intent": intent, "category": "architecture", **given("federated")}
    answer = result_of(house.a, "cstp.announceIntent", asked)
    # c is trusted less.
    assert [(each["origin"], each["agent"], each["stakes"]) for each in answer["relatedIntents"]] == [
        ("b", "alice", "low"),
        ("c", "alice", "high"),
    ]
    assert [len(response["feedback"]["relatedIntents"]) for response in answer["responses"]] == [1, 1]
    # Both suggest it in the same words.
    (suggested,) = answer["suggestionDetails"]
    assert (suggested["kind"], suggested["origin"], suggested["agent"]) == ("related_intent", "b", "alice")
    # What they tell is of their own server: nothing of it is told as an intent of this one.
    local = result_of(house.a, "cstp.announceIntent", {"intent": intent, **given("local")})
    assert local["relatedIntents"] == []


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
    # The own verdict can be tried again with other rules; those of peers are theirs to try.
    (judged, *_) = result_of(house.a, "cstp.listJudgedActions", {"pageSize": 1})["actions"]
    assert judged["entry"] == own[0]
    assert judged["action"]["category"] == "architecture"
    assert judged["action"]["context"] == {"production": True, "risky": True}
