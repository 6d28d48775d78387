"""The health service, as clients use it that choose a server by its health."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cstp_grpc.client import CstpClient
from cstp_grpc.server.app import App
from cstp_grpc.server.execution import EventLoopThread
from cstp_grpc.server.open_services import MAX_OPEN_STREAMS, HealthService
from tests.harness import TIMEOUT, TOKENS, settings

SERVICE = "cstp.v1.CstpService"
REQUEST = health_pb2.HealthCheckRequest(service=SERVICE)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
ROUNDS = 300


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(settings(tmp_path, grpc={"port": 0, "drain_seconds": 10 * TIMEOUT}))
    app.start()
    stopping = threading.Thread(target=app.stop)
    try:
        yield app
    finally:
        stopping.start()
        stopping.join(TIMEOUT)
        assert not stopping.is_alive(), "the server does not stop"


@contextmanager
def watching(target: str, count: int) -> Iterator[list[Any]]:
    """Watch the health of a server with so many streams."""
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        streams = []
        for _ in range(count):
            # One after the other, so that the server has them in this order.
            streams.append(stub.Watch(REQUEST, timeout=TIMEOUT))
            assert next(streams[-1]).status == SERVING
        yield streams


@contextmanager
def served(health: HealthService) -> Iterator[tuple[str, Callable[..., None]]]:
    """Serve nothing but health, and yield where, and what runs functions where it is served."""
    loop = EventLoopThread("health")
    loop.start()

    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    async def call(function: Callable[..., None], *arguments: object) -> None:
        function(*arguments)

    server, port = loop.run(start())
    try:
        yield f"127.0.0.1:{port}", lambda function, *arguments: loop.run(call(function, *arguments))
    finally:
        loop.run(server.stop(0))
        loop.stop()


def test_as_many_clients_may_watch_as_like(app: App) -> None:
    with watching(app.target, 100):
        clients = [CstpClient(app.target, TOKENS["alice"], timeout=TIMEOUT) for _ in range(16)]
        for client in clients:
            assert client.get_access().requesting_agent == "alice"
            client.close()
        with grpc.insecure_channel(app.target) as channel:
            assert health_pb2_grpc.HealthStub(channel).Check(REQUEST, timeout=TIMEOUT).status == SERVING


def test_a_server_that_stops_says_so_and_waits_for_no_watch(app: App) -> None:
    with watching(app.target, 3) as streams:
        stopping = threading.Thread(target=app.stop)
        stopping.start()
        for stream in streams:
            assert next(stream).status == NOT_SERVING
            with pytest.raises(grpc.RpcError) as caught:
                next(stream)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        stopping.join(TIMEOUT)
        assert not stopping.is_alive()


def test_what_nobody_serves_is_unknown_until_somebody_does() -> None:
    health = HealthService({})
    with served(health) as (target, run), grpc.insecure_channel(target) as channel:
        stream = health_pb2_grpc.HealthStub(channel).Watch(REQUEST, timeout=TIMEOUT)
        assert next(stream).status == UNKNOWN
        run(health.set_status, SERVICE, SERVING)
        assert next(stream).status == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="x"), timeout=TIMEOUT)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]


def test_watches_that_end_while_health_changes_block_nobody() -> None:
    health = HealthService({})
    health.set_status(SERVICE, SERVING)
    with served(health) as (target, run), grpc.insecure_channel(target) as channel:

        def change() -> None:
            for _ in range(ROUNDS):
                run(health.set_status, SERVICE, NOT_SERVING)
                run(health.set_status, SERVICE, SERVING)

        stub = health_pb2_grpc.HealthStub(channel)
        changing = threading.Thread(target=change, daemon=True)
        changing.start()
        for _ in range(ROUNDS):
            stream = stub.Watch(REQUEST, timeout=TIMEOUT)
            next(stream)
            stream.cancel()
        changing.join(TIMEOUT)
        assert not changing.is_alive(), "changing the health waits for a watch that has ended"


def test_a_watcher_that_reads_nothing_keeps_nobody_from_hearing_the_last_word() -> None:
    health = HealthService({})
    health.set_status(SERVICE, SERVING)
    with served(health) as (target, run), watching(target, 8) as streams:
        for each in range(ROUNDS):
            run(health.set_status, SERVICE, SERVING if each % 2 else NOT_SERVING)
        run(health.enter_graceful_shutdown)
        run(health.set_status, SERVICE, SERVING)
        # The first stream is not read at all.
        for stream in streams[1:]:
            told = [SERVING]
            while told[-1] != NOT_SERVING or health_of(target) != NOT_SERVING:
                told.append(next(stream).status)
            assert all(before != after for before, after in itertools.pairwise(told))


def health_of(target: str) -> int:
    """Return the state that a server tells of the service."""
    with grpc.insecure_channel(target) as channel:
        status: int = health_pb2_grpc.HealthStub(channel).Check(REQUEST, timeout=TIMEOUT).status
    return status


def test_a_watch_beyond_the_bound_takes_the_place_of_the_oldest(app: App) -> None:
    with watching(app.target, MAX_OPEN_STREAMS) as streams, watching(app.target, 1):
        with pytest.raises(grpc.RpcError) as caught:
            next(streams[0])
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        assert streams[1].is_active()
