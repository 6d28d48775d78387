"""doctor: what is wrong with what a server needs, and what to do about it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client.cstp_client import CstpClient
from cstp_grpc.contract.enums import Permission
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.embedding import model_files
from cstp_grpc.server.maintenance.diagnosis import (
    check_database,
    check_disk,
    check_embedding,
    run_check,
)
from cstp_grpc.server.status.machine_checks import DiagnosisStatus, check_certificates
from tests.certificates import Certificate
from tests.cli.conftest import Invoke
from tests.databases import write_journal
from tests.harness import TOKENS, running, settings
from tests.redis_stub import redis_with_password
from tests.server.identity.issuer import serving_issuer


def examine(
    invoke: Invoke, home: Path, content: Mapping[str, object], *options: str
) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code of the command and its findings."""
    (home / "cstp.yaml").write_text(json.dumps({"data_dir": "data", **content}))
    result = invoke("doctor", "--json", "--config", "cstp.yaml", *options)
    return result.exit_code, json.loads(result.stdout)["findings"]


def bad_ones(findings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the messages that are not ok, by their check; each must come with advice."""
    found = [finding for finding in findings if finding["status"] != "ok"]
    assert all(finding.get("advice") for finding in found)
    return {finding["check"]: finding["message"] for finding in found}


EVERYTHING = {"auth": {"tokens": [{"name": "a", "token": "long-enough-token", "permissions": sorted(Permission)}]}}


def test_a_folder_before_its_first_start_is_well(invoke: Invoke, home: Path) -> None:
    code, findings = examine(invoke, home, EVERYTHING)
    assert bad_ones(findings).keys() <= {"configuration", "disk"}
    assert code in (0, 4)
    checks = {finding["check"] for finding in findings}
    assert {"configuration", "rule set", "disk", "database", "certificates", "search", "peers"} <= checks
    assert not (home / "data").exists()


def test_a_server_that_runs_is_well(invoke: Invoke, home: Path) -> None:
    with running(settings(home / "data")):
        (home / "data").chmod(0o700)
        code, findings = examine(invoke, home, EVERYTHING, "--thorough")
    assert "database" not in bad_ones(findings)
    assert code in (0, 4)
    assert any("the newest" in finding["message"] for finding in findings)


def test_what_is_wrong_is_told_with_what_to_do(invoke: Invoke, home: Path) -> None:
    (home / "data").mkdir(mode=0o755)
    (home / "data" / "journal.db").write_text("no database")
    (home / "data").chmod(0o755)
    peer = {"name": "other", "url": "grpc://127.0.0.1:1", "role": "required"}
    code, findings = examine(invoke, home, {"federation": {"peers": [peer]}, **EVERYTHING}, "--timeout", "1")
    assert code == 3
    found = bad_ones(findings)
    assert "not a SQLite database" in found["database"]
    assert "open to other users" in found["disk"]
    assert "other at grpc://127.0.0.1:1" in found["peers"]


@pytest.mark.parametrize(
    ("engine", "url"), [("chroma", "http://127.0.0.1:1"), ("postgresql", "postgresql://cstp@127.0.0.1:1/cstp")]
)
def test_an_engine_that_does_not_answer_is_told(invoke: Invoke, home: Path, engine: str, url: str) -> None:
    code, findings = examine(invoke, home, {"search": {"engine": engine, "url": url}, **EVERYTHING})
    assert code == 3
    assert bad_ones(findings)["search"].startswith(f"{engine}: ")


def test_settings_that_are_invalid_are_the_only_finding(invoke: Invoke, home: Path) -> None:
    code, findings = examine(invoke, home, {"grpc": {"port": "many"}})
    assert code == 3
    assert [finding["check"] for finding in findings] == ["configuration"]
    code, findings = examine(invoke, home, {"cstp": {"guardrails": {"config_path": "missing.yaml"}}})
    assert code == 3
    assert "missing.yaml" in bad_ones(findings)["configuration"]


def test_a_redis_is_asked_with_its_password(invoke: Invoke, home: Path, free_port: int) -> None:
    def found(password: str, port: int) -> dict[str, str]:
        redis = {"url": f"redis://:{password}@127.0.0.1:{port}/0", "timeout_seconds": 5}
        return bad_ones(examine(invoke, home, {"rate_limits": {"redis": redis}, **EVERYTHING})[1])

    with redis_with_password("right") as port:
        assert "redis" not in found("right", port)
        assert found("wrong", port)["redis"] == "rate_limits.redis.url: Redis refuses its user or password"
    assert "Redis does not answer" in found("right", free_port)["redis"]


def test_issuers_are_asked_for_their_keys(invoke: Invoke, home: Path) -> None:
    with serving_issuer() as issuer:
        configured = {"issuer": "https://a", "audience": ["cstp"], "jwks_url": issuer.url, "algorithms": ["ES256"]}
        content = {"auth": {**EVERYTHING["auth"], "jwt": [configured]}}
        assert "issuers" not in bad_ones(examine(invoke, home, content)[1])
        issuer.published = []
        assert "has no key that can be used" in bad_ones(examine(invoke, home, content)[1])["issuers"]
        issuer.status = 500
        assert bad_ones(examine(invoke, home, content)[1])["issuers"] == f"https://a at {issuer.url}: HTTP 500"
    code, findings = examine(invoke, home, content)
    assert code == 3
    assert "Connection refused" in bad_ones(findings)["issuers"]


@pytest.mark.parametrize(
    ("embedding", "problem"),
    [
        ({"provider": "lexical"}, None),
        ({"model_path": "nowhere"}, "embedding.model_path: nowhere is not a folder"),
        ({"provider": "onnx", "model_path": "nowhere"}, "nowhere"),
        (
            {"provider": "openai", "url": "http://127.0.0.1:1/v1", "model": "m", "dimensions": 3, "retries": 0},
            "could not be turned into a vector: the endpoint cannot be reached",
        ),
    ],
)
def test_a_model_that_is_missing_is_told(
    invoke: Invoke, home: Path, embedding: dict[str, object], problem: str | None
) -> None:
    code, findings = examine(invoke, home, {"embedding": embedding, **EVERYTHING})
    if problem is None:
        assert "embedding" not in bad_ones(findings)
    else:
        assert code == 3
        assert problem in bad_ones(findings)["embedding"]
    assert not (home / "data").exists()


@pytest.mark.parametrize(("download", "status"), [(True, DiagnosisStatus.WARNING), (False, DiagnosisStatus.ERROR)])
def test_weights_that_are_nowhere_may_be_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, download: bool, status: DiagnosisStatus
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(model_files, "PACKAGE", "no-such-package")
    wanted = settings(tmp_path, embedding={"provider": "minilm", "download": download})
    (found,) = run_check("embedding", lambda: check_embedding(wanted))
    assert (found.check, found.status) == ("embedding", status)
    assert "weights" in found.message


def test_people_read_lines(invoke: Invoke, home: Path) -> None:
    (home / "cstp.yaml").write_text(json.dumps({"data_dir": "data", **EVERYTHING}))
    result = invoke("doctor", "--config", "cstp.yaml")
    assert "ok      database      " in result.stdout


@pytest.mark.parametrize(
    ("moved", "status"),
    [
        (timedelta(minutes=5), DiagnosisStatus.WARNING),
        (timedelta(days=5), DiagnosisStatus.ERROR),
        (timedelta(days=-5), DiagnosisStatus.ERROR),
    ],
)
def test_certificates_are_judged_by_their_time(
    certificate: Certificate, tmp_path: Path, moved: timedelta, status: DiagnosisStatus
) -> None:
    """The certificate is valid from now on for two days; the clock is what is moved."""
    (found,) = check_certificates(settings(tmp_path, grpc={"tls": certificate.settings}), datetime.now(UTC) + moved)
    assert found.status is status
    assert str(certificate.certificate) in found.message


def test_every_file_with_certificates_is_looked_at(certificate: Certificate, tmp_path: Path) -> None:
    path = str(certificate.certificate)
    issuer = {"issuer": "https://a", "audience": ["cstp"], "jwks_url": "https://a/keys", "ca_file": path}
    configured = settings(
        tmp_path,
        grpc={"tls": {**certificate.settings, "client_ca": path}},
        server={"grpc_ca_file": path, "grpc_client_certificate": path},
        auth={"jwt": [issuer]},
    )
    found = {each.message.partition(": ")[0]: each.advice for each in check_certificates(configured, datetime.now(UTC))}
    assert found.keys() == {
        "grpc.tls.certificate",
        "grpc.tls.client_ca",
        "server.grpc_ca_file",
        "server.grpc_client_certificate",
        "auth.jwt[https://a].ca_file",
    }


def test_a_file_without_a_certificate_is_told(certificate: Certificate, tmp_path: Path) -> None:
    tls = {**certificate.settings, "certificate": str(certificate.key)}
    (found,) = check_certificates(settings(tmp_path, grpc={"tls": tls}), datetime.now(UTC))
    assert found.status is DiagnosisStatus.ERROR


@pytest.mark.parametrize(
    ("free", "status"),
    [(10 << 30, DiagnosisStatus.OK), (500 << 20, DiagnosisStatus.WARNING), (1 << 20, DiagnosisStatus.ERROR)],
)
def test_a_disk_that_is_nearly_full_is_told(tmp_path: Path, free: int, status: DiagnosisStatus) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    assert next(check_disk(data, lambda _: free)).status is status
    assert not list(data.iterdir())


def database_findings(url: str | None, folder: Path, late: timedelta = timedelta()) -> dict[str, DiagnosisStatus]:
    wanted: Settings = settings(folder, **({} if url is None else {"storage": {"url": url}}))
    return {
        finding.check: finding.status for finding in check_database(wanted, datetime.now(UTC) + late, thorough=True)
    }


def test_a_database_is_judged_on_both_kinds(database_url: str, tmp_path: Path) -> None:
    assert database_findings(database_url, tmp_path) == {
        "database": DiagnosisStatus.OK,
        "clock": DiagnosisStatus.OK,
    }


def test_an_empty_database_is_well(empty_database_url: str, tmp_path: Path) -> None:
    assert database_findings(empty_database_url, tmp_path)["database"] is DiagnosisStatus.OK


@pytest.mark.parametrize(("migration", "status"), [("0015", DiagnosisStatus.WARNING), ("9999", DiagnosisStatus.ERROR)])
def test_a_database_of_another_version_is_told(tmp_path: Path, migration: str, status: DiagnosisStatus) -> None:
    write_journal(tmp_path / "journal.db")
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [migration])
    assert database_findings(None, tmp_path)["database"] is status


def test_a_clock_that_was_set_back_is_told(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
        client.check_guardrails("Something on record")
    assert database_findings(None, tmp_path)["clock"] is DiagnosisStatus.OK
    assert database_findings(None, tmp_path, timedelta(hours=-1))["clock"] is DiagnosisStatus.WARNING
