"""The servicers of intents: the three methods of the protocol (announce, query, check), and closing an intent."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.call_scope import asks_peers, reject_unknown_agents
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import Stakes, Visibility
from cstp_grpc.core.decisions import messages
from cstp_grpc.core.decisions.model import Decision, Match
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.search.decision_search import UNRESTRICTED, DecisionSearch
from cstp_grpc.core.decisions.search.search_scheduler import SearchScheduler
from cstp_grpc.core.decisions.store import JournalWrite
from cstp_grpc.core.guardrails.checker import GuardrailChecker
from cstp_grpc.core.guardrails.messages import (
    check_message,
    claimed_agent_name,
    guardrail_status_message,
    parse_action,
    parse_invocation_fields,
)
from cstp_grpc.core.intents.announcer import Announcer
from cstp_grpc.core.intents.closing import ClosingRequest, IntentCloser
from cstp_grpc.core.intents.intent_feed import IntentFeed
from cstp_grpc.core.intents.model import (
    PRIVATE_INTENTS,
    Announcement,
    CodeContext,
    CodeNote,
    DecisionRecording,
    Intent,
    IntentClosing,
    IntentFilter,
    IntentSharing,
    IntentStore,
    Suggestion,
    SuggestionKind,
)
from cstp_grpc.core.intents.related_intents import RelatedIntent
from cstp_grpc.gen.cstp.v1 import audit_pb2, code_pb2, cstp_pb2, cstp_pb2_grpc, intents_pb2, intents_pb2_grpc, types_pb2
from cstp_grpc.platform.storage.background_work import RunBlocking, WorkPool
from cstp_grpc.platform.storage.pagination import PageRequest

DEFAULT_LIMIT = 10


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Limits of queries: `max_results` caps their limit, `min_score` applies if they give none."""

    max_results: int
    min_score: float


class CstpService(cstp_pb2_grpc.CstpServiceServicer):
    """Serves cstp.v1.CstpService for this agent alone: it has no peers, and refuses calls that name some.

    `name` is the name of this agent, `read_policy` says which callers read only a part of what is shared, `sharing`
    whose intents are shared by default, and `queries` runs searches.
    """

    def __init__(
        self,
        name: str,
        announcer: Announcer,
        search: DecisionSearch,
        checks: GuardrailChecker,
        limits: QueryLimits,
        read_policy: ReadPolicy,
        sharing: IntentSharing = PRIVATE_INTENTS,
        *,
        queries: WorkPool,
    ) -> None:
        self._name = name
        self._announcer = announcer
        self._searches = SearchScheduler(search, queries)
        self._checks = checks
        self._limits = limits
        self._read_policy = read_policy
        self._sharing = sharing
        self._similar_decisions = MatchMessages(similar_decision_message)
        self._summaries = MatchMessages(partial(decision_summary, include_reasons=False))
        self._summaries_with_reasons = MatchMessages(partial(decision_summary, include_reasons=True))

    async def AnnounceIntent(
        self, request: cstp_pb2.AnnounceIntentRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.AnnounceIntentResponse:
        response, _ = await self.announce(request)
        return response

    def asks_peers(self, request: cstp_pb2.AnnounceIntentRequest) -> bool:
        return False

    def parse_announcement(self, request: cstp_pb2.AnnounceIntentRequest) -> Announcement:
        return parse_announcement(request, self._sharing.default_visibility(current_caller.get()))

    async def announce(
        self, request: cstp_pb2.AnnounceIntentRequest, recording: DecisionRecording | None = None
    ) -> tuple[cstp_pb2.AnnounceIntentResponse, JournalWrite[Decision] | None]:
        """Announce an intent, with a decision to record if it is allowed, and what that changed in the journal."""
        if request.agents:
            reject_agents(request)
        caller = current_caller.get()
        announced = self.parse_announcement(request)
        feedback = await self._announcer.announce(
            announced, caller.agent, caller.request_id, caller.reader, caller.permissions, recording
        )
        response = cstp_pb2.AnnounceIntentResponse(
            received=True,
            correlation_id=announced.correlation_id,
            received_at=proto_values.timestamp_message(feedback.received_at),
            similar_decisions=self._similar_decisions.of(feedback.similar),
            guardrail_status=(
                guardrail_status_message(feedback.verdict, caller.request_id) if feedback.verdict else None
            ),
            suggestions=[suggestion.text for suggestion in feedback.suggestions],
            suggestion_details=[suggestion_message(suggestion) for suggestion in feedback.suggestions],
            responding_agent=self._name,
            code_context=code_context_message(feedback.code) if feedback.code else None,
            revision=feedback.revision,
            related_intents=[related_intent_message(related) for related in feedback.related],
        )
        return response, feedback.written

    async def QueryDecisions(
        self, request: cstp_pb2.QueryDecisionsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.QueryDecisionsResponse:
        """Search decisions."""
        if request.agents:
            # A peer that reads only a part of what is shared gets the answer of this agent alone, whomever it names.
            reject_agents(request, ignored=self._read_policy.is_restricted_peer(current_caller.get().agent))
        started = time.perf_counter()
        filters = messages.parse_decision_filter(request.filters) if request.HasField("filters") else UNRESTRICTED
        limit = query_limit(request, self._limits)
        matches = await self._searches.search(
            request.query,
            filters,
            current_caller.get().reader,
            limit,
            request.min_score if request.HasField("min_score") else self._limits.min_score,
            proto_values.optional_field(request, "min_journal_revision"),
        )
        summaries = self._summaries_with_reasons if request.include_reasons else self._summaries
        return cstp_pb2.QueryDecisionsResponse(
            decisions=summaries.of(matches),
            total=len(matches),
            query=request.query,
            query_time_ms=round((time.perf_counter() - started) * 1000),
            agent=self._name,
        )

    async def CheckGuardrails(
        self, request: cstp_pb2.CheckGuardrailsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.CheckGuardrailsResponse:
        """Evaluate guardrails for an action."""
        if request.agents:
            reject_agents(request)
        caller = current_caller.get()
        check = await self._checks.judge_and_record(
            parse_action(request.action, caller),
            caller.agent,
            claimed_agent_name(request),
            caller.request_id,
            caller.reader,
        )
        return check_message(check, self._name, caller.request_id)


class IntentService(intents_pb2_grpc.IntentServiceServicer):
    """Serves cstp.v1.IntentService."""

    def __init__(self, closer: IntentCloser, feed: IntentFeed, run_blocking: RunBlocking) -> None:
        self._closer = closer
        self._feed = feed
        self._run_blocking = run_blocking

    async def WatchIntents(  # type: ignore[override]  # the stubs know threads' iterators only
        self, request: intents_pb2.WatchIntentsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[intents_pb2.WatchIntentsResponse, None]:
        """Stream announced intents."""
        caller = current_caller.get()
        watch = await self._run_blocking(
            self._feed.watch,
            caller.agent,
            caller.reader,
            parse_watched_intents(request),
            proto_values.optional_field(request, "project"),
            proto_values.optional_field(request, "after"),
        )
        context.add_done_callback(lambda _: watch.cancel())  # type: ignore[arg-type]  # the stubs want a class
        return (
            intents_pb2.WatchIntentsResponse(
                intent=None if item.intent is None else watched_intent_message(item.intent),
                resume_token=self._feed.token_of(item),
            )
            async for item in watch
        )

    async def CloseIntent(
        self, request: intents_pb2.CloseIntentRequest, context: grpc.ServicerContext
    ) -> intents_pb2.CloseIntentResponse:
        caller = current_caller.get()
        closed = await self._closer.close(parse_closing(request), caller.agent, caller.request_id)
        return intents_pb2.CloseIntentResponse(
            correlation_id=closed.correlation_id,
            revision=closed.revision,
            closing=closing_message(closed.closing) if closed.closing else None,
        )


def parse_watched_intents(message: intents_pb2.WatchIntentsRequest) -> IntentFilter:
    return IntentFilter(
        agent=proto_values.optional_field(message, "agent"),
        category=proto_values.optional_field(message, "category"),
        stakes=proto_values.STAKES.words(message.stakes),
    )


def watched_intent_message(intent: Intent) -> intents_pb2.WatchedIntent:
    """Convert an intent to a message for those who watch."""
    return intents_pb2.WatchedIntent(
        agent=intent.agent,
        correlation_id=intent.correlation_id,
        revision=intent.revision,
        received_at=proto_values.timestamp_message(intent.received_at),
        intent=intent.intent,
        category=intent.category,
        stakes=proto_values.STAKES.number(intent.stakes),
        confidence=intent.confidence,
        project=intent.project,
        paths=intent.paths,
        # Without the decision, of which the reader may not know.
        closing=closing_message(replace(intent.closing, decision_id=None)) if intent.closing else None,
    )


def reject_agents(
    request: cstp_pb2.AnnounceIntentRequest | cstp_pb2.QueryDecisionsRequest | cstp_pb2.CheckGuardrailsRequest,
    *,
    ignored: bool = False,
) -> None:
    """Raise InvalidArgument for a request that names agents to ask: there are no peers.

    If the names are `ignored`, only the local scope contradicts them.
    """
    asks_peers(request.scope, request.agents)
    if not ignored:
        reject_unknown_agents(request.agents)


def query_limit(request: cstp_pb2.QueryDecisionsRequest, limits: QueryLimits) -> int:
    """Return the maximum number of results of a query."""
    return min(request.limit if request.HasField("limit") else DEFAULT_LIMIT, limits.max_results)


def parse_announcement(message: cstp_pb2.AnnounceIntentRequest, default: Visibility) -> Announcement:
    """Parse an announcement, with a new correlation id if it has none, and a default visibility if it states none."""
    return Announcement(
        intent=message.intent,
        correlation_id=proto_values.optional_field(message, "correlation_id") or str(uuid.uuid4()),
        context=proto_values.optional_field(message, "context"),
        category=proto_values.optional_field(message, "category"),
        stakes=proto_values.STAKES.word(message.stakes) or Stakes.MEDIUM,
        confidence=proto_values.optional_field(message, "confidence"),
        metadata=proto_values.struct_to_dict(message.metadata),
        claimed_id=claimed_agent_name(message),
        claimed_url=proto_values.optional_field(message.agent, "url"),
        project=proto_values.optional_field(message, "project"),
        paths=tuple(message.paths),
        min_journal_revision=proto_values.optional_field(message, "min_journal_revision"),
        visibility=proto_values.VISIBILITY.word(message.visibility) or default,
        invocation=parse_invocation_fields(message),
    )


def code_context_message(code: CodeContext) -> code_pb2.CodeContext:
    """Convert a code context to a message."""
    return code_pb2.CodeContext(
        project=code.project,
        paths=code.paths,
        covered=code.is_covered,
        nodes=code.nodes,
        contracts=[code_note_message(note) for note in code.contracts],
        pitfalls=[code_note_message(note) for note in code.pitfalls],
        checks=[code_note_message(note) for note in code.checks],
        boundaries=[code_note_message(note) for note in code.boundaries],
        introduction=[code_note_message(note) for note in code.introduction],
        others=[code_note_message(note) for note in code.others],
        pending=[
            code_pb2.PendingLearning(id=learning.id, type=learning.type, title=learning.title, paths=learning.paths)
            for learning in code.pending
        ],
        check_items=code.check_items,
        missing=code.missing,
    )


def code_note_message(note: CodeNote) -> code_pb2.CodeNote:
    return code_pb2.CodeNote(file=note.file, text=note.text, line=note.line, section=note.section)


def list_intents(store: IntentStore, request: audit_pb2.ListIntentsRequest) -> audit_pb2.ListIntentsResponse:
    """List announced intents, for AuditService."""
    page = store.page(parse_intent_filter(request), PageRequest(request.page_size, request.page_token))
    return audit_pb2.ListIntentsResponse(
        intents=[intent_message(intent) for intent in page.items], next_page_token=page.next_token
    )


def parse_intent_filter(message: audit_pb2.ListIntentsRequest) -> IntentFilter:
    return IntentFilter(
        agent=proto_values.optional_field(message, "agent"),
        correlation_id=proto_values.optional_field(message, "correlation_id"),
        category=proto_values.optional_field(message, "category"),
        stakes=proto_values.STAKES.words(message.stakes),
        after=proto_values.datetime_field(message, "after"),
        before=proto_values.datetime_field(message, "before"),
        closed=proto_values.optional_field(message, "closed"),
    )


def intent_message(intent: Intent) -> audit_pb2.IntentRecord:
    """Convert an intent to a message."""
    claimed = intent.claimed_id is not None or intent.claimed_url is not None
    return audit_pb2.IntentRecord(
        correlation_id=intent.correlation_id,
        agent=intent.agent,
        claimed_agent=types_pb2.AgentInfo(id=intent.claimed_id, url=intent.claimed_url) if claimed else None,
        received_at=proto_values.timestamp_message(intent.received_at),
        intent=intent.intent,
        context=intent.context,
        category=intent.category,
        stakes=proto_values.STAKES.number(intent.stakes),
        confidence=intent.confidence,
        metadata=None if intent.metadata is None else proto_values.dict_to_struct(intent.metadata),
        project=intent.project,
        paths=intent.paths,
        revision=intent.revision,
        previous_revision=intent.previous_revision,
        visibility=proto_values.VISIBILITY.number(intent.visibility),
        closing=closing_message(intent.closing) if intent.closing else None,
    )


def parse_closing(message: intents_pb2.CloseIntentRequest) -> ClosingRequest:
    """Parse how an intent ended."""
    return ClosingRequest(
        correlation_id=message.correlation_id,
        outcome=proto_values.OUTCOME.required_word(message.outcome),
        notes=proto_values.optional_field(message, "notes"),
        decision_id=proto_values.optional_field(message, "decision_id"),
        revision=proto_values.optional_field(message, "revision"),
    )


def closing_message(closing: IntentClosing) -> intents_pb2.IntentClosing:
    return intents_pb2.IntentClosing(
        closed_at=proto_values.timestamp_message(closing.closed_at),
        outcome=proto_values.OUTCOME.number(closing.outcome),
        notes=closing.notes,
        decision_id=closing.decision_id,
    )


SUGGESTION_KIND: Final = proto_values.EnumMapping(cstp_pb2.SuggestionKind, SuggestionKind)


def suggestion_message(suggestion: Suggestion) -> cstp_pb2.Suggestion:
    """Convert a suggestion to a message."""
    return cstp_pb2.Suggestion(
        text=suggestion.text,
        kind=SUGGESTION_KIND.number(suggestion.kind),
        decision_ids=suggestion.decision_ids,
        guardrail_id=suggestion.guardrail_id,
        agent=suggestion.intent.agent if suggestion.intent else None,
        correlation_id=suggestion.intent.correlation_id if suggestion.intent else None,
        relevance=suggestion.relevance,
        outcome=proto_values.OUTCOME.number(suggestion.outcome),
    )


def related_intent_message(related: RelatedIntent) -> intents_pb2.RelatedIntent:
    """Convert a related intent to a message, without the decision that came of it, which may be private."""
    intent = related.intent
    closing = replace(intent.closing, decision_id=None) if intent.closing else None
    return intents_pb2.RelatedIntent(
        agent=intent.agent,
        correlation_id=intent.correlation_id,
        received_at=proto_values.timestamp_message(intent.received_at),
        intent=intent.intent or "",
        category=intent.category,
        stakes=proto_values.STAKES.number(intent.stakes),
        allowed=related.shared.allowed,
        closing=closing_message(closing) if closing else None,
        project=intent.project,
        paths=intent.paths,
        score=related.score,
    )


MessageT = TypeVar("MessageT", bound=Message)

MAX_KEPT: Final = 1000
"""Maximum number of matches whose messages are kept. Chosen: the results of some hundred searches, about 2 MB."""


class MatchMessages(Generic[MessageT]):
    """Converts matches to messages, and keeps these: a search that is repeated finds the same objects again.

    A message is not to be changed. For one thread.
    """

    def __init__(self, convert: Callable[[Match], MessageT], max_kept: int = MAX_KEPT) -> None:
        self._convert = convert
        self._max_kept = max_kept
        # By identity, because hashing a match takes longer than converting it. The match is kept beside its message,
        # so that no other object can have its identity.
        self._kept: dict[int, tuple[Match, MessageT]] = {}

    def of(self, matches: Sequence[Match]) -> list[MessageT]:
        return [self._message(match) for match in matches]

    def _message(self, match: Match) -> MessageT:
        kept = self._kept.get(id(match))
        if kept is not None:
            return kept[1]
        message = self._convert(match)
        if len(self._kept) >= self._max_kept:
            self._kept.clear()
        self._kept[id(match)] = match, message
        return message


def similar_decision_message(match: Match) -> cstp_pb2.SimilarDecision:
    """Convert a match to a similar decision of an announcement's response."""
    return cstp_pb2.SimilarDecision(
        id=match.decision.id,
        title=match.decision.title,
        outcome=proto_values.OUTCOME.number(match.decision.outcome),
        date=proto_values.timestamp_message(match.decision.date),
        distance=match.distance,
        score=match.score,
        notes=match.decision.notes,
        matched_by=map(messages.MATCH_REASON.number, match.matched_by),
        similar_count=match.similar_count,
        similar_outcomes=map(proto_values.OUTCOME.number, match.similar_outcomes),
        status=proto_values.STATUS.number(match.decision.status),
        superseded_by=match.superseded_by,
    )


def decision_summary(match: Match, include_reasons: bool) -> cstp_pb2.DecisionSummary:
    """Convert a match to a decision summary of a query's response."""
    item = match.decision
    return cstp_pb2.DecisionSummary(
        id=item.id,
        title=item.title,
        category=item.category,
        confidence=item.confidence,
        stakes=proto_values.STAKES.number(item.stakes),
        status=proto_values.STATUS.number(item.status),
        outcome=proto_values.OUTCOME.number(item.outcome),
        date=proto_values.timestamp_message(item.date),
        distance=match.distance,
        notes=item.notes,
        # None for an empty list, which takes as long to be set as the other fields together.
        reasons=[reason.type for reason in item.reasons] or None if include_reasons else None,
        tags=item.tags or None,
        project=item.project,
        agent=item.agent,
        score=match.score,
        matched_by=map(messages.MATCH_REASON.number, match.matched_by),
        similar_count=match.similar_count,
        similar_outcomes=map(proto_values.OUTCOME.number, match.similar_outcomes) if match.similar_outcomes else None,
        superseded_by=match.superseded_by,
    )
