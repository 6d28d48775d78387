"""Connections that wait for ever, or are too many, keep nobody out."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.platform.config import ServerSettings
from tests.bridge.support import TIMEOUT, Client, Scripted, bridging, call
from tests.bridge.test_main import CONFIG, Process

PARTS = [b"", b"POST /cstp HTTP/1.1\r\nHost: x\r\nAuthorization: Bea"]
WHOLE = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
NO_BODY = b"POST /cstp HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
LIMITED = 'ulimit -n "$1"; shift; exec "$@"'
QUERY = call("cstp.queryDecisions", {"query": "x"})


def open_to(bridge: Client) -> socket.socket:
    return socket.create_connection((bridge.host, bridge.port), TIMEOUT)


def is_closed(connection: socket.socket) -> bool:
    """Wait for what comes next on a connection, and tell whether it is its end."""
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("part", PARTS, ids=["nothing", "a part"])
@pytest.mark.parametrize("before", [b"", WHOLE], ids=["first", "second"])
def test_a_head_that_never_ends_closes_its_connection(target: str, part: bytes, before: bytes) -> None:
    with bridging(target, ServerSettings(idle_seconds=0.2)) as bridge, open_to(bridge) as connection:
        connection.sendall(before)
        if before:
            assert connection.recv(1000).startswith(b"HTTP/1.1 404 ")
        connection.sendall(part)
        assert is_closed(connection)


@pytest.mark.parametrize("part", [*PARTS, NO_BODY], ids=["nothing", "a part", "no body"])
def test_the_oldest_that_waits_makes_room_for_a_new_connection(
    target: str, server: Scripted, part: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with bridging(target, ServerSettings(max_connections=2)) as bridge, ExitStack() as opened:
        first, second = (opened.enter_context(open_to(bridge)) for _ in range(2))
        for connection in (first, second):
            connection.sendall(part)
        for _ in range(3):
            assert bridge.post(QUERY).json["result"]["query"] == "x"
        assert is_closed(first)
    told = [record for record in caplog.records if "connections over HTTP" in record.message]
    assert len(told) == 1


def test_a_request_in_progress_makes_no_room(target: str, server: Scripted) -> None:
    asked, answered = threading.Event(), threading.Event()

    def play(request: Any, context: grpc.ServicerContext) -> Message:
        asked.set()
        assert answered.wait(TIMEOUT)
        return cstp_pb2.QueryDecisionsResponse(query=request.query)

    server.plays["cstp.queryDecisions"] = play
    with bridging(target, ServerSettings(max_connections=1)) as bridge, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(bridge.post, QUERY)
        try:
            assert asked.wait(TIMEOUT)
            with open_to(bridge) as other:
                assert is_closed(other)
        finally:
            answered.set()
        assert answer.result().json["result"]["query"] == "x"


def test_running_out_of_descriptors_is_no_flood_and_no_end(tmp_path: Path, target: str, server: Scripted) -> None:
    most = 120
    config = CONFIG.replace("port: 0}\ngrpc", f"port: 0, max_connections: {10 * most}}}\ngrpc")
    process = Process(tmp_path, "--grpc-target", target, config=config, before=["sh", "-c", LIMITED, "sh", str(most)])
    try:
        client = process.client()
        with ExitStack() as opened:
            for _ in range(2 * most):
                opened.enter_context(open_to(client)).sendall(PARTS[1])
            assert client.post(QUERY).json["result"]["query"] == "x"
    finally:
        process.popen.terminate()
        code, log = process.end()
    assert code == 0
    assert len(log) < 10_000
    assert "Traceback" not in log
