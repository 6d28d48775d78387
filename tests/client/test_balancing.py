"""How channels choose among servers: as the service config says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from cstp_grpc import gen
from cstp_grpc.client.grpc_transport import balancing_options, channel_options
from cstp_grpc.client.retry import RetryPolicy
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.contract.service_config import service_config
from cstp_grpc.gen.cstp.v1 import access_pb2
from tests.grpc_servers import grpc_server
from tests.waiting import wait_until

SERVICE = "cstp.v1.CstpService"
ACCESS = contract_methods()["cstp.getAccess"]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
CONTENT = json.loads(resources.files(gen).joinpath("service_config.json").read_text())


@dataclass
class Server:
    """Tells its name, and is as well as it is told."""

    name: str
    health: Any = field(default_factory=health.HealthServicer)
    failures: int = 0
    calls: int = 0
    port: int = 0

    def access(self, request: Any, context: grpc.ServicerContext) -> access_pb2.GetAccessResponse:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return access_pb2.GetAccessResponse(agent=self.name)


@contextmanager
def serving(name: str) -> Iterator[Server]:
    """Run a Server for the length of a block."""
    state = Server(name)
    state.health.set(SERVICE, SERVING)
    handler = grpc.unary_unary_rpc_method_handler(
        state.access, ACCESS.request.FromString, ACCESS.response.SerializeToString
    )
    access = grpc.method_handlers_generic_handler(ACCESS.service, {ACCESS.rpc: handler})

    def add(server: grpc.Server) -> None:
        server.add_generic_rpc_handlers((access,))
        health_pb2_grpc.add_HealthServicer_to_server(state.health, server)

    with grpc_server(add) as state.port:
        yield state


@contextmanager
def asking(*servers: Server) -> Iterator[Callable[[], str]]:
    """Yield what asks one of some servers for its name, over a channel like a client's."""
    address = "ipv4:" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
    with grpc.insecure_channel(address, [*channel_options(address), *balancing_options()]) as channel:
        call: Any = channel.unary_unary(ACCESS.path, ACCESS.request.SerializeToString, ACCESS.response.FromString)
        yield lambda: call(access_pb2.GetAccessRequest(), timeout=20).agent


def asked(ask: Callable[[], str]) -> set[str]:
    """Return who answers some calls in a row."""
    return {ask() for _ in range(8)}


def test_calls_go_to_all_servers_in_turn_and_to_those_alone_that_are_well() -> None:
    with ExitStack() as stack:
        one, two = (stack.enter_context(serving(name)) for name in ("one", "two"))
        ask = stack.enter_context(asking(one, two))
        wait_until(lambda: asked(ask) == {"one", "two"}, "both are asked")
        one.health.set(SERVICE, NOT_SERVING)
        wait_until(lambda: asked(ask) == {"two"}, "the one that is not well is left")
        one.health.set(SERVICE, SERVING)
        wait_until(lambda: asked(ask) == {"one", "two"}, "it is asked again")


def test_a_server_that_is_not_well_is_called_only_once_it_is() -> None:
    with serving("one") as server, asking(server) as ask:
        server.health.set(SERVICE, NOT_SERVING)
        with pytest.raises(grpc.RpcError, match="unhealthy"):
            ask()
        assert server.calls == 0
        server.health.set(SERVICE, SERVING)

        def answered() -> bool:
            try:
                return ask() == "one"
            except grpc.RpcError:
                return False

        wait_until(answered, "it is called")


def test_grpc_itself_repeats_nothing() -> None:
    with serving("one") as server, asking(server) as ask:
        server.failures = 1
        with pytest.raises(grpc.RpcError, match="not now"):
            ask()
        assert server.calls == 1


def test_the_defaults_are_those_of_the_service_config() -> None:
    (policy,) = [each["retryPolicy"] for each in CONTENT["methodConfig"] if "retryPolicy" in each]
    default = RetryPolicy()
    assert default.attempts == policy["maxAttempts"]
    assert f"{default.base:g}s" == policy["initialBackoff"]
    assert f"{default.cap:g}s" == policy["maxBackoff"]
    assert default.multiplier == policy["backoffMultiplier"]
    assert json.loads(service_config().balancing) == {
        "loadBalancingConfig": CONTENT["loadBalancingConfig"],
        "healthCheckConfig": CONTENT["healthCheckConfig"],
    }


def test_every_call_with_one_answer_has_its_time_and_is_repeated_where_that_is_safe() -> None:
    repeated = {
        f"/{name['service']}/{name['method']}"
        for each in CONTENT["methodConfig"]
        if "retryPolicy" in each
        for name in each["name"]
    }
    bounded = {method.path for method in contract_methods().values() if not method.server_streaming}
    assert set(service_config().timeouts) == bounded
    assert repeated == {
        method.path for method in contract_methods().values() if method.path in bounded and method.idempotent
    }
