"""Requests that are late, never come or are large: they hold nobody else up."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb2
from a2a.types import a2a_pb2
from google.rpc import error_details_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from bridge.a2a.grpc_server import CALLS_OF_CONNECTION, CONCURRENT_CALLS
from bridge.http_request import LARGE_REQUEST_BYTES
from cstp_grpc.gen.cstp.v1 import access_pb2, cstp_pb2, tasks_pb2
from cstp_grpc.platform.config import Settings
from tests.bridge.a2a.raw import Raw, call, saying, saying_in_0_3
from tests.bridge.a2a.talking import asynchronous, until
from tests.bridge.support import Client, Scripted, fail
from tests.harness import TIMEOUT, Peers, peering

TOKEN = ("authorization", "Bearer a-known-token")
V1 = ("a2a-version", "1.0")
CURRENT, OLD = (module.DESCRIPTOR.services_by_name["A2AService"] for module in (a2a_pb2, old_pb2))
PATHS = [f"/{service.full_name}/{rpc.name}" for service in (CURRENT, OLD) for rpc in service.methods]
GET_TASK = f"/{CURRENT.full_name}/GetTask"


@pytest.fixture
def core(server: Scripted) -> Scripted:
    """A server that asks nobody but those who want to know who they are, and has no tasks."""

    def get_access(request: Any, context: grpc.ServicerContext) -> access_pb2.GetAccessResponse:
        if TOKEN not in context.invocation_metadata():
            fail(grpc.StatusCode.UNAUTHENTICATED, "AUTHENTICATION_REQUIRED")(request, context)
        return access_pb2.GetAccessResponse()

    server.plays |= {
        "cstp.getAccess": get_access,
        "cstp.getTask": fail(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
        "cstp.findTask": lambda request, context: tasks_pb2.FindTaskResponse(id="t"),
        "cstp.saveTask": lambda request, context: tasks_pb2.SaveTaskResponse(version=request.version + 1),
        "cstp.announceIntent": lambda request, context: cstp_pb2.AnnounceIntentResponse(),
    }
    return server


@pytest.fixture
def peers(core: Scripted, target: str) -> Iterator[Peers]:
    with bridge(target, TIMEOUT) as found:
        yield found


def bridge(target: str, seconds: float) -> Any:
    """Run a bridge whose requests have so many seconds to arrive."""
    told = {"server": {"port": 0, "timeout_seconds": seconds}, "a2a": {"grpc_port": 0}, "grpc": {"drain_seconds": 0}}
    return peering(Settings.model_validate(told), target)


@asynccontextmanager
async def connected(target: str) -> AsyncIterator[grpc.aio.Channel]:
    """Yield a connection of its own."""
    async with grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel


def begun(channel: grpc.aio.Channel, path: str, *metadata: tuple[str, str]) -> Any:
    """Begin a call without sending its request."""
    return channel.stream_unary(path)(metadata=metadata, timeout=TIMEOUT)


def called(channel: grpc.aio.Channel, path: str, request: bytes, *metadata: tuple[str, str]) -> Any:
    """Call with the bytes of a request."""
    call: Any = channel.unary_unary(path)
    return call(request, metadata=metadata, timeout=TIMEOUT)


async def failure(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """Return how a call fails: its status, and of its details the domain and the reason."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status = rpc_status.from_call(caught.value)
    assert status is not None, f"no details: {caught.value}"
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return caught.value.code(), info.domain, info.reason


@asynchronous
async def test_strangers_are_not_waited_for(peers: Peers) -> None:
    async with connected(peers.grpc_target) as channel:
        calls = [begun(channel, path, *metadata) for path in PATHS for metadata in ((), (V1,))]
        for found in await asyncio.gather(*map(failure, calls)):
            assert found == (grpc.StatusCode.UNAUTHENTICATED, "cstp", "AUTHENTICATION_REQUIRED")


@asynchronous
async def test_whom_the_server_knows_may_take_some_time(peers: Peers, core: Scripted) -> None:
    async with connected(peers.grpc_target) as channel:
        call = begun(channel, GET_TASK, V1, TOKEN)

        async def is_known() -> bool:
            return "cstp.getAccess" in {seen.method for seen in core.seen}

        await until(is_known, "the server is asked who that is")
        await call.write(a2a_pb2.GetTaskRequest(id="t").SerializeToString())
        await call.done_writing()
        assert await failure(call) == (grpc.StatusCode.NOT_FOUND, "a2a-protocol.org", "TASK_NOT_FOUND")
    assert tasks_pb2.GetTaskRequest(id="t") in [seen.request for seen in core.seen]


@asynchronous
async def test_nobody_is_waited_for_for_ever(core: Scripted, target: str) -> None:
    with bridge(target, 0.2) as peers:
        async with connected(peers.grpc_target) as channel:
            calls = [begun(channel, path, V1, TOKEN) for path in PATHS]
            for found in await asyncio.gather(*map(failure, calls)):
                assert found == (grpc.StatusCode.DEADLINE_EXCEEDED, "cstp", "DEADLINE_EXCEEDED")


@pytest.mark.parametrize("rpc", ["Check", "Watch"])
@asynchronous
async def test_questions_about_health_come_at_once(peers: Peers, rpc: str) -> None:
    async with connected(peers.grpc_target) as channel:
        late = begun(channel, f"/{health.SERVICE_NAME}/{rpc}")
        assert await late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        wrong = called(channel, f"/{health.SERVICE_NAME}/{rpc}", b"\xff")
        assert await wrong.code() is grpc.StatusCode.INVALID_ARGUMENT


@asynchronous
async def test_a_call_that_ends_without_a_request_is_invalid(peers: Peers) -> None:
    async with connected(peers.grpc_target) as channel:
        call = begun(channel, GET_TASK, V1, TOKEN)
        await call.done_writing()
        assert await failure(call) == (grpc.StatusCode.INVALID_ARGUMENT, "a2a-protocol.org", "INVALID_PARAMS")


@pytest.mark.slow
@asynchronous
async def test_calls_without_a_request_make_room_for_others(peers: Peers) -> None:
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(connected(peers.grpc_target))
            for _ in range(CONCURRENT_CALLS // CALLS_OF_CONNECTION + 1)
        ]
        calls = [begun(channel, GET_TASK) for channel in connections for _ in range(CALLS_OF_CONNECTION)]
        await asyncio.gather(*(call.code() for call in calls))
        assert not [call for call in calls if await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED]
        stub = health_pb2_grpc.HealthStub(connections[0])
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_one_connection_holds_so_many_calls(peers: Peers) -> None:
    host, _, port = peers.grpc_target.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT) as connection, connection.makefile("rwb") as wire:
        wire.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        wire.flush()
        header = wire.read(9)
        assert header[3] == 4, "the first frame holds the settings"
        told = dict(struct.iter_unpack(">HI", wire.read(int.from_bytes(header[:3], "big"))))
    max_concurrent_streams = 3
    assert told[max_concurrent_streams] == CALLS_OF_CONNECTION


@pytest.mark.parametrize("service", [CURRENT, OLD])
@asynchronous
async def test_a_method_that_there_is_none_of_is_refused_in_the_same_way(peers: Peers, service: Any) -> None:
    async with connected(peers.grpc_target) as channel:
        path = f"/{service.full_name}/Nothing"
        refused = grpc.StatusCode.UNIMPLEMENTED, "cstp", "METHOD_NOT_FOUND"
        assert await failure(called(channel, path, b"", TOKEN)) == refused
        assert (await failure(called(channel, path, b"")))[0] is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/a2a", call("SendMessage", saying("x" * LARGE_REQUEST_BYTES))),
        ("/a2a", call("message/send", saying_in_0_3("x" * LARGE_REQUEST_BYTES))),
        ("/a2a/v1/message:send", saying("x" * LARGE_REQUEST_BYTES)),
        ("/a2a/v1/message:stream", saying("x" * LARGE_REQUEST_BYTES)),
    ],
)
def test_nothing_large_is_read_for_strangers(peers: Peers, core: Scripted, path: str, body: Any) -> None:
    host, _, port = peers.url.removeprefix("http://").rpartition(":")
    version = "0.3" if "message/send" in str(body) else "1.0"
    answer = Raw(Client(host, int(port))).send("POST", path, body, who=None, version=version)
    assert answer.status == 401
    assert {seen.method for seen in core.seen} == {"cstp.getAccess"}
    core.seen.clear()
    assert Raw(Client(host, int(port))).send("POST", path, body, who="a-known-token", version=version).status == 200
    assert "cstp.announceIntent" in {seen.method for seen in core.seen}


@pytest.mark.parametrize("path", [GET_TASK, f"/{OLD.full_name}/GetTask"])
@asynchronous
async def test_nothing_large_is_read_for_strangers_over_grpc(peers: Peers, core: Scripted, path: str) -> None:
    async with connected(peers.grpc_target) as channel:
        request = a2a_pb2.GetTaskRequest(id=f"tasks/{'x' * LARGE_REQUEST_BYTES}").SerializeToString()
        assert (await failure(called(channel, path, request, V1)))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert [seen.method for seen in core.seen] == ["cstp.getAccess"]
