from __future__ import annotations

from grpc_health.v1 import health_pb2

from tests.bridge.support import Client, Scripted


def test_the_bridge_is_well_while_its_server_is(bridge: Client, server: Scripted) -> None:
    answer = bridge.get("/health")
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert answer.headers["Cache-Control"] == "no-store"
    server.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    try:
        answer = bridge.get("/health")
    finally:
        server.health.set("", health_pb2.HealthCheckResponse.SERVING)
    assert (answer.status, answer.json) == (503, {"status": "unavailable"})


def test_the_head_of_health_has_no_body(bridge: Client) -> None:
    answer = bridge.request("HEAD", "/health")
    assert (answer.status, answer.body) == (200, b"")
