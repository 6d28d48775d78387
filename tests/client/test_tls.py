"""Servers that prove who they are."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cstp_grpc.client import AsyncCstpClient, CstpClient, RetryPolicy
from cstp_grpc.contract.errors import InvalidArgument, ServerUnreachable
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from tests.certificates import Certificate
from tests.client.scripted import HttpReply, http_server, scripted_server

ONCE = RetryPolicy(attempts=1)


@pytest.fixture(params=["grpcs", "https"])
def target(request: pytest.FixtureRequest, certificate: Certificate) -> Iterator[str]:
    """A server that answers queries with a total of 7, over either transport with TLS."""
    if request.param == "grpcs":
        pair = [(certificate.key.read_bytes(), certificate.certificate.read_bytes())]
        with scripted_server(cstp_pb2.QueryDecisionsResponse(total=7), tls=pair) as grpc_server:
            yield f"grpcs://localhost:{grpc_server.port}"
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    reply = HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": {"total": 7}})
    with http_server(reply, context) as server:
        yield f"https://localhost:{server.port}"


def test_a_server_certified_by_the_given_authority_is_called(target: str, certificate: Certificate) -> None:
    with CstpClient(target, "secret-1", root_certificates=certificate.authority, retries=ONCE) as client:
        assert client.query_decisions("x").total == 7


@pytest.mark.parametrize("target", ["https"], indirect=True)
def test_a_bridge_that_is_called_over_grpc_is_recognised(target: str, certificate: Certificate) -> None:
    address = target.replace("https://", "grpcs://")
    with (
        CstpClient(address, root_certificates=certificate.authority, retries=ONCE) as client,
        pytest.raises(ServerUnreachable, match=f"{address}: it speaks HTTP and not gRPC"),
    ):
        client.query_decisions("x")


def test_a_server_that_nobody_known_certifies_gets_no_call(target: str) -> None:
    with CstpClient(target, "secret-1", retries=ONCE) as client, pytest.raises(ServerUnreachable):
        client.query_decisions("x")


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_the_authorities_of_the_system_are_trusted(
    target: str, variable: str, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / "authority.pem"
    file.write_bytes(certificate.authority)
    subprocess.run(["openssl", "rehash", folder], check=True, capture_output=True)
    system = {"SSL_CERT_FILE": file, "SSL_CERT_DIR": folder}
    for name in system:
        monkeypatch.setenv(name, str(system[name] if name == variable else tmp_path / "none"))
    with CstpClient(target, "secret-1", retries=ONCE) as client:
        assert client.query_decisions("x").total == 7


def test_authorities_may_have_names_in_any_script_between_them(target: str, certificate: Certificate) -> None:
    bundle = "Főtanúsítvány\n".encode() + certificate.authority
    with CstpClient(target, "secret-1", root_certificates=bundle, retries=ONCE) as client:
        assert client.query_decisions("x").total == 7


def test_an_authority_that_was_taken_from_the_system_is_none(
    target: str, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "authority.pem").write_bytes(certificate.authority)
    subprocess.run(["openssl", "rehash", tmp_path], check=True, capture_output=True)
    (tmp_path / "01234567.0").symlink_to(tmp_path / "removed.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with CstpClient(target, "secret-1", retries=ONCE) as client:
        assert client.query_decisions("x").total == 7


@pytest.mark.parametrize("authority", [b"", b"no PEM at all", b"\xff\xfe"])
@pytest.mark.parametrize("target", ["https://localhost:1", "grpcs://localhost:1"])
def test_an_authority_that_is_none_is_refused_at_once(target: str, authority: bytes) -> None:
    with pytest.raises(InvalidArgument, match="root_certificates"):
        CstpClient(target, root_certificates=authority)


def test_an_authority_that_is_none_is_refused_in_a_loop() -> None:
    with pytest.raises(InvalidArgument, match="root_certificates"):
        AsyncCstpClient("grpcs://localhost:1", root_certificates=b"no PEM at all")


def test_plain_http_needs_no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "create_default_context", lambda: pytest.fail("the system's authorities are loaded"))
    reply = HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": {"total": 7}})
    with http_server(reply) as server, CstpClient(f"http://localhost:{server.port}", retries=ONCE) as client:
        assert client.query_decisions("x").total == 7
