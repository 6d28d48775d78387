"""What peers answer, made up: plain values for properties, and messages as peers send them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import strategies as st

from cstp_grpc.contract.enums import PeerStatus, Severity
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.core.guardrails.inputs import IgnoredInput
from cstp_grpc.core.guardrails.model import Violation
from cstp_grpc.gen.cstp.v1 import cstp_pb2, intents_pb2, types_pb2
from cstp_grpc.modules.federation.merge import (
    MergedMatches,
    MergedVerdict,
    PeerVerdict,
    WeightedMatch,
    build_verdict,
    index_matches,
)
from cstp_grpc.modules.federation.peer import PeerReply

NOON = Timestamp(seconds=1_767_268_800)
BLOCK, WARN = types_pb2.SEVERITY_BLOCK, types_pb2.SEVERITY_WARN

agents = st.sampled_from(["ann", "ben", "ben/cleo", "dan"])
few_texts = st.sampled_from(["", "a", "b"])
findings = st.builds(
    Violation,
    guardrail_id=st.sampled_from(["one", "two"]),
    name=few_texts,
    message=few_texts,
    severity=st.sampled_from(Severity),
    suggestion=st.none() | few_texts,
    code=st.none() | few_texts,
)
counts = st.dictionaries(agents, st.integers(0, 9), max_size=3)
verdicts = st.builds(
    replace,
    st.builds(
        build_verdict,
        st.lists(findings, max_size=3),
        st.lists(findings, max_size=3),
        st.lists(findings, max_size=3),
        evaluated=st.integers(0, 9),
    ),
    rule_set_version=few_texts,
    check_id=few_texts,
    assumed=st.lists(few_texts, max_size=2).map(tuple),
    ignored=st.lists(st.builds(IgnoredInput, few_texts, st.none() | st.just("c")), max_size=2).map(tuple),
)
judgements: st.SearchStrategy[MergedVerdict] = st.builds(MergedVerdict, st.dictionaries(agents, verdicts, max_size=3))
decisions = st.builds(
    WeightedMatch,
    st.builds(
        cstp_pb2.DecisionSummary,
        id=st.sampled_from(["dec-1", "dec-2", "dec-3"]),
        origin=agents,
        title=few_texts,
    ),
    weight=st.floats(0, 1),
)
recollections: st.SearchStrategy[MergedMatches[cstp_pb2.DecisionSummary]] = st.builds(
    MergedMatches, st.lists(decisions, max_size=5).map(index_matches), counts
)


@st.composite
def opinions(draw: st.DrawFn) -> PeerVerdict:
    name, required = draw(agents), draw(st.booleans())
    if draw(st.booleans()):
        return PeerVerdict(name, required, draw(judgements))
    return PeerVerdict(name, required, reason="It is away.")


def replied(
    agent: str,
    answer: Message | None = None,
    status: PeerStatus = PeerStatus.ANSWERED,
    error: CstpError | None = None,
) -> PeerReply:
    return PeerReply(agent, status, answer, error, latency_ms=1.5)


def violation(
    guardrail_id: str = "rule", severity: types_pb2.Severity.ValueType = BLOCK, **more: Any
) -> types_pb2.Violation:
    return types_pb2.Violation(
        **{"name": "A rule", "message": "Not so", **more}, guardrail_id=guardrail_id, severity=severity
    )


def check(
    *violations: types_pb2.Violation, warnings: tuple[types_pb2.Violation, ...] = (), evaluated: int = 3
) -> cstp_pb2.CheckGuardrailsResponse:
    return cstp_pb2.CheckGuardrailsResponse(
        allowed=not violations,
        violations=violations,
        warnings=warnings,
        evaluated=evaluated,
        evaluated_at=NOON,
        agent="its own name",
    )


def summary(id: str = "dec-1", distance: float = 0.25, **more: Any) -> cstp_pb2.DecisionSummary:  # noqa: A002
    return cstp_pb2.DecisionSummary(**{"title": "What was done", **more}, id=id, distance=distance, date=NOON)


def query(*decisions: cstp_pb2.DecisionSummary) -> cstp_pb2.QueryDecisionsResponse:
    return cstp_pb2.QueryDecisionsResponse(
        decisions=decisions, total=len(decisions), query="what", query_time_ms=2, agent="its own name"
    )


def similar(id: str = "dec-1", distance: float = 0.25, **more: Any) -> cstp_pb2.SimilarDecision:  # noqa: A002
    return cstp_pb2.SimilarDecision(
        **{"title": "What was done", **more}, id=id, distance=distance, score=1 - distance, date=NOON
    )


def announcement(
    *decisions: cstp_pb2.SimilarDecision,
    verdict: cstp_pb2.GuardrailStatus | None = None,
    suggestions: tuple[str, ...] = (),
    details: Sequence[cstp_pb2.Suggestion] = (),
    related: Sequence[intents_pb2.RelatedIntent] = (),
) -> cstp_pb2.AnnounceIntentResponse:
    return cstp_pb2.AnnounceIntentResponse(
        received=True,
        correlation_id="c-1",
        received_at=NOON,
        similar_decisions=decisions,
        guardrail_status=verdict,
        suggestions=suggestions,
        suggestion_details=details,
        related_intents=related,
        responding_agent="its own name",
    )


def lesson(text: str = "Wait", **more: Any) -> cstp_pb2.Suggestion:
    return cstp_pb2.Suggestion(
        text=text, **{"kind": cstp_pb2.SUGGESTION_KIND_LESSON, "decision_ids": ["dec-1"], "relevance": 0.5, **more}
    )


def related_intent(agent: str = "eve", score: float = 0.5, **more: Any) -> intents_pb2.RelatedIntent:
    stated = {"correlation_id": "c-9", "received_at": NOON, "intent": "Do the same", **more}
    return intents_pb2.RelatedIntent(agent=agent, score=score, **stated)
