"""Agents that are known by their client certificates, over gRPC and through the bridge."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2, a2a_pb2_grpc
from click.testing import CliRunner

from cstp_grpc.cli.main import main
from cstp_grpc.client import AsyncCstpClient, CstpClient
from cstp_grpc.contract.call_origin import CERTIFICATE_METADATA_KEY
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.gen.cstp.v1 import access_pb2
from cstp_grpc.platform.config import ConfigError
from cstp_grpc.server.app import App
from tests.certificates import Authority, Certificate
from tests.harness import TIMEOUT, TOKENS, Peers, peering, running, settings

DEPLOYER = "URI:spiffe://example.com/deployer"
KEY = "bridge-key-of-at-least-24-characters"
AGENTS = [
    {"name": "deployer", "uri": "spiffe://example.com/deployer", "permissions": ["query"], "tenant": "other"},
    {"name": "builder", "dns": "builder.example.com"},
    {"name": "client", "common_name": "a client"},
]
GET_ACCESS = "/cstp.v1.AccessService/GetAccess"


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Authority:
    """The authority that certifies clients, which is another one than that of servers."""
    assert authority
    return Authority(tmp_path_factory.mktemp("people"))


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, authority: Authority, people: Authority) -> Iterator[App]:
    """A server that requires certificates."""
    tls = {**authority.certify().settings, "client_ca": str(people.certificate)}
    wanted = settings(
        tmp_path_factory.mktemp("mtls"), grpc={"tls": tls}, auth={"certificates": AGENTS, "bridge_key": KEY}
    )
    with running(wanted) as app:
        yield app


def call(app: App, authority: Authority, shown: Certificate | None, *metadata: tuple[str, str]) -> Any:
    """Return the agent that a call is from, or the name of its status."""
    credentials = grpc.ssl_channel_credentials(
        authority.certificate.read_bytes(),
        None if shown is None else shown.key.read_bytes(),
        None if shown is None else shown.certificate.read_bytes(),
    )
    with grpc.secure_channel(f"localhost:{app.port}", credentials) as channel:
        invoke: Any = channel.unary_unary(GET_ACCESS, response_deserializer=access_pb2.GetAccessResponse.FromString)
        try:
            answer = invoke(b"", timeout=TIMEOUT, metadata=metadata)
        except grpc.RpcError as error:
            return error.code().name  # type: ignore[attr-defined]
    return answer.requesting_agent, answer.tenant


@pytest.mark.parametrize(
    ("names", "common_name", "agent"),
    [
        (DEPLOYER, "x", ("deployer", "other")),
        (f"DNS:other.example.com,{DEPLOYER}", "x", ("deployer", "other")),
        ("DNS:builder.example.com", "x", ("builder", "default")),
        ("DNS:elsewhere.example.com", "a client", ("client", "default")),
        ("DNS:elsewhere.example.com", "builder.example.com", "UNAUTHENTICATED"),
        ("DNS:deep.builder.example.com", "x", "UNAUTHENTICATED"),
        # Of two agents at once nobody can say which one calls.
        (DEPLOYER, "a client", "UNAUTHENTICATED"),
    ],
)
def test_a_certificate_identifies_the_agent_that_its_name_belongs_to(
    app: App, authority: Authority, people: Authority, names: str, common_name: str, agent: object
) -> None:
    assert call(app, authority, people.certify(names, common_name)) == agent


def test_a_token_goes_before_the_certificate_and_a_wrong_one_is_wrong(
    app: App, authority: Authority, people: Authority
) -> None:
    shown = people.certify(DEPLOYER)
    sent = ("authorization", f"Bearer {TOKENS['alice']}")
    assert call(app, authority, shown, sent) == ("alice", "default")
    assert call(app, authority, shown, ("authorization", "Bearer wrong")) == "UNAUTHENTICATED"


def test_who_calls_for_others_does_not_lend_its_certificate(app: App, authority: Authority, people: Authority) -> None:
    shown = people.certify(DEPLOYER)
    for name in ("x-forwarded-for", "x-cstp-bridge-key"):
        assert call(app, authority, shown, (name, "192.0.2.1")) == "UNAUTHENTICATED"


def test_nobody_without_a_certificate_of_the_authority_gets_through(app: App, authority: Authority) -> None:
    assert call(app, authority, None) == "UNAVAILABLE"
    assert call(app, authority, authority.certify(DEPLOYER)) == "UNAVAILABLE"


def test_a_certificate_in_the_metadata_is_believed_of_the_bridge_alone(
    app: App, authority: Authority, people: Authority
) -> None:
    other = people.certify("DNS:unknown.example.com", "a client")
    der = ssl.PEM_cert_to_DER_cert(people.certify(DEPLOYER).certificate.read_text())

    claimed = (CERTIFICATE_METADATA_KEY, base64.urlsafe_b64encode(der).decode())
    assert call(app, authority, other, claimed) == ("client", "default")


@contextmanager
def secured_bridge(folder: Path, authority: Authority, people: Authority, wanted: str) -> Iterator[Peers]:
    """Run a bridge that asks for certificates in front of a plain server."""
    tls = {**authority.certify().settings, "client_ca": str(people.certificate), "client_certificates": wanted}
    configured = settings(folder, server={"tls": tls}, auth={"certificates": AGENTS, "bridge_key": KEY})
    with running(configured) as app, peering(configured, app.target) as peers:
        yield peers


def post(peers: Peers, authority: Authority, shown: Certificate | None, token: str | None = None) -> Any:
    """Return the agent that a call over HTTP is from, or its status."""
    context = ssl.create_default_context(cafile=authority.certificate)
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "cstp.getAccess", "params": {}}).encode()
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        request = urllib.request.Request(f"{peers.url}/cstp", body, headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT, context=context) as answer:
            return json.load(answer)["result"]["requestingAgent"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def extended_card(peers: Peers, authority: Authority, shown: Certificate | None) -> str:
    """Return the name of the status of a call of A2A over gRPC."""
    credentials = grpc.ssl_channel_credentials(
        authority.certificate.read_bytes(),
        None if shown is None else shown.key.read_bytes(),
        None if shown is None else shown.certificate.read_bytes(),
    )
    with grpc.secure_channel(peers.grpc_target, credentials) as channel:
        invoke: Any = a2a_pb2_grpc.A2AServiceStub(channel).GetExtendedAgentCard
        try:
            invoke(a2a_pb2.GetExtendedAgentCardRequest(), metadata=(("a2a-version", "1.0"),), timeout=TIMEOUT)
        except grpc.RpcError as error:
            return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"


def test_the_bridge_passes_on_whom_it_has_verified(tmp_path: Path, authority: Authority, people: Authority) -> None:
    shown = people.certify(DEPLOYER)
    with secured_bridge(tmp_path, authority, people, "required") as peers:
        assert post(peers, authority, shown) == "deployer"
        assert post(peers, authority, shown, TOKENS["alice"]) == "alice"
        assert post(peers, authority, shown, "wrong") == 401
        assert extended_card(peers, authority, shown) == "OK"
        assert extended_card(peers, authority, None) == "UNAVAILABLE"
        for stranger in (None, authority.certify(DEPLOYER)):
            with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
                post(peers, authority, stranger)


def test_over_http_a_token_may_do_instead(tmp_path: Path, authority: Authority, people: Authority) -> None:
    with secured_bridge(tmp_path, authority, people, "optional") as peers:
        assert post(peers, authority, None) == 401
        assert post(peers, authority, None, TOKENS["alice"]) == "alice"
        assert post(peers, authority, people.certify(DEPLOYER)) == "deployer"
        with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
            post(peers, authority, authority.certify(DEPLOYER))


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"auth": {"certificates": [{"name": "a"}]}}, "exactly one of uri, dns and common_name"),
        ({"auth": {"certificates": [{"name": "a", "uri": "x", "dns": "y"}]}}, "exactly one of uri"),
        ({"auth": {"certificates": [{"name": "intent-layer", "uri": "x"}]}}, "which acts by itself"),
        ({"auth": {"certificates": [{"name": "carol", "uri": "x"}]}}, "two tenants"),
        ({"auth": {"certificates": [{"name": "Alice", "uri": "x"}]}}, "'alice' and 'Alice' look alike"),
        ({"auth": {"certificates": [{"name": "\u0430lice ", "uri": "x"}]}}, "look alike"),
        (
            {"grpc": {"tls": {"certificate": "c", "key": "k", "client_ca": "a", "client_certificates": "optional"}}},
            "gRPC asks all clients",
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path, overrides: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        settings(tmp_path, **overrides)


def test_authorities_that_cannot_be_read_prevent_the_start(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("missing.pem", "empty.pem"):
        tls = {**authority.certify().settings, "client_ca": str(tmp_path / name)}
        with pytest.raises(ConfigError, match=r"grpc\.tls\.client_ca"):
            App(settings(tmp_path / "data", grpc={"tls": tls}))


def test_renewed_authorities_hold_for_new_connections(tmp_path: Path, authority: Authority, people: Authority) -> None:
    trusted = tmp_path / "people.pem"
    trusted.write_bytes(people.certificate.read_bytes())
    tls = {**authority.certify().settings, "client_ca": str(trusted)}
    bridge = {"tls": {**authority.certify().settings, "client_ca": str(trusted)}}
    auth = {"certificates": AGENTS, "bridge_key": KEY}
    (tmp_path / "other").mkdir()
    others = Authority(tmp_path / "other")
    before, after = people.certify(DEPLOYER), others.certify(DEPLOYER)
    plain = settings(tmp_path / "plain", server=bridge, auth=auth)
    secured = settings(tmp_path / "secured", grpc={"tls": tls}, auth=auth)
    with running(secured) as app, running(plain) as behind, peering(plain, behind.target) as peers:
        assert call(app, authority, before) == ("deployer", "other")
        assert post(peers, authority, before) == "deployer"
        trusted.write_bytes(others.certificate.read_bytes())
        assert call(app, authority, after) == ("deployer", "other")
        assert call(app, authority, before) == "UNAVAILABLE"
        assert post(peers, authority, after) == "deployer"
        with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
            post(peers, authority, before)


def combined(folder: Path, made: Certificate) -> Path:
    """Return a file with a certificate and its key."""
    path = folder / "client.pem"
    path.write_bytes(made.certificate.read_bytes() + made.key.read_bytes())
    return path


def test_the_clients_show_a_certificate(app: App, authority: Authority, people: Authority, tmp_path: Path) -> None:
    shown, roots = combined(tmp_path, people.certify(DEPLOYER)), authority.certificate.read_bytes()
    target = f"grpcs://localhost:{app.port}"
    with CstpClient(target, root_certificates=roots, client_certificate=shown) as client:
        assert client.get_access().requesting_agent == "deployer"

    async def ask() -> str:
        async with AsyncCstpClient(target, root_certificates=roots, client_certificate=str(shown)) as client:
            return (await client.get_access()).requesting_agent

    assert asyncio.run(ask()) == "deployer"
    with (
        secured_bridge(tmp_path, authority, people, "required") as peers,
        CstpClient(peers.url, root_certificates=roots, client_certificate=shown) as client,
    ):
        assert client.get_access().requesting_agent == "deployer"


def test_a_client_names_a_certificate_that_it_cannot_show(tmp_path: Path, authority: Authority) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for target in ("grpcs://localhost:1", "https://localhost:1"):
        for path in (empty, tmp_path / "missing.pem", authority.certificate):
            with pytest.raises(InvalidArgument, match="client_certificate: is no PEM file"):
                CstpClient(target, client_certificate=path)
    for target in ("grpc://localhost:1", "http://localhost:1"):
        with pytest.raises(InvalidArgument, match="client_certificate: is for servers that speak TLS"):
            CstpClient(target, client_certificate=empty)


def test_a_bridge_elsewhere_shows_its_own_and_passes_on_those_of_its_callers(
    app: App, authority: Authority, people: Authority, tmp_path: Path
) -> None:
    own = combined(tmp_path, people.certify("DNS:bridge.example.com", "a client"))
    tls = {**authority.certify().settings, "client_ca": str(people.certificate), "client_certificates": "optional"}
    server = {"tls": tls, "grpc_ca_file": str(authority.certificate), "grpc_client_certificate": str(own)}
    keyed = settings(tmp_path / "keyed", server=server, auth={"bridge_key": KEY})
    with peering(keyed, f"grpcs://localhost:{app.port}") as peers:
        assert post(peers, authority, people.certify(DEPLOYER)) == "deployer"
        # The bridge's certificate is that of an agent, too, which its callers are not.
        assert post(peers, authority, None) == 401
    with peering(settings(tmp_path / "plain", server=server), f"grpcs://localhost:{app.port}") as peers:
        assert post(peers, authority, people.certify(DEPLOYER)) == 401
        assert post(peers, authority, None) == 401
        assert post(peers, authority, None, TOKENS["alice"]) == "alice"


def test_the_command_shows_the_certificate_of_the_environment_or_the_agents_file(
    app: App, authority: Authority, people: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    combined(tmp_path, people.certify(DEPLOYER))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CSTP_CLIENT_CERTIFICATE", "client.pem")
    target = f"grpcs://localhost:{app.port}"
    options = ["call", "cstp.getAccess", "{}", "--ca-file", str(authority.certificate)]
    result = CliRunner().invoke(main, [*options, "--agent", target])
    assert '"requestingAgent": "deployer"' in result.stdout, result.output
    monkeypatch.delenv("CSTP_CLIENT_CERTIFICATE")
    (tmp_path / "agents.yaml").write_text(
        f"agents: [{{name: here, url: '{target}', client_certificate: client.pem}}]\n"
    )
    result = CliRunner().invoke(main, [*options, "--agent", "here"])
    assert '"requestingAgent": "deployer"' in result.stdout, result.output
