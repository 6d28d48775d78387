"""Read the responses of peers, and write merged ones into messages of the contract."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import to_single_line
from cstp_grpc.contract import proto_values
from cstp_grpc.contract.enums import ApprovalStatus, PeerStatus, Severity
from cstp_grpc.contract.errors import DeadlineExceeded, InternalError, PermissionDenied, Unavailable
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.contract.rpc_errors import append_reason
from cstp_grpc.core.guardrails.inputs import IgnoredInput
from cstp_grpc.core.guardrails.model import MissingInput, Verdict, VerdictApproval, Violation
from cstp_grpc.gen.cstp.v1 import access_pb2, cstp_pb2, intents_pb2, options_pb2, types_pb2
from cstp_grpc.modules.federation import merge, response_validation
from cstp_grpc.modules.federation.peer import Peer, PeerReply

# Not the mappers of the servicer of guardrails: importing it loads much of the server into clients.
VIOLATION: Final = MessageMapper(Violation, types_pb2.Violation, given=("agent",))
APPROVAL: Final = MessageMapper(VerdictApproval, types_pb2.VerdictApproval, unset=("instructions",))
VERDICT_BASIS: Final = MessageMapper(
    Verdict,
    cstp_pb2.GuardrailStatus,
    {"ignored_context": "ignored"},
    unset=("allowed", "violations", "warnings", "evaluated", "quorum", "dryrun_violations", "approval_required"),
    nested=(APPROVAL,),
)
"""The evidence of the verdict of one agent."""


def read_verdict(
    message: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus, agent: str, itself: str = ""
) -> merge.MergedVerdict:
    """Read the verdict of an agent.

    `itself` is the agent's own name, which distinguishes its own guardrails from those of its peers.
    """
    violations, warnings, dryrun = (defaultdict[str, list[Violation]](list) for _ in range(3))
    for each in message.violations:
        by = qualified_agent_name(agent, each.agent, itself)
        # Unknown severities of later contracts block, since it is among the violations.
        violations[by].append(read_violation(each, Severity.BLOCK))
    for found, given in ((warnings, message.warnings), (dryrun, message.dryrun_violations)):
        for each in given:
            by = qualified_agent_name(agent, each.agent, itself)
            # And here they are warnings, for the same reason.
            found[by].append(read_violation(each, Severity.WARN))
    # The agent counts the guardrails of its own peers with its own; nothing says how many each of them evaluated.
    evaluated = {agent: message.evaluated}
    verdicts = {
        by: merge.build_verdict(violations[by], warnings[by], dryrun[by], evaluated=evaluated.get(by, 0))
        for by in {agent, *violations, *warnings, *dryrun}
    }
    # The evidence of its own verdict.
    verdicts[agent] = replace(
        verdicts[agent],
        rule_set_version=message.rule_set_version,
        check_id=message.check_id,
        assumed=tuple(message.assumed),
        ignored=tuple(IgnoredInput(each.name, each.closest or None) for each in message.ignored_context),
        approval=read_approval(message.approval) if message.HasField("approval") else None,
    )
    return merge.MergedVerdict(verdicts)


def read_approval(message: types_pb2.VerdictApproval) -> VerdictApproval:
    """Read the approval request of a verdict; one of an unknown status is pending."""
    return VerdictApproval(
        id=message.id,
        digest=message.digest,
        status=proto_values.APPROVAL_STATUS.word(message.status) or ApprovalStatus.PENDING,
        expires_at=message.expires_at.ToDatetime(UTC),
        comment=message.comment or None,
        instructions=message.instructions or None,
    )


def read_violation(message: types_pb2.Violation, otherwise: Severity) -> Violation:
    """Read a violation or warning; `otherwise` is its severity if it states none that is known."""
    severity = proto_values.SEVERITY.word(message.severity) or otherwise
    if otherwise is Severity.BLOCK and severity is Severity.WARN:
        # Fail closed: an entry of the violations is not just a warning.
        severity = otherwise
    return Violation(
        guardrail_id=message.guardrail_id,
        name=message.name,
        message=message.message,
        severity=severity,
        suggestion=message.suggestion or None,
        code=message.code or None,
        missing_inputs=tuple(
            MissingInput(each.name, each.type, each.description or None, tuple(each.values))
            for each in message.missing_inputs
        ),
    )


def read_query_matches(
    message: cstp_pb2.QueryDecisionsResponse, agent: str, trust: float
) -> merge.MergedMatches[cstp_pb2.DecisionSummary]:
    return collect_matches(message.decisions, agent, trust, itself=message.agent)


def read_similar_decisions(
    message: cstp_pb2.AnnounceIntentResponse, agent: str, trust: float
) -> merge.MergedMatches[cstp_pb2.SimilarDecision]:
    return collect_matches(message.similar_decisions, agent, trust, itself=message.responding_agent)


def collect_matches(
    decisions: Iterable[merge.FoundT], agent: str, trust: float, *, itself: str
) -> merge.MergedMatches[merge.FoundT]:
    best = merge.index_matches(weigh_decision(each, agent, trust, itself=itself) for each in decisions)
    return merge.MergedMatches(best, {agent: 0} | Counter(match.decision.origin for match in best.values()))


def weigh_decision(
    message: merge.FoundT, agent: str, trust: float, *, itself: str
) -> merge.WeightedMatch[merge.FoundT]:
    # A copy, because the response is also shown as the peer gave it.
    decision = type(message)()
    decision.CopyFrom(message)
    decision.origin = qualified_agent_name(agent, message.origin, itself)
    return merge.WeightedMatch(decision, relevance_score(message) * trust)


def relevance_score(message: cstp_pb2.DecisionSummary | cstp_pb2.SimilarDecision) -> float:
    """Return the score of a decision that a peer found, from 0 to 1."""
    if isinstance(message, cstp_pb2.DecisionSummary) and not message.HasField("score"):
        # Of a peer that does not say it. A distance of more than 1 is the opposite of similar, which weighs nothing.
        return min(max(1 - message.distance, 0.0), 1.0)
    return min(max(message.score, 0.0), 1.0)


def qualified_agent_name(agent: str, theirs: str, itself: str = "") -> str:
    """Return the name under which an agent, or a peer of it, is known here.

    It is `agent` or `agent/theirs`, at most 500 characters on one line.
    """
    # Its own decisions and guardrails; anything else it has from a peer of its own.
    if not theirs or theirs == itself:
        return agent
    words = to_single_line(theirs)
    return f"{agent}/{words}"[: response_validation.MAX_AGENT_CHARACTERS] if words else agent


FAILURE_TEXTS: Final[Mapping[PeerStatus, tuple[str, str]]] = {
    PeerStatus.REFUSED: (PermissionDenied.reason, "It refuses to answer"),
    PeerStatus.UNREACHABLE: (Unavailable.reason, "It cannot be reached or fails"),
    PeerStatus.TIMED_OUT: (DeadlineExceeded.reason, "It did not answer in time"),
    PeerStatus.NOT_UNDERSTOOD: (InternalError.reason, "Its answer was not understood"),
    PeerStatus.SKIPPED: (Unavailable.reason, "It failed so often that it is not asked for a while"),
}
"""The reason and text for each status without an answer; the reason applies if the error lacks one."""
NO_VERDICT_TEXT: Final = "It answered without a verdict"


@dataclass(frozen=True, slots=True)
class PeerFailure:
    """Why a peer gave no answer: a reason of the contract, and a text on one line."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PeerIntentFeedback:
    """A peer's response to an intent, except its verdict."""

    received_at: Timestamp
    similar: merge.MergedMatches[cstp_pb2.SimilarDecision]
    suggestions: tuple[cstp_pb2.Suggestion, ...] = ()
    """The suggestions, with their evidence if the peer states it."""
    related: tuple[merge.WeightedIntent, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerResponse:
    """The response of a peer, or the reason why it is missing.

    `failure` is set exactly if the status is not ANSWERED, `verdict` is set if guardrails were evaluated, `matches` if
    decisions were queried, and `feedback` if an intent was announced.
    """

    agent: str
    required: bool
    status: PeerStatus
    latency_ms: float
    failure: PeerFailure | None = None
    verdict: merge.MergedVerdict | None = None
    matches: merge.MergedMatches[cstp_pb2.DecisionSummary] | None = None
    feedback: PeerIntentFeedback | None = None

    @property
    def peer_verdict(self) -> merge.PeerVerdict:
        if self.verdict is not None:
            return merge.PeerVerdict(self.agent, self.required, self.verdict)
        why = self.failure.message if self.failure else NO_VERDICT_TEXT
        return merge.PeerVerdict(self.agent, self.required, reason=f"{why}.")


def read_replies(replies: Iterable[PeerReply], peers: Iterable[Peer], required: Collection[str]) -> list[PeerResponse]:
    trust = {peer.name: peer.trust for peer in peers}
    return [read_reply(reply, required=reply.agent in required, trust=trust[reply.agent]) for reply in replies]


def read_reply(reply: PeerReply, *, required: bool, trust: float) -> PeerResponse:
    """Read the reply of a peer."""
    if reply.status is not PeerStatus.ANSWERED:
        return failed_response(reply, required)
    message, verdict, matches, feedback = reply.answer, None, None, None
    match message:
        case cstp_pb2.CheckGuardrailsResponse():
            verdict = read_verdict(message, reply.agent, message.agent)
        case cstp_pb2.QueryDecisionsResponse():
            matches = read_query_matches(message, reply.agent, trust)
        case cstp_pb2.AnnounceIntentResponse():
            if message.HasField("guardrail_status"):
                verdict = read_verdict(message.guardrail_status, reply.agent, message.responding_agent)
            feedback = read_feedback(message, reply.agent, trust)
    return PeerResponse(
        reply.agent,
        required,
        PeerStatus.ANSWERED,
        reply.latency_ms,
        verdict=verdict,
        matches=matches,
        feedback=feedback,
    )


def read_feedback(message: cstp_pb2.AnnounceIntentResponse, agent: str, trust: float) -> PeerIntentFeedback:
    """Read the response of a peer to an intent, except its verdict; `trust` is 0 to 1."""
    return PeerIntentFeedback(
        message.received_at,
        read_similar_decisions(message, agent, trust),
        tuple(read_suggestions(message, agent)),
        tuple(read_related_intents(message, agent, trust)),
    )


def read_suggestions(message: cstp_pb2.AnnounceIntentResponse, agent: str) -> Iterator[cstp_pb2.Suggestion]:
    """Yield the suggestions of an agent, whose origin names it; those without details have a text alone."""
    details = {detail.text: detail for detail in message.suggestion_details}
    for text in message.suggestions:
        # A copy, because the response is also shown as the peer gave it.
        suggestion = cstp_pb2.Suggestion()
        suggestion.CopyFrom(details.get(text, suggestion))
        suggestion.text = text
        suggestion.origin = qualified_agent_name(agent, suggestion.origin, message.responding_agent)
        yield suggestion


def read_related_intents(
    message: cstp_pb2.AnnounceIntentResponse, agent: str, trust: float
) -> Iterator[merge.WeightedIntent]:
    """Yield the related intents that an agent reports, whose origin names it; `trust` is 0 to 1."""
    for each in message.related_intents:
        related = intents_pb2.RelatedIntent()
        related.CopyFrom(each)
        related.origin = qualified_agent_name(agent, each.origin, message.responding_agent)
        yield merge.WeightedIntent(related, min(max(each.score, 0.0), 1.0) * trust)


def failed_response(reply: PeerReply, required: bool) -> PeerResponse:
    reason, words = FAILURE_TEXTS[reply.status]
    error = reply.error
    failure = PeerFailure(error.reason, append_reason(words, error.message)) if error else PeerFailure(reason, words)
    return PeerResponse(reply.agent, required, reply.status, reply.latency_ms, failure)


NEEDED_PERMISSIONS: Final = (
    options_pb2.PERMISSION_QUERY,
    options_pb2.PERMISSION_CHECK,
    options_pb2.PERMISSION_ANNOUNCE,
)
"""The permissions that a peer must grant for all questions that a server asks."""


@dataclass(frozen=True, slots=True)
class AccessReply:
    """The access that a peer grants, or the reason why it did not answer."""

    access: access_pb2.GetAccessResponse | None
    failure: PeerFailure | None

    @property
    def missing_permissions(self) -> list[options_pb2.Permission.ValueType]:
        """The needed permissions that the peer does not grant; empty without an answer."""
        granted = self.access.permissions if self.access else NEEDED_PERMISSIONS
        return [needed for needed in NEEDED_PERMISSIONS if needed not in granted]


def read_access_reply(reply: PeerReply) -> AccessReply:
    if isinstance(reply.answer, access_pb2.GetAccessResponse):
        return AccessReply(reply.answer, None)
    return AccessReply(None, failed_response(reply, required=True).failure)


def unreadable_response(answer: PeerResponse, why: str) -> PeerResponse:
    """Turn a response into the failure that it could not be read."""
    reason, words = FAILURE_TEXTS[PeerStatus.NOT_UNDERSTOOD]
    failure = PeerFailure(reason, append_reason(words, why))
    return PeerResponse(answer.agent, answer.required, PeerStatus.NOT_UNDERSTOOD, answer.latency_ms, failure)


def without_decisions(peer: PeerResponse) -> PeerResponse:
    """Return a peer's response to an intent without decisions, related intents and the suggestions based on them."""
    if peer.feedback is None:
        return peer
    return replace(peer, feedback=PeerIntentFeedback(peer.feedback.received_at, merge.NO_MATCHES))


MAX_SIMILAR_DECISIONS: Final = 5
"""As many similar decisions as an agent states by itself."""


def write_check(
    answer: cstp_pb2.CheckGuardrailsResponse, verdict: merge.FederatedVerdict, peers: Sequence[PeerResponse]
) -> None:
    write_verdict(answer, verdict)
    write_responses(answer, peers)


def write_query(
    answer: cstp_pb2.QueryDecisionsResponse,
    matches: merge.MergedMatches[cstp_pb2.DecisionSummary],
    limit: int,
    peers: Sequence[PeerResponse],
) -> None:
    """Write at most `limit` decisions and the responses of the peers into a query's response."""
    del answer.decisions[:]
    answer.decisions.extend(merge.top_matches(matches, limit))
    answer.total = len(answer.decisions)
    answer.totals.clear()
    answer.totals.update(matches.totals)
    write_responses(answer, peers)


def write_announcement(
    answer: cstp_pb2.AnnounceIntentResponse,
    verdict: merge.FederatedVerdict | None,
    own: PeerIntentFeedback,
    peers: Sequence[PeerResponse],
) -> None:
    """Write the verdict, if there is one, and the feedback of this agent and its peers into an announcement's response.

    Of the similar decisions and related intents of all agents, those with the greatest weights are kept.
    """
    feedback = [peer.feedback for peer in sorted(peers, key=agent_name_of) if peer.feedback]
    if verdict is not None:
        write_verdict(answer.guardrail_status, verdict)
    del answer.similar_decisions[:]
    similar = merge.merge_search_results(own.similar, [each.similar for each in feedback])
    answer.similar_decisions.extend(merge.top_matches(similar, MAX_SIMILAR_DECISIONS))
    related = merge.merge_related_intents(
        own.related, [item for each in feedback for item in each.related], response_validation.MAX_RELATED
    )
    del answer.related_intents[:]
    answer.related_intents.extend(related)
    merged = verdict.merged if verdict else merge.EMPTY_VERDICT
    suggested = merge.merge_suggestions(
        own.suggestions, merged, [each.suggestions for each in feedback], response_validation.MAX_SUGGESTIONS
    )
    write_suggestions(answer, suggested)
    write_responses(answer, peers)


def write_suggestions(
    message: cstp_pb2.AnnounceIntentResponse | cstp_pb2.PeerFeedback, suggested: Iterable[cstp_pb2.Suggestion]
) -> None:
    """Replace the suggestions of a message, with the details of those that have any."""
    chosen = list(suggested)
    message.suggestions[:] = [suggestion.text for suggestion in chosen]
    del message.suggestion_details[:]
    message.suggestion_details.extend(suggestion for suggestion in chosen if suggestion.kind)


def write_verdict(
    answer: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus, verdict: merge.FederatedVerdict
) -> None:
    answer.allowed = verdict.allowed
    del answer.violations[:]
    answer.violations.extend(violation_messages(verdict.merged.violations))
    del answer.warnings[:]
    answer.warnings.extend(violation_messages(verdict.merged.warnings))
    del answer.dryrun_violations[:]
    answer.dryrun_violations.extend(violation_messages(verdict.merged.dryrun))
    answer.approval_required = verdict.approval_required
    answer.evaluated = verdict.merged.evaluated
    if verdict.vote is None:
        answer.ClearField("quorum")
    else:
        answer.quorum.CopyFrom(quorum_message(verdict.vote))


def violation_messages(violations: Mapping[merge.ViolationKey, Violation]) -> Iterator[types_pb2.Violation]:
    """Yield violations as messages that name the agent, in their order."""
    for (agent, _), violation in violations.items():
        yield VIOLATION.encode(violation, agent=agent)


def quorum_message(vote: merge.QuorumVote) -> cstp_pb2.Quorum:
    votes = [cstp_pb2.Vote(agent=agent, allow=allow) for agent, allow in sorted(vote.votes.items())]
    return cstp_pb2.Quorum(needed=vote.needed, allowing=vote.allowing, votes=votes)


def write_responses(
    answer: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.QueryDecisionsResponse | cstp_pb2.AnnounceIntentResponse,
    peers: Sequence[PeerResponse],
) -> None:
    del answer.responses[:]
    answer.responses.extend(agent_response_message(peer) for peer in sorted(peers, key=agent_name_of))


def agent_response_message(peer: PeerResponse) -> cstp_pb2.AgentResponse:
    response = cstp_pb2.AgentResponse(
        agent=peer.agent, status=proto_values.PEER_STATUS.number(peer.status), latency_ms=round(peer.latency_ms, 3)
    )
    if peer.failure is not None:
        response.error.reason = peer.failure.reason
        response.error.message = peer.failure.message
    if peer.verdict is not None:
        write_verdict(response.guardrail_status, merge.FederatedVerdict(peer.verdict))
        VERDICT_BASIS.write(response.guardrail_status, peer.verdict.by_agent[peer.agent])
    if peer.matches is not None:
        response.decisions.decisions.extend(merge.top_matches(peer.matches, response_validation.MAX_DECISIONS))
        # Also if the peer found nothing: it was asked for decisions.
        response.decisions.SetInParent()
    if (feedback := peer.feedback) is not None:
        response.feedback.received_at.CopyFrom(feedback.received_at)
        response.feedback.similar_decisions.extend(merge.top_matches(feedback.similar, MAX_SIMILAR_DECISIONS))
        response.feedback.related_intents.extend(item.intent for item in feedback.related)
        write_suggestions(response.feedback, feedback.suggestions)
    return response


def agent_name_of(peer: PeerResponse) -> str:
    return peer.agent
