"""Section `liaison`: routing chat sessions; each call hands over a session that was opened for it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc

from tests.bench.clients import call_once, calling, cstp_method, dialled, noop_method
from tests.bench.load import Series
from tests.bench.parts import durable_transaction
from tests.bench.processes import server
from tests.bench.run import Run

ROUTE = "liaison.routeToLiaisonAgent"
MESSAGES = [
    ("user", "I have a folder of old reports that should be found again"),
    ("assistant", "Do you want to upload them, or is it about what they say?"),
    ("user", "Upload them first, there are about two hundred"),
    ("assistant", "Then our content agent takes over"),
]
CONTEXT: dict[str, Any] = {"shared_intent": "upload the old reports", "files": 200, "priority": "normal"}


def measure_liaison(run: Run) -> None:
    """Measure routings beside no-ops of the same server."""
    with server(run.folder / "liaison") as served, dialled(served.grpc) as channel, ExitStack() as opened:
        call_once(served.grpc, "liaison.heartbeat", target_pillar="content")
        sessions = OpenedSessions(channel, served.grpc)

        def whole() -> dict[str, Any]:
            reason = "The user wants to upload files"
            return {"target_pillar": "content", "chat_session_id": next(sessions), "routing_reason": reason}

        def given() -> dict[str, Any]:
            return {**whole(), "context_to_share": CONTEXT}

        again = given()
        call_once(served.grpc, ROUTE, **again)

        def series(what: str, in_flight: int, params: Any = None) -> Series:
            method = cstp_method(served.grpc, ROUTE, params) if params else noop_method(served.noop)
            return Series(what, in_flight, opened.enter_context(calling(method, in_flight)), [served.pid])

        noops = {n: series("no-op", n) for n in (1, 16)}
        routings = {
            "route": series("RouteToLiaisonAgent, context given", 1, given),
            "route-whole": series("RouteToLiaisonAgent, whole conversation", 1, whole),
            "route-again": series("RouteToLiaisonAgent, the same again", 1, lambda: again),
        }
        many = series("RouteToLiaisonAgent, context given", 16, given)
        transaction = Series("one durable transaction (sqlite3)", 1, durable_transaction(run.folder))
        run.measure([noops[1], transaction, *routings.values(), noops[16], many])
        for name, routing in routings.items():
            run.compare(name, routing, noops[1])
        run.compare("route", many, noops[16])


class OpenedSessions(Iterator[str]):
    """Sessions with a short conversation, each opened when it is asked for."""

    def __init__(self, channel: grpc.Channel, port: int) -> None:
        self._channel = channel
        self._port = port
        self._run = uuid.uuid4().hex
        self._numbers = itertools.count()

    def __next__(self) -> str:
        session_id = f"{self._run}-{next(self._numbers)}"
        self._call("liaison.openSession", user_id=session_id, chat_session_id=session_id, context=CONTEXT)
        for role, content in MESSAGES:
            self._call("liaison.appendMessage", chat_session_id=session_id, role=role, content=content)
        return session_id

    def _call(self, method: str, **params: Any) -> None:
        wanted = cstp_method(self._port, method, lambda: params)
        invoke: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(wanted.path)
        invoke(wanted.request(), metadata=wanted.metadata, timeout=60)
