"""Chat sessions and handing them to liaison agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import struct_pb2

from cstp_grpc.gen.liaison.v1 import liaison_pb2, liaison_pb2_grpc
from cstp_grpc.liaison.directory import AgentDirectory, ListedAgent
from cstp_grpc.liaison.erasure import Eraser
from cstp_grpc.liaison.feed import Feed
from cstp_grpc.liaison.history import History
from cstp_grpc.liaison.model import (
    Activation,
    Caller,
    DeliveryState,
    Event,
    EventFilter,
    Message,
    MessageContent,
    MessageRole,
    RoutingDecision,
    Session,
    SessionFilter,
    SessionStatus,
    Share,
    liaison_agent,
)
from cstp_grpc.liaison.presence import Presence
from cstp_grpc.liaison.routing import Router, RoutingRequest
from cstp_grpc.liaison.sessions import Sessions
from cstp_grpc.liaison.sharing import ShareRequest, Sharing
from cstp_grpc.services import convert
from cstp_grpc.services.caller import current_caller
from cstp_grpc.storage.blocking import RunBlocking, WorkLane
from cstp_grpc.storage.paging import PageRequest
from cstp_grpc.vocabulary import Permission

SESSION_STATUS = convert.EnumWords(liaison_pb2.SessionStatus, SessionStatus)
MESSAGE_ROLE = convert.EnumWords(liaison_pb2.MessageRole, MessageRole)
DELIVERY_STATE = convert.EnumWords(liaison_pb2.DeliveryState, DeliveryState)

AGENT_KIND = {
    "local": liaison_pb2.LIAISON_AGENT_KIND_LOCAL,
    "a2a": liaison_pb2.LIAISON_AGENT_KIND_A2A,
    "grpc": liaison_pb2.LIAISON_AGENT_KIND_GRPC,
    "jsonrpc": liaison_pb2.LIAISON_AGENT_KIND_JSONRPC,
}
"""By the words of the configuration."""

RESULT_TYPE = "artifact"

SHORT_BYTES = 4096
"""Size of a request that is converted on the event loop; it takes less than a millisecond."""


@dataclass(frozen=True, slots=True)
class Liaison:
    """The domain as it is served."""

    sessions: Sessions
    router: Router
    sharing: Sharing
    presence: Presence
    history: History
    feed: Feed
    eraser: Eraser
    directory: AgentDirectory


class LiaisonService(liaison_pb2_grpc.LiaisonServiceServicer):
    """Serves liaison.v1.LiaisonService; `run_blocking` runs on a thread what an asynchronous method must wait for,
    `routings` runs routings.
    """

    def __init__(self, liaison: Liaison, run_blocking: RunBlocking, routings: WorkLane) -> None:
        self._liaison = liaison
        self._run_blocking = run_blocking
        self._routings = routings

    def OpenSession(
        self, request: liaison_pb2.OpenSessionRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.OpenSessionResponse:
        """Open a session."""
        caller = calling()
        session, created = self._liaison.sessions.open(
            caller,
            user_of(request, caller),
            convert.optional(request, "chat_session_id"),
            convert.struct_to_dict(request.context),
        )
        return liaison_pb2.OpenSessionResponse(chat_session=session_message(session), created=created)

    def GetSession(
        self, request: liaison_pb2.GetSessionRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.GetSessionResponse:
        """Read a session."""
        caller = calling()
        session_id = convert.optional(request, "chat_session_id")
        session = self._liaison.sessions.get(caller, session_id, user_of(request, caller))
        return liaison_pb2.GetSessionResponse(chat_session=session_message(session))

    def ListSessions(
        self, request: liaison_pb2.ListSessionsRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ListSessionsResponse:
        """List sessions."""
        conditions = SessionFilter(
            tenant=calling().tenant,
            user_id=convert.optional(request, "user_id"),
            active_agent=convert.optional(request, "active_agent"),
            status=SESSION_STATUS.word(request.status),
        )
        page = self._liaison.sessions.page(conditions, PageRequest(request.page_size, request.page_token))
        return liaison_pb2.ListSessionsResponse(
            chat_sessions=map(session_message, page.items), next_page_token=page.next_token
        )

    async def AppendMessage(
        self, request: liaison_pb2.AppendMessageRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.AppendMessageResponse:
        """Append a message."""
        if request.ByteSize() > SHORT_BYTES:
            return await self._run_blocking(self._append, request)
        return append_response(await self._liaison.sessions.append_on_loop(*append_arguments(request)))

    def _append(self, request: liaison_pb2.AppendMessageRequest) -> liaison_pb2.AppendMessageResponse:
        """Append a message, on a thread."""
        return append_response(self._liaison.sessions.append(*append_arguments(request)))

    def ListMessages(
        self, request: liaison_pb2.ListMessagesRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ListMessagesResponse:
        """List messages."""
        wanted = PageRequest(request.page_size, request.page_token)
        page = self._liaison.sessions.messages(calling(), request.chat_session_id, wanted)
        return liaison_pb2.ListMessagesResponse(
            messages=map(message_message, page.items), next_page_token=page.next_token
        )

    def UpdateContext(
        self, request: liaison_pb2.UpdateContextRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.UpdateContextResponse:
        """Change a context."""
        session = self._liaison.sessions.update_context(
            calling(),
            request.chat_session_id,
            convert.struct_to_dict(request.context),
            convert.optional(request, "version"),
            convert.optional(request, "claim_number"),
        )
        return liaison_pb2.UpdateContextResponse(chat_session=session_message(session))

    def CloseSession(
        self, request: liaison_pb2.CloseSessionRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.CloseSessionResponse:
        """Close a session."""
        version = convert.optional(request, "version")
        session = self._liaison.sessions.close(calling(), request.chat_session_id, version)
        return liaison_pb2.CloseSessionResponse(chat_session=session_message(session))

    def DeleteSession(
        self, request: liaison_pb2.DeleteSessionRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.DeleteSessionResponse:
        """Delete a session."""
        deleted = self._liaison.eraser.delete_session(calling(), request.chat_session_id)
        return liaison_pb2.DeleteSessionResponse(deleted=deleted)

    def DeleteUserSessions(
        self, request: liaison_pb2.DeleteUserSessionsRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.DeleteUserSessionsResponse:
        """Delete the sessions of a user."""
        deleted = self._liaison.eraser.delete_user_sessions(calling(), request.user_id)
        return liaison_pb2.DeleteUserSessionsResponse(deleted=deleted)

    async def RouteToLiaisonAgent(
        self, request: liaison_pb2.RouteToLiaisonAgentRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.RouteToLiaisonAgentResponse:
        """Hand a session to a liaison agent."""
        if request.ByteSize() <= SHORT_BYTES:
            caller = calling()
            wanted = routing_request(request, caller)
            activation = await self._liaison.router.route_on_loop(caller, wanted, self._routings)
            if activation is not None:
                return routing_response(activation)
        return await self._routings.run(self._route, request)

    def _route(self, request: liaison_pb2.RouteToLiaisonAgentRequest) -> liaison_pb2.RouteToLiaisonAgentResponse:
        """Hand a session to a liaison agent, on a thread."""
        caller = calling()
        return routing_response(self._liaison.router.route(caller, routing_request(request, caller)))

    def ReturnToGuide(
        self, request: liaison_pb2.ReturnToGuideRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ReturnToGuideResponse:
        """Give a session back to the guide."""
        session, event = self._liaison.router.return_to_guide(
            calling(),
            request.chat_session_id,
            request.reason,
            convert.optional(request, "version"),
            convert.optional(request, "claim_number"),
        )
        events = [] if event is None else [event_message(event)]
        return liaison_pb2.ReturnToGuideResponse(chat_session=session_message(session), events=events)

    def ShareContextToAgent(
        self, request: liaison_pb2.ShareContextToAgentRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ShareContextToAgentResponse:
        """Share a context."""
        caller = calling()
        wanted = ShareRequest(
            source_agent=request.source_agent,
            target_agent=request.target_agent,
            shared_context=optional_json(request, "shared_context"),
            conversation_id=convert.optional(request, "conversation_id"),
            idempotency_key=convert.optional(request, "idempotency_key"),
        )
        share = self._liaison.sharing.share(caller, wanted)
        return liaison_pb2.ShareContextToAgentResponse(share=share_message(share), execution_id=share.execution_id)

    def GetShare(
        self, request: liaison_pb2.GetShareRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.GetShareResponse:
        """Read a share."""
        share = self._liaison.sharing.get(calling(), request.share_id)
        return liaison_pb2.GetShareResponse(share=share_message(share))

    def Heartbeat(
        self, request: liaison_pb2.HeartbeatRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.HeartbeatResponse:
        """Take down that a local agent is there."""
        until = self._liaison.presence.heartbeat(calling(), request.target_pillar, leaving=request.leaving)
        return liaison_pb2.HeartbeatResponse(
            liaison_agent_id=liaison_agent(request.target_pillar), available_until=convert.maybe_timestamp(until)
        )

    def ListLiaisonAgents(
        self, request: liaison_pb2.ListLiaisonAgentsRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ListLiaisonAgentsResponse:
        """List liaison agents."""
        found = self._liaison.directory.list_agents(calling(), convert.optional(request, "target_pillar"))
        return liaison_pb2.ListLiaisonAgentsResponse(liaison_agents=map(agent_message, found))

    def ClaimSession(
        self, request: liaison_pb2.ClaimSessionRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ClaimSessionResponse:
        """Take a session."""
        caller = calling()
        claimant = convert.optional(request, "claimant") or caller.agent
        session, activation = self._liaison.presence.claim(caller, request.chat_session_id, claimant)
        answer = liaison_pb2.ClaimSessionResponse(
            chat_session=session_message(session),
            liaison_agent_activation=activation_message(activation),
            claim_number=session.claim_number,
        )
        # Nothing redacted it, as it did what was shared.
        answer.chat_session.ClearField("context")
        return answer

    def ListEvents(
        self, request: liaison_pb2.ListEventsRequest, context: grpc.ServicerContext
    ) -> liaison_pb2.ListEventsResponse:
        """List events."""
        page = self._liaison.history.events(event_filter(request), request.after, request.page_size)
        events = map(event_message, page.events)
        return liaison_pb2.ListEventsResponse(events=events, more=page.more, newest=page.newest)

    async def WatchEvents(  # type: ignore[override]  # the stubs know threads' iterators only
        self, request: liaison_pb2.WatchEventsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[liaison_pb2.WatchEventsResponse, None]:
        """Stream events."""
        after = convert.optional(request, "after")
        watch = await self._run_blocking(self._liaison.feed.watch, event_filter(request), after, calling().agent)
        context.add_done_callback(lambda _: watch.cancel())  # type: ignore[arg-type]  # the stubs want a class
        return (liaison_pb2.WatchEventsResponse(event=event_message(event)) async for event in watch)


def calling() -> Caller:
    """Return who calls."""
    caller = current_caller.get()
    return Caller(caller.agent, caller.tenant, caller.request_id, Permission.ROUTE in caller.permissions)


def user_of(request: Any, caller: Caller) -> str:
    """Return the user of a request; the calling agent itself where it names none."""
    return convert.optional(request, "user_id") or caller.agent


def optional_json(request: Any, field: str) -> dict[str, Any] | None:
    """Return the JSON object of a field, or None where it is absent."""
    value: struct_pb2.Struct | None = convert.optional(request, field)
    return None if value is None else convert.struct_to_dict(value)


def optional_struct(value: Mapping[str, Any] | None) -> struct_pb2.Struct | None:
    """Return a JSON object as a Struct, None for None."""
    return None if value is None else convert.dict_to_struct(value)


def append_arguments(
    request: liaison_pb2.AppendMessageRequest,
) -> tuple[Caller, str, MessageContent, int | None]:
    """Return who says what in which session, by which claim."""
    said = MessageContent(
        role=MESSAGE_ROLE.required(request.role),
        content=request.content,
        metadata=optional_json(request, "metadata"),
        message_id=convert.optional(request, "message_id"),
    )
    return calling(), request.chat_session_id, said, convert.optional(request, "claim_number")


def append_response(message: Message) -> liaison_pb2.AppendMessageResponse:
    """Return the answer to an appended message."""
    return liaison_pb2.AppendMessageResponse(message=message_message(message))


def routing_request(request: liaison_pb2.RouteToLiaisonAgentRequest, caller: Caller) -> RoutingRequest:
    """Return which session is to be handed to whom."""
    return RoutingRequest(
        target_pillar=request.target_pillar,
        user_id=user_of(request, caller),
        session_id=convert.optional(request, "chat_session_id"),
        reason=request.routing_reason,
        context=optional_json(request, "context_to_share"),
    )


def routing_response(activation: Activation) -> liaison_pb2.RouteToLiaisonAgentResponse:
    """Return the answer to a routing as a message."""
    return liaison_pb2.RouteToLiaisonAgentResponse(
        artifacts=liaison_pb2.RoutingArtifacts(liaison_agent_activation=activation_message(activation)),
        chat_session=session_message(activation.session),
        events=[event_message(activation.event)],
        execution_id=activation.execution_id,
    )


def event_filter(request: liaison_pb2.ListEventsRequest | liaison_pb2.WatchEventsRequest) -> EventFilter:
    """Return which events are wanted."""
    return EventFilter(
        tenant=calling().tenant,
        session_id=convert.optional(request, "chat_session_id"),
        agent=convert.optional(request, "agent"),
        types=tuple(request.types),
    )


def session_message(session: Session) -> liaison_pb2.ChatSession:
    """Return a session as a message."""
    return liaison_pb2.ChatSession(
        id=session.id,
        tenant=session.tenant,
        user_id=session.user_id,
        active_agent=session.active_agent,
        status=SESSION_STATUS.number(session.status),
        context=convert.dict_to_struct(session.context),
        message_count=session.message_count,
        version=session.version,
        routing_epoch=session.routing_epoch,
        claimed_by=session.claimed_by,
        claimed_until=convert.maybe_timestamp(session.claimed_until),
        created_at=convert.timestamp(session.created_at),
        updated_at=convert.timestamp(session.updated_at),
        closed_at=convert.maybe_timestamp(session.closed_at),
        activation_key=session.activation_key,
    )


def agent_message(agent: ListedAgent) -> liaison_pb2.LiaisonAgent:
    """Return a liaison agent as a message."""
    told = agent.told
    present = agent.reason is None
    return liaison_pb2.LiaisonAgent(
        liaison_agent_id=liaison_agent(agent.pillar),
        target_pillar=agent.pillar,
        kind=AGENT_KIND[agent.kind],
        present=present,
        reason=agent.reason,
        since=convert.maybe_timestamp(agent.since),
        served_by=told.agent if told else None,
        last_heartbeat=convert.maybe_timestamp(told.beaten_at if told else None),
        available_until=convert.maybe_timestamp(told.available_until if told and present else None),
        chat_sessions=agent.sessions,
    )


def message_message(message: Message) -> liaison_pb2.ChatMessage:
    """Return a message of a conversation as one of the contract."""
    said = message.said
    return liaison_pb2.ChatMessage(
        sequence=message.sequence,
        message_id=said.message_id,
        role=MESSAGE_ROLE.number(said.role),
        content=said.content,
        metadata=optional_struct(said.metadata),
        active_agent=message.active_agent,
        author=message.author,
        sent_at=convert.timestamp(message.sent_at),
    )


def event_message(event: Event) -> liaison_pb2.Event:
    """Return an event as a message."""
    return liaison_pb2.Event(
        type=event.type.value,
        sequence=event.sequence or 0,
        chat_session_id=event.session_id,
        user_id=event.user_id,
        agent=event.agent,
        occurred_at=convert.timestamp(event.occurred_at),
        data=convert.dict_to_struct(event.data),
    )


def share_message(share: Share) -> liaison_pb2.Share:
    """Return a share as a message."""
    return liaison_pb2.Share(
        share_id=share.id,
        source_agent=share.source_agent,
        target_agent=share.target_agent,
        conversation_id=share.conversation_id,
        shared_context=convert.dict_to_struct(share.shared_context),
        context_hash=share.context_hash,
        shared_at=convert.timestamp(share.shared_at),
        delivery=DELIVERY_STATE.number(share.delivery),
        attempts=share.attempts,
        task_id=share.task_id,
        delivered_at=convert.maybe_timestamp(share.delivered_at),
    )


def activation_message(activation: Activation) -> liaison_pb2.LiaisonAgentActivation:
    """Return an activation as a message."""
    decision = activation.decision
    return liaison_pb2.LiaisonAgentActivation(
        result_type=RESULT_TYPE,
        semantic_payload=liaison_pb2.ActivationPayload(
            target_pillar=activation.pillar,
            liaison_agent_id=decision.to_agent,
            shared_context=convert.dict_to_struct(activation.shared_context),
            routing_reason=decision.reason,
            routing_decision=decision_message(decision),
            active_agent_updated=True,
        ),
        renderings=struct_pb2.Struct(),
    )


def decision_message(decision: RoutingDecision) -> liaison_pb2.RoutingDecision:
    """Return a decision as a message."""
    return liaison_pb2.RoutingDecision(
        from_agent=decision.from_agent,
        to_agent=decision.to_agent,
        reason=decision.reason,
        decided_at=convert.timestamp(decision.decided_at),
        idempotency_key=decision.idempotency_key,
    )
