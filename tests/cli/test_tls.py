"""Servers with certificates, as processes and from the command line."""

from __future__ import annotations

import json
import os
import shlex
import signal
import ssl
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agents.hooks.payloads import encode, payload
from tests.certificates import Authority, Certificate, make_certificate
from tests.cli.conftest import Invoke
from tests.cli.serving import BOUND, READY, Process, bridge_of, started
from tests.client.scripted import HttpReply, http_server
from tests.harness import TOKENS, bridging, running, settings

ALICE = TOKENS["alice"]
CHECK = ("check", "tidy up")


@pytest.fixture
def certificate(home: Path, authority: Authority) -> Certificate:
    """A certificate for this machine that certifies itself, in the working folder."""
    made = make_certificate(home, "DNS:localhost,IP:127.0.0.1")
    return Certificate(made.certificate.relative_to(home), made.key.relative_to(home))


def configuration(path: Path, made: Certificate, **overrides: Any) -> Path:
    """Write the settings of a server with one agent and with the same certificate everywhere."""
    tokens = [{"name": "alice", "token": ALICE, "permissions": ["query", "check"]}]
    content = {"grpc": {"tls": made.settings}, "server": {"tls": made.settings}, "auth": {"tokens": tokens}}
    path.write_text(yaml.safe_dump(content | overrides))
    return path


def get(url: str, roots: Path) -> Any:
    context = ssl.create_default_context(cafile=roots)
    with urllib.request.urlopen(url, timeout=BOUND, context=context) as answer:
        return json.load(answer)


def bridge_url(process: Process) -> str:
    return process.value("JSON-RPC").removesuffix("/cstp")


def test_a_developers_server_is_found_with_its_certificate(
    home: Path, invoke: Invoke, certificate: Certificate
) -> None:
    configuration(home / "cstp.yaml", certificate)
    with started("serve", "--dev", "--config", "cstp.yaml") as process:
        process.wait_for(READY)
        assert process.value("gRPC").startswith("grpcs://127.0.0.1:")
        assert bridge_url(process).startswith("https://127.0.0.1:")
        assert "with 60 example decisions" in process.value("data")
        assert invoke(*CHECK).exit_code == 0
        assert invoke(*CHECK, "--agent", "developer-http").exit_code == 0
        assert json.loads(invoke("agent-card").stdout)["url"] == bridge_url(process)
        curl = process.printed[-2].strip()
        run = subprocess.run(shlex.split(curl.replace("$(cat ", "").replace(")", "")), capture_output=True, check=True)
        assert b"AUTHENTICATION_REQUIRED" in run.stdout
        assert process.end() == 0


def test_a_hook_shows_the_certificate_of_the_agents_file(home: Path, invoke: Invoke, authority: Authority) -> None:
    own = authority.certify()
    (home / "client.pem").write_bytes(own.certificate.read_bytes() + own.key.read_bytes())
    (home / "authority.pem").write_bytes(authority.certificate.read_bytes())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.load_cert_chain(own.certificate, own.key)
    context.verify_mode = ssl.CERT_REQUIRED
    allowed = {"allowed": True, "violations": [], "warnings": []}
    reply = HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": allowed})
    shown = {"token": "t", "ca_file": "authority.pem", "client_certificate": "client.pem"}
    with http_server(reply, context) as server:
        url = f"https://localhost:{server.port}"
        agents = [{"name": "with", "url": url, **shown}, {"name": "plain", "url": "http://127.0.0.1:1", **shown}]
        del agents[1]["ca_file"]
        (home / "agents.yaml").write_text(yaml.safe_dump({"agents": agents}))
        words = ("hook", "claude-code", "--agents-file", "agents.yaml", "--agent")
        assert json.loads(invoke(*words, "with", input=encode(payload("bash"))).stdout) == {}
        assert "is for servers that speak TLS" in invoke(*words, "plain", input=encode(payload("bash"))).stdout


@pytest.mark.slow
def test_a_bridge_that_is_started_again_keeps_its_certificate(home: Path, certificate: Certificate) -> None:
    configuration(home / "cstp.yaml", certificate)
    with started("serve", "--dev", "--config", "cstp.yaml") as process:
        process.wait_for(READY)
        os.kill(bridge_of(process.popen.pid), signal.SIGKILL)
        url = process.wait_for("The bridge was started again").split()[-1].removesuffix(".")
        assert url.startswith("https://")
        assert get(f"{url}/health", home / certificate.certificate)["status"] == "ok"
        assert process.end() == 0


def test_a_certificate_need_not_be_for_this_machine(home: Path, invoke: Invoke, authority: Authority) -> None:
    made = authority.certify("DNS:cstp.example.com")
    configuration(home / "cstp.yaml", made, server={})
    with started("serve", "--config", "cstp.yaml") as process:
        process.wait_for(READY)
        url, target = bridge_url(process), process.value("gRPC")
        assert invoke(*CHECK, "--agent", url, "--token", ALICE).exit_code == 0
        with urllib.request.urlopen(f"{url}/.well-known/agent-card.json", timeout=BOUND) as answer:
            extension = json.load(answer)["capabilities"]["extensions"][0]
        assert extension["params"]["grpcTarget"] == target
        refused = invoke(*CHECK, "--agent", target, "--token", ALICE, "--ca-file", authority.certificate)
        assert refused.exit_code == 1
        assert "Its certificate is for another name" in refused.stderr
        assert process.end() == 0


@pytest.mark.parametrize("section", ["grpc", "server"])
def test_a_certificate_that_cannot_be_used_is_named_before_anything_is_written(
    home: Path, invoke: Invoke, certificate: Certificate, section: str
) -> None:
    broken = {"certificate": str(certificate.certificate), "key": "missing.pem"}
    configuration(home / "cstp.yaml", certificate, **{section: {"port": 0, "tls": broken}})
    for command in (("serve",), ("config", "check")):
        result = invoke(*command, "--config", "cstp.yaml")
        assert result.exit_code == 1
        assert f"{section}.tls.key: missing.pem cannot be read" in result.stderr
    assert not (home / "var").exists()


def test_the_configured_certificate_is_trusted_by_who_reads_the_configuration(
    home: Path, invoke: Invoke, certificate: Certificate
) -> None:
    with running(settings(home / "data", grpc={"tls": certificate.settings})) as app:
        tls = {"port": app.port, "tls": certificate.settings}
        configuration(home / "cstp.yaml", certificate, grpc=tls)
        result = invoke(*CHECK, "--config", "cstp.yaml")
        assert result.exit_code == 0, result.output


def test_an_authority_is_named_by_an_option_the_environment_or_an_agents_file(
    home: Path, invoke: Invoke, authority: Authority
) -> None:
    roots = authority.certificate
    with running(settings(home / "data", grpc={"tls": authority.certify().settings})) as app:
        direct = (*CHECK, "--agent", app.url, "--token", ALICE)
        assert invoke(*direct, "--ca-file", roots).exit_code == 0
        assert invoke(*direct, env={"CSTP_CA_FILE": str(roots)}).exit_code == 0
        entry = {"name": "policy", "url": app.url, "token": ALICE}
        (home / "agents.yaml").write_text(yaml.safe_dump({"agents": [{**entry, "ca_file": str(roots)}]}))
        assert invoke(*CHECK, "--agent", "policy").exit_code == 0
        (home / "agents.yaml").write_text(yaml.safe_dump({"agents": [entry]}))
        assert invoke(*CHECK, "--agent", "policy", env={"CSTP_CA_FILE": str(roots)}).exit_code == 1
        assert invoke(*CHECK, "--agent", "policy", "--ca-file", roots).exit_code == 0


def test_the_card_of_a_bridge_is_read_over_https(home: Path, invoke: Invoke, authority: Authority) -> None:
    wanted = settings(home / "data", server={"tls": authority.certify().settings})
    with bridging(wanted, "127.0.0.1:1") as url:
        result = invoke("agent-card", url, "--ca-file", authority.certificate)
        assert json.loads(result.stdout)["url"] == url
        assert invoke("agent-card", url, env={"CSTP_CA_FILE": str(authority.certificate)}).exit_code == 0
        assert invoke("agent-card", url).exit_code == 1


def test_what_to_do_is_said_where_the_authority_is_not_trusted(
    home: Path, invoke: Invoke, authority: Authority, certificate: Certificate
) -> None:
    with running(settings(home / "data", grpc={"tls": authority.certify().settings})) as app:
        unknown = invoke(*CHECK, "--agent", app.url, "--token", ALICE)
        assert "No trusted CA signed it: pass the CA with --ca-file" in unknown.stderr
        other = invoke(*CHECK, "--agent", app.url, "--ca-file", certificate.certificate)
        assert f"No CA in {certificate.certificate} signed it: pass the CA" in other.stderr


def test_what_to_do_is_said_where_only_one_side_speaks_tls(home: Path, invoke: Invoke, authority: Authority) -> None:
    with running(settings(home / "data", grpc={"tls": authority.certify().settings})) as app:
        plain = invoke(*CHECK, "--agent", f"grpc://{app.target}", "--token", ALICE)
        assert f"If it speaks TLS, its address is grpcs://{app.target}." in plain.stderr
    with running(settings(home / "data")) as app:
        secure = invoke(*CHECK, "--agent", f"grpcs://{app.target}", "--token", ALICE)
        assert f"It does not speak TLS; its address is grpc://{app.target}." in secure.stderr


def test_a_bridge_alone_takes_the_configured_certificate_for_the_server_of_its_configuration(
    home: Path, certificate: Certificate
) -> None:
    with running(settings(home / "data", grpc={"tls": certificate.settings})) as app:
        tls = {"port": app.port, "tls": certificate.settings}
        configuration(home / "cstp.yaml", certificate, grpc=tls)
        environment = {"CSTP_SERVER__PORT": "0", "CSTP_A2A__GRPC_PORT": "0"}
        command = ("bridge", "--config", "cstp.yaml", "--port-file", "port")
        with started(*command, environment=environment) as process:
            process.wait_for(f"forwarding to grpcs://127.0.0.1:{app.port}")
            url = f"https://{(home / 'port').read_text()}"
            assert get(f"{url}/health", home / certificate.certificate)["status"] == "ok"
            assert process.end() == 0


def test_a_bridge_alone_is_given_a_server_that_speaks_tls(home: Path, invoke: Invoke, authority: Authority) -> None:
    with running(settings(home / "data", grpc={"tls": authority.certify().settings})) as app:
        environment = {
            "CSTP_SERVER__PORT": "0",
            "CSTP_A2A__GRPC_PORT": "0",
            "CSTP_SERVER__GRPC_CA_FILE": str(authority.certificate),
        }
        command = ("bridge", "--grpc-target", app.url, "--port-file", "port")
        with started(*command, environment=environment) as process:
            process.wait_for("listening on")
            url = f"http://{(home / 'port').read_text()}"
            assert invoke(*CHECK, "--agent", url, "--token", ALICE).exit_code == 0
            assert process.end() == 0
