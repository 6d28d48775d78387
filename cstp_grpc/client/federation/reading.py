"""What agents answered, from messages of the contract to plain values; what peers say was accepted before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from cstp_grpc.client.federation.accepting import MAX_AGENT
from cstp_grpc.client.federation.merge import by_id, by_key, judgement
from cstp_grpc.client.federation.model import Finding, Found, Judgement, Recollection
from cstp_grpc.client.words import one_line
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2

DecisionT = TypeVar("DecisionT", cstp_pb2.DecisionSummary, cstp_pb2.SimilarDecision)

BLOCK: Final = types_pb2.SEVERITY_BLOCK


def judgement_of(
    message: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus, agent: str, itself: str = ""
) -> Judgement:
    """Return the verdict that an agent answered.

    `itself` is what the agent calls itself, so that its own guardrails are told from those of its peers.
    """
    blocking = by_key(finding(each, agent, itself, blocks=True) for each in message.violations)
    warning = by_key(finding(each, agent, itself, blocks=each.severity == BLOCK) for each in message.warnings)
    return judgement(blocking, warning, {agent: message.evaluated})


def finding(message: types_pb2.Violation, agent: str, itself: str, *, blocks: bool) -> Finding:
    """Return a violation or warning that an agent answered."""
    return Finding(
        agent=named(agent, message.agent, itself),
        guardrail_id=message.guardrail_id,
        name=message.name,
        message=message.message,
        blocks=blocks,
        suggestion=message.suggestion or None,
        code=message.code or None,
        missing_inputs=tuple((each.name, each.type, each.description) for each in message.missing_inputs),
    )


def recollection_of(message: cstp_pb2.QueryDecisionsResponse, agent: str, trust: float) -> Recollection:
    """Return the decisions that an agent found for a query, with messages of DecisionSummary as their contents.

    `trust` is 0 to 1.
    """
    return recollection(message.decisions, agent, trust, itself=message.agent)


def similar_of(message: cstp_pb2.AnnounceIntentResponse, agent: str, trust: float) -> Recollection:
    """Return the decisions like an intent, as recollection_of does, with messages of SimilarDecision as contents."""
    return recollection(message.similar_decisions, agent, trust, itself=message.responding_agent)


def recollection(decisions: Sequence[DecisionT], agent: str, trust: float, *, itself: str) -> Recollection:
    """Return decisions by identifier, each with the agent that has it."""
    best = by_id([found_by(each, agent, trust, itself=itself) for each in decisions])
    totals = {agent: 0}
    for each in best.values():
        totals[each.agent] = totals.get(each.agent, 0) + 1
    return Recollection(best, totals)


def found_by(message: DecisionT, agent: str, trust: float, *, itself: str) -> Found:
    """Return a decision that an agent found; what is told of it names the agent that has it."""
    told = type(message)()
    told.CopyFrom(message)
    told.origin = named(agent, message.origin, itself)
    score = min(max(1 - message.distance, 0.0), 1.0)
    return Found(message.id, told.origin, score * trust, told.SerializeToString(deterministic=True))


def named(agent: str, theirs: str, itself: str = "") -> str:
    """Return the name here of what a peer calls `theirs`, which is itself or a peer of its own.

    It is `agent` or `agent/theirs`, at most 500 characters on one line.
    """
    if not theirs or theirs == itself:
        return agent
    words = one_line(theirs)
    return f"{agent}/{words}"[:MAX_AGENT] if words else agent
