"""The servicers of intents: announcing, closing and watching them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any

import grpc

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract import proto_values
from cstp_grpc.contract.call_scope import reject_agents
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.audit.oversight import Oversight
from cstp_grpc.core.commands.messages import parse_invocation_fields
from cstp_grpc.core.decisions.messages import SIMILAR_DECISION
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.decisions.search.search_results import MatchMessages
from cstp_grpc.core.decisions.servicer import DecisionQueries
from cstp_grpc.core.decisions.store import JournalWrite
from cstp_grpc.core.guardrails.messages import GUARDRAIL_STATUS, claimed_agent_name
from cstp_grpc.core.guardrails.servicer import GuardrailChecks
from cstp_grpc.core.intents import messages
from cstp_grpc.core.intents.announcer import Announcer
from cstp_grpc.core.intents.closing import IntentCloser
from cstp_grpc.core.intents.intent_feed import IntentFeed
from cstp_grpc.core.intents.model import PRIVATE_INTENTS, Announcement, DecisionRecording, IntentSharing
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.gen.cstp.v1 import audit_pb2, cstp_pb2, intents_pb2, intents_pb2_grpc
from cstp_grpc.platform.storage.background_work import RunBlocking
from cstp_grpc.platform.storage.pagination import PageRequest


class Announcements:
    """Serves AnnounceIntent of cstp.v1.CstpService for this agent alone: it refuses calls that name peers.

    `name` is the name of this agent, and `sharing` says whose intents are shared by default.
    """

    def __init__(self, name: str, announcer: Announcer, sharing: IntentSharing = PRIVATE_INTENTS) -> None:
        self._name = name
        self._announcer = announcer
        self._sharing = sharing
        self._similar_decisions = MatchMessages(SIMILAR_DECISION.encode)

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
        """Announce an intent, with a decision to record if it is allowed, and its changes in the journal."""
        if request.agents:
            reject_agents(request.scope, request.agents)
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
            suggestion_details=map(messages.SUGGESTION.encode, feedback.suggestions),
            responding_agent=self._name,
            code_context=messages.CODE_CONTEXT.encode(feedback.code) if feedback.code else None,
            revision=feedback.revision,
            related_intents=map(messages.RELATED_INTENT.encode, feedback.related),
        )
        return response, feedback.written


@dataclass(frozen=True, slots=True)
class CstpService:
    """Serves cstp.v1.CstpService for this agent alone; each method is part of the package of its noun.

    The methods are properties, so that a call enters the one of the part and none in between.
    """

    announcements: Announcements
    queries: DecisionQueries
    checks: GuardrailChecks

    @property
    def AnnounceIntent(self) -> Any:
        return self.announcements.AnnounceIntent

    @property
    def QueryDecisions(self) -> Any:
        return self.queries.QueryDecisions

    @property
    def CheckGuardrails(self) -> Any:
        return self.checks.CheckGuardrails


class IntentService(intents_pb2_grpc.IntentServiceServicer):
    """Serves cstp.v1.IntentService."""

    def __init__(self, closer: IntentCloser, feed: IntentFeed, oversight: Oversight, run_blocking: RunBlocking) -> None:
        self._closer = closer
        self._oversight = oversight
        self._feed = feed
        self._run_blocking = run_blocking

    async def WatchIntents(  # type: ignore[override]  # the stubs know threads' iterators only
        self, request: intents_pb2.WatchIntentsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[intents_pb2.WatchIntentsResponse, None]:
        """Stream announced intents."""
        caller, reader = current_caller.get(), current_caller.get().reader
        if request.oversee:
            oversee = self._oversight.choose_reader
            reader = await self._run_blocking(oversee, caller, "cstp.watchIntents", request.agent)
        watch = await self._run_blocking(
            self._feed.watch,
            caller.agent,
            reader,
            messages.WATCH_FILTER.decode(request),
            proto_values.optional_field(request, "project"),
            proto_values.optional_field(request, "after"),
        )
        context.add_done_callback(lambda _: watch.cancel())  # type: ignore[arg-type]  # the stubs want a class
        return (
            intents_pb2.WatchIntentsResponse(
                intent=None if item.intent is None else messages.WATCHED_INTENT.encode(item.intent),
                resume_token=self._feed.token_of(item),
            )
            async for item in watch
        )

    async def CloseIntent(
        self, request: intents_pb2.CloseIntentRequest, context: grpc.ServicerContext
    ) -> intents_pb2.CloseIntentResponse:
        caller = current_caller.get()
        closed = await self._closer.close(messages.CLOSING_REQUEST.decode(request), caller.agent, caller.request_id)
        return intents_pb2.CloseIntentResponse(
            correlation_id=closed.correlation_id,
            revision=closed.revision,
            closing=messages.CLOSING.encode(closed.closing) if closed.closing else None,
        )


def parse_announcement(message: cstp_pb2.AnnounceIntentRequest, default: Visibility) -> Announcement:
    """Parse an announcement, adding a new correlation id and the default visibility if they are missing."""
    return messages.ANNOUNCEMENT.decode(
        message,
        correlation_id=message.correlation_id or str(uuid.uuid4()),
        claimed_id=claimed_agent_name(message),
        claimed_url=proto_values.optional_field(message.agent, "url"),
        visibility=proto_values.VISIBILITY.word(message.visibility) or default,
        invocation=parse_invocation_fields(message),
    )


def list_intents(store: SqlIntentStore, request: audit_pb2.ListIntentsRequest) -> audit_pb2.ListIntentsResponse:
    """List announced intents, for AuditService."""
    page = store.page(messages.INTENT_FILTER.decode(request), PageRequest(request.page_size, request.page_token))
    return audit_pb2.ListIntentsResponse(
        intents=map(messages.INTENT_RECORD.encode, page.items), next_page_token=page.next_token
    )
