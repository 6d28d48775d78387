"""Read the responses of peers, and write merged ones into messages of the contract."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.contract.untrusted_text import append_reason, to_single_line
from cstp_grpc.enums import PeerStatus
from cstp_grpc.errors import DeadlineExceeded, InternalError, PermissionDenied, Unavailable
from cstp_grpc.federation.fan_out import PeerReply
from cstp_grpc.federation.merge import (
    FederatedVerdict,
    MergedMatches,
    MergedVerdict,
    PeerMatch,
    PeerVerdict,
    PeerViolation,
    QuorumVote,
    build_verdict,
    index_matches,
    index_violations,
    merge_suggestions,
    sort_violations,
    top_matches,
)
from cstp_grpc.federation.peer import Peer
from cstp_grpc.federation.response_validation import MAX_AGENT_CHARACTERS, MAX_DECISIONS, MAX_SUGGESTIONS
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2

DecisionT = TypeVar("DecisionT", cstp_pb2.DecisionSummary, cstp_pb2.SimilarDecision)

BLOCK_SEVERITY: Final = types_pb2.SEVERITY_BLOCK


def read_verdict(
    message: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus, agent: str, itself: str = ""
) -> MergedVerdict:
    """Read the verdict of an agent.

    `itself` is the agent's own name, which distinguishes its own guardrails from those of its peers.
    """
    blocking = index_violations(read_violation(each, agent, itself, blocks=True) for each in message.violations)
    warning = index_violations(
        read_violation(each, agent, itself, blocks=each.severity == BLOCK_SEVERITY) for each in message.warnings
    )
    return build_verdict(blocking, warning, {agent: message.evaluated})


def read_violation(message: types_pb2.Violation, agent: str, itself: str, *, blocks: bool) -> PeerViolation:
    """Read a violation or warning of an agent."""
    return PeerViolation(
        agent=qualified_agent_name(agent, message.agent, itself),
        guardrail_id=message.guardrail_id,
        name=message.name,
        message=message.message,
        blocks=blocks,
        suggestion=message.suggestion or None,
        code=message.code or None,
        missing_inputs=tuple((each.name, each.type, each.description) for each in message.missing_inputs),
    )


def read_query_matches(message: cstp_pb2.QueryDecisionsResponse, agent: str, trust: float) -> MergedMatches:
    """Read the decisions that an agent found for a query; contents are DecisionSummary messages.

    `trust` is 0 to 1.
    """
    return collect_matches(message.decisions, agent, trust, itself=message.agent)


def read_similar_decisions(message: cstp_pb2.AnnounceIntentResponse, agent: str, trust: float) -> MergedMatches:
    """Read the decisions similar to an intent; contents are SimilarDecision messages."""
    return collect_matches(message.similar_decisions, agent, trust, itself=message.responding_agent)


def collect_matches(decisions: Sequence[DecisionT], agent: str, trust: float, *, itself: str) -> MergedMatches:
    """Collect matches by decision id, each with the agent that has it."""
    best = index_matches([read_match(each, agent, trust, itself=itself) for each in decisions])
    totals = {agent: 0}
    for each in best.values():
        totals[each.agent] = totals.get(each.agent, 0) + 1
    return MergedMatches(best, totals)


def read_match(message: DecisionT, agent: str, trust: float, *, itself: str) -> PeerMatch:
    """Read a match; its message is changed to name the agent that has it."""
    told = type(message)()
    told.CopyFrom(message)
    told.origin = qualified_agent_name(agent, message.origin, itself)
    score = min(max(1 - message.distance, 0.0), 1.0)
    return PeerMatch(message.id, told.origin, score * trust, told.SerializeToString(deterministic=True))


def qualified_agent_name(agent: str, theirs: str, itself: str = "") -> str:
    """Return the name under which an agent, or a peer of it, is known here.

    It is `agent` or `agent/theirs`, at most 500 characters on one line.
    """
    if not theirs or theirs == itself:
        return agent
    words = to_single_line(theirs)
    return f"{agent}/{words}"[:MAX_AGENT_CHARACTERS] if words else agent


FAILURE_TEXTS: Final[Mapping[PeerStatus, tuple[str, str]]] = {
    PeerStatus.REFUSED: (PermissionDenied.reason, "It refuses to answer"),
    PeerStatus.UNREACHABLE: (Unavailable.reason, "It cannot be reached or fails"),
    PeerStatus.TIMED_OUT: (DeadlineExceeded.reason, "It did not answer in time"),
    PeerStatus.NOT_UNDERSTOOD: (InternalError.reason, "Its answer was not understood"),
    PeerStatus.SKIPPED: (Unavailable.reason, "It failed so often that it is not asked for a while"),
}
"""The reason and text for each status without an answer; the reason applies if the error has none."""
NO_VERDICT_TEXT: Final = "It answered without a verdict"


@dataclass(frozen=True, slots=True)
class PeerFailure:
    """Why a peer gave no answer: a reason of the contract, and a text on one line."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PeerIntentFeedback:
    """A peer's response to an intent besides its verdict; `similar` holds SimilarDecision messages."""

    received_at: Timestamp
    similar: MergedMatches
    suggestions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeerResponse:
    """The response of a peer, or the reason why there is none.

    `failure` is set exactly if the status is not ANSWERED, `verdict` is set if guardrails were evaluated, `matches`
    if decisions were queried (DecisionSummary messages), and `feedback` if an intent was announced.
    """

    agent: str
    required: bool
    status: PeerStatus
    latency_ms: float
    failure: PeerFailure | None = None
    verdict: MergedVerdict | None = None
    matches: MergedMatches | None = None
    feedback: PeerIntentFeedback | None = None

    @property
    def peer_verdict(self) -> PeerVerdict:
        """The peer's verdict on an action."""
        if self.verdict is not None:
            return PeerVerdict(self.agent, self.required, self.verdict)
        why = self.failure.message if self.failure else NO_VERDICT_TEXT
        return PeerVerdict(self.agent, self.required, reason=f"{why}.")


def read_replies(replies: Iterable[PeerReply], peers: Iterable[Peer], required: Collection[str]) -> list[PeerResponse]:
    """Read the replies of peers; those named in `required` are required."""
    trust = {peer.name: peer.trust for peer in peers}
    return [read_reply(reply, required=reply.agent in required, trust=trust[reply.agent]) for reply in replies]


def read_reply(reply: PeerReply, *, required: bool, trust: float) -> PeerResponse:
    """Read the reply of a peer."""
    if reply.status is not PeerStatus.ANSWERED:
        return failed_response(reply, required)
    message, judgement, recollection, feedback = reply.answer, None, None, None
    match message:
        case cstp_pb2.CheckGuardrailsResponse():
            judgement = read_verdict(message, reply.agent, message.agent)
        case cstp_pb2.QueryDecisionsResponse():
            recollection = read_query_matches(message, reply.agent, trust)
        case cstp_pb2.AnnounceIntentResponse():
            if message.HasField("guardrail_status"):
                judgement = read_verdict(message.guardrail_status, reply.agent, message.responding_agent)
            similar = read_similar_decisions(message, reply.agent, trust)
            feedback = PeerIntentFeedback(message.received_at, similar, tuple(message.suggestions))
    return PeerResponse(
        reply.agent,
        required,
        PeerStatus.ANSWERED,
        reply.latency_ms,
        verdict=judgement,
        matches=recollection,
        feedback=feedback,
    )


def failed_response(reply: PeerReply, required: bool) -> PeerResponse:
    """Return the response of a peer that gave no answer."""
    reason, words = FAILURE_TEXTS[reply.status]
    error = reply.error
    failure = PeerFailure(error.reason, append_reason(words, error.message)) if error else PeerFailure(reason, words)
    return PeerResponse(reply.agent, required, reply.status, reply.latency_ms, failure)


def unreadable_response(answer: PeerResponse, why: str) -> PeerResponse:
    """Turn a response into the failure that it could not be read."""
    reason, words = FAILURE_TEXTS[PeerStatus.NOT_UNDERSTOOD]
    failure = PeerFailure(reason, append_reason(words, why))
    return PeerResponse(answer.agent, answer.required, PeerStatus.NOT_UNDERSTOOD, answer.latency_ms, failure)


def without_decisions(peer: PeerResponse) -> PeerResponse:
    """Return a peer's response to an intent without its decisions and the suggestions based on them."""
    if peer.feedback is None:
        return peer
    return replace(peer, feedback=PeerIntentFeedback(peer.feedback.received_at, MergedMatches(), ()))


MAX_SIMILAR_DECISIONS: Final = 5
PEER_STATUS_NUMBERS: Final[Mapping[PeerStatus, types_pb2.PeerStatus.ValueType]] = {
    status: types_pb2.PeerStatus.Value(f"PEER_STATUS_{status.name}") for status in PeerStatus
}


def write_check(
    answer: cstp_pb2.CheckGuardrailsResponse, verdict: FederatedVerdict, peers: Sequence[PeerResponse]
) -> None:
    """Write a verdict and the responses of the peers into a guardrail check's response."""
    write_verdict(answer, verdict)
    write_responses(answer, peers)


def write_query(
    answer: cstp_pb2.QueryDecisionsResponse, recollection: MergedMatches, limit: int, peers: Sequence[PeerResponse]
) -> None:
    """Write at most `limit` decisions and the responses of the peers into a query's response."""
    del answer.decisions[:]
    answer.decisions.extend(summary_messages(recollection, limit))
    answer.total = len(answer.decisions)
    answer.totals.clear()
    answer.totals.update(recollection.totals)
    write_responses(answer, peers)


def write_announcement(
    answer: cstp_pb2.AnnounceIntentResponse,
    verdict: FederatedVerdict | None,
    recollection: MergedMatches,
    peers: Sequence[PeerResponse],
) -> None:
    """Write the verdict, if there is one, and the peers' feedback into an announcement's response.

    Of the similar decisions of all agents, those with the greatest weights are kept.
    """
    judgement = MergedVerdict()
    if verdict is not None:
        judgement = verdict.merged
        write_verdict(answer.guardrail_status, verdict)
    similar = similar_decision_messages(recollection, MAX_SIMILAR_DECISIONS)
    del answer.similar_decisions[:]
    answer.similar_decisions.extend(similar)
    theirs = [peer.feedback.suggestions for peer in sorted(peers, key=agent_name_of) if peer.feedback]
    suggestions = merge_suggestions(list(answer.suggestions), judgement, theirs, MAX_SUGGESTIONS)
    answer.suggestions[:] = suggestions
    write_responses(answer, peers)


def write_verdict(
    answer: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus, verdict: FederatedVerdict
) -> None:
    """Replace the verdict of a message."""
    violations, warnings = violation_messages(verdict.merged)
    answer.allowed = verdict.allowed
    del answer.violations[:]
    answer.violations.extend(violations)
    del answer.warnings[:]
    answer.warnings.extend(warnings)
    answer.evaluated = sum(verdict.merged.evaluated.values())
    if verdict.vote is None:
        answer.ClearField("quorum")
    else:
        answer.quorum.CopyFrom(quorum_message(verdict.vote))


def write_responses(
    answer: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.QueryDecisionsResponse | cstp_pb2.AnnounceIntentResponse,
    peers: Sequence[PeerResponse],
) -> None:
    """Write the responses of the peers, ordered by name."""
    del answer.responses[:]
    answer.responses.extend(agent_response_message(peer) for peer in sorted(peers, key=agent_name_of))


def agent_response_message(peer: PeerResponse) -> cstp_pb2.AgentResponse:
    """Return a peer's response as a message."""
    response = cstp_pb2.AgentResponse(
        agent=peer.agent, status=PEER_STATUS_NUMBERS[peer.status], latency_ms=round(peer.latency_ms, 3)
    )
    if peer.failure is not None:
        response.error.reason = peer.failure.reason
        response.error.message = peer.failure.message
    if peer.verdict is not None:
        write_verdict(response.guardrail_status, FederatedVerdict(peer.verdict))
    if peer.matches is not None:
        response.decisions.decisions.extend(summary_messages(peer.matches, MAX_DECISIONS))
        response.decisions.SetInParent()
    if peer.feedback is not None:
        response.feedback.CopyFrom(feedback_message(peer.feedback))
    return response


def feedback_message(feedback: PeerIntentFeedback) -> cstp_pb2.PeerFeedback:
    """Return a peer's feedback on an intent as a message."""
    return cstp_pb2.PeerFeedback(
        received_at=feedback.received_at,
        similar_decisions=similar_decision_messages(feedback.similar, MAX_SIMILAR_DECISIONS),
        suggestions=feedback.suggestions,
    )


def violation_messages(judgement: MergedVerdict) -> tuple[list[types_pb2.Violation], list[types_pb2.Violation]]:
    """Return the violations and the warnings as messages, each sorted by severity, agent and guardrail."""
    return (
        [violation_message(finding) for finding in sort_violations(judgement.blocking.values())],
        [violation_message(finding) for finding in sort_violations(judgement.warning.values())],
    )


def violation_message(finding: PeerViolation) -> types_pb2.Violation:
    """Return a violation or warning as a message."""
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


def quorum_message(poll: QuorumVote) -> cstp_pb2.Quorum:
    """Return the quorum vote as a message, with votes ordered by name."""
    votes = [cstp_pb2.Vote(agent=agent, allow=allow) for agent, allow in sorted(poll.votes.items())]
    return cstp_pb2.Quorum(needed=poll.needed, allowing=poll.allowing, votes=votes)


def summary_messages(recollection: MergedMatches, limit: int) -> list[cstp_pb2.DecisionSummary]:
    """Return the matches of a query as messages, by falling weight."""
    return [cstp_pb2.DecisionSummary.FromString(found.content) for found in top_matches(recollection, limit)]


def similar_decision_messages(recollection: MergedMatches, limit: int) -> list[cstp_pb2.SimilarDecision]:
    """Return the decisions similar to an intent as messages, by falling weight."""
    return [cstp_pb2.SimilarDecision.FromString(found.content) for found in top_matches(recollection, limit)]


def agent_name_of(peer: PeerResponse) -> str:
    """Return the sort key of responses: the peer's name."""
    return peer.agent
