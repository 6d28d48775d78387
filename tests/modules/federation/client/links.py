"""Peers that answer, or that keep waiting, over each transport."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.contract.json_codec import to_json
from cstp_grpc.modules.federation.peer_transport import PeerCallResult
from tests.client.scripted import HttpReply, http_server, scripted_server
from tests.modules.federation.client.servers import (
    ANSWER,
    RESULT,
    SECONDS,
)

JSON = {"content-type": "application/json"}
TRANSPORTS = pytest.mark.parametrize("scheme", ["grpc", "http"])
JOURNEY = ("x-cstp-federation", "id=intent-1;hops=1;path=alice")


@contextmanager
def answering(scheme: str, *answers: Any) -> Iterator[tuple[str, Any]]:
    """Run a server that answers one after the other, over either transport; yield its URL and what it records."""
    if scheme == "grpc":
        with scripted_server(*answers) as server:
            yield f"grpc://{server.target}", server
        return
    script = list(answers)

    def reply(call: dict[str, Any]) -> dict[str, Any]:
        given = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(given, CstpError):
            error = {"code": -32603, "message": given.message, "data": {"reason": given.reason}}
            return {"jsonrpc": "2.0", "id": call["id"], "error": error}
        return {"jsonrpc": "2.0", "id": call["id"], "result": to_json(given)}

    with http_server(HttpReply(reply, headers=JSON)) as http_peer:
        yield http_peer.url, http_peer


@contextmanager
def waiting(scheme: str) -> Iterator[tuple[str, threading.Event]]:
    """Run a server that takes a call and answers it when the event is set, over either transport."""
    go = threading.Event()

    def reply(call: dict[str, Any]) -> dict[str, Any]:
        go.wait(SECONDS)
        return {"jsonrpc": "2.0", "id": call["id"], "result": RESULT}

    try:
        if scheme == "http":
            with http_server(HttpReply(reply, headers=JSON)) as http_peer:
                yield http_peer.url, go
                go.set()
            return
        with scripted_server(ANSWER) as server:
            answer = server.answer

            def later(request: Any, context: grpc.ServicerContext) -> Any:
                go.wait(SECONDS)
                return answer(request, context)

            server.answer = later  # type: ignore[method-assign]
            yield f"grpc://{server.target}", go
            go.set()
    finally:
        go.set()


def assert_not_understood(result: PeerCallResult) -> None:
    assert (result.status, result.answer) == (PeerStatus.NOT_UNDERSTOOD, None)
    assert_told_plainly(result)


def assert_told_plainly(result: PeerCallResult) -> None:
    """Nothing is told of libraries, addresses or their texts."""
    words = result.error.message.lower() if result.error else ""
    assert not [part for part in ("127.0.0.1", "errno", "ipv4", "exception", "parsing", "ssl") if part in words]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
