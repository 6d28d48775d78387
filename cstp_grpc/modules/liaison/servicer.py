"""The servicer of chat sessions and of routing them to liaison agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import grpc
from google.protobuf import struct_pb2

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.gen.liaison.v1 import liaison_pb2 as pb2
from cstp_grpc.gen.liaison.v1 import liaison_pb2_grpc as pb2_grpc
from cstp_grpc.modules.liaison import model
from cstp_grpc.modules.liaison.context_sharing import ContextSharing, ShareRequest
from cstp_grpc.modules.liaison.erasure import SessionEraser
from cstp_grpc.modules.liaison.events import EventFeed, EventHistory
from cstp_grpc.modules.liaison.presence import AgentDirectory, ListedAgent, LocalAgentService
from cstp_grpc.modules.liaison.routing import Router, RoutingRequest
from cstp_grpc.modules.liaison.sessions import SessionService
from cstp_grpc.platform.storage.background_work import RunBlocking, WorkPool
from cstp_grpc.platform.storage.pagination import PageRequest

AGENT_KINDS = {
    "local": pb2.LIAISON_AGENT_KIND_LOCAL,
    "a2a": pb2.LIAISON_AGENT_KIND_A2A,
    "grpc": pb2.LIAISON_AGENT_KIND_GRPC,
    "jsonrpc": pb2.LIAISON_AGENT_KIND_JSONRPC,
}
"""Kinds by their names in the configuration."""

SESSION_FILTER = MessageMapper(model.SessionFilter, pb2.ListSessionsRequest, given=("tenant",))
MESSAGE_CONTENT = MessageMapper(model.MessageContent, pb2.AppendMessageRequest)
SHARE_REQUEST = MessageMapper(ShareRequest, pb2.ShareContextToAgentRequest)
ROUTING_REQUEST = MessageMapper(
    RoutingRequest,
    pb2.RouteToLiaisonAgentRequest,
    {"chat_session_id": "session_id", "routing_reason": "reason", "context_to_share": "context"},
    given=("user_id",),
)
EVENT_FILTERS = {
    request: MessageMapper(model.EventFilter, request, {"chat_session_id": "session_id"}, given=("tenant",))
    for request in (pb2.ListEventsRequest, pb2.WatchEventsRequest)
}
SESSION = MessageMapper(model.Session, pb2.ChatSession)
MESSAGE = MessageMapper(model.ChatMessage, pb2.ChatMessage, parts=("body",))
EVENT = MessageMapper(model.Event, pb2.Event, {"chat_session_id": "session_id"})
SHARE = MessageMapper(model.Share, pb2.Share, {"share_id": "id"})
ACTIVATION = MessageMapper(
    model.Activation,
    pb2.ActivationPayload,
    {
        "target_pillar": "pillar",
        "liaison_agent_id": "decision.to_agent",
        "routing_reason": "decision.reason",
        "routing_decision": "decision",
        "active_agent_updated": lambda _: True,
    },
)
AGENT = MessageMapper(
    ListedAgent,
    pb2.LiaisonAgent,
    {
        "liaison_agent_id": lambda agent: model.liaison_agent(agent.pillar),
        "target_pillar": "pillar",
        "kind": lambda agent: AGENT_KINDS[agent.kind],
        "present": lambda agent: agent.reason is None,
        "served_by": "presence.agent",
        "last_heartbeat": "presence.beaten_at",
        "chat_sessions": "sessions",
    },
)

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


class LiaisonService(pb2_grpc.LiaisonServiceServicer):
    """Serves liaison.v1.LiaisonService; `run_blocking` runs blocking work of async methods on a thread, `routings` runs
    routings.
    """

    def __init__(self, liaison: LiaisonComponents, run_blocking: RunBlocking, routings: WorkPool) -> None:
        self._liaison = liaison
        self._run_blocking = run_blocking
        self._routings = routings

    def OpenSession(self, request: pb2.OpenSessionRequest, context: grpc.ServicerContext) -> pb2.OpenSessionResponse:
        caller = current_tenant_caller()
        session, created = self._liaison.sessions.open(
            caller,
            requested_user(request, caller),
            proto_values.optional_field(request, "chat_session_id"),
            proto_values.struct_to_dict(request.context),
        )
        return pb2.OpenSessionResponse(chat_session=SESSION.encode(session), created=created)

    def GetSession(self, request: pb2.GetSessionRequest, context: grpc.ServicerContext) -> pb2.GetSessionResponse:
        caller = current_tenant_caller()
        session_id = proto_values.optional_field(request, "chat_session_id")
        session = self._liaison.sessions.get(caller, session_id, requested_user(request, caller))
        return pb2.GetSessionResponse(chat_session=SESSION.encode(session))

    def ListSessions(self, request: pb2.ListSessionsRequest, context: grpc.ServicerContext) -> pb2.ListSessionsResponse:
        conditions = SESSION_FILTER.decode(request, tenant=current_tenant_caller().tenant)
        page = self._liaison.sessions.page(conditions, PageRequest(request.page_size, request.page_token))
        return pb2.ListSessionsResponse(chat_sessions=map(SESSION.encode, page.items), next_page_token=page.next_token)

    async def AppendMessage(
        self, request: pb2.AppendMessageRequest, context: grpc.ServicerContext
    ) -> pb2.AppendMessageResponse:
        if request.ByteSize() > SHORT_REQUEST_BYTES:
            return await self._run_blocking(self._append, request)
        return append_response(await self._liaison.sessions.append_on_loop(*parse_append_request(request)))

    def _append(self, request: pb2.AppendMessageRequest) -> pb2.AppendMessageResponse:
        return append_response(self._liaison.sessions.append(*parse_append_request(request)))

    def ListMessages(self, request: pb2.ListMessagesRequest, context: grpc.ServicerContext) -> pb2.ListMessagesResponse:
        page_request = PageRequest(request.page_size, request.page_token)
        page = self._liaison.sessions.messages(current_tenant_caller(), request.chat_session_id, page_request)
        return pb2.ListMessagesResponse(messages=map(MESSAGE.encode, page.items), next_page_token=page.next_token)

    def UpdateContext(
        self, request: pb2.UpdateContextRequest, context: grpc.ServicerContext
    ) -> pb2.UpdateContextResponse:
        session = self._liaison.sessions.update_context(
            current_tenant_caller(),
            request.chat_session_id,
            proto_values.struct_to_dict(request.context),
            proto_values.optional_field(request, "version"),
            proto_values.optional_field(request, "claim_number"),
        )
        return pb2.UpdateContextResponse(chat_session=SESSION.encode(session))

    def CloseSession(self, request: pb2.CloseSessionRequest, context: grpc.ServicerContext) -> pb2.CloseSessionResponse:
        version = proto_values.optional_field(request, "version")
        session = self._liaison.sessions.close(current_tenant_caller(), request.chat_session_id, version)
        return pb2.CloseSessionResponse(chat_session=SESSION.encode(session))

    def DeleteSession(
        self, request: pb2.DeleteSessionRequest, context: grpc.ServicerContext
    ) -> pb2.DeleteSessionResponse:
        deleted = self._liaison.eraser.delete_session(current_tenant_caller(), request.chat_session_id)
        return pb2.DeleteSessionResponse(deleted=deleted)

    def DeleteUserSessions(
        self, request: pb2.DeleteUserSessionsRequest, context: grpc.ServicerContext
    ) -> pb2.DeleteUserSessionsResponse:
        deleted = self._liaison.eraser.delete_user_sessions(current_tenant_caller(), request.user_id)
        return pb2.DeleteUserSessionsResponse(deleted=deleted)

    async def RouteToLiaisonAgent(
        self, request: pb2.RouteToLiaisonAgentRequest, context: grpc.ServicerContext
    ) -> pb2.RouteToLiaisonAgentResponse:
        if request.ByteSize() <= SHORT_REQUEST_BYTES:
            caller = current_tenant_caller()
            routing = parse_routing_request(request, caller)
            activation = await self._liaison.router.route_on_loop(caller, routing, self._routings)
            # None: it may take longer than the event loop can spare, and nothing has been done yet.
            if activation is not None:
                return routing_response(activation)
        return await self._routings.run(self._route, request)

    def _route(self, request: pb2.RouteToLiaisonAgentRequest) -> pb2.RouteToLiaisonAgentResponse:
        """Route a session to a liaison agent, on a thread."""
        caller = current_tenant_caller()
        return routing_response(self._liaison.router.route(caller, parse_routing_request(request, caller)))

    def ReturnToGuide(
        self, request: pb2.ReturnToGuideRequest, context: grpc.ServicerContext
    ) -> pb2.ReturnToGuideResponse:
        session, event = self._liaison.router.return_to_guide(
            current_tenant_caller(),
            request.chat_session_id,
            request.reason,
            proto_values.optional_field(request, "version"),
            proto_values.optional_field(request, "claim_number"),
        )
        events = [] if event is None else [EVENT.encode(event)]
        return pb2.ReturnToGuideResponse(chat_session=SESSION.encode(session), events=events)

    def ShareContextToAgent(
        self, request: pb2.ShareContextToAgentRequest, context: grpc.ServicerContext
    ) -> pb2.ShareContextToAgentResponse:
        share = self._liaison.sharing.share(current_tenant_caller(), SHARE_REQUEST.decode(request))
        return pb2.ShareContextToAgentResponse(share=SHARE.encode(share), execution_id=share.execution_id)

    def GetShare(self, request: pb2.GetShareRequest, context: grpc.ServicerContext) -> pb2.GetShareResponse:
        share = self._liaison.sharing.get(current_tenant_caller(), request.share_id)
        return pb2.GetShareResponse(share=SHARE.encode(share))

    def Heartbeat(self, request: pb2.HeartbeatRequest, context: grpc.ServicerContext) -> pb2.HeartbeatResponse:
        """Record a heartbeat of a local agent."""
        until = self._liaison.presence.heartbeat(
            current_tenant_caller(), request.target_pillar, leaving=request.leaving
        )
        return pb2.HeartbeatResponse(
            liaison_agent_id=model.liaison_agent(request.target_pillar),
            available_until=proto_values.optional_timestamp(until),
        )

    def ListLiaisonAgents(
        self, request: pb2.ListLiaisonAgentsRequest, context: grpc.ServicerContext
    ) -> pb2.ListLiaisonAgentsResponse:
        found = self._liaison.directory.list_agents(
            current_tenant_caller(), proto_values.optional_field(request, "target_pillar")
        )
        return pb2.ListLiaisonAgentsResponse(liaison_agents=map(AGENT.encode, found))

    def ClaimSession(self, request: pb2.ClaimSessionRequest, context: grpc.ServicerContext) -> pb2.ClaimSessionResponse:
        caller = current_tenant_caller()
        claimant = proto_values.optional_field(request, "claimant") or caller.agent
        session, activation = self._liaison.presence.claim(caller, request.chat_session_id, claimant)
        answer = pb2.ClaimSessionResponse(
            chat_session=SESSION.encode(session),
            liaison_agent_activation=activation_message(activation),
            claim_number=session.claim_number,
        )
        # Security: an agent gets the redacted context of the activation, and the session's own is not redacted.
        answer.chat_session.ClearField("context")
        return answer

    def ListEvents(self, request: pb2.ListEventsRequest, context: grpc.ServicerContext) -> pb2.ListEventsResponse:
        page = self._liaison.history.events(parse_event_filter(request), request.after, request.page_size)
        events = map(EVENT.encode, page.events)
        return pb2.ListEventsResponse(events=events, more=page.more, newest=page.newest)

    async def WatchEvents(  # type: ignore[override]  # the stubs know threads' iterators only
        self, request: pb2.WatchEventsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[pb2.WatchEventsResponse, None]:
        after = proto_values.optional_field(request, "after")
        watch = await self._run_blocking(
            self._liaison.feed.watch, parse_event_filter(request), after, current_tenant_caller().agent
        )
        # However the call ends: otherwise the subscription would count until it is collected.
        context.add_done_callback(lambda _: watch.cancel())  # type: ignore[arg-type]  # the stubs want a class
        return (pb2.WatchEventsResponse(event=EVENT.encode(event)) async for event in watch)


def current_tenant_caller() -> model.TenantCaller:
    caller = current_caller.get()
    return model.TenantCaller(
        caller.agent, caller.tenant, caller.request_id, Permission.ROUTE in caller.permissions, caller.permissions
    )


def requested_user(request: Any, caller: model.TenantCaller) -> str:
    """Return the user of a request, by default the calling agent."""
    return proto_values.optional_field(request, "user_id") or caller.agent


def parse_append_request(
    request: pb2.AppendMessageRequest,
) -> tuple[model.TenantCaller, str, model.MessageContent, int | None]:
    claim_number = proto_values.optional_field(request, "claim_number")
    return current_tenant_caller(), request.chat_session_id, MESSAGE_CONTENT.decode(request), claim_number


def append_response(message: model.ChatMessage) -> pb2.AppendMessageResponse:
    return pb2.AppendMessageResponse(message=MESSAGE.encode(message))


def parse_routing_request(request: pb2.RouteToLiaisonAgentRequest, caller: model.TenantCaller) -> RoutingRequest:
    return ROUTING_REQUEST.decode(request, user_id=requested_user(request, caller))


def routing_response(activation: model.Activation) -> pb2.RouteToLiaisonAgentResponse:
    return pb2.RouteToLiaisonAgentResponse(
        artifacts=pb2.RoutingArtifacts(liaison_agent_activation=activation_message(activation)),
        chat_session=SESSION.encode(activation.session),
        events=[EVENT.encode(activation.event)],
        execution_id=activation.execution_id,
    )


def parse_event_filter(request: pb2.ListEventsRequest | pb2.WatchEventsRequest) -> model.EventFilter:
    return EVENT_FILTERS[type(request)].decode(request, tenant=current_tenant_caller().tenant)


def activation_message(activation: model.Activation) -> pb2.LiaisonAgentActivation:
    return pb2.LiaisonAgentActivation(
        result_type=RESULT_TYPE, semantic_payload=ACTIVATION.encode(activation), renderings=struct_pb2.Struct()
    )
