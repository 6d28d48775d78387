"""The measured calls, over gRPC and over the bridge."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from a2a.types import a2a_pb2, a2a_pb2_grpc
from google.protobuf import json_format

from cstp_grpc.client.codec import from_json
from cstp_grpc.client.contract import methods
from tests.bench import corpus
from tests.bench.load import Call

NOOP = "/bench.Noop/Call"
TOKEN = "bench-token-bench-token"

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


class Numbers:
    """Counts over threads."""

    def __init__(self) -> None:
        self._count = itertools.count()
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            return next(self._count)


class Parameters:
    """Yields the params of each call; uncached texts never come twice."""

    def __init__(self) -> None:
        self._numbers = Numbers()
        self._questions = corpus.questions()
        self._lock = threading.Lock()

    def check(self) -> dict[str, Any]:
        return CHECK

    def query_cached(self) -> dict[str, Any]:
        return {"query": QUERY}

    def query_uncached(self) -> dict[str, Any]:
        with self._lock:
            return {"query": next(self._questions)}

    def announce(self) -> dict[str, Any]:
        return {"intent": QUERY, "correlationId": f"bench-{id(self)}-{self._numbers.next()}", "stakes": "high"}


Params = Callable[[], Mapping[str, Any]]


def grpc_call(channel: grpc.Channel, method: str, params: Params) -> Callable[[], Call]:
    """Return a maker of calls over one gRPC channel."""
    rpc = methods()[method]
    invoke = channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
    metadata = (("authorization", f"Bearer {TOKEN}"),)

    def make() -> Call:
        return Call(
            lambda: from_json(params(), rpc.request), lambda request: invoke(request, metadata=metadata, timeout=60)
        )

    return make


def noop_call(channel: grpc.Channel) -> Callable[[], Call]:
    """Return a maker of calls that do nothing."""
    invoke = channel.unary_unary(NOOP)
    return lambda: Call(lambda: b"", lambda request: invoke(request, timeout=60))


def http_call(port: int, method: str, params: Params, path: str = "/cstp") -> Callable[[], Call]:
    """Return a maker of JSON-RPC calls, each with a connection of its own that stays open."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}", "A2A-Version": "1.0"}

    def make() -> Call:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

        def send(body: str) -> object:
            connection.request("POST", path, body, headers)
            answer = json.loads(connection.getresponse().read())
            if "error" in answer:
                raise RuntimeError(answer["error"])
            return answer["result"]

        return Call(lambda: json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params()}), send)

    return make


def a2a_message() -> dict[str, Any]:
    """Return the params of an A2A message that announces the intent of the other measurements."""
    # A message that is sent again is answered from its task.
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": QUERY}]}
    return {"message": {**message, "metadata": {"urn:cstp:extension:v1": {"stakes": "high"}}}}


def a2a_grpc_call(channel: grpc.Channel) -> Callable[[], Call]:
    """Return a maker of A2A messages over one gRPC channel."""
    send = a2a_pb2_grpc.A2AServiceStub(channel).SendMessage
    metadata = (("authorization", f"Bearer {TOKEN}"), ("a2a-version", "1.0"))

    def make() -> Call:
        return Call(
            lambda: json_format.ParseDict(a2a_message(), a2a_pb2.SendMessageRequest()),
            lambda request: send(request, metadata=metadata, timeout=60),
        )

    return make
