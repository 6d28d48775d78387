"""Servers that answer as a test tells them, and record what they are asked."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from cstp_grpc.contract.errors import CstpError
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.server.interceptors.error_status import to_status
from tests.grpc_servers import grpc_server
from tests.http_servers import HttpHandler, serving_http

Answer = Message | CstpError | grpc.StatusCode


@dataclass
class ScriptedServer:
    """A gRPC server that gives the next answer of its script to each call; the last one is given for ever."""

    script: list[Answer]
    requests: list[Any] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    port: int = 0
    before: Callable[[Any, grpc.ServicerContext], object] | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, request: Any, context: grpc.ServicerContext) -> Message:
        if self.before:
            self.before(request, context)
        self.metadata.append(dict(context.invocation_metadata()))
        self.requests.append(request)
        given = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(given, CstpError):
            context.abort_with_status(to_status(given, "req-1"))
        if isinstance(given, grpc.StatusCode):
            context.abort(given, "in a few words")
        assert isinstance(given, Message)
        return given


@contextmanager
def scripted_server(
    *script: Answer,
    tls: Sequence[tuple[bytes, bytes]] = (),
    before: Callable[[Any, grpc.ServicerContext], object] | None = None,
) -> Iterator[ScriptedServer]:
    """Run a ScriptedServer for the length of a block; `tls` is its key and certificate, `before` sees every call."""
    state = ScriptedServer(list(script), before=before)

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            method = next((m for m in contract_methods().values() if m.path == details.method), None)
            if method is None:
                return None
            codec = (method.request.FromString, method.response.SerializeToString)
            if method.client_streaming:
                return grpc.stream_unary_rpc_method_handler(lambda r, c: state.answer(list(r), c), *codec)
            return grpc.unary_unary_rpc_method_handler(state.answer, *codec)

    address = "localhost:0" if tls else "127.0.0.1:0"
    with grpc_server(
        lambda server: server.add_generic_rpc_handlers((Handlers(),)), address=address, tls=tls
    ) as state.port:
        yield state


@dataclass
class HttpReply:
    """What the HTTP server answers; a callable body is given the parsed request."""

    body: bytes | Callable[[dict[str, Any]], Any]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class HttpServer:
    """An HTTP server that gives one reply to every request."""

    reply: HttpReply
    port: int = 0
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def http_server(reply: HttpReply, tls: ssl.SSLContext | None = None) -> Iterator[HttpServer]:
    """Run an HttpServer for the length of a block."""
    state = HttpServer(reply)

    class Handler(HttpHandler):
        def answer_post(self) -> None:
            sent = self.received_json()
            state.requests.append((self.path, self.received_headers(), sent))
            body = state.reply.body
            self.answer(state.reply.status, state.reply.headers, body if isinstance(body, bytes) else body(sent))

    with serving_http(Handler, tls) as url:
        state.port = int(url.rpartition(":")[2])
        yield state
