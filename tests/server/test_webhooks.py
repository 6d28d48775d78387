"""Posting notifications to receivers on loopback, and what the settings say of them."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cstp_grpc.client.http_client import is_public
from cstp_grpc.modules.webhooks.delivery import WebhookRequest, parse_webhook_url
from cstp_grpc.modules.webhooks.webhook_client import HttpWebhookClient
from cstp_grpc.platform.config import ConfigError
from cstp_grpc.platform.storage.delivery_queue import DeliveryFailed, DeliveryRejected
from cstp_grpc.server.app import App
from tests.certificates import Authority
from tests.harness import settings
from tests.modules.webhooks.receiver import Receiver, receiving

BODY = b'{"jsonrpc": "2.0", "method": "cstp.lateFeedback", "params": {}}'


def anywhere(address: str) -> bool:
    return True


def client(
    permitted: Callable[[str], bool] = anywhere, tls: ssl.SSLContext | None = None, seconds: float = 10.0
) -> HttpWebhookClient:
    return HttpWebhookClient(lambda _, ip: permitted(ip), lambda: tls or ssl.create_default_context(), seconds)


def at(url: str) -> WebhookRequest:
    address = parse_webhook_url(url)
    assert address is not None
    return WebhookRequest(address, lambda: BODY, {"content-type": "application/json"})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_status_of_success_is_one(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status]
    client().post(at(f"{receiver.url}/hooks/a-b?key=1"))
    (received,) = receiver.received
    assert received.path == "/hooks/a-b?key=1"
    assert received.headers["host"] == receiver.url.removeprefix("http://")
    assert received.headers["content-type"] == "application/json"
    assert received.content["method"] == "cstp.lateFeedback"


def test_nothing_says_who_sends_it(receiver: Receiver) -> None:
    client().post(at(receiver.url))
    names = set(receiver.received[0].headers)
    assert names == {"host", "content-type", "content-length", "accept", "accept-encoding", "connection"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status]
    with pytest.raises(DeliveryFailed, match=f"HTTP {status}"):
        client().post(at(receiver.url))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 422])
def test_what_will_not_pass_is_final(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status]
    with pytest.raises(DeliveryRejected, match=f"HTTP {status}"):
        client().post(at(receiver.url))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status]
    with receiving() as other:
        receiver.headers = {"location": f"{other.url}/hooks"}
        with pytest.raises(DeliveryFailed, match=f"HTTP {status}"):
            client().post(at(receiver.url))
        assert other.received == []
    assert len(receiver.received) == 1


def test_an_address_that_is_not_permitted_is_not_called(receiver: Receiver) -> None:
    with pytest.raises(DeliveryRejected, match=r"is at 127\.0\.0\.1, where nothing is sent"):
        client(is_public).post(at(receiver.url))
    assert receiver.received == []


def test_proxies_of_the_environment_are_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        client().post(at(receiver.url))
        assert proxy.received == []
    assert len(receiver.received) == 1


def test_a_receiver_that_does_not_answer_is_given_up_in_time(receiver: Receiver) -> None:
    receiver.may_answer.clear()
    with pytest.raises(DeliveryFailed, match="no answer within"):
        client(seconds=0.2).post(at(receiver.url))


def test_a_host_that_nobody_answers_at_is_tried_again(free_port: int) -> None:
    with pytest.raises(DeliveryFailed, match="refused"):
        client().post(at(f"http://127.0.0.1:{free_port}"))


@contextmanager
def saying(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server that answers one call with bytes, and yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_what_is_no_http_is_tried_again() -> None:
    with saying(lambda connection: connection.sendall(b"SSH-2.0-x\r\n\r\n")) as url, pytest.raises(DeliveryFailed):
        client().post(at(url))


def test_of_an_answer_only_the_status_is_read() -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")
        with suppress(OSError):
            while True:
                connection.sendall(bytes(65536))

    with saying(endless) as url:
        client().post(at(url))


def test_a_head_without_an_end_is_not_read_for_ever() -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        with suppress(OSError):
            while True:
                connection.sendall(b"x: " + b"y" * 1000 + b"\r\n")

    with saying(endless) as url, pytest.raises(DeliveryFailed):
        client().post(at(url))


def test_receivers_are_known_by_their_certificates(authority: Authority) -> None:
    certificate = authority.certify("DNS:localhost")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate.certificate, certificate.key)
    trusting = ssl.create_default_context(cafile=authority.certificate)
    with receiving(serving) as receiver:
        client(tls=trusting).post(at(f"{receiver.url}/hook"))
        assert len(receiver.received) == 1
        with pytest.raises(DeliveryFailed, match="CERTIFICATE_VERIFY_FAILED"):
            client().post(at(f"{receiver.url}/hook"))
        with pytest.raises(DeliveryFailed, match="CERTIFICATE_VERIFY_FAILED"):
            client(tls=trusting).post(at(receiver.url.replace("localhost", "127.0.0.1")))
        assert len(receiver.received) == 1


@pytest.mark.parametrize(
    "url", ["https://agents.example.com/a/../b", "https://agents.example.com:99999/", "https://agents.example.com/a//b"]
)
def test_a_prefix_that_cannot_be_compared_is_named(tmp_path: Path, url: str) -> None:
    wanted = settings(tmp_path, federation={"callbacks": {"allow": ["https://a.example.com/", url]}})
    with pytest.raises(ConfigError, match=r"federation\.callbacks\.allow\.1: "):
        App(wanted)
