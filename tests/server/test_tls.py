"""Servers that show who they are, and go on doing so when their certificates are renewed."""

from __future__ import annotations

import logging
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cstp_grpc.client import CstpClient, RetryPolicy
from cstp_grpc.contract.errors import CannotListen, ServerUnreachable
from cstp_grpc.platform.config import ConfigError
from cstp_grpc.server.app import App
from tests.certificates import Authority, Certificate
from tests.harness import TIMEOUT, TOKENS, running, settings

ONCE = RetryPolicy(attempts=1)
ALICE = TOKENS["alice"]


def client(target: str, roots: bytes | None = None) -> CstpClient:
    return CstpClient(target, ALICE, root_certificates=roots, retries=ONCE, timeout=TIMEOUT)


def shown(port: int) -> bytes:
    """Return the certificate that a server shows to a new connection, in PEM."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=TIMEOUT).encode()


def first(certificate: Certificate) -> bytes:
    """Return a certificate as `shown` does."""
    text = certificate.certificate.read_text()
    return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(text)).encode()


def test_callers_who_trust_the_authority_are_answered(tmp_path: Path, authority: Authority) -> None:
    wanted = settings(tmp_path, grpc={"tls": authority.certify().settings})
    with running(wanted) as app:
        assert app.url == f"grpcs://127.0.0.1:{app.port}"
        for host in ("127.0.0.1", "localhost"):
            with client(f"grpcs://{host}:{app.port}", authority.certificate.read_bytes()) as calls:
                assert calls.check_guardrails("deploy").agent == "cstp"


def test_the_certificate_itself_can_be_trusted_whoever_certified_it(tmp_path: Path, authority: Authority) -> None:
    made = authority.certify()
    with running(settings(tmp_path, grpc={"tls": made.settings})) as app, client(app.url, made.authority) as calls:
        assert calls.check_guardrails("deploy").agent == "cstp"


def test_callers_who_do_not_trust_it_send_nothing(
    tmp_path: Path, authority: Authority, certificate: Certificate
) -> None:
    with running(settings(tmp_path, grpc={"tls": authority.certify().settings})) as app:
        for roots in (None, certificate.authority):
            with (
                client(app.url, roots) as calls,
                pytest.raises(ServerUnreachable, match="the TLS handshake failed, CERTIFICATE_VERIFY_FAILED"),
            ):
                calls.check_guardrails("deploy")


def test_a_certificate_for_another_name_is_not_enough(tmp_path: Path, authority: Authority) -> None:
    made = authority.certify("DNS:cstp.example.com")
    with (
        running(settings(tmp_path, grpc={"tls": made.settings})) as app,
        client(app.url, authority.certificate.read_bytes()) as calls,
        pytest.raises(ServerUnreachable, match="Hostname Verification"),
    ):
        calls.check_guardrails("deploy")


def test_nothing_is_answered_in_plain_text(tmp_path: Path, authority: Authority) -> None:
    with (
        running(settings(tmp_path, grpc={"tls": authority.certify().settings})) as app,
        client(f"grpc://{app.target}") as calls,
        pytest.raises(ServerUnreachable, match="Socket closed"),
    ):
        calls.check_guardrails("deploy")
    assert app.private_target == app.target


def test_its_own_process_may_call_it_in_plain_text_on_loopback(tmp_path: Path, authority: Authority) -> None:
    made = authority.certify("DNS:cstp.example.com")
    app = App(settings(tmp_path, grpc={"host": "0.0.0.0", "tls": made.settings}))
    try:
        app.start(private=True)
        assert app.private_target.startswith("127.0.0.1:")
        assert app.private_target != app.target
        with client(app.private_target) as calls:
            assert calls.check_guardrails("deploy").agent == "cstp"
    finally:
        app.stop()


def test_a_plain_server_has_no_second_port(tmp_path: Path) -> None:
    app = App(settings(tmp_path))
    try:
        app.start(private=True)
        assert app.private_target == app.target
        assert app.url == f"grpc://{app.target}"
    finally:
        app.stop()


def test_a_renewed_certificate_is_shown_to_new_connections(tmp_path: Path, authority: Authority) -> None:
    old, new = authority.certify(), authority.certify()
    used = old.copied(tmp_path)
    roots = authority.certificate.read_bytes()
    with running(settings(tmp_path / "data", grpc={"tls": used.settings})) as app, client(app.url, roots) as before:
        assert before.check_guardrails("deploy").agent == "cstp"
        assert shown(app.port) == first(old)
        new.copied(tmp_path)
        assert [shown(app.port) for _ in range(2)] == [first(new)] * 2
        assert before.check_guardrails("deploy").agent == "cstp"
        with client(app.url, roots) as after:
            assert after.check_guardrails("deploy").agent == "cstp"


def test_a_renewal_that_cannot_be_used_leaves_the_old_certificate_and_is_told_once(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = authority.certify(), authority.certify()
    used = old.copied(tmp_path)
    with running(settings(tmp_path / "data", grpc={"tls": used.settings})) as app:
        with caplog.at_level(logging.WARNING, "cstp_grpc.platform.certificates"):
            used.certificate.write_bytes(new.certificate.read_bytes())
            assert [shown(app.port) for _ in range(3)] == [first(old)] * 3
            assert [record.getMessage() for record in caplog.records] == [
                f"grpc.tls.key: {used.key} does not belong to the certificate; the certificate before stays in force"
            ]
            used.key.unlink()
            assert [shown(app.port) for _ in range(2)] == [first(old)] * 2
            assert len(caplog.records) == 2
        used.key.write_bytes(new.key.read_bytes())
        assert shown(app.port) == first(new)


def encrypt(made: Certificate) -> None:
    command = ["openssl", "ec", "-in", str(made.key), "-aes128", "-passout", "pass:secret", "-out", f"{made.key}.new"]
    subprocess.run(command, check=True, capture_output=True)
    Path(f"{made.key}.new").replace(made.key)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda made: made.certificate.unlink(), r"certificate: \S+certificate.pem cannot be read: No such file"),
        (lambda made: made.key.unlink(), r"key: \S+key.pem cannot be read: No such file"),
        (lambda made: made.certificate.write_text("no PEM"), r"certificate: \S+ contains no certificate in PEM"),
        (lambda made: made.key.write_text("no PEM"), r"key: \S+ contains no private key in PEM"),
        (encrypt, r"key: \S+ contains no private key in PEM without a password"),
    ],
    ids=["no certificate file", "no key file", "no certificate", "no key", "encrypted key"],
)
def test_what_cannot_be_used_stops_the_start_by_name_before_anything_is_written(
    tmp_path: Path, authority: Authority, spoil: Callable[[Certificate], object], problem: str
) -> None:
    made = authority.certify().copied(tmp_path)
    spoil(made)
    with pytest.raises(ConfigError, match=rf"^grpc\.tls\.{problem}"):
        App(settings(tmp_path / "data", grpc={"tls": made.settings}))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("kind", ["the same", "another"])
def test_a_key_of_another_certificate_stops_the_start(
    tmp_path: Path, authority: Authority, certificate: Certificate, kind: str
) -> None:
    made = authority.certify()
    other = authority.certify() if kind == "the same" else certificate
    mixed = {"certificate": str(made.certificate), "key": str(other.key)}
    with pytest.raises(ConfigError, match=r"^grpc\.tls\.key: \S+ does not belong to the certificate$"):
        App(settings(tmp_path / "data", grpc={"tls": mixed}))
    assert not (tmp_path / "data").exists()


def test_a_taken_port_is_named_with_a_certificate_too(tmp_path: Path, authority: Authority) -> None:
    made = authority.certify()
    with running(settings(tmp_path / "first")) as app:
        second = App(settings(tmp_path / "second", grpc={"port": app.port, "tls": made.settings}))
        with pytest.raises(CannotListen, match=r"grpc\.port"):
            second.start()
        second.stop()


def test_health_is_told_over_tls(tmp_path: Path, authority: Authority) -> None:
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    with (
        running(settings(tmp_path, grpc={"tls": authority.certify().settings})) as app,
        grpc.secure_channel(app.target, credentials) as channel,
    ):
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
