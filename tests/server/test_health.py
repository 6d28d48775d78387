"""The health service, as clients use it that choose a server by its health."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cstp_grpc.client import CstpClient
from cstp_grpc.server.app import App
from cstp_grpc.server.grpc_server import OPEN_CALLS, OPEN_STREAMS
from cstp_grpc.server.health import Health
from tests.harness import TIMEOUT, TOKENS, settings
from tests.waiting import wait_until

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
        streams = [stub.Watch(REQUEST, timeout=TIMEOUT) for _ in range(count)]
        assert [next(stream).status for stream in streams] == [SERVING] * count
        yield streams


@contextmanager
def served(health: Health) -> Iterator[str]:
    """Serve nothing but health."""
    pool = ThreadPoolExecutor(2)
    server = grpc.server(pool)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait(TIMEOUT)
        pool.shutdown(wait=False, cancel_futures=True)


def test_more_clients_may_watch_than_there_are_threads(app: App) -> None:
    with watching(app.target, 5 * (OPEN_CALLS + OPEN_STREAMS)):
        clients = [CstpClient(app.target, TOKENS["alice"], timeout=TIMEOUT) for _ in range(OPEN_CALLS)]
        for client in clients:
            assert client.get_access().requesting_agent == "alice"
            client.close()
        with grpc.insecure_channel(app.target) as channel:
            assert health_pb2_grpc.HealthStub(channel).Check(REQUEST, timeout=TIMEOUT).status == SERVING


def test_a_server_that_stops_says_so_and_waits_for_no_watch(app: App) -> None:
    with watching(app.target, 3) as streams:
        stopping = threading.Thread(target=app.stop)
        stopping.start()
        assert [[answer.status for answer in stream] for stream in streams] == [[NOT_SERVING]] * 3
        stopping.join(TIMEOUT)
        assert not stopping.is_alive()


def test_what_nobody_serves_is_unknown_until_somebody_does() -> None:
    health = Health({})
    with served(health) as target, grpc.insecure_channel(target) as channel:
        stream = health_pb2_grpc.HealthStub(channel).Watch(REQUEST, timeout=TIMEOUT)
        assert next(stream).status == UNKNOWN
        health.set(SERVICE, SERVING)
        assert next(stream).status == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="x"), timeout=TIMEOUT)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]


def test_watches_that_end_while_health_changes_block_nobody() -> None:
    health = Health({})
    health.set(SERVICE, SERVING)

    def change() -> None:
        for _ in range(ROUNDS):
            health.set(SERVICE, NOT_SERVING)
            health.set(SERVICE, SERVING)

    with served(health) as target, grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        changing = threading.Thread(target=change, daemon=True)
        changing.start()
        for _ in range(ROUNDS):
            stream = stub.Watch(REQUEST, timeout=TIMEOUT)
            next(stream)
            stream.cancel()
        changing.join(TIMEOUT)
        assert not changing.is_alive(), "changing the health waits for a watch that has ended"


def test_the_last_word_is_the_last_that_is_told_however_fast_health_changes() -> None:
    health = Health({})
    health.set(SERVICE, SERVING)
    with served(health) as target, watching(target, 8) as streams, ThreadPoolExecutor(12) as pool:
        told: list[list[int]] = [[SERVING] for _ in streams]
        readers = [
            pool.submit(said.extend, (answer.status for answer in stream))
            for said, stream in zip(told, streams, strict=True)
        ]
        changes = [pool.submit(health.set, SERVICE, SERVING if each % 2 else NOT_SERVING) for each in range(ROUNDS)]
        for change in changes:
            change.result(TIMEOUT)
        health.enter_graceful_shutdown()
        health.set(SERVICE, SERVING)
        wait_until(lambda: all(said[-1] == NOT_SERVING for said in told), "all are told")
        health.end_watches()
        for reader in readers:
            reader.result(TIMEOUT)
        assert all(said[-1] == NOT_SERVING for said in told)
        assert all(before != after for said in told for before, after in itertools.pairwise(said))
