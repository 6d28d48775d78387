"""What the client sends about chat sessions, and how it goes on watching."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from cstp_grpc.client import CstpClient, Liaison, RetryPolicy
from cstp_grpc.contract.calls import Json
from cstp_grpc.contract.errors import (
    AuthenticationRequired,
    CstpError,
    DeadlineExceeded,
    InvalidArgument,
    MethodNotFound,
    QueryFailed,
    SessionNotFound,
    Unavailable,
)
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.liaison.v1 import liaison_pb2 as pb2
from tests.client.conversing import Watched, event, watched
from tests.client.scripted import HttpReply, ScriptedServer, http_server, scripted_server
from tests.named_case import named_case

STOPPING = Unavailable("the server is stopping")
SESSION = pb2.ChatSession(id="s-1", user_id="ada", active_agent="guide")
SHARE = pb2.Share(share_id="sh-1")
ROUNDS = 1000
"""Failures in a row after which what should have succeeded has not."""
MESSAGE = pb2.ChatMessage(sequence=1, content="Hello")


def json_object(**members: Json) -> Struct:
    content = Struct()
    content.update(members)
    return content


def connect(server: ScriptedServer | Watched) -> CstpClient:
    return CstpClient(server.target, sleep=lambda _: None)


Call = Callable[[Liaison], object]

CALLS: list[tuple[Call, Message, object, Message]] = [
    (
        lambda liaison: liaison.open_session(user_id="ada", chat_session_id="s-1", context={"draft": {"pages": 3}}),
        pb2.OpenSessionResponse(chat_session=SESSION, created=True),
        pb2.OpenSessionResponse(chat_session=SESSION, created=True),
        pb2.OpenSessionRequest(user_id="ada", chat_session_id="s-1", context=json_object(draft={"pages": 3})),
    ),
    (
        lambda liaison: liaison.open_session(),
        pb2.OpenSessionResponse(),
        pb2.OpenSessionResponse(),
        pb2.OpenSessionRequest(),
    ),
    (
        lambda liaison: liaison.get_session("s-1"),
        pb2.GetSessionResponse(chat_session=SESSION),
        SESSION,
        pb2.GetSessionRequest(chat_session_id="s-1"),
    ),
    (
        lambda liaison: liaison.get_session(user_id="ada"),
        pb2.GetSessionResponse(chat_session=SESSION),
        SESSION,
        pb2.GetSessionRequest(user_id="ada"),
    ),
    (
        lambda liaison: liaison.append_message(
            "s-1", "Hello", role="assistant", metadata={"model": "m"}, message_id="m-1"
        ),
        pb2.AppendMessageResponse(message=MESSAGE),
        MESSAGE,
        pb2.AppendMessageRequest(
            chat_session_id="s-1",
            content="Hello",
            role=pb2.MESSAGE_ROLE_ASSISTANT,
            metadata=json_object(model="m"),
            message_id="m-1",
        ),
    ),
    (
        lambda liaison: liaison.update_context("s-1", {"draft": None}, version=2),
        pb2.UpdateContextResponse(chat_session=SESSION),
        SESSION,
        pb2.UpdateContextRequest(chat_session_id="s-1", context=json_object(draft=None), version=2),
    ),
    (
        lambda liaison: liaison.close_session("s-1", version=3),
        pb2.CloseSessionResponse(chat_session=SESSION),
        SESSION,
        pb2.CloseSessionRequest(chat_session_id="s-1", version=3),
    ),
    (
        lambda liaison: liaison.route_to_liaison_agent("content"),
        pb2.RouteToLiaisonAgentResponse(execution_id="req-1"),
        pb2.RouteToLiaisonAgentResponse(execution_id="req-1"),
        pb2.RouteToLiaisonAgentRequest(target_pillar="content"),
    ),
    (
        lambda liaison: liaison.route_to_liaison_agent(
            "content", chat_session_id="s-1", user_id="ada", routing_reason="files", context_to_share={}
        ),
        pb2.RouteToLiaisonAgentResponse(execution_id="req-1"),
        pb2.RouteToLiaisonAgentResponse(execution_id="req-1"),
        pb2.RouteToLiaisonAgentRequest(
            target_pillar="content",
            chat_session_id="s-1",
            user_id="ada",
            routing_reason="files",
            context_to_share=json_object(),
        ),
    ),
    (
        lambda liaison: liaison.return_to_guide("s-1", reason="done", version=2),
        pb2.ReturnToGuideResponse(chat_session=SESSION),
        pb2.ReturnToGuideResponse(chat_session=SESSION),
        pb2.ReturnToGuideRequest(chat_session_id="s-1", reason="done", version=2),
    ),
    (
        lambda liaison: liaison.share_context_to_agent(
            "guide", "liaison_content", {"a": 1}, conversation_id="c-1", idempotency_key="k-1"
        ),
        pb2.ShareContextToAgentResponse(share=SHARE, execution_id="req-1"),
        pb2.ShareContextToAgentResponse(share=SHARE, execution_id="req-1"),
        pb2.ShareContextToAgentRequest(
            source_agent="guide",
            target_agent="liaison_content",
            shared_context=json_object(a=1),
            conversation_id="c-1",
            idempotency_key="k-1",
        ),
    ),
    (
        lambda liaison: liaison.get_share("sh-1"),
        pb2.GetShareResponse(share=SHARE),
        SHARE,
        pb2.GetShareRequest(share_id="sh-1"),
    ),
    (
        lambda liaison: liaison.heartbeat("content", leaving=True),
        pb2.HeartbeatResponse(liaison_agent_id="liaison_content"),
        pb2.HeartbeatResponse(liaison_agent_id="liaison_content"),
        pb2.HeartbeatRequest(target_pillar="content", leaving=True),
    ),
    (
        lambda liaison: liaison.claim_session("s-1", claimant="content-1"),
        pb2.ClaimSessionResponse(chat_session=SESSION),
        pb2.ClaimSessionResponse(chat_session=SESSION),
        pb2.ClaimSessionRequest(chat_session_id="s-1", claimant="content-1"),
    ),
]


def test_a_call_says_what_it_was_told_and_returns_what_matters() -> None:
    for call, answer, returned, sent in CALLS:
        with named_case(call, answer, returned):
            with scripted_server(answer) as server, connect(server) as client:
                assert call(client.liaison) == returned
            assert server.requests == [sent]


def test_every_rpc_has_its_method() -> None:
    rpcs = [method.rpc for method in contract_methods().values() if method.service == "liaison.v1.LiaisonService"]
    named = {"".join(part.capitalize() for part in name.split("_")) for name in vars(Liaison) if name[0] != "_"}
    assert set(rpcs) == named


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda liaison: liaison.append_message("s-1", "Hello", role="robot"), "role"),
        (lambda liaison: list(liaison.list_sessions(status="asleep")), "status"),
        (lambda liaison: liaison.open_session(context={"when": object()}), "context"),
        (lambda liaison: liaison.open_session(context={"orders": [{"id": 2**53 + 1}]}), r"context\.orders\[0\]\.id"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_field(call: Call, field: str) -> None:
    with CstpClient("localhost:1") as client, pytest.raises(InvalidArgument, match=f"{field}: "):
        call(client.liaison)


def test_a_message_is_repeated_under_the_same_message_id() -> None:
    with scripted_server(STOPPING, pb2.AppendMessageResponse(message=MESSAGE)) as server, connect(server) as client:
        assert client.liaison.append_message("s-1", "Hello", role="user") == MESSAGE
    first, second = server.requests
    assert first == second
    assert uuid.UUID(first.message_id)


def test_a_reason_of_its_own_is_an_exception_of_its_own() -> None:
    error = SessionNotFound("There is no chat session s-1", metadata={"chat_session_id": "s-1"})
    with scripted_server(error) as server, connect(server) as client:
        with pytest.raises(SessionNotFound, match="no chat session s-1") as raised:
            client.liaison.get_session("s-1")
        assert raised.value.metadata["chat_session_id"] == "s-1"


def test_sessions_are_listed_page_after_page() -> None:
    pages = [
        pb2.ListSessionsResponse(chat_sessions=[SESSION], next_page_token="next"),
        pb2.ListSessionsResponse(chat_sessions=[SESSION, SESSION]),
    ]
    with scripted_server(*pages) as server, connect(server) as client:
        found = list(client.liaison.list_sessions(user_id="ada", active_agent="guide", status="active", page_size=2))
    assert len(found) == 3
    expected = {"user_id": "ada", "active_agent": "guide", "status": pb2.SESSION_STATUS_ACTIVE, "page_size": 2}
    assert server.requests[0] == pb2.ListSessionsRequest(**expected)  # type: ignore[arg-type]
    assert server.requests[1] == pb2.ListSessionsRequest(**expected, page_token="next")  # type: ignore[arg-type]


def test_messages_are_listed_page_after_page() -> None:
    pages = [
        pb2.ListMessagesResponse(messages=[MESSAGE], next_page_token="next"),
        pb2.ListMessagesResponse(messages=[MESSAGE]),
    ]
    with scripted_server(*pages) as server, connect(server) as client:
        assert list(client.liaison.list_messages("s-1", page_size=1)) == [MESSAGE, MESSAGE]
    assert [request.page_token for request in server.requests] == ["", "next"]


def test_events_are_listed_from_the_last_one_seen_on() -> None:
    pages = [
        pb2.ListEventsResponse(events=[event(3), event(7)], more=True),
        pb2.ListEventsResponse(events=[event(9)]),
    ]
    with scripted_server(*pages) as server, connect(server) as client:
        found = client.liaison.list_events(chat_session_id="s-1", agent="guide", types=["session_opened"], after=2)
        assert [each.sequence for each in found] == [3, 7, 9]
    first, second = server.requests
    assert (first.chat_session_id, first.agent, list(first.types), first.after) == (
        "s-1",
        "guide",
        ["session_opened"],
        2,
    )
    assert second.after == 7


class Pauses:
    """Counts pauses without waiting."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.told: list[tuple[str, float]] = []

    def client(self, target: str, policy: RetryPolicy) -> CstpClient:
        return CstpClient(target, retries=policy, sleep=self.slept.append, random=lambda: 1.0)

    def note(self, error: CstpError, pause: float) -> None:
        self.told.append((error.message, pause))


POLICY = RetryPolicy(attempts=2, base=1.0, cap=8.0)


def test_a_watch_says_what_it_was_told() -> None:
    with watched([1]) as server, CstpClient(server.target) as client:
        events = client.liaison.watch_events(
            chat_session_id="s-1", agent="liaison_content", types=["liaison_agent_activated"], after=0
        )
        assert next(events) == event(1)
        events.close()
    expected: Mapping[str, Any] = {"agent": "liaison_content", "types": ["liaison_agent_activated"], "after": 0}
    assert server.requests == [pb2.WatchEventsRequest(chat_session_id="s-1", **expected)]


def test_a_watch_begins_with_now_where_nothing_else_is_said() -> None:
    with watched([STOPPING], [8]) as server, connect(server) as client:
        server.newest = 6
        # What happens while the watch is away is not missed, although it has seen nothing yet.
        assert [each.sequence for each in islice(client.liaison.watch_events(), 1)] == [8]
    assert [request.after for request in server.requests] == [6, 6]


def test_a_watch_goes_on_behind_the_last_event_that_it_saw() -> None:
    pauses = Pauses()
    away = QueryFailed("the journal cannot be read now")
    script: list[list[Any]] = [[4, STOPPING], [grpc.StatusCode.UNAVAILABLE], [5, 8, away], [9]]
    with watched(*script) as server, pauses.client(server.target, POLICY) as client:
        events = client.liaison.watch_events(after=3, on_failure=pauses.note)
        assert [each.sequence for each in islice(events, 4)] == [4, 5, 8, 9]
    assert [request.after for request in server.requests] == [3, 4, 4, 8]


def test_the_pauses_of_a_watch_grow_and_begin_anew_with_each_event() -> None:
    pauses = Pauses()
    script: list[list[Any]] = [[STOPPING], [STOPPING], [STOPPING], [STOPPING], [STOPPING], [7, STOPPING], [8]]
    with watched(*script) as server, pauses.client(server.target, POLICY) as client:
        events = client.liaison.watch_events(after=0, on_failure=pauses.note)
        assert [each.sequence for each in islice(events, 2)] == [7, 8]
    assert pauses.slept == [1, 2, 4, 8, 8, 1]
    assert pauses.told == [(STOPPING.message, pause) for pause in pauses.slept]


def test_a_watch_waits_as_long_as_the_server_asks() -> None:
    pauses = Pauses()
    with watched([Unavailable("full", retry_after=30)], [1]) as server, pauses.client(server.target, POLICY) as client:
        assert next(client.liaison.watch_events()) == event(1)
    assert pauses.slept == [30]


def test_a_watch_waits_for_its_server(free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    failures: list[str] = []
    policy = RetryPolicy(base=0.05, cap=0.05)
    with ExitStack() as running, CstpClient(address, retries=policy) as client:

        def start(error: CstpError, _: float) -> None:
            failures.append(error.message)
            assert len(failures) < ROUNDS, "the server is there, but the watch does not find it"
            if len(failures) == 1:
                running.enter_context(watched([1], address=address))

        assert next(client.liaison.watch_events(on_failure=start)) == event(1)
    assert failures[0].startswith(f"No server answers at {address}")


@pytest.mark.parametrize("resume", [True, False])
def test_a_failure_that_does_not_pass_ends_the_watch(resume: bool) -> None:
    with watched([1, AuthenticationRequired("who are you")]) as server, CstpClient(server.target) as client:
        events = client.liaison.watch_events(resume=resume)
        assert next(events) == event(1)
        with pytest.raises(AuthenticationRequired, match="who are you"):
            next(events)
    assert len(server.requests) == 1


def test_a_watch_need_not_go_on() -> None:
    with watched([1, STOPPING]) as server, CstpClient(server.target) as client:
        events = client.liaison.watch_events(resume=False)
        assert next(events) == event(1)
        with pytest.raises(Unavailable, match="stopping"):
            next(events)


def test_a_watch_goes_on_no_longer_than_it_may() -> None:
    release = threading.Event()
    with watched([1, release]) as server, CstpClient(server.target) as client:
        events: list[pb2.Event] = []
        with pytest.raises(DeadlineExceeded):
            events.extend(client.liaison.watch_events(timeout=0.5))
        # The first one may come too late, and nothing comes after it.
        assert events in ([], [event(1)])
        release.set()


def test_the_time_of_a_watch_has_its_failures_and_pauses_in_it() -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    slept: list[float] = []
    script = [Unavailable("full", retry_after=6), Unavailable("full", retry_after=6)]
    with (
        watched(*([each] for each in script)) as server,
        CstpClient(server.target, sleep=sleep, clock=lambda: now) as client,
        pytest.raises(DeadlineExceeded, match="within 10 s"),
    ):
        next(client.liaison.watch_events(timeout=10))
    assert slept == [6, 4]


def test_a_watch_cannot_be_had_over_json_rpc() -> None:
    with (
        http_server(HttpReply(b"{}")) as server,
        CstpClient(server.url) as client,
        pytest.raises(MethodNotFound, match="grpc://"),
    ):
        next(client.liaison.watch_events(after=0))
    assert server.requests == []
