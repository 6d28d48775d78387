"""Asking one peer: whatever it is, there is one result, in time."""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cstp_grpc.contract import errors
from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.contract.errors import CstpError, InvalidArgument
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.modules.federation.peer import Agent, CircuitBreaker, open_peer
from cstp_grpc.modules.federation.peer_transport import PeerCallResult
from cstp_grpc.modules.federation.response_validation import MAX_PEER_RESPONSE_BYTES
from tests.certificates import Certificate
from tests.client.scripted import HttpReply, http_server, scripted_server
from tests.grpc_servers import grpc_server
from tests.harness import TOKENS, bridging, running, settings
from tests.modules.federation.client.links import (
    JOURNEY,
    JSON,
    TRANSPORTS,
    answering,
    assert_not_understood,
    assert_told_plainly,
    waiting,
)
from tests.modules.federation.client.servers import (
    ANSWER,
    RESULT,
    SOON,
    ask,
    http,
    peer_at,
    saying,
    silent_server,
    tcp_server,
)
from tests.named_case import named_case
from tests.waiting import wait_until


@TRANSPORTS
def test_a_peer_answers(scheme: str) -> None:
    with answering(scheme, ANSWER) as (url, server), peer_at(url) as peer:
        for _ in range(3):
            assert ask(peer) == PeerCallResult(PeerStatus.ANSWERED, ANSWER)
        assert len(server.requests) == 3


@TRANSPORTS
def test_a_peer_is_told_who_asks_and_how_far_the_call_has_come(scheme: str) -> None:
    with answering(scheme, ANSWER) as (url, server), peer_at(url, "secret-9") as peer:
        assert ask(peer, metadata=[JOURNEY]).status is PeerStatus.ANSWERED
    told = server.metadata[0] if scheme == "grpc" else server.requests[0][1]
    assert told["authorization"] == "Bearer secret-9"
    assert told[JOURNEY[0]] == JOURNEY[1]


REFUSED = [
    errors.AuthenticationRequired("no"),
    errors.PermissionDenied("no"),
    errors.InvalidArgument("no"),
    errors.Conflict("no"),
    errors.RateLimited("no"),
    errors.NotFound("no"),
    errors.MethodNotFound("no"),
    errors.GuardrailEvalFailed("no"),
]
FAILED = [errors.Unavailable("no"), errors.QueryFailed("no"), errors.InternalError("no")]


@TRANSPORTS
@pytest.mark.parametrize(
    ("error", "status"),
    [(error, PeerStatus.REFUSED) for error in REFUSED] + [(error, PeerStatus.UNREACHABLE) for error in FAILED],
    ids=lambda value: getattr(value, "reason", value),
)
def test_a_peer_that_answers_an_error_says_why(scheme: str, error: CstpError, status: PeerStatus) -> None:
    with answering(scheme, error) as (url, server), peer_at(url) as peer:
        result = ask(peer)
        assert (result.status, result.answer) == (status, None)
        assert type(result.error) is type(error)
        assert result.error.message == "no"
        assert len(server.requests) == 1, "nothing is repeated"


@TRANSPORTS
def test_a_peer_that_had_not_enough_time_timed_out(scheme: str) -> None:
    with answering(scheme, errors.DeadlineExceeded("no")) as (url, _), peer_at(url) as peer:
        assert ask(peer).status is PeerStatus.TIMED_OUT


@TRANSPORTS
def test_the_words_of_a_peer_are_made_fit_to_be_told_on(scheme: str) -> None:
    hostile = errors.Conflict("\x1b[31mred\r\nSet-Cookie: a\u202e " + "x" * 5000)
    with answering(scheme, hostile) as (url, _), peer_at(url) as peer:
        result = ask(peer)
    assert isinstance(result.error, errors.Conflict)
    assert result.error.message.isprintable()
    assert len(result.error.message) <= 500


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, PeerStatus.REFUSED),
        (grpc.StatusCode.UNIMPLEMENTED, PeerStatus.REFUSED),
        (grpc.StatusCode.UNAVAILABLE, PeerStatus.UNREACHABLE),
        (grpc.StatusCode.UNKNOWN, PeerStatus.UNREACHABLE),
        (grpc.StatusCode.CANCELLED, PeerStatus.UNREACHABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, PeerStatus.TIMED_OUT),
    ],
)
def test_a_status_without_a_reason_is_understood_as_far_as_it_goes(code: grpc.StatusCode, status: PeerStatus) -> None:
    with scripted_server(code) as server, peer_at(server.target) as peer:
        result = ask(peer)
    assert result.status is status
    assert "in a few words" not in str(result.error)


def test_http_without_json_rpc_is_understood_as_far_as_it_goes() -> None:
    for http_status, status in [
        (401, PeerStatus.REFUSED),
        (403, PeerStatus.REFUSED),
        (429, PeerStatus.REFUSED),
        (404, PeerStatus.NOT_UNDERSTOOD),
        (302, PeerStatus.NOT_UNDERSTOOD),
        (200, PeerStatus.NOT_UNDERSTOOD),
        (500, PeerStatus.UNREACHABLE),
        (503, PeerStatus.UNREACHABLE),
    ]:
        with named_case(http_status, status):
            page = http(
                b"<html>", "content-type: text/html\r\nlocation: http://127.0.0.1:1/\r\n", f"{http_status} Words"
            )
            with tcp_server(saying(page)) as address, peer_at(f"http://{address}") as peer:
                result = ask(peer)
            assert result.status is status
            assert "html" not in str(result.error)


def result_of(content: Any) -> bytes:
    return http(json.dumps({"jsonrpc": "2.0", "id": 1} | content).encode())


GOOD = {"result": RESULT}
NO_ANSWERS = {
    "garbage": b"hello, this is no HTTP\r\n" * 20,
    "zeros": bytes(4096),
    "nothing but a status": b"HTTP/1.1 \r\n\r\n",
    "another version": b"HTTP/9.9 200 OK\r\n\r\n",
    "no JSON": http(b"{"),
    "no object": http(b"[1]"),
    "no JSON-RPC": http(b"{}"),
    "deeply nested": http(b"[" * 200_000),
    "another call's": result_of({"id": 2, **GOOD}),
    "no result": result_of({}),
    "a result that is no object": result_of({"result": 7}),
    "an error that is no object": result_of({"error": "no"}),
    "a field of another type": result_of({"result": {"total": "many"}}),
    "a number too large": result_of({"result": {"total": 10**40}}),
    "another content type": http(
        json.dumps({"jsonrpc": "2.0", "id": 1, **GOOD}).encode(), "content-type: text/plain\r\n"
    ),
    "compressed": http(b"\x1f\x8b\x08", "content-type: application/json\r\ncontent-encoding: gzip\r\n"),
    "truncated": result_of(GOOD)[:-5],
    "a broken chunk": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "too large": http(b'"' + b"x" * MAX_PEER_RESPONSE_BYTES + b'"'),
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
    "a header without an end": b"HTTP/1.1 200 OK\r\na: " + b"b" * 100_000,
}


def test_http_that_is_no_answer_is_not_understood() -> None:
    for name, content in NO_ANSWERS.items():
        with named_case(name), tcp_server(saying(content)) as address, peer_at(f"http://{address}") as peer:
            assert_not_understood(ask(peer))


@pytest.mark.parametrize(
    "content", [b"hello, this is no HTTP\r\n" * 20, http(b"", status="400 Bad Request"), bytes(range(256))]
)
def test_bytes_that_are_no_http_2_are_not_understood(content: bytes) -> None:
    with tcp_server(saying(content)) as address, peer_at(f"grpc://{address}") as peer:
        assert_not_understood(ask(peer))


@contextmanager
def bytes_server(content: bytes) -> Iterator[str]:
    """Run a gRPC server that answers every call with the same bytes."""

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: content)

    with grpc_server(lambda server: server.add_generic_rpc_handlers((Handlers(),))) as port:
        yield f"grpc://127.0.0.1:{port}"


@pytest.mark.parametrize("content", [b"\xff\xff\xff", b"\x0a\x03abc", bytes(MAX_PEER_RESPONSE_BYTES + 1)])
def test_grpc_that_is_no_answer_is_not_understood(content: bytes) -> None:
    with bytes_server(content) as url, peer_at(url) as peer:
        assert_not_understood(ask(peer))


@TRANSPORTS
def test_a_peer_that_hangs_up_is_unreachable(scheme: str) -> None:
    def hang_up(connection: socket.socket, stopping: threading.Event) -> None:
        connection.recv(65536)

    with tcp_server(hang_up) as address, peer_at(f"{scheme}://{address}") as peer:
        result = ask(peer)
    assert result.status is PeerStatus.UNREACHABLE
    assert_told_plainly(result)


@TRANSPORTS
def test_where_nobody_listens_nobody_is_reached(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with peer_at(f"{scheme}://{address}") as peer:
        for _ in range(3):
            result = ask(peer)
            assert result.status is PeerStatus.UNREACHABLE
            assert_told_plainly(result)


def test_a_host_that_there_can_be_none_of_is_unreachable() -> None:
    with peer_at("http://a..b:1") as peer:
        assert ask(peer).status is PeerStatus.UNREACHABLE


@pytest.mark.parametrize("scheme", ["grpc", "grpcs", "http", "https"])
def test_a_machine_that_accepts_and_never_answers_times_out(scheme: str) -> None:
    with silent_server() as address, peer_at(f"{scheme}://{address}") as peer:
        assert ask(peer, SOON) == PeerCallResult(PeerStatus.TIMED_OUT)


@TRANSPORTS
def test_a_call_that_stays_unanswered_times_out(scheme: str) -> None:
    with waiting(scheme) as (url, _), peer_at(url) as peer:
        assert ask(peer, SOON) == PeerCallResult(PeerStatus.TIMED_OUT)


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\n", http(b"x" * 10_000)[:100]])
def test_an_answer_that_trickles_without_an_end_takes_no_longer_and_no_place(first: bytes) -> None:
    def trickle(connection: socket.socket, stopping: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(first)
        for _ in itertools.takewhile(lambda _: not stopping.wait(0.01), itertools.count()):
            connection.sendall(b"a")

    with tcp_server(trickle) as address, peer_at(f"http://{address}", max_calls=1) as peer:
        assert ask(peer, SOON) == PeerCallResult(PeerStatus.TIMED_OUT)
        wait_until(lambda: ask(peer, SOON) == PeerCallResult(PeerStatus.TIMED_OUT), "its place is free again")


@TRANSPORTS
def test_no_time_at_all_is_not_enough(scheme: str) -> None:
    with answering(scheme, ANSWER) as (url, server), peer_at(url) as peer:
        assert ask(peer, 0).status is PeerStatus.TIMED_OUT
        assert ask(peer, -1).status is PeerStatus.TIMED_OUT
        assert not server.requests


def test_a_peer_speaks_for_its_categories() -> None:
    with peer_at("localhost:1", categories=["deploy"]) as deploys, peer_at("localhost:1") as generalist:
        assert deploys.speaks_for("deploy")
        assert not deploys.speaks_for("refactor")
        assert generalist.speaks_for("refactor")


def test_what_cannot_be_used_is_refused_at_once() -> None:
    for url, token, roots, field in [
        ("ftp://host:1", None, None, "target"),
        ("grpc://host", None, None, "target"),
        ("http://user:secret@host", None, None, "target"),
        ("https://user:secret@host/card.json", None, None, "target"),
        ("https://host:99999/card.json", None, None, "target"),
        ("grpc://host:1", "a b", None, "token"),
        ("https://host", "é", None, "token"),
        ("https://host/card.json", "é", None, "token"),
        ("grpcs://host:1", None, b"no PEM", "root_certificates"),
        ("https://host", None, b"\xff", "root_certificates"),
        ("https://host/card.json", None, b"no PEM", "root_certificates"),
    ]:
        with named_case(url, token, roots):
            with pytest.raises(InvalidArgument) as refused:
                open_peer(Agent("peer", url, token, root_certificates=roots), CircuitBreaker(1, 1.0))
            assert [violation.field for violation in refused.value.violations] == [field]
            assert "secret" not in refused.value.message


@pytest.fixture(params=["grpcs", "https"])
def secure_url(request: pytest.FixtureRequest, certificate: Certificate) -> Iterator[str]:
    """A peer with TLS, over either transport."""
    if request.param == "grpcs":
        pair = [(certificate.key.read_bytes(), certificate.certificate.read_bytes())]
        with scripted_server(ANSWER, tls=pair) as server:
            yield f"grpcs://localhost:{server.port}"
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    reply = HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": RESULT}, headers=JSON)
    with http_server(reply, context) as http_peer:
        yield f"https://localhost:{http_peer.port}"


def test_a_peer_that_is_certified_by_the_given_authority_answers(secure_url: str, certificate: Certificate) -> None:
    with peer_at(secure_url, root_certificates=certificate.authority) as peer:
        assert ask(peer) == PeerCallResult(PeerStatus.ANSWERED, ANSWER)


def test_a_peer_that_nobody_known_certifies_is_not_asked(secure_url: str) -> None:
    with peer_at(secure_url) as peer:
        result = ask(peer)
    assert result.status is PeerStatus.UNREACHABLE
    assert_told_plainly(result)


def test_a_real_server_answers_by_grpc_by_its_bridge_and_by_its_cards(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    cards = [".well-known/agent-card.json", ".well-known/agent.json"]
    with running(wanted) as app, bridging(wanted, app.target) as url:
        for address in (app.target, url, *(f"{url}/{card}" for card in cards)):
            with peer_at(address, TOKENS["alice"]) as peer:
                result = ask(peer, metadata=[JOURNEY])
                assert result.status is PeerStatus.ANSWERED, address
                assert isinstance(result.answer, cstp_pb2.QueryDecisionsResponse)
            with peer_at(address, "wrong-token") as peer:
                result = ask(peer)
                assert result.status is PeerStatus.REFUSED, address
                assert isinstance(result.error, errors.AuthenticationRequired)
