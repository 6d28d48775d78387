"""A bridge on a real socket before a real gRPC server that answers what a test tells it to."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from cstp_grpc.contract.methods import RpcMethod, contract_methods
from cstp_grpc.gen.cstp.v1 import access_pb2, cstp_pb2
from cstp_grpc.platform.config import A2aSettings, AgentSettings, GrpcSettings, ServerSettings, Settings
from tests.grpc_servers import grpc_server
from tests.harness import peering

TIMEOUT = 20.0
TOKEN = "a-test-token"
JSON = "application/json"

Play = Callable[[Any, grpc.ServicerContext], Message]


@dataclass
class Seen:
    """What the server received."""

    method: str
    request: Any
    """The message of its rpc; bytes where they are no message."""
    metadata: Mapping[str, str | bytes]
    time_remaining: float


@dataclass
class Scripted:
    """Serves every unary method of the contract; `plays` says how, by JSON-RPC name.

    What cannot be decoded is refused, after the caller is judged as for `cstp.getAccess`.
    """

    plays: dict[str, Play] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    health: health.HealthServicer = field(default_factory=health.HealthServicer)

    def reset(self) -> None:
        """Answer as at first: everyone is known, guardrails allow, searches find nothing."""
        self.seen.clear()
        self.plays = {
            "cstp.getAccess": lambda request, context: access_pb2.GetAccessResponse(),
            "cstp.checkGuardrails": lambda request, context: cstp_pb2.CheckGuardrailsResponse(
                allowed=True, agent="cstp"
            ),
            "cstp.queryDecisions": lambda request, context: cstp_pb2.QueryDecisionsResponse(query=request.query),
        }

    def handler(self, method: RpcMethod) -> grpc.RpcMethodHandler:
        def behavior(request: Any, context: grpc.ServicerContext) -> Message:
            metadata = dict(context.invocation_metadata())
            self.seen.append(Seen(method.name, request, metadata, context.time_remaining() or 0))
            if isinstance(request, bytes):
                self.plays["cstp.getAccess"](request, context)
                fail(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", "cannot be decoded")(request, context)
            return self.plays[method.name](request, context)

        def decode(content: bytes) -> Message | bytes:
            try:
                return method.request.FromString(content)
            except DecodeError:
                return content

        return grpc.unary_unary_rpc_method_handler(behavior, decode, method.response.SerializeToString)

    def add_to(self, server: grpc.Server) -> None:
        for service in {method.service for method in contract_methods().values()}:
            of_service = {
                m.rpc: self.handler(m) for m in contract_methods().values() if m.service == service and not m.streaming
            }
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, of_service)])
            self.health.set(service, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)


@contextmanager
def serving(scripted: Scripted, port: int = 0, options: Sequence[tuple[str, int]] = ()) -> Iterator[str]:
    """Run the gRPC server for the length of a block and yield its target."""
    alone = [("grpc.so_reuseport", 0), *options]
    with grpc_server(scripted.add_to, threads=32, address=f"127.0.0.1:{port}", options=alone) as listening:
        yield f"127.0.0.1:{listening}"


@contextmanager
def bridging(target: str, settings: ServerSettings, agent: AgentSettings | None = None) -> Iterator[Client]:
    """Run a bridge in a thread of its own for the length of a block and yield a client of it."""
    wanted = Settings(
        server=settings.model_copy(update={"port": 0}),
        agent=agent or AgentSettings(),
        a2a=A2aSettings(grpc_port=0),
        grpc=GrpcSettings(drain_seconds=2),
    )
    with peering(wanted, target) as peers:
        host, _, port = peers.url.removeprefix("http://").rpartition(":")
        yield Client(host, int(port))


@dataclass
class Answer:
    """An HTTP response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """Sends single HTTP requests."""

    host: str
    port: int

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """Post a body, bytes and text as they are and anything else as JSON, with a token and as JSON by default."""
        content = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        given = {"Content-Type": JSON, "Authorization": f"Bearer {TOKEN}"} if headers is None else headers
        return self.request("POST", "/cstp", content, given)


def call(method: str, params: Any = None, **members: Any) -> dict[str, Any]:
    """Return a JSON-RPC call with the id 1."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {} if params is None else params, **members}


def fail(code: grpc.StatusCode, reason: str, message: str = "It failed", /, *details: Message, **metadata: str) -> Play:
    """Return a play that ends the call as the product's server does."""

    def play(request: Any, context: grpc.ServicerContext) -> Message:
        info = error_details_pb2.ErrorInfo(reason=reason, domain="cstp", metadata=metadata)
        status = status_pb2.Status(code=code.value[0], message=message)
        for detail in (info, *details):
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        return context.abort_with_status(rpc_status.to_status(status))

    return play


def bare(code: grpc.StatusCode, text: str = "secret text of a driver") -> Play:
    """Return a play that ends the call with a status alone."""
    return lambda request, context: context.abort(code, text)
