"""Routing chat sessions: each call hands over a session that was opened for it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

import grpc

from cstp_grpc.gen.liaison.v1 import liaison_pb2, liaison_pb2_grpc
from cstp_grpc.services.convert import dict_to_struct
from tests.bench.clients import TOKEN
from tests.bench.load import Call, Series

METADATA = (("authorization", f"Bearer {TOKEN}"),)
TIMEOUT = 60
SAID = [
    ("user", "I have a folder of old reports that should be found again"),
    ("assistant", "Do you want to upload them, or is it about what they say?"),
    ("user", "Upload them first, there are about two hundred"),
    ("assistant", "Then our content agent takes over"),
]
CONTEXT: dict[str, Any] = {"shared_intent": "upload the old reports", "files": 200, "priority": "normal"}

Request = liaison_pb2.RouteToLiaisonAgentRequest


def series(channel: grpc.Channel, in_flight: tuple[int, ...]) -> list[Series]:
    """Return the series of routings."""
    stub = liaison_pb2_grpc.LiaisonServiceStub(channel)
    stub.Heartbeat(liaison_pb2.HeartbeatRequest(target_pillar="content"), metadata=METADATA, timeout=TIMEOUT)
    run, numbers = uuid.uuid4().hex, itertools.count()

    def opened() -> str:
        return open_session(stub, f"{run}-{next(numbers)}")

    given = dict_to_struct(CONTEXT)
    again = Request(target_pillar="content", chat_session_id=opened(), context_to_share=given)
    route(stub, again)
    return [
        *(
            Series("RouteToLiaisonAgent, context given", n, routing(stub, opened, lambda s: request(s, given)))
            for n in in_flight
        ),
        Series("RouteToLiaisonAgent, whole conversation", 1, routing(stub, opened, request)),
        Series("RouteToLiaisonAgent, the same again", 1, lambda: Call(lambda: again, lambda sent: route(stub, sent))),
    ]


def routing(
    stub: liaison_pb2_grpc.LiaisonServiceStub, opened: Callable[[], str], made: Callable[[str], Request]
) -> Callable[[], Call]:
    """Return a maker of routings, each of a session of its own."""
    return lambda: Call(lambda: made(opened()), lambda sent: route(stub, sent))


def request(session_id: str, context: Any = None) -> Request:
    """Return the request that routes a session."""
    return Request(
        target_pillar="content",
        chat_session_id=session_id,
        routing_reason="The user wants to upload files",
        context_to_share=context,
    )


def route(stub: liaison_pb2_grpc.LiaisonServiceStub, sent: Request) -> object:
    """Route a session."""
    return stub.RouteToLiaisonAgent(sent, metadata=METADATA, timeout=TIMEOUT)


def open_session(stub: liaison_pb2_grpc.LiaisonServiceStub, user: str) -> str:
    """Open a session with a short conversation and return its identifier."""
    wanted = liaison_pb2.OpenSessionRequest(user_id=user, context=dict_to_struct(CONTEXT))
    session_id = stub.OpenSession(wanted, metadata=METADATA, timeout=TIMEOUT).chat_session.id
    for role, content in SAID:
        message = liaison_pb2.AppendMessageRequest(
            chat_session_id=session_id,
            role=liaison_pb2.MessageRole.Value(f"MESSAGE_ROLE_{role.upper()}"),
            content=content,
        )
        stub.AppendMessage(message, metadata=METADATA, timeout=TIMEOUT)
    return session_id
