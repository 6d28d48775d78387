"""The bridge over TLS, in front and behind."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cstp_grpc.client import CstpClient, RetryPolicy
from cstp_grpc.contract.errors import ServerUnreachable, Unavailable
from cstp_grpc.platform.config import ConfigError
from cstp_grpc.server.app import App
from tests.certificates import Authority, Certificate
from tests.harness import TIMEOUT, TOKENS, Peers, peering, running, settings

ALICE = TOKENS["alice"]
ONCE = RetryPolicy(attempts=1)
CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """A server without TLS."""
    with running(settings(tmp_path_factory.mktemp("plain"))) as app:
        yield app


@contextmanager
def secured(folder: Path, app: App, made: Certificate, **server: Any) -> Iterator[Peers]:
    """Run a bridge with a certificate to a plain server."""
    wanted = settings(folder, server={"tls": made.settings, **server})
    with peering(wanted, app.target) as peers:
        yield peers


def get(url: str, roots: bytes) -> Any:
    context = ssl.create_default_context(cadata=roots.decode())
    with urllib.request.urlopen(url, timeout=TIMEOUT, context=context) as answer:
        return json.load(answer)


def shown(url: str) -> str:
    """Return the certificate that a server shows to a new connection, as DER in PEM."""
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return ssl.get_server_certificate((host, int(port)), timeout=TIMEOUT)


def pem(made: Certificate) -> str:
    """Return a certificate as `shown` does."""
    return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(made.certificate.read_text()))


def healthy(target: str, roots: bytes | None) -> bool:
    """Whether a gRPC server says that it is well."""
    credentials = grpc.ssl_channel_credentials(roots)
    with grpc.secure_channel(target, credentials) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def test_json_rpc_is_answered_over_https(tmp_path: Path, app: App, authority: Authority) -> None:
    roots = authority.certificate.read_bytes()
    with (
        secured(tmp_path, app, authority.certify()) as peers,
        CstpClient(peers.url, ALICE, root_certificates=roots) as c,
    ):
        assert peers.url.startswith("https://")
        assert c.check_guardrails("deploy").agent == "cstp"
        assert get(f"{peers.url}/health", roots) == {"status": "ok", "rulebooks": "ok"}


def test_a_bridge_whose_authority_is_unknown_gets_no_call(tmp_path: Path, app: App, authority: Authority) -> None:
    with (
        secured(tmp_path, app, authority.certify()) as peers,
        CstpClient(peers.url, ALICE, retries=ONCE) as client,
        pytest.raises(ServerUnreachable, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.check_guardrails("deploy")


def test_plain_http_is_not_answered(tmp_path: Path, app: App, authority: Authority) -> None:
    with secured(tmp_path, app, authority.certify()) as peers, pytest.raises(OSError, match=r"."):
        urllib.request.urlopen(peers.url.replace("https://", "http://") + "/health", timeout=TIMEOUT)


@pytest.mark.parametrize("path", CARDS)
def test_the_cards_name_secure_addresses(tmp_path: Path, app: App, authority: Authority, path: str) -> None:
    with secured(tmp_path, app, authority.certify()) as peers:
        card = get(f"{peers.url}{path}", authority.certificate.read_bytes())
    text = json.dumps(card)
    assert "https://127.0.0.1" in text
    assert "http://" not in text


def test_a2a_over_grpc_has_the_same_certificate(tmp_path: Path, app: App, authority: Authority) -> None:
    with secured(tmp_path, app, authority.certify()) as peers:
        assert healthy(peers.grpc_target, authority.certificate.read_bytes())
        with pytest.raises(grpc.RpcError) as caught:
            healthy(peers.grpc_target, None)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_renewed_certificate_is_shown_to_new_connections(
    tmp_path: Path, app: App, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = authority.certify(), authority.certify()
    used = old.copied(tmp_path)
    with (
        secured(tmp_path / "bridge", app, used) as peers,
        caplog.at_level(logging.WARNING, "cstp_grpc.platform.certificates"),
    ):
        servers = (peers.url, peers.grpc_target)
        used.key.write_bytes(new.key.read_bytes())
        assert [shown(server) for server in servers * 2] == [pem(old)] * 4
        assert len(caplog.records) == 1
        used.certificate.write_bytes(new.certificate.read_bytes())
        assert [shown(server) for server in servers] == [pem(new)] * 2
        assert get(f"{peers.url}/health", authority.certificate.read_bytes()) == {"status": "ok", "rulebooks": "ok"}


def test_the_server_behind_may_speak_tls(tmp_path: Path, authority: Authority) -> None:
    server = {"grpc_ca_file": str(authority.certificate)}
    wanted = settings(tmp_path, grpc={"tls": authority.certify().settings}, server=server)
    with running(wanted) as app, peering(wanted, app.url) as peers, CstpClient(peers.url, ALICE) as client:
        assert client.check_guardrails("deploy").agent == "cstp"
        with urllib.request.urlopen(f"{peers.url}{CARDS[0]}", timeout=TIMEOUT) as answer:
            params = json.load(answer)["capabilities"]["extensions"][0]["params"]
        assert params["grpcTarget"] == f"grpcs://127.0.0.1:{app.port}"


def test_a_plain_call_to_a_server_that_speaks_tls_fails(tmp_path: Path, authority: Authority) -> None:
    wanted = settings(tmp_path, grpc={"tls": authority.certify().settings})
    with (
        running(wanted) as app,
        peering(wanted, app.target) as peers,
        CstpClient(peers.url, ALICE, retries=ONCE) as client,
        pytest.raises(Unavailable),
    ):
        client.check_guardrails("deploy")


def test_a_server_behind_that_nobody_known_certifies_gets_no_call(tmp_path: Path, authority: Authority) -> None:
    wanted = settings(tmp_path, grpc={"tls": authority.certify().settings})
    with (
        running(wanted) as app,
        peering(wanted, app.url) as peers,
        pytest.raises(urllib.error.HTTPError) as caught,
    ):
        urllib.request.urlopen(f"{peers.url}/health", timeout=TIMEOUT)
    with caught.value as answer:
        assert answer.status == 503
        assert json.load(answer)["status"] == "unavailable"


@pytest.mark.parametrize("target", ["https://127.0.0.1:1", "grpcs://", "grpcs://127.0.0.1:1/path"])
def test_a_target_that_is_none_is_named(tmp_path: Path, target: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.grpc_target"), peering(settings(tmp_path), target):
        pass


def test_authorities_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    wanted = settings(tmp_path, server={"grpc_ca_file": "missing.pem"})
    with (
        pytest.raises(ConfigError, match=r"server\.grpc_ca_file: missing.pem cannot be read"),
        peering(wanted, "grpcs://127.0.0.1:1"),
    ):
        pass


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path, authority: Authority) -> None:
    made = {"certificate": str(authority.certify().certificate), "key": str(authority.certify().key)}
    wanted = settings(tmp_path, server={"tls": made})
    with pytest.raises(ConfigError, match=r"server\.tls\.key: \S+ does not belong"), peering(wanted, "127.0.0.1:1"):
        pass


def silent(url: str) -> socket.socket:
    """Return a connection on which no handshake begins."""
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT)


def test_a_handshake_that_never_begins_closes_its_connection(tmp_path: Path, app: App, authority: Authority) -> None:
    with secured(tmp_path, app, authority.certify(), idle_seconds=0.2) as peers, silent(peers.url) as connection:
        assert connection.recv(1000) == b""


def test_handshakes_that_never_begin_keep_nobody_out(tmp_path: Path, app: App, authority: Authority) -> None:
    roots = authority.certificate.read_bytes()
    with ExitStack() as opened:
        peers = opened.enter_context(secured(tmp_path, app, authority.certify(), max_connections=2))
        first, *_ = [opened.enter_context(silent(peers.url)) for _ in range(4)]
        assert get(f"{peers.url}/health", roots) == {"status": "ok", "rulebooks": "ok"}
        assert first.recv(1000) == b""


def test_browsers_are_told_to_come_back_over_tls_only(app: App, tmp_path: Path, certificate: Certificate) -> None:
    context = ssl.create_default_context(cafile=certificate.certificate)
    context.check_hostname = False
    with secured(tmp_path, app, certificate) as peers:
        for path in ("/health", "/missing"):
            try:
                answer = urllib.request.urlopen(f"{peers.url}{path}", timeout=TIMEOUT, context=context)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"
    wanted = settings(tmp_path)
    with peering(wanted, app.target) as peers, urllib.request.urlopen(f"{peers.url}/health", timeout=TIMEOUT) as plain:
        assert "Strict-Transport-Security" not in plain.headers
