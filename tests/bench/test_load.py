"""The load generator: what it sends is answered, what fails is noticed, and everything that was asked for is sent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import grpc
import pytest

from tests.bench.clients import GrpcMethod, HttpMethod, Method, calling
from tests.bench.connections import Refused
from tests.bench.load import BLOCKS, Series, measure

METADATA = (("authorization", "Bearer some-token"),)


def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
    """Return the request; refuse calls without the token, and those that say so."""
    if request == b"refuse" or METADATA[0] not in context.invocation_metadata():
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
    return request


@pytest.fixture
def grpc_port() -> Iterator[int]:
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer)
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Call": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield port
        server.stop(0).wait()


class QuietServer(ThreadingHTTPServer):
    """Expects clients to come all at once and to leave in the middle of a call."""

    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Answering(BaseHTTPRequestHandler):
    """Answers with what was sent, on a connection that stays open."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """Head and body go out together: apart, the second would wait until the first is acknowledged."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def http_port() -> Iterator[int]:
    with QuietServer(("127.0.0.1", 0), Answering) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(params=["grpc", "http"])
def method(request: pytest.FixtureRequest) -> Method:
    if request.param == "grpc":
        return GrpcMethod(request.getfixturevalue("grpc_port"), "/test.Echo/Call", METADATA, lambda: b"x" * 300)
    return HttpMethod(request.getfixturevalue("http_port"), "/", lambda: b"x" * 300)


@pytest.mark.parametrize("in_flight", [1, 16])
def test_every_request_is_answered(method: Method, in_flight: int) -> None:
    with calling(method, in_flight) as caller:
        # Twice what the server's first flow-control window holds.
        finished = caller.run(caller.prepare(600))
    assert len(finished.latencies) == 600
    assert 0 < min(finished.latencies) <= finished.seconds


@pytest.mark.parametrize("in_flight", [1, 16])
def test_fewer_requests_than_may_be_in_flight_are_answered(method: Method, in_flight: int) -> None:
    with calling(method, in_flight) as caller:
        assert len(caller.run(caller.prepare(3)).latencies) == 3


@pytest.mark.parametrize("in_flight", [1, 16])
def test_a_refused_call_ends_the_measurement(grpc_port: int, in_flight: int) -> None:
    method = GrpcMethod(grpc_port, "/test.Echo/Call", METADATA, lambda: b"refuse")
    with calling(method, in_flight) as caller, pytest.raises((Refused, grpc.RpcError)):
        caller.run(caller.prepare(20))


@pytest.mark.parametrize("in_flight", [1, 16])
def test_an_error_of_json_rpc_ends_the_measurement(http_port: int, in_flight: int) -> None:
    method = HttpMethod(http_port, "/", lambda: b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000}}')
    with calling(method, in_flight) as caller, pytest.raises(Refused, match="32000"):
        caller.run(caller.prepare(20))


def test_each_round_is_a_sample(method: Method) -> None:
    with ExitStack() as opened:
        series = [Series(f"{n} in flight", n, opened.enter_context(calling(method, n))) for n in (1, 4)]
        measure(series, 2, BLOCKS, lambda _: None)
    for each in series:
        row = each.row("test")
        assert [len(values) for values in (row.p50_ms, row.p99_ms, row.calls_per_second)] == [2, 2, 2]
        assert row.server_cpu_us is None, "no process was named"
