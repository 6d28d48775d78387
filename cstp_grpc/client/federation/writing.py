"""What several agents answered, merged, from plain values to messages of the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cstp_grpc.client.federation.accepting import MAX_DECISIONS, MAX_SUGGESTIONS
from cstp_grpc.client.federation.merge import ordered, suggested, top
from cstp_grpc.client.federation.model import Finding, Judgement, Poll, Recollection, Verdict
from cstp_grpc.client.federation.replies import Feedback, PeerAnswer
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2
from cstp_grpc.vocabulary import PeerStatus

MAX_SIMILAR: Final = 5
STATUS: Final[Mapping[PeerStatus, types_pb2.PeerStatus.ValueType]] = {
    status: types_pb2.PeerStatus.Value(f"PEER_STATUS_{status.name}") for status in PeerStatus
}


def write_check(answer: cstp_pb2.CheckGuardrailsResponse, verdict: Verdict, peers: Sequence[PeerAnswer]) -> None:
    """Write a verdict, and what each peer answered, into the answer of the agent itself."""
    write_verdict(answer, verdict)
    write_responses(answer, peers)


def write_query(
    answer: cstp_pb2.QueryDecisionsResponse, recollection: Recollection, limit: int, peers: Sequence[PeerAnswer]
) -> None:
    """Write at most `limit` decisions, and what each peer answered, into the answer of the agent itself."""
    del answer.decisions[:]
    answer.decisions.extend(summaries(recollection, limit))
    answer.total = len(answer.decisions)
    answer.totals.clear()
    answer.totals.update(recollection.totals)
    write_responses(answer, peers)


def write_announcement(
    answer: cstp_pb2.AnnounceIntentResponse,
    verdict: Verdict | None,
    recollection: Recollection,
    peers: Sequence[PeerAnswer],
) -> None:
    """Write the verdict, unless there is none to be told, and all feedback into the answer of the agent itself.

    Of the similar decisions of all agents those with the greatest weights stay.
    """
    judgement = Judgement()
    if verdict is not None:
        judgement = verdict.judgement
        write_verdict(answer.guardrail_status, verdict)
    similar = similar_decisions(recollection, MAX_SIMILAR)
    del answer.similar_decisions[:]
    answer.similar_decisions.extend(similar)
    theirs = [peer.feedback.suggestions for peer in sorted(peers, key=by_name) if peer.feedback]
    suggestions = suggested(list(answer.suggestions), judgement, theirs, MAX_SUGGESTIONS)
    answer.suggestions[:] = suggestions
    write_responses(answer, peers)


def write_verdict(answer: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus, verdict: Verdict) -> None:
    """Write a verdict in the place of the one that is there."""
    violations, warnings = violations_of(verdict.judgement)
    answer.allowed = verdict.allowed
    del answer.violations[:]
    answer.violations.extend(violations)
    del answer.warnings[:]
    answer.warnings.extend(warnings)
    answer.evaluated = sum(verdict.judgement.evaluated.values())
    if verdict.poll is None:
        answer.ClearField("quorum")
    else:
        answer.quorum.CopyFrom(quorum_of(verdict.poll))


def write_responses(
    answer: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.QueryDecisionsResponse | cstp_pb2.AnnounceIntentResponse,
    peers: Sequence[PeerAnswer],
) -> None:
    """Write what each peer answered, in the order of their names."""
    del answer.responses[:]
    answer.responses.extend(response_of(peer) for peer in sorted(peers, key=by_name))


def response_of(peer: PeerAnswer) -> cstp_pb2.AgentResponse:
    """Return what one peer answered."""
    response = cstp_pb2.AgentResponse(
        agent=peer.agent, status=STATUS[peer.status], latency_ms=round(peer.latency_ms, 3)
    )
    if peer.failure is not None:
        response.error.reason = peer.failure.reason
        response.error.message = peer.failure.message
    if peer.judgement is not None:
        write_verdict(response.guardrail_status, Verdict(peer.judgement))
    if peer.recollection is not None:
        response.decisions.decisions.extend(summaries(peer.recollection, MAX_DECISIONS))
        response.decisions.SetInParent()
    if peer.feedback is not None:
        response.feedback.CopyFrom(feedback_of(peer.feedback))
    return response


def feedback_of(feedback: Feedback) -> cstp_pb2.PeerFeedback:
    """Return what a peer says of an intent beside its verdict."""
    return cstp_pb2.PeerFeedback(
        received_at=feedback.received_at,
        similar_decisions=similar_decisions(feedback.similar, MAX_SIMILAR),
        suggestions=feedback.suggestions,
    )


def violations_of(judgement: Judgement) -> tuple[list[types_pb2.Violation], list[types_pb2.Violation]]:
    """Return what blocks and what only warns; those whose severity is to block first, then by agent and guardrail."""
    return (
        [violation_of(finding) for finding in ordered(judgement.blocking.values())],
        [violation_of(finding) for finding in ordered(judgement.warning.values())],
    )


def violation_of(finding: Finding) -> types_pb2.Violation:
    """Return a violation or warning."""
    return types_pb2.Violation(
        guardrail_id=finding.guardrail_id,
        name=finding.name,
        message=finding.message,
        severity=types_pb2.SEVERITY_BLOCK if finding.blocks else types_pb2.SEVERITY_WARN,
        suggestion=finding.suggestion,
        code=finding.code,
        agent=finding.agent or None,
        missing_inputs=[
            types_pb2.MissingInput(name=name, type=kind, description=description or None)
            for name, kind, description in finding.missing_inputs
        ],
    )


def quorum_of(poll: Poll) -> cstp_pb2.Quorum:
    """Return the votes of the required peers in the order of their names."""
    votes = [cstp_pb2.Vote(agent=agent, allow=allow) for agent, allow in sorted(poll.votes.items())]
    return cstp_pb2.Quorum(needed=poll.needed, allowing=poll.allowing, votes=votes)


def summaries(recollection: Recollection, limit: int) -> list[cstp_pb2.DecisionSummary]:
    """Return decisions that were found for a query, by falling weight."""
    return [cstp_pb2.DecisionSummary.FromString(found.content) for found in top(recollection, limit)]


def similar_decisions(recollection: Recollection, limit: int) -> list[cstp_pb2.SimilarDecision]:
    """Return decisions that are like an intent, by falling weight."""
    return [cstp_pb2.SimilarDecision.FromString(found.content) for found in top(recollection, limit)]


def by_name(peer: PeerAnswer) -> str:
    """Return by what peers are put in order."""
    return peer.agent
