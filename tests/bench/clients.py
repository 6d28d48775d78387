"""The measured calls: their requests, and the callers that make them over gRPC and over the bridge.

One call at a time is made by the ordinary clients of Python, grpcio and http.client: their part in a latency is that of
any caller, and the no-op has it too. Many at a time are made over the connections of `connections.py`, since two cores
are not enough for a server and an ordinary client that keeps it busy.
"""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from a2a.types import a2a_pb2
from google.protobuf import json_format

from cstp_grpc.contract.json_codec import from_json
from cstp_grpc.contract.methods import contract_methods
from tests.bench import corpus
from tests.bench.connections import Connection, GrpcConnection, HttpConnection, Refused
from tests.bench.load import Caller, InFlight, Numbers, OneByOne

NOOP = "/bench.Noop/Call"
A2A = "/lf.a2a.v1.A2AService/SendMessage"
TOKEN = "bench-token-bench-token"
OTHER_TOKEN = "other-token-other-token"
"""The token of a second agent."""

CHECK = {
    "action": {
        "description": "Deploy authentication service to production",
        "category": "architecture",
        "stakes": "high",
        "confidence": 0.85,
        "context": {"affectsProduction": True, "codeReviewCompleted": True, "hasTests": True, "ciPassing": True},
    }
}
QUERY = "move the user database to a managed service"

Params = Callable[[], Mapping[str, Any]]


class Parameters:
    """Yields the params of each call; uncached texts, new searches and correlation ids never come twice."""

    def __init__(self) -> None:
        self._number = Numbers()
        self._questions = corpus.questions()
        self._run = uuid.uuid4().hex

    def check(self) -> dict[str, Any]:
        return CHECK

    def query_cached(self) -> dict[str, Any]:
        return {"query": QUERY}

    def query_new(self) -> dict[str, Any]:
        """Return a query for the same text that no results are kept for, since its least score is another one."""
        return {"query": QUERY, "minScore": 0.15 + self._number() * 1e-9}

    def query_uncached(self) -> dict[str, Any]:
        return {"query": next(self._questions)}

    def announce(self) -> dict[str, Any]:
        return {"intent": QUERY, "correlationId": f"bench-{self._run}-{self._number()}", "stakes": "high"}

    def announce_new(self) -> dict[str, Any]:
        """Return an announcement of the same text that no results are kept for, since its category is another one."""
        return {**self.announce(), "category": f"bench-{self._number()}"}

    def announce_uncached(self) -> dict[str, Any]:
        return {**self.announce(), "intent": next(self._questions)}

    def message(self) -> dict[str, Any]:
        """Return an A2A message that announces the same."""
        # A message that is sent again is answered from its task.
        message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": QUERY}]}
        return {"message": {**message, "metadata": {"urn:cstp:extension:v1": {"stakes": "high"}}}}


@dataclass(frozen=True)
class GrpcMethod:
    """A method of a gRPC server on this machine."""

    port: int
    path: str
    metadata: tuple[tuple[str, str], ...]
    request: Callable[[], bytes]


def noop_method(port: int) -> GrpcMethod:
    """Return the method that does nothing."""
    return GrpcMethod(port, NOOP, (), lambda: b"")


def cstp_method(port: int, method: str, params: Params, token: str = TOKEN) -> GrpcMethod:
    """Return a method of the contract, by its JSON-RPC name and params."""
    rpc = contract_methods()[method]
    metadata = (("authorization", f"Bearer {token}"),)
    return GrpcMethod(port, rpc.path, metadata, lambda: from_json(params(), rpc.request).SerializeToString())


def a2a_method(port: int, params: Params) -> GrpcMethod:
    """Return SendMessage of the bridge's gRPC port."""

    def request() -> bytes:
        message: bytes = json_format.ParseDict(dict(params()), a2a_pb2.SendMessageRequest()).SerializeToString()
        return message

    return GrpcMethod(port, A2A, (("authorization", f"Bearer {TOKEN}"), ("a2a-version", "1.0")), request)


@dataclass(frozen=True)
class HttpMethod:
    """A JSON-RPC method of a bridge on this machine."""

    port: int
    path: str
    request: Callable[[], bytes]
    headers: Sequence[tuple[str, str]] = (
        ("Content-Type", "application/json"),
        ("Authorization", f"Bearer {TOKEN}"),
        ("A2A-Version", "1.0"),
    )


def jsonrpc_method(port: int, method: str, params: Params, path: str = "/cstp") -> HttpMethod:
    """Return a method by its name."""

    def request() -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params()}).encode()

    return HttpMethod(port, path, request)


Method = GrpcMethod | HttpMethod


@contextmanager
def calling(method: Method, in_flight: int) -> Iterator[Caller]:
    """Yield a caller of a method: an ordinary client for one call at a time, else one that costs little."""
    with ExitStack() as opened:
        if in_flight == 1:
            connect = one_by_one_grpc if isinstance(method, GrpcMethod) else one_by_one_http
            yield connect(opened, method)  # type: ignore[arg-type]
        else:
            yield InFlight(method.request, *connections(opened, method, in_flight))


def one_by_one_grpc(opened: ExitStack, method: GrpcMethod) -> OneByOne:
    """Return a caller with a channel of its own."""
    channel = opened.enter_context(grpc.insecure_channel(f"127.0.0.1:{method.port}"))
    invoke: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method.path)
    return OneByOne(method.request, lambda request: invoke(request, metadata=method.metadata, timeout=60))


def one_by_one_http(opened: ExitStack, method: HttpMethod) -> OneByOne:
    """Return a caller with a connection of its own, which stays open."""
    connection = http.client.HTTPConnection("127.0.0.1", method.port, timeout=60)
    opened.callback(connection.close)
    headers = dict(method.headers)

    def send(body: bytes) -> object:
        connection.request("POST", method.path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200 or b'"error":' in answer:
            raise Refused(f"{method.path}: {answer.decode()}")
        return answer

    return OneByOne(method.request, send)


def connections(opened: ExitStack, method: Method, in_flight: int) -> tuple[Sequence[Connection], int]:
    """Return connections for so many calls in flight, and how many each of them carries."""
    if isinstance(method, HttpMethod):
        made: list[Connection] = [HttpConnection(method.port, method.path, method.headers) for _ in range(in_flight)]
    else:
        made = [GrpcConnection(method.port, method.path, (*method.metadata, ("grpc-timeout", "60S")))]
    for connection in made:
        opened.callback(connection.close)
    return made, in_flight // len(made)


@contextmanager
def dialled(port: int) -> Iterator[grpc.Channel]:
    """Yield a channel to a port of this machine, once it answers."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(30)
        yield channel


def call_once(port: int, method: str, **params: Any) -> None:
    """Make one call that is not measured."""
    wanted = cstp_method(port, method, lambda: params)
    with dialled(port) as channel:
        invoke: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(wanted.path)
        invoke(wanted.request(), metadata=wanted.metadata, timeout=60)
