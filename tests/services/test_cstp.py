"""The protocol's three methods, from message to message."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from cstp_grpc.gen.cstp.v1 import audit_pb2, cstp_pb2, journal_pb2, types_pb2
from tests.services.served import CALLER, LIMITS, NAME, Served, absent


def announce(served: Served, request: cstp_pb2.AnnounceIntentRequest) -> cstp_pb2.AnnounceIntentResponse:
    return served.call("AnnounceIntent", request, cstp_pb2.AnnounceIntentResponse)


def query(served: Served, request: cstp_pb2.QueryDecisionsRequest) -> cstp_pb2.QueryDecisionsResponse:
    return served.call("QueryDecisions", request, cstp_pb2.QueryDecisionsResponse)


def check(served: Served, request: cstp_pb2.CheckGuardrailsRequest) -> cstp_pb2.CheckGuardrailsResponse:
    return served.call("CheckGuardrails", request, cstp_pb2.CheckGuardrailsResponse)


def intent(served: Served) -> audit_pb2.IntentRecord:
    (stored,) = served.call("ListIntents", audit_pb2.ListIntentsRequest(), audit_pb2.ListIntentsResponse).intents
    return stored


def test_an_announcement_of_nothing_but_its_intent_has_medium_stakes_and_an_id_of_ours(served: Served) -> None:
    answered = announce(served, cstp_pb2.AnnounceIntentRequest(intent="Deploy"))

    stored = intent(served)
    assert (stored.intent, stored.agent, stored.stakes) == ("Deploy", CALLER.agent, types_pb2.STAKES_MEDIUM)
    assert answered.correlation_id
    assert stored.correlation_id == answered.correlation_id
    assert stored.received_at == answered.received_at
    assert absent(stored, "context", "category", "confidence", "claimed_agent")


def test_all_of_an_announcement_is_kept(served: Served) -> None:
    request = cstp_pb2.AnnounceIntentRequest(
        intent="Deploy",
        context="on Friday",
        category="process",
        stakes=types_pb2.STAKES_HIGH,
        confidence=0.0,
        correlation_id="c-7",
        agent=types_pb2.AgentInfo(id="emerson"),
    )
    request.metadata.update({"number": 1, "half": 0.5, "list": ["a", {"b": None}], "yes": True})

    announce(served, request)

    stored = intent(served)
    names = ("intent", "context", "category", "stakes", "confidence", "correlation_id", "metadata")
    assert {name: getattr(stored, name) for name in names} == {name: getattr(request, name) for name in names}
    assert stored.HasField("confidence")
    assert stored.agent == CALLER.agent
    assert stored.claimed_agent == types_pb2.AgentInfo(id="emerson")


def test_an_announcement_is_answered_with_what_is_similar_and_the_verdict(served: Served) -> None:
    lesson = journal_pb2.DecisionContent(title="Drop the table", outcome=types_pb2.OUTCOME_FAILURE, notes="Look twice")
    first, second = served.record([lesson, journal_pb2.DecisionContent(title="Drop the table")])
    request = cstp_pb2.AnnounceIntentRequest(intent="Drop the table", stakes=types_pb2.STAKES_LOW)
    request.metadata.update({"drops": True})

    answered = announce(served, request)

    similar = {item.id: item for item in answered.similar_decisions}
    assert similar.keys() == {first.id, second.id}
    assert similar[first.id].outcome == types_pb2.OUTCOME_FAILURE
    assert (similar[first.id].notes, similar[first.id].date) == ("Look twice", first.date)
    assert similar[first.id].distance == pytest.approx(0, abs=1e-6)
    assert 0.9 < similar[first.id].score <= 1
    assert cstp_pb2.MATCH_REASON_WORDS in similar[first.id].matched_by
    assert similar[second.id].outcome == types_pb2.OUTCOME_UNSPECIFIED
    assert absent(similar[second.id], "notes")
    status = answered.guardrail_status
    assert (status.allowed, status.evaluated, len(status.warnings)) == (False, 2, 0)
    assert [violation.guardrail_id for violation in status.violations] == ["no-drop"]
    assert (answered.received, answered.responding_agent) == (True, NAME)


def test_a_check_is_answered_with_its_violations_and_warnings(served: Served) -> None:
    request = cstp_pb2.CheckGuardrailsRequest(
        action=cstp_pb2.Action(description="Drop the table"), agent=types_pb2.AgentInfo(id="emerson")
    )
    request.action.context.update({"drops": True})

    answered = check(served, request)

    # No stakes were given: the warning is for medium ones.
    (violation,), (warning,) = answered.violations, answered.warnings
    assert violation == types_pb2.Violation(
        guardrail_id="no-drop",
        name="no-drop",
        message="Not this one",
        severity=types_pb2.SEVERITY_BLOCK,
        suggestion="Keep the table",
    )
    assert (warning.guardrail_id, warning.severity) == ("only-medium", types_pb2.SEVERITY_WARN)
    assert absent(warning, "suggestion", "code")
    assert (answered.allowed, answered.evaluated, answered.agent) == (False, 2, NAME)
    (entry,) = served.entries()
    assert (answered.check_id, answered.rule_set_version) == (entry.request_id, entry.rule_set_version)
    assert entry.timestamp == answered.evaluated_at
    assert (entry.requesting_agent, entry.claimed_agent, entry.request_id) == ("alice", "emerson", CALLER.request_id)


def test_stakes_that_are_given_are_judged(served: Served) -> None:
    action = cstp_pb2.Action(description="Deploy", stakes=types_pb2.STAKES_CRITICAL)

    answered = check(served, cstp_pb2.CheckGuardrailsRequest(action=action))

    assert answered.allowed
    assert not answered.warnings


def test_a_query_has_ten_results_unless_it_asks_for_others_up_to_the_most(served: Served) -> None:
    words = ("orders", "carts", "prices", "users", "photos", "mails", "taxes", "stocks", "refunds", "labels")
    titles = [f"Cache {first} in Redis, and {second}" for first, second in itertools.combinations(words, 2)]
    served.record([journal_pb2.DecisionContent(title=title) for title in titles])

    def total(**limit: Any) -> int:
        answered = query(served, cstp_pb2.QueryDecisionsRequest(query="cache in redis", **limit))
        assert answered.total == len(answered.decisions)
        return answered.total

    assert (total(), total(limit=3), total(limit=50)) == (10, 3, LIMITS.max_results)


def test_a_query_without_a_least_score_has_the_configured_one(served: Served) -> None:
    near, far = served.record(
        [journal_pb2.DecisionContent(title=title) for title in ("Cache sessions", "Hire a gardener")]
    )

    def found(**score: Any) -> list[str]:
        answered = query(served, cstp_pb2.QueryDecisionsRequest(query="cache sessions", **score))
        return [decision.id for decision in answered.decisions]

    assert found() == [near.id]
    assert found(min_score=0.0) == [near.id, far.id]


def test_a_query_is_answered_with_summaries(served: Served) -> None:
    content = journal_pb2.DecisionContent(
        title="Cache sessions",
        category="architecture",
        confidence=0.0,
        stakes=types_pb2.STAKES_HIGH,
        outcome=types_pb2.OUTCOME_SUCCESS,
        notes="It was fast",
        reasons=[journal_pb2.Reason(type="analysis", text="private")],
        tags=["redis"],
        project="shop",
    )
    full, bare = served.record([content, journal_pb2.DecisionContent(title="Cache sessions elsewhere")])

    answered = query(served, cstp_pb2.QueryDecisionsRequest(query="cache sessions", include_reasons=True))
    plain = query(served, cstp_pb2.QueryDecisionsRequest(query="cache sessions"))

    first, second = answered.decisions
    assert first.distance == pytest.approx(0, abs=1e-6)
    assert first.score > second.score
    assert list(first.matched_by) == [cstp_pb2.MATCH_REASON_WORDS, cstp_pb2.MATCH_REASON_MEANING]
    for volatile in ("distance", "score", "matched_by"):
        first.ClearField(volatile)
    assert first == cstp_pb2.DecisionSummary(
        id=full.id,
        title="Cache sessions",
        category="architecture",
        confidence=0.0,
        stakes=types_pb2.STAKES_HIGH,
        status=types_pb2.DECISION_STATUS_REVIEWED,
        outcome=types_pb2.OUTCOME_SUCCESS,
        date=full.date,
        notes="It was fast",
        reasons=["analysis"],
        tags=["redis"],
        project="shop",
        agent=CALLER.agent,
    )
    assert (second.id, second.stakes, second.outcome) == (bare.id, 0, 0)
    assert absent(second, "category", "confidence", "notes", "project")
    assert not plain.decisions[0].reasons
    assert (answered.query, answered.agent) == ("cache sessions", NAME)
