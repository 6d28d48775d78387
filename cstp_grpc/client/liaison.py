"""The client's methods for chat sessions: a typed one for each rpc of liaison."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from cstp_grpc.client.contract import Method, methods
from cstp_grpc.client.messages import Json, MessageT, expect, number, struct
from cstp_grpc.client.retry import Retrier, is_passing
from cstp_grpc.client.transport import Answers
from cstp_grpc.errors import CstpError, QueryFailed
from cstp_grpc.gen.liaison.v1 import liaison_pb2 as pb2

PageT = TypeVar("PageT", pb2.ListSessionsResponse, pb2.ListMessagesResponse)


class Calls(Protocol):
    """What calls the methods of the contract."""

    def call(self, method: Method, request: Message, timeout: float | None = None) -> Message:
        """Return the answer of a unary method."""

    def watch(self, method: Method, request: Message, timeout: float | None = None) -> Answers:
        """Return the answers of a method that streams them."""


class Liaison:
    """Chat sessions, and their routing from the guide to liaison agents; safe for many threads.

    Without a `user_id` the user is the calling agent itself. Where a `version` is given and the session has another,
    SessionUpdateFailed is raised. `timeout` is the seconds that a call may take, the client's when absent. Every method
    raises a CstpError: the class names the reason.
    """

    def __init__(self, calls: Calls, retrier: Retrier) -> None:
        self._calls = calls
        self._retrier = retrier

    def open_session(
        self,
        *,
        user_id: str | None = None,
        chat_session_id: str | None = None,
        context: Mapping[str, Json] | None = None,
        timeout: float | None = None,
    ) -> pb2.OpenSessionResponse:
        """Open a session with the guide; `created` is false where the same one was open already.

        Raises Conflict where the user has another active one, or the identifier is taken.
        """
        request = pb2.OpenSessionRequest(
            user_id=user_id, chat_session_id=chat_session_id, context=struct(context, "context")
        )
        return self._answer("liaison.openSession", request, pb2.OpenSessionResponse, timeout)

    def get_session(
        self, chat_session_id: str | None = None, *, user_id: str | None = None, timeout: float | None = None
    ) -> pb2.ChatSession:
        """Return a session; without an identifier, the active one of the user."""
        request = pb2.GetSessionRequest(chat_session_id=chat_session_id, user_id=user_id)
        return self._answer("liaison.getSession", request, pb2.GetSessionResponse, timeout).chat_session

    def list_sessions(
        self,
        *,
        user_id: str | None = None,
        active_agent: str | None = None,
        status: str | None = None,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> Iterator[pb2.ChatSession]:
        """Yield sessions that meet all conditions, last opened first, fetching pages as needed."""
        request = pb2.ListSessionsRequest(
            user_id=user_id,
            active_agent=active_agent,
            status=number(pb2.SessionStatus, status, "status"),
            page_size=page_size,
        )
        for page in self._pages("liaison.listSessions", request, pb2.ListSessionsResponse, timeout):
            yield from page.chat_sessions

    def append_message(
        self,
        chat_session_id: str,
        content: str,
        *,
        role: str,
        metadata: Mapping[str, Json] | None = None,
        message_id: str | None = None,
        timeout: float | None = None,
    ) -> pb2.ChatMessage:
        """Append a message of a `user`, an `assistant` or the `system`, and return it in its place.

        Repeating a `message_id` (made up where absent) with the same content appends nothing; with other content it
        raises Conflict.
        """
        request = pb2.AppendMessageRequest(
            chat_session_id=chat_session_id,
            role=number(pb2.MessageRole, role, "role"),
            content=content,
            metadata=struct(metadata, "metadata"),
            message_id=message_id,
        )
        return self._answer("liaison.appendMessage", request, pb2.AppendMessageResponse, timeout).message

    def list_messages(
        self, chat_session_id: str, *, page_size: int = 0, timeout: float | None = None
    ) -> Iterator[pb2.ChatMessage]:
        """Yield the messages of a session in their order, fetching pages as needed."""
        request = pb2.ListMessagesRequest(chat_session_id=chat_session_id, page_size=page_size)
        for page in self._pages("liaison.listMessages", request, pb2.ListMessagesResponse, timeout):
            yield from page.messages

    def update_context(
        self,
        chat_session_id: str,
        context: Mapping[str, Json],
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> pb2.ChatSession:
        """Set members of a session's context, or remove those whose value is None; the others stay."""
        request = pb2.UpdateContextRequest(
            chat_session_id=chat_session_id, context=struct(context, "context"), version=version
        )
        return self._answer("liaison.updateContext", request, pb2.UpdateContextResponse, timeout).chat_session

    def close_session(
        self, chat_session_id: str, *, version: int | None = None, timeout: float | None = None
    ) -> pb2.ChatSession:
        """Close a session for good."""
        request = pb2.CloseSessionRequest(chat_session_id=chat_session_id, version=version)
        return self._answer("liaison.closeSession", request, pb2.CloseSessionResponse, timeout).chat_session

    def route_to_liaison_agent(
        self,
        target_pillar: str,
        *,
        chat_session_id: str | None = None,
        user_id: str | None = None,
        routing_reason: str | None = None,
        context_to_share: Mapping[str, Json] | None = None,
        timeout: float | None = None,
    ) -> pb2.RouteToLiaisonAgentResponse:
        """Hand a session that is with the guide to the liaison agent of a pillar, with its context.

        Without an identifier it is the user's active session; without `context_to_share` the agent gets all of the
        context, with the conversation history. The same pillar and context again, until the session is returned, give
        the first answer. Where guardrails block it, PermissionDenied names them in its `blocks`.
        """
        request = pb2.RouteToLiaisonAgentRequest(
            target_pillar=target_pillar,
            chat_session_id=chat_session_id,
            user_id=user_id,
            routing_reason=routing_reason,
            context_to_share=struct(context_to_share, "context_to_share"),
        )
        return self._answer("liaison.routeToLiaisonAgent", request, pb2.RouteToLiaisonAgentResponse, timeout)

    def return_to_guide(
        self,
        chat_session_id: str,
        *,
        reason: str | None = None,
        version: int | None = None,
        timeout: float | None = None,
    ) -> pb2.ReturnToGuideResponse:
        """Give a session back to the guide; one that is with the guide stays as it is."""
        request = pb2.ReturnToGuideRequest(chat_session_id=chat_session_id, reason=reason, version=version)
        return self._answer("liaison.returnToGuide", request, pb2.ReturnToGuideResponse, timeout)

    def share_context_to_agent(
        self,
        source_agent: str,
        target_agent: str,
        shared_context: Mapping[str, Json],
        *,
        conversation_id: str | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
    ) -> pb2.ShareContextToAgentResponse:
        """Share a context with a liaison agent without handing a session over; the same again shares once."""
        request = pb2.ShareContextToAgentRequest(
            source_agent=source_agent,
            target_agent=target_agent,
            shared_context=struct(shared_context, "shared_context"),
            conversation_id=conversation_id,
            idempotency_key=idempotency_key,
        )
        return self._answer("liaison.shareContextToAgent", request, pb2.ShareContextToAgentResponse, timeout)

    def get_share(self, share_id: str, *, timeout: float | None = None) -> pb2.Share:
        """Return what was shared, and what became of its delivery; a routing's share has its idempotency key."""
        request = pb2.GetShareRequest(share_id=share_id)
        return self._answer("liaison.getShare", request, pb2.GetShareResponse, timeout).share

    def heartbeat(
        self, target_pillar: str, *, leaving: bool = False, timeout: float | None = None
    ) -> pb2.HeartbeatResponse:
        """Tell that the caller, the local liaison agent of a pillar, is there, or with `leaving` that it goes away."""
        request = pb2.HeartbeatRequest(target_pillar=target_pillar, leaving=leaving)
        return self._answer("liaison.heartbeat", request, pb2.HeartbeatResponse, timeout)

    def claim_session(
        self, chat_session_id: str, *, claimant: str | None = None, timeout: float | None = None
    ) -> pb2.ClaimSessionResponse:
        """Take a session that was handed to the caller, with the context that came with it, or keep it for longer.

        `claimant` names one of several instances of an agent; Conflict is raised where another one has it.
        """
        request = pb2.ClaimSessionRequest(chat_session_id=chat_session_id, claimant=claimant)
        return self._answer("liaison.claimSession", request, pb2.ClaimSessionResponse, timeout)

    def list_events(
        self,
        *,
        chat_session_id: str | None = None,
        agent: str | None = None,
        types: Sequence[str] = (),
        after: int = 0,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> Iterator[pb2.Event]:
        """Yield the events after a sequence that meet all conditions, in their order, fetching more as needed."""
        request = pb2.ListEventsRequest(
            chat_session_id=chat_session_id, agent=agent, types=types, after=after, page_size=page_size
        )
        while True:
            answer = self._answer("liaison.listEvents", request, pb2.ListEventsResponse, timeout)
            yield from answer.events
            if not answer.more:
                return
            request.after = answer.events[-1].sequence

    def watch_events(
        self,
        *,
        chat_session_id: str | None = None,
        agent: str | None = None,
        types: Sequence[str] = (),
        after: int | None = None,
        resume: bool = True,
        on_failure: Callable[[CstpError, float], None] | None = None,
        timeout: float | None = None,
    ) -> Generator[pb2.Event, None, None]:
        """Yield events that meet all conditions as they happen, without end; over gRPC only.

        They are those after a sequence, 0 for all there are; without `after`, those from now on. After a passing
        failure the watch goes on by itself behind the last event that it saw. It pauses as the client's RetryPolicy
        says, anew after each event, and tries for as long as it takes; `on_failure` is told each failure and how many
        seconds the pause is. With `resume=False` the failure is raised. After `timeout` seconds in all it ends with
        DeadlineExceeded; the client's own timeout does not bound it.
        """
        request = pb2.WatchEventsRequest(chat_session_id=chat_session_id, agent=agent, types=types, after=after)
        left = self._retrier.countdown(timeout)
        failures = 0
        while True:
            try:
                if not request.HasField("after"):
                    # Known before anything is missed, so that a watch which fails early goes on from here too.
                    request.after = self._newest(left())
                with self._calls.watch(methods()["liaison.watchEvents"], request, left()) as answers:
                    for answer in answers:
                        event = expect(answer, pb2.WatchEventsResponse).event
                        request.after = event.sequence
                        failures = 0
                        yield event
            except CstpError as error:
                # Calls are not repeated where the database is away, but a watch has time.
                if not resume or not (is_passing(error) or isinstance(error, QueryFailed)):
                    raise
                failures += 1
                pause = self._retrier.pause(error, failures)
                if on_failure:
                    on_failure(error, pause)
                self._retrier.sleep(pause, left())
            else:
                return

    def _newest(self, timeout: float | None) -> int:
        """Return the sequence of the newest event."""
        request = pb2.ListEventsRequest(page_size=1)
        return self._answer("liaison.listEvents", request, pb2.ListEventsResponse, timeout).newest

    def _pages(
        self,
        name: str,
        request: pb2.ListSessionsRequest | pb2.ListMessagesRequest,
        answer: type[PageT],
        timeout: float | None,
    ) -> Iterator[PageT]:
        while True:
            page = self._answer(name, request, answer, timeout)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _answer(self, name: str, request: Message, answer: type[MessageT], timeout: float | None) -> MessageT:
        return expect(self._calls.call(methods()[name], request, timeout), answer)
