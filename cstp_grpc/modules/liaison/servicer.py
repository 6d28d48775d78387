"""The servicer of chat sessions and of routing them to liaison agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import struct_pb2

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.gen.liaison.v1 import liaison_pb2, liaison_pb2_grpc
from cstp_grpc.modules.liaison.context_sharing import ContextSharing, ShareRequest
from cstp_grpc.modules.liaison.erasure import SessionEraser
from cstp_grpc.modules.liaison.events import EventFeed, EventHistory
from cstp_grpc.modules.liaison.model import (
    Activation,
    ChatMessage,
    DeliveryState,
    Event,
    EventFilter,
    MessageContent,
    MessageRole,
    RoutingDecision,
    Session,
    SessionFilter,
    SessionStatus,
    Share,
    TenantCaller,
    liaison_agent,
)
from cstp_grpc.modules.liaison.presence import AgentDirectory, ListedAgent, LocalAgentService
from cstp_grpc.modules.liaison.routing import Router, RoutingRequest
from cstp_grpc.modules.liaison.sessions import SessionService
from cstp_grpc.platform.storage.background_work import RunBlocking, WorkPool
from cstp_grpc.platform.storage.pagination import PageRequest

SESSION_STATUS = proto_values.EnumMapping(liaison_pb2.SessionStatus, SessionStatus)
MESSAGE_ROLE = proto_values.EnumMapping(liaison_pb2.MessageRole, MessageRole)
DELIVERY_STATE = proto_values.EnumMapping(liaison_pb2.DeliveryState, DeliveryState)

AGENT_KINDS = {
    "local": liaison_pb2.LIAISON_AGENT_KIND_LOCAL,
    "a2a": liaison_pb2.LIAISON_AGENT_KIND_A2A,
    "grpc": liaison_pb2.LIAISON_AGENT_KIND_GRPC,
    "jsonrpc": liaison_pb2.LIAISON_AGENT_KIND_JSONRPC,
}
"""Kinds by their names in the configuration."""

RESULT_TYPE = "artifact"

SHORT_REQUEST_BYTES = 4096
"""Maximum size of a request that is converted on the event loop: less than a millisecond."""


@dataclass(frozen=True, slots=True)
class LiaisonComponents:
    """The components of the domain that the servicer calls."""

    sessions: SessionService
    router: Router
    sharing: ContextSharing
    presence: LocalAgentService
    history: EventHistory
    feed: EventFeed
    eraser: SessionEraser
    directory: AgentDirectory


class LiaisonService(liaison_pb2_grpc.LiaisonServiceServicer):
    """Serves liaison.v1.LiaisonService; `run_blocking` runs blocking work of async methods on a thread, `routings` runs
    routings.
    """

    def __init__(self, liaison: LiaisonComponents, run_blocking: RunBlocking, routings: WorkPool) -> None:
        self._liaison = liaison
        self._run_blocking = run_blocking
        self._routings = routings

    def OpenSession(
        self, request: liaison_pb2.OpenSessionRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.OpenSessionResponse:
        caller = current_tenant_caller()
        session, created = self._liaison.sessions.open(
            caller,
            requested_user(request, caller),
            proto_values.optional_field(request, "chat_session_id"),
            proto_values.struct_to_dict(request.context),
        )
        return liaison_pb2.OpenSessionResponse(chat_session=session_message(session), created=created)

    def GetSession(
        self, request: liaison_pb2.GetSessionRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.GetSessionResponse:
        caller = current_tenant_caller()
        session_id = proto_values.optional_field(request, "chat_session_id")
        session = self._liaison.sessions.get(caller, session_id, requested_user(request, caller))
        return liaison_pb2.GetSessionResponse(chat_session=session_message(session))

    def ListSessions(
        self, request: liaison_pb2.ListSessionsRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ListSessionsResponse:
        """List sessions."""
        conditions = SessionFilter(
            tenant=current_tenant_caller().tenant,
            user_id=proto_values.optional_field(request, "user_id"),
            active_agent=proto_values.optional_field(request, "active_agent"),
            status=SESSION_STATUS.word(request.status),
        )
        page = self._liaison.sessions.page(conditions, PageRequest(request.page_size, request.page_token))
        return liaison_pb2.ListSessionsResponse(
            chat_sessions=map(session_message, page.items), next_page_token=page.next_token
        )

    async def AppendMessage(
        self, request: liaison_pb2.AppendMessageRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.AppendMessageResponse:
        if request.ByteSize() > SHORT_REQUEST_BYTES:
            return await self._run_blocking(self._append, request)
        return append_response(await self._liaison.sessions.append_on_loop(*parse_append_request(request)))

    def _append(self, request: liaison_pb2.AppendMessageRequest) -> liaison_pb2.AppendMessageResponse:
        return append_response(self._liaison.sessions.append(*parse_append_request(request)))

    def ListMessages(
        self, request: liaison_pb2.ListMessagesRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ListMessagesResponse:
        page_request = PageRequest(request.page_size, request.page_token)
        page = self._liaison.sessions.messages(current_tenant_caller(), request.chat_session_id, page_request)
        return liaison_pb2.ListMessagesResponse(messages=map(chat_message, page.items), next_page_token=page.next_token)

    def UpdateContext(
        self, request: liaison_pb2.UpdateContextRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.UpdateContextResponse:
        session = self._liaison.sessions.update_context(
            current_tenant_caller(),
            request.chat_session_id,
            proto_values.struct_to_dict(request.context),
            proto_values.optional_field(request, "version"),
            proto_values.optional_field(request, "claim_number"),
        )
        return liaison_pb2.UpdateContextResponse(chat_session=session_message(session))

    def CloseSession(
        self, request: liaison_pb2.CloseSessionRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.CloseSessionResponse:
        version = proto_values.optional_field(request, "version")
        session = self._liaison.sessions.close(current_tenant_caller(), request.chat_session_id, version)
        return liaison_pb2.CloseSessionResponse(chat_session=session_message(session))

    def DeleteSession(
        self, request: liaison_pb2.DeleteSessionRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.DeleteSessionResponse:
        deleted = self._liaison.eraser.delete_session(current_tenant_caller(), request.chat_session_id)
        return liaison_pb2.DeleteSessionResponse(deleted=deleted)

    def DeleteUserSessions(
        self, request: liaison_pb2.DeleteUserSessionsRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.DeleteUserSessionsResponse:
        deleted = self._liaison.eraser.delete_user_sessions(current_tenant_caller(), request.user_id)
        return liaison_pb2.DeleteUserSessionsResponse(deleted=deleted)

    async def RouteToLiaisonAgent(
        self, request: liaison_pb2.RouteToLiaisonAgentRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.RouteToLiaisonAgentResponse:
        if request.ByteSize() <= SHORT_REQUEST_BYTES:
            caller = current_tenant_caller()
            routing = parse_routing_request(request, caller)
            activation = await self._liaison.router.route_on_loop(caller, routing, self._routings)
            # None: it may take longer than the event loop can spare, and nothing has been done yet.
            if activation is not None:
                return routing_response(activation)
        return await self._routings.run(self._route, request)

    def _route(self, request: liaison_pb2.RouteToLiaisonAgentRequest) -> liaison_pb2.RouteToLiaisonAgentResponse:
        """Route a session to a liaison agent, on a thread."""
        caller = current_tenant_caller()
        return routing_response(self._liaison.router.route(caller, parse_routing_request(request, caller)))

    def ReturnToGuide(
        self, request: liaison_pb2.ReturnToGuideRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ReturnToGuideResponse:
        session, event = self._liaison.router.return_to_guide(
            current_tenant_caller(),
            request.chat_session_id,
            request.reason,
            proto_values.optional_field(request, "version"),
            proto_values.optional_field(request, "claim_number"),
        )
        events = [] if event is None else [event_message(event)]
        return liaison_pb2.ReturnToGuideResponse(chat_session=session_message(session), events=events)

    def ShareContextToAgent(
        self, request: liaison_pb2.ShareContextToAgentRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ShareContextToAgentResponse:
        """Share a context."""
        caller = current_tenant_caller()
        share_request = ShareRequest(
            source_agent=request.source_agent,
            target_agent=request.target_agent,
            shared_context=optional_json(request, "shared_context"),
            conversation_id=proto_values.optional_field(request, "conversation_id"),
            idempotency_key=proto_values.optional_field(request, "idempotency_key"),
        )
        share = self._liaison.sharing.share(caller, share_request)
        return liaison_pb2.ShareContextToAgentResponse(share=share_message(share), execution_id=share.execution_id)

    def GetShare(
        self, request: liaison_pb2.GetShareRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.GetShareResponse:
        share = self._liaison.sharing.get(current_tenant_caller(), request.share_id)
        return liaison_pb2.GetShareResponse(share=share_message(share))

    def Heartbeat(
        self, request: liaison_pb2.HeartbeatRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.HeartbeatResponse:
        """Record a heartbeat of a local agent."""
        until = self._liaison.presence.heartbeat(
            current_tenant_caller(), request.target_pillar, leaving=request.leaving
        )
        return liaison_pb2.HeartbeatResponse(
            liaison_agent_id=liaison_agent(request.target_pillar),
            available_until=proto_values.optional_timestamp(until),
        )

    def ListLiaisonAgents(
        self, request: liaison_pb2.ListLiaisonAgentsRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ListLiaisonAgentsResponse:
        found = self._liaison.directory.list_agents(
            current_tenant_caller(), proto_values.optional_field(request, "target_pillar")
        )
        return liaison_pb2.ListLiaisonAgentsResponse(liaison_agents=map(agent_message, found))

    def ClaimSession(
        self, request: liaison_pb2.ClaimSessionRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ClaimSessionResponse:
        """Claim a session."""
        caller = current_tenant_caller()
        claimant = proto_values.optional_field(request, "claimant") or caller.agent
        session, activation = self._liaison.presence.claim(caller, request.chat_session_id, claimant)
        answer = liaison_pb2.ClaimSessionResponse(
            chat_session=session_message(session),
            liaison_agent_activation=activation_message(activation),
            claim_number=session.claim_number,
        )
        # Security: an agent gets the redacted context of the activation, and the session's own is not redacted.
        answer.chat_session.ClearField("context")
        return answer

    def ListEvents(
        self, request: liaison_pb2.ListEventsRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ListEventsResponse:
        page = self._liaison.history.events(parse_event_filter(request), request.after, request.page_size)
        events = map(event_message, page.events)
        return liaison_pb2.ListEventsResponse(events=events, more=page.more, newest=page.newest)

    async def WatchEvents(  # type: ignore[override]  # the stubs know threads' iterators only
        self, request: liaison_pb2.WatchEventsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[liaison_pb2.WatchEventsResponse, None]:
        after = proto_values.optional_field(request, "after")
        watch = await self._run_blocking(
            self._liaison.feed.watch, parse_event_filter(request), after, current_tenant_caller().agent
        )
        # However the call ends: otherwise the subscription would count until it is collected.
        context.add_done_callback(lambda _: watch.cancel())  # type: ignore[arg-type]  # the stubs want a class
        return (liaison_pb2.WatchEventsResponse(event=event_message(event)) async for event in watch)


def current_tenant_caller() -> TenantCaller:
    caller = current_caller.get()
    return TenantCaller(
        caller.agent,
        caller.tenant,
        caller.request_id,
        Permission.ROUTE in caller.permissions,
        caller.permissions,
    )


def requested_user(request: Any, caller: TenantCaller) -> str:
    """Return the user of a request, by default the calling agent."""
    return proto_values.optional_field(request, "user_id") or caller.agent


def optional_json(request: Any, field: str) -> dict[str, Any] | None:
    value: struct_pb2.Struct | None = proto_values.optional_field(request, field)
    return None if value is None else proto_values.struct_to_dict(value)


def optional_struct(value: Mapping[str, Any] | None) -> struct_pb2.Struct | None:
    """Convert a JSON object to a Struct, None to None."""
    return None if value is None else proto_values.dict_to_struct(value)


def parse_append_request(
    request: liaison_pb2.AppendMessageRequest,
) -> tuple[TenantCaller, str, MessageContent, int | None]:
    """Parse the caller, session, message and claim number of a request."""
    content = MessageContent(
        role=MESSAGE_ROLE.required_word(request.role),
        content=request.content,
        metadata=optional_json(request, "metadata"),
        message_id=proto_values.optional_field(request, "message_id"),
    )
    return (
        current_tenant_caller(),
        request.chat_session_id,
        content,
        proto_values.optional_field(request, "claim_number"),
    )


def append_response(message: ChatMessage) -> liaison_pb2.AppendMessageResponse:
    return liaison_pb2.AppendMessageResponse(message=chat_message(message))


def parse_routing_request(request: liaison_pb2.RouteToLiaisonAgentRequest, caller: TenantCaller) -> RoutingRequest:
    return RoutingRequest(
        target_pillar=request.target_pillar,
        user_id=requested_user(request, caller),
        session_id=proto_values.optional_field(request, "chat_session_id"),
        reason=request.routing_reason,
        context=optional_json(request, "context_to_share"),
    )


def routing_response(activation: Activation) -> liaison_pb2.RouteToLiaisonAgentResponse:
    return liaison_pb2.RouteToLiaisonAgentResponse(
        artifacts=liaison_pb2.RoutingArtifacts(liaison_agent_activation=activation_message(activation)),
        chat_session=session_message(activation.session),
        events=[event_message(activation.event)],
        execution_id=activation.execution_id,
    )


def parse_event_filter(request: liaison_pb2.ListEventsRequest | liaison_pb2.WatchEventsRequest) -> EventFilter:
    return EventFilter(
        tenant=current_tenant_caller().tenant,
        session_id=proto_values.optional_field(request, "chat_session_id"),
        agent=proto_values.optional_field(request, "agent"),
        types=tuple(request.types),
    )


def session_message(session: Session) -> liaison_pb2.ChatSession:
    """Convert a session to a message."""
    return liaison_pb2.ChatSession(
        id=session.id,
        tenant=session.tenant,
        user_id=session.user_id,
        active_agent=session.active_agent,
        status=SESSION_STATUS.number(session.status),
        context=proto_values.dict_to_struct(session.context),
        message_count=session.message_count,
        version=session.version,
        routing_epoch=session.routing_epoch,
        claimed_by=session.claimed_by,
        claimed_until=proto_values.optional_timestamp(session.claimed_until),
        created_at=proto_values.timestamp_message(session.created_at),
        updated_at=proto_values.timestamp_message(session.updated_at),
        closed_at=proto_values.optional_timestamp(session.closed_at),
        activation_key=session.activation_key,
    )


def agent_message(agent: ListedAgent) -> liaison_pb2.LiaisonAgent:
    """Convert a liaison agent to a message."""
    presence = agent.presence
    present = agent.reason is None
    return liaison_pb2.LiaisonAgent(
        liaison_agent_id=liaison_agent(agent.pillar),
        target_pillar=agent.pillar,
        kind=AGENT_KINDS[agent.kind],
        present=present,
        reason=agent.reason,
        since=proto_values.optional_timestamp(agent.since),
        served_by=presence.agent if presence else None,
        last_heartbeat=proto_values.optional_timestamp(presence.beaten_at if presence else None),
        available_until=proto_values.optional_timestamp(presence.available_until if presence and present else None),
        chat_sessions=agent.sessions,
    )


def chat_message(message: ChatMessage) -> liaison_pb2.ChatMessage:
    """Convert a chat message to its message of the contract."""
    body = message.body
    return liaison_pb2.ChatMessage(
        sequence=message.sequence,
        message_id=body.message_id,
        role=MESSAGE_ROLE.number(body.role),
        content=body.content,
        metadata=optional_struct(body.metadata),
        active_agent=message.active_agent,
        author=message.author,
        sent_at=proto_values.timestamp_message(message.sent_at),
    )


def event_message(event: Event) -> liaison_pb2.Event:
    return liaison_pb2.Event(
        type=event.type.value,
        sequence=event.sequence or 0,
        chat_session_id=event.session_id,
        user_id=event.user_id,
        agent=event.agent,
        occurred_at=proto_values.timestamp_message(event.occurred_at),
        data=proto_values.dict_to_struct(event.data),
    )


def share_message(share: Share) -> liaison_pb2.Share:
    """Convert a share to a message."""
    return liaison_pb2.Share(
        share_id=share.id,
        source_agent=share.source_agent,
        target_agent=share.target_agent,
        conversation_id=share.conversation_id,
        shared_context=proto_values.dict_to_struct(share.shared_context),
        context_hash=share.context_hash,
        shared_at=proto_values.timestamp_message(share.shared_at),
        delivery=DELIVERY_STATE.number(share.delivery),
        attempts=share.attempts,
        task_id=share.task_id,
        delivered_at=proto_values.optional_timestamp(share.delivered_at),
    )


def activation_message(activation: Activation) -> liaison_pb2.LiaisonAgentActivation:
    """Convert an activation to a message."""
    decision = activation.decision
    return liaison_pb2.LiaisonAgentActivation(
        result_type=RESULT_TYPE,
        semantic_payload=liaison_pb2.ActivationPayload(
            target_pillar=activation.pillar,
            liaison_agent_id=decision.to_agent,
            shared_context=proto_values.dict_to_struct(activation.shared_context),
            routing_reason=decision.reason,
            routing_decision=decision_message(decision),
            active_agent_updated=True,
        ),
        renderings=struct_pb2.Struct(),
    )


def decision_message(decision: RoutingDecision) -> liaison_pb2.RoutingDecision:
    return liaison_pb2.RoutingDecision(
        from_agent=decision.from_agent,
        to_agent=decision.to_agent,
        reason=decision.reason,
        decided_at=proto_values.timestamp_message(decision.decided_at),
        idempotency_key=decision.idempotency_key,
    )
