"""The gRPC server of A2A: health and reflection, what strangers can hold, and how it ends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cstp_grpc.gen.cstp.v1 import tasks_pb2
from cstp_grpc.platform import grpc_listener
from cstp_grpc.platform.config import Settings
from tests.bench.connections import DATA, EMPTY_MESSAGE, END_STREAM, GREETING, beginning_of_call, frame
from tests.bridge.a2a.bindings import Grpc, OldGrpc, connected, sending, state_of
from tests.bridge.a2a.products import Product
from tests.bridge.a2a.raw import Core
from tests.bridge.a2a.tasks import INTENT
from tests.harness import TIMEOUT, peering
from tests.waiting import wait_until


@dataclass
class Bridge:
    """A bridge before the scripted server, which stops when it is told to."""

    binding: Grpc
    _opened: ExitStack
    _threads: ThreadPoolExecutor
    stopped: Future[None] | None = None

    @property
    def health(self) -> Any:
        return health_pb2_grpc.HealthStub(self.binding.channel)

    def stop(self) -> None:
        """Begin to stop it; the block in which it runs ends when it has."""
        self.stopped = self._threads.submit(self._opened.close)


@contextmanager
def bridged(target: str, drain_seconds: float = TIMEOUT) -> Iterator[Bridge]:
    """Run a bridge for the length of a block."""
    wanted = {"server": {"port": 0}, "a2a": {"grpc_port": 0}, "grpc": {"drain_seconds": drain_seconds}}
    with ThreadPoolExecutor(1) as threads, ExitStack() as opened:
        peers = opened.enter_context(peering(Settings.model_validate(wanted), target))
        with connected(Grpc, peers) as binding:
            assert isinstance(binding, Grpc)
            bridge = Bridge(binding, opened, threads)
            yield bridge
            if bridge.stopped is not None:
                bridge.stopped.result(TIMEOUT)


def test_health_and_reflection_are_open(product: Product) -> None:
    binding = product.binding(Grpc)
    assert isinstance(binding, Grpc)
    channel = binding.channel
    names = [Grpc.service.full_name, OldGrpc.service.full_name]
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", *names):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    ask = reflection_pb2.ServerReflectionRequest
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    methods = [method.full_name for service in (Grpc.service, OldGrpc.service) for method in service.methods]
    asked = [ask(list_services=""), *(ask(file_containing_symbol=name) for name in (*names, *methods))]
    listed, *files = stub.ServerReflectionInfo(iter(asked), timeout=TIMEOUT)
    shown = {service.name for service in listed.list_services_response.service}
    versions = {"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}
    assert shown == {*names, "grpc.health.v1.Health", *versions}
    assert all(file.file_descriptor_response.file_descriptor_proto for file in files)
    current = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ask.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    assert list(current(iter(asked), timeout=TIMEOUT)) == [listed, *files]


def test_strangers_cannot_hold_every_stream(script: Core, target: str) -> None:
    script.go_on.set()
    with bridged(target) as bridge:
        watched: list[Any] = []

        def watch() -> None:
            watched.append(bridge.health.Watch(health_pb2.HealthCheckRequest()))
            next(watched[-1])

        def watch_on() -> None:
            for _ in range(1000):
                watch()

        with pytest.raises(grpc.RpcError) as caught:
            watch_on()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        reflected = reflection_pb2_grpc.ServerReflectionStub(bridge.binding.channel).ServerReflectionInfo(asked)
        with pytest.raises(grpc.RpcError) as caught:
            next(reflected)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert bridge.binding.send(INTENT).state == "completed"

        def free_again() -> bool:
            try:
                watch()
            except grpc.RpcError:
                return False
            return True

        watched[0].cancel()
        wait_until(free_again, "a place is free again", TIMEOUT)
        for stream in watched:
            stream.cancel()


def test_a_stream_may_end_before_the_bridge_does(script: Core, target: str) -> None:
    with (
        bridged(target) as bridge,
        bridge.binding.open_stream("SendStreamingMessage", sending(INTENT)) as stream,
    ):
        assert state_of(stream.next()["task"]) == "working"
        watched = bridge.health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        bridge.stop()
        assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watched.cancel()
        script.go_on.set()
        assert [next(iter(event)) for event in stream] == ["artifactUpdate", "statusUpdate"]


def test_a_stream_that_goes_on_and_on_is_broken_off(script: Core, target: str) -> None:
    with (
        bridged(target, drain_seconds=0) as bridge,
        bridge.binding.open_stream("SendStreamingMessage", sending(INTENT)) as stream,
    ):
        assert state_of(stream.next()["task"]) == "working"
        bridge.stop()
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_work_that_nobody_waits_for_is_done_before_the_bridge_ends(script: Core, target: str) -> None:
    with bridged(target) as bridge:
        assert bridge.binding.send(INTENT, at_once=True).state == "submitted"
        assert script.begun.wait(TIMEOUT)
        bridge.stop()
        wait_for_end(bridge.binding.channel)
        script.go_on.set()
    saved = [seen.request for seen in script.server.seen if seen.method == "cstp.saveTask"]
    states = [tasks_pb2.TaskState.Name(request.task.state) for request in saved]
    assert states == ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]


def test_a_caller_that_vanished_holds_no_stream(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_listener, "PING_MILLISECONDS", 100)
    with bridged(target) as bridge, connected_socket(bridge) as caller:
        beginning = beginning_of_call(caller.getpeername()[1], "/grpc.health.v1.Health/Watch")
        caller.sendall(beginning + frame(DATA, END_STREAM, 1, EMPTY_MESSAGE))
        # It answers no ping, as a machine that has lost its network.
        read_until_closed(caller)


def test_a_connection_without_calls_is_closed(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_listener, "IDLE_MILLISECONDS", 100)
    with bridged(target) as bridge, connected_socket(bridge) as caller:
        caller.sendall(GREETING)
        read_until_closed(caller)


def test_a_connection_that_says_nothing_is_closed(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_listener, "HANDSHAKE_MILLISECONDS", 100)
    with bridged(target) as bridge, connected_socket(bridge) as caller:
        read_until_closed(caller)


def connected_socket(bridge: Bridge) -> socket.socket:
    """Return a connection to A2A over gRPC that says nothing yet."""
    host, _, port = bridge.binding.peers.grpc_target.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT)


def read_until_closed(connection: socket.socket) -> None:
    """Read what comes, and answer nothing, until the other end closes the connection; fail if it does not in time."""
    while connection.recv(4096):
        pass


def wait_for_end(channel: grpc.Channel) -> None:
    """Wait until the other end of a channel listens no more."""
    states: list[grpc.ChannelConnectivity] = []
    channel.subscribe(states.append)
    lost = {grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.TRANSIENT_FAILURE}
    wait_until(lambda: bool(lost & set(states)), "the connection is lost", TIMEOUT)
