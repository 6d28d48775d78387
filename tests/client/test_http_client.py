"""One HTTP request, bounded in time and in size."""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from cstp_grpc.client.http_client import (
    AddressNotAllowed,
    HttpClient,
    HttpResponse,
    ResponseTooLarge,
    is_public,
)
from cstp_grpc.client.http_exchange import HttpProtocolError
from tests.certificates import Authority
from tests.modules.federation.client.servers import SECONDS, SOON, tcp_server

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Name: \xe9\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LIMIT = 1000


def fetch(url: str, *, body: bytes | None = None, seconds: float = SECONDS, **wanted: object) -> HttpResponse:
    headers = wanted.get("headers", {})
    assert isinstance(headers, dict)
    client = HttpClient(ssl.create_default_context(), max_bytes=LIMIT)
    return client.fetch("GET" if body is None else "POST", urlsplit(url), headers, body, seconds)


def receive_request(connection: socket.socket) -> bytes:
    """Return a request without a body, as it came. Raises ConnectionResetError if none came."""
    received = bytearray()
    while not received.endswith(b"\r\n\r\n"):
        chunk = connection.recv(65536)
        if not chunk:
            raise ConnectionResetError
        received += chunk
    return bytes(received)


@contextmanager
def answering(*parts: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Run a server that answers each request with some bytes, and yield its address and the requests."""
    requests: list[bytes] = []

    def talk(connection: socket.socket, _: threading.Event) -> None:
        requests.append(receive_request(connection))
        for part in parts:
            connection.sendall(part)

    with tcp_server(talk) as address:
        yield address, requests


def test_a_request_has_the_given_headers_and_no_others() -> None:
    with answering(OK) as (address, requests):
        response = fetch(f"http://{address}/a?b=%20", headers={"accept": "text/plain", "x-token": " secret "})
    assert response == HttpResponse(200, {"content-length": "2", "x-name": "é"}, b"ok")
    first, *lines = requests[0].decode().strip().split("\r\n")
    assert first == "GET /a?b=%20 HTTP/1.1"
    assert set(lines) == {f"host: {address}", "accept-encoding: identity", "accept: text/plain", "x-token: secret"}


def test_the_host_header_names_the_host_and_not_its_address() -> None:
    with answering(OK) as (address, requests):
        fetch(f"http://LOCALHOST:{address.partition(':')[2]}")
    assert f"host: localhost:{address.partition(':')[2]}\r\n".encode() in requests[0]


def test_an_ipv6_address_stands_in_brackets() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        port = listener.getsockname()[1]
        requests: list[bytes] = []

        def serve() -> None:
            connection, *_ = listener.accept()
            with connection:
                requests.append(receive_request(connection))
                connection.sendall(OK)

        thread = threading.Thread(target=serve)
        thread.start()
        fetch(f"http://[::1]:{port}/")
        thread.join()
    assert f"host: [::1]:{port}\r\n".encode() in requests[0]


def test_cookies_are_not_kept_and_redirects_not_followed() -> None:
    moved = b"HTTP/1.1 302 Found\r\nlocation: /there\r\nset-cookie: a=1\r\ncontent-length: 0\r\n\r\n"
    client = HttpClient(ssl.create_default_context(), max_bytes=LIMIT)
    with answering(moved) as (address, requests):
        for _ in range(2):
            assert client.fetch("GET", urlsplit(f"http://{address}/here"), {}, None, SECONDS).status == 302
    assert [request.split(b" ")[1] for request in requests] == [b"/here", b"/here"]
    assert b"cookie" not in b"".join(requests)


def test_an_address_that_is_not_permitted_is_not_connected_to() -> None:
    client = HttpClient(ssl.create_default_context(), permitted=is_public)
    with answering(OK) as (address, requests):
        with pytest.raises(AddressNotAllowed, match=r"127\.0\.0\.1"):
            client.post(urlsplit(f"http://{address}"), {}, b"", SECONDS)
        assert requests == []


def test_the_certificate_must_be_for_the_name(authority: Authority) -> None:
    certificate = authority.certify("DNS:localhost")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate.certificate, certificate.key)
    named: list[str | None] = []
    serving.sni_callback = lambda _socket, name, _context: named.append(name)

    def talk(connection: socket.socket, _: threading.Event) -> None:
        with serving.wrap_socket(connection, server_side=True) as encrypted:
            receive_request(encrypted)
            encrypted.sendall(OK)

    client = HttpClient(ssl.create_default_context(cafile=authority.certificate), max_bytes=LIMIT)
    with tcp_server(talk) as address:
        port = address.partition(":")[2]
        assert client.fetch("GET", urlsplit(f"https://localhost:{port}"), {}, None, SECONDS).body == b"ok"
        with pytest.raises(ssl.SSLCertVerificationError):
            client.fetch("GET", urlsplit(f"https://{address}"), {}, None, SECONDS)
    assert named == ["localhost", None]


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\nx-", b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n"]
)
def test_what_trickles_is_given_up_in_time(head: bytes) -> None:
    def talk(connection: socket.socket, stopping: threading.Event) -> None:
        receive_request(connection)
        connection.sendall(head)
        for _ in itertools.takewhile(lambda _: not stopping.wait(0.01), range(300)):
            connection.sendall(b"0" if head else b"")

    began = time.monotonic()
    with tcp_server(talk) as address, pytest.raises(TimeoutError):
        fetch(f"http://{address}", seconds=SOON)
    assert time.monotonic() - began < 2


def test_a_server_that_reads_slowly_is_given_up_in_time() -> None:
    def talk(connection: socket.socket, stopping: threading.Event) -> None:
        while not stopping.wait(0.01) and connection.recv(1000):
            pass

    with tcp_server(talk) as address, pytest.raises(TimeoutError):
        fetch(f"http://{address}", body=bytes(50_000_000), seconds=SOON)


def test_a_handshake_that_does_not_end_is_given_up_in_time() -> None:
    with tcp_server(lambda _, stopping: stopping.wait(SECONDS)) as address, pytest.raises(TimeoutError):
        fetch(f"https://{address}", seconds=SOON)


def test_no_time_is_no_request() -> None:
    with answering(OK) as (address, requests):
        with pytest.raises(TimeoutError):
            fetch(f"http://{address}", seconds=0)
        assert requests == []


@pytest.mark.parametrize(
    "head",
    [b"content-length: %d" % (LIMIT + 1), b"transfer-encoding: chunked", b"connection: close"],
    ids=["length", "chunks", "close"],
)
def test_a_body_beyond_the_limit_is_not_read(head: bytes) -> None:
    chunk = b"%x\r\n%b\r\n" % (LIMIT + 1, b"a" * (LIMIT + 1)) if b"chunked" in head else b"a" * (LIMIT + 1)
    with (
        answering(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n", chunk) as (address, _),
        pytest.raises(ResponseTooLarge, match=f"more than {LIMIT} bytes"),
    ):
        fetch(f"http://{address}")


def test_a_body_at_the_limit_is_read() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n\r\n", b"a" * LIMIT) as (address, _):
        assert len(fetch(f"http://{address}").body) == LIMIT


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000 + b"\r\n",
    ],
    ids=["other protocol", "half a head", "half a body", "endless head"],
)
def test_what_is_no_http_is_an_error(answer: bytes) -> None:
    with answering(answer) as (address, _), pytest.raises((HttpProtocolError, ConnectionResetError)):
        fetch(f"http://{address}")


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.0 200\n\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 2\r\n\r\nok and more", b"ok"),
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\nok", b""),
        (CHUNKED + b"2;x=y\r\nok\r\nA\r\n0123456789\r\n0\r\nx: y\r\n\r\n", b"ok0123456789"),
    ],
    ids=["interim", "old", "folded header", "no body", "chunks"],
)
def test_each_form_of_a_body_is_read(answer: bytes, body: bytes) -> None:
    for parts in ([answer], [answer[i : i + 1] for i in range(len(answer))]):
        with answering(*parts) as (address, _):
            assert fetch(f"http://{address}").body == body


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nokk",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1e1\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nna me: x\r\n\r\n",
        b"HTTP/1.1 200 O\x00K\r\n\r\n",
        CHUNKED + b"x\r\nok\r\n0\r\n\r\n",
        CHUNKED + b"2\r\noks\r\n0\r\n\r\n",
        CHUNKED + b"2\r\nok",
        CHUNKED + b"2\r\nok\r\n0\r\n",
        CHUNKED + b"2;" + b"x" * 5000,
    ],
    ids=range(12),
)
def test_a_response_whose_end_is_unclear_is_an_error(answer: bytes) -> None:
    with answering(answer) as (address, _), pytest.raises(HttpProtocolError):
        fetch(f"http://{address}")


def test_a_server_that_hangs_up_is_not_reachable() -> None:
    with answering() as (address, _), pytest.raises(ConnectionResetError, match="without a response"):
        fetch(f"http://{address}")


@pytest.mark.parametrize(
    ("url", "headers", "kind"),
    [
        ("http://{}/é", {}, HttpProtocolError),
        ("http://{}/a b", {}, HttpProtocolError),
        ("http://{}/", {"x": "a\r\nb: c"}, HttpProtocolError),
        ("http://{}/", {"x": "\u20ac"}, HttpProtocolError),
        ("http://a..b/", {}, OSError),
    ],
)
def test_what_http_cannot_express_is_not_sent(url: str, headers: dict[str, str], kind: type[Exception]) -> None:
    with answering(OK) as (address, requests):
        with pytest.raises(kind):
            fetch(url.format(address), headers=headers)
        assert requests == []


@pytest.mark.parametrize("name", ["http_proxy", "all_proxy", "ALL_PROXY"])
def test_the_environment_names_no_proxy(name: str, monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    monkeypatch.setenv(name, f"http://127.0.0.1:{free_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    with answering(OK) as (address, _):
        assert fetch(f"http://{address}").status == 200
