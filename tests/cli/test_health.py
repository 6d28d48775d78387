"""health: whether a server serves."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.certificates import Authority, Certificate
from tests.cli.conftest import Invoke
from tests.harness import running, settings


def test_a_server_that_serves(invoke: Invoke, home: Path) -> None:
    with running(settings(home / "data")) as app:
        result = invoke("health", "--target", app.target)
        assert (result.exit_code, result.stdout) == (0, "SERVING\n")
        (home / "cstp.yaml").write_text(yaml.safe_dump({"grpc": {"port": app.port, "host": "0.0.0.0"}}))
        assert invoke("health", "--config", "cstp.yaml").exit_code == 0
        app._server.report_failure()
        result = invoke("health", "--target", f"grpc://{app.target}")
        assert (result.exit_code, result.stdout) == (3, "NOT_SERVING\n")
        result = invoke("health", "--target", app.target, "--service", "nothing")
        assert result.exit_code == 3
        assert "NOT_FOUND" in result.stdout


def test_a_server_that_is_not_there(invoke: Invoke, free_port: int) -> None:
    result = invoke("health", "--target", f"127.0.0.1:{free_port}", "--timeout", "1")
    assert result.exit_code == 3
    assert "does not answer: UNAVAILABLE" in result.stdout


def test_a_server_with_tls_is_trusted_by_the_certificate_of_the_configuration(
    invoke: Invoke, home: Path, certificate: Certificate
) -> None:
    tls = {"certificate": str(certificate.certificate), "key": str(certificate.key)}
    with running(settings(home / "data", grpc={"tls": tls})) as app:
        (home / "cstp.yaml").write_text(yaml.safe_dump({"grpc": {"port": app.port, "tls": tls}}))
        assert invoke("health", "--config", "cstp.yaml").stdout == "SERVING\n"
        assert invoke("health", "--target", f"grpcs://{app.target}").exit_code == 3


def test_a_server_that_requires_client_certificates_is_shown_one(
    invoke: Invoke, home: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = authority.certify("DNS:health.example.com")
    both = home / "client.pem"
    both.write_bytes(shown.certificate.read_bytes() + shown.key.read_bytes())
    # Its own certificate names no host, only an address that is not the one that is called.
    tls = {**authority.certify("IP:192.0.2.7").settings, "client_ca": str(authority.certificate)}
    with running(settings(home / "data", grpc={"tls": tls})) as app:
        wanted = {"grpc": {"port": app.port, "tls": tls}}
        (home / "cstp.yaml").write_text(yaml.safe_dump(wanted))
        assert invoke("health", "--config", "cstp.yaml").exit_code == 3
        monkeypatch.setenv("CSTP_CLIENT_CERTIFICATE", str(both))
        assert invoke("health", "--config", "cstp.yaml").stdout == "SERVING\n"
        monkeypatch.delenv("CSTP_CLIENT_CERTIFICATE")
        (home / "cstp.yaml").write_text(yaml.safe_dump(wanted | {"server": {"grpc_client_certificate": "client.pem"}}))
        assert invoke("health", "--config", "cstp.yaml").stdout == "SERVING\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "https://127.0.0.1:8100"], "gRPC"),
        (["--target", "somewhere"], "grpc://HOST:PORT"),
        (["--target", "grpcs://127.0.0.1:9", "--ca-file", "missing.pem"], "missing.pem"),
        (["--target", "grpcs://127.0.0.1:9", "--ca-file", "junk.pem"], "PEM"),
        (["--config", "missing.yaml"], "missing.pem"),
        (["--config", "junk.yaml"], "junk.pem"),
    ],
)
def test_what_cannot_be_asked_is_named(invoke: Invoke, home: Path, arguments: list[str], said: str) -> None:
    (home / "junk.pem").write_text("junk")
    for name in ("missing", "junk"):
        tls = {"certificate": f"{name}.pem", "key": "key.pem"}
        (home / f"{name}.yaml").write_text(yaml.safe_dump({"grpc": {"tls": tls}}))
    result = invoke("health", *arguments)
    assert result.exit_code == 1
    assert said in result.stderr
