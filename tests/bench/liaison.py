"""Routing chat sessions: each call hands over a session that was opened for it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import grpc

from tests.bench.clients import grpc_call
from tests.bench.load import Series

ROUTE = "liaison.routeToLiaisonAgent"
SAID = [
    ("user", "I have a folder of old reports that should be found again"),
    ("assistant", "Do you want to upload them, or is it about what they say?"),
    ("user", "Upload them first, there are about two hundred"),
    ("assistant", "Then our content agent takes over"),
]
CONTEXT: dict[str, Any] = {"shared_intent": "upload the old reports", "files": 200, "priority": "normal"}


def series(channel: grpc.Channel, in_flight: tuple[int, ...]) -> list[Series]:
    """Return the series of routings."""
    call(channel, "liaison.heartbeat", target_pillar="content")
    sessions = Opened(channel)

    def given() -> dict[str, Any]:
        return {**whole(), "context_to_share": CONTEXT}

    def whole() -> dict[str, Any]:
        reason = "The user wants to upload files"
        return {"target_pillar": "content", "chat_session_id": next(sessions), "routing_reason": reason}

    again = given()
    call(channel, ROUTE, **again)
    return [
        *(Series("RouteToLiaisonAgent, context given", n, grpc_call(channel, ROUTE, given)) for n in in_flight),
        Series("RouteToLiaisonAgent, whole conversation", 1, grpc_call(channel, ROUTE, whole)),
        Series("RouteToLiaisonAgent, the same again", 1, grpc_call(channel, ROUTE, lambda: again)),
    ]


class Opened(Iterator[str]):
    """Sessions with a short conversation, each opened when it is asked for; several threads may ask."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._run = uuid.uuid4().hex
        self._numbers = itertools.count()

    def __next__(self) -> str:
        session_id = f"{self._run}-{next(self._numbers)}"
        call(self._channel, "liaison.openSession", user_id=session_id, chat_session_id=session_id, context=CONTEXT)
        for role, content in SAID:
            call(self._channel, "liaison.appendMessage", chat_session_id=session_id, role=role, content=content)
        return session_id


def call(channel: grpc.Channel, method: str, **params: Any) -> None:
    """Make one call that is not measured."""
    made = grpc_call(channel, method, lambda: params)()
    made.send(made.prepare())
