"""The servicers of intents: the three methods of the protocol (announce, query, check), and closing an intent."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import grpc

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.call_scope import asks_peers, reject_unknown_agents
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.commands.messages import parse_invocation_fields
from cstp_grpc.core.decisions import messages
from cstp_grpc.core.decisions.messages import SIMILAR_DECISION, SUMMARY, MatchMessages
from cstp_grpc.core.decisions.model import Decision, Match
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.search.decision_search import UNRESTRICTED, DecisionSearch
from cstp_grpc.core.decisions.search.search_scheduler import SearchScheduler
from cstp_grpc.core.decisions.store import JournalWrite
from cstp_grpc.core.guardrails.checker import GuardrailChecker
from cstp_grpc.core.guardrails.messages import (
    CHECK,
    GUARDRAIL_STATUS,
    claimed_agent_name,
    parse_action,
)
from cstp_grpc.core.intents.announcer import Announcer
from cstp_grpc.core.intents.closing import IntentCloser
from cstp_grpc.core.intents.intent_feed import IntentFeed
from cstp_grpc.core.intents.messages import (
    ANNOUNCEMENT,
    CLOSING,
    CLOSING_REQUEST,
    CODE_CONTEXT,
    INTENT_FILTER,
    INTENT_RECORD,
    RELATED_INTENT,
    SUGGESTION,
    WATCH_FILTER,
    WATCHED_INTENT,
)
from cstp_grpc.core.intents.model import PRIVATE_INTENTS, Announcement, DecisionRecording, IntentSharing, IntentStore
from cstp_grpc.gen.cstp.v1 import audit_pb2, cstp_pb2, cstp_pb2_grpc, intents_pb2, intents_pb2_grpc
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
        self._similar_decisions = MatchMessages(SIMILAR_DECISION.encode)
        self._summaries = MatchMessages(SUMMARY.encode)
        self._summaries_with_reasons = MatchMessages(summary_with_reasons)

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
                GUARDRAIL_STATUS.encode(feedback.verdict, check_id=caller.request_id) if feedback.verdict else None
            ),
            suggestions=[suggestion.text for suggestion in feedback.suggestions],
            suggestion_details=map(SUGGESTION.encode, feedback.suggestions),
            responding_agent=self._name,
            code_context=CODE_CONTEXT.encode(feedback.code) if feedback.code else None,
            revision=feedback.revision,
            related_intents=map(RELATED_INTENT.encode, feedback.related),
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
        filters = messages.FILTER.decode(request.filters) if request.HasField("filters") else UNRESTRICTED
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
        return CHECK.encode(check, agent=self._name, check_id=caller.request_id)


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
            WATCH_FILTER.decode(request),
            proto_values.optional_field(request, "project"),
            proto_values.optional_field(request, "after"),
        )
        context.add_done_callback(lambda _: watch.cancel())  # type: ignore[arg-type]  # the stubs want a class
        return (
            intents_pb2.WatchIntentsResponse(
                intent=None if item.intent is None else WATCHED_INTENT.encode(item.intent),
                resume_token=self._feed.token_of(item),
            )
            async for item in watch
        )

    async def CloseIntent(
        self, request: intents_pb2.CloseIntentRequest, context: grpc.ServicerContext
    ) -> intents_pb2.CloseIntentResponse:
        caller = current_caller.get()
        closed = await self._closer.close(CLOSING_REQUEST.decode(request), caller.agent, caller.request_id)
        return intents_pb2.CloseIntentResponse(
            correlation_id=closed.correlation_id,
            revision=closed.revision,
            closing=CLOSING.encode(closed.closing) if closed.closing else None,
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


def summary_with_reasons(match: Match) -> cstp_pb2.DecisionSummary:
    return SUMMARY.encode(match, reasons=[reason.type for reason in match.decision.reasons])


def query_limit(request: cstp_pb2.QueryDecisionsRequest, limits: QueryLimits) -> int:
    """Return the maximum number of results of a query."""
    return min(request.limit if request.HasField("limit") else DEFAULT_LIMIT, limits.max_results)


def parse_announcement(message: cstp_pb2.AnnounceIntentRequest, default: Visibility) -> Announcement:
    """Parse an announcement, with a new correlation id if it has none, and a default visibility if it states none."""
    return ANNOUNCEMENT.decode(
        message,
        correlation_id=message.correlation_id or str(uuid.uuid4()),
        claimed_id=claimed_agent_name(message),
        claimed_url=proto_values.optional_field(message.agent, "url"),
        visibility=proto_values.VISIBILITY.word(message.visibility) or default,
        invocation=parse_invocation_fields(message),
    )


def list_intents(store: IntentStore, request: audit_pb2.ListIntentsRequest) -> audit_pb2.ListIntentsResponse:
    """List announced intents, for AuditService."""
    page = store.page(INTENT_FILTER.decode(request), PageRequest(request.page_size, request.page_token))
    return audit_pb2.ListIntentsResponse(intents=map(INTENT_RECORD.encode, page.items), next_page_token=page.next_token)
