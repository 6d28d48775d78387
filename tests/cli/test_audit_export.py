"""audit tail, export, evidence and verify-evidence."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Invoke, Server
from tests.harness import TOKENS, running, settings


@pytest.fixture
def config(tmp_path: Path, invoke: Invoke) -> Path:
    """The configuration of a stopped server on which a decision was announced, recorded and reviewed."""
    with running(settings(tmp_path / "data")) as app:
        server = Server(app, invoke)
        assert server("check", "deploy", "--context", "affectsProduction=true").exit_code == 3
        made = server.json("pre-action", "Rename a variable", "--correlation-id", "mine-1", "--stakes", "low")
        decision = made["decision"]["id"]
        server.ok("review", decision, "--outcome", "success", "--notes", "it was easy")
    (tmp_path / "decision").write_text(decision)
    file = tmp_path / "cstp.yaml"
    file.write_text(yaml.safe_dump({"data_dir": str(tmp_path / "data")}))
    return file


def test_the_trail_is_exported_in_each_form(config: Path, invoke: Invoke) -> None:
    lines = invoke("audit", "export", "--config", config).stdout.splitlines()
    entries = [json.loads(line) for line in lines]
    assert (entries[0]["event"], entries[0]["action"]) == ("guardrail_check", "deploy")
    assert "no-production-without-review" in entries[0]["violations"]
    rows = list(csv.DictReader(io.StringIO(invoke("audit", "export", "--format", "csv", "--config", config).stdout)))
    assert [row["entry_hash"] for row in rows] == [entry["entry_hash"] for entry in entries]
    events = invoke("audit", "export", "--format", "cloudevents", "--config", config).stdout.splitlines()
    assert [json.loads(event)["data"] for event in events] == entries
    assert len({json.loads(event)["source"] for event in events}) == 1
    assert invoke("audit", "export", "--before", "2020-01-01", "--config", config).stdout == ""


def test_a_reader_that_has_seen_enough_ends_the_export_quietly(config: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        command = [sys.executable, "-m", "cstp_grpc", "audit", "export", "--config", str(config)]
        ended = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_evidence_for_a_decision_is_proved_without_the_database(config: Path, invoke: Invoke, tmp_path: Path) -> None:
    decision = (tmp_path / "decision").read_text()
    result = invoke("audit", "evidence", "--decision", decision, "--config", config)
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert {"intent_announced", "decision_recorded", "decision_reviewed"} <= {
        entry["event"] for entry in document["entries"]
    }
    assert document["verification"]["whole"] is True
    (found,) = document["decisions"]
    assert (found["id"], found["outcome"], found["reviews"][0]["notes"]) == (decision, "success", "it was easy")
    assert [intent["correlation_id"] for intent in document["intents"]] == ["mine-1"]
    assert len(document["rule_set_versions"]) == 1
    (tmp_path / "evidence.json").write_text(result.stdout)
    (tmp_path / "key.pem").write_text(invoke("audit", "public-key", "--config", config).stdout)
    verify = ("audit", "verify-evidence", tmp_path / "evidence.json", "--public-key", tmp_path / "key.pem")
    assert invoke(*verify).stdout == f"Proved: {len(document['entries'])} entries.\n"
    document["entries"][0]["requesting_agent"] = "another"
    (tmp_path / "evidence.json").write_text(json.dumps(document))
    result = invoke(*verify)
    assert (result.exit_code, "does not match its hash" in result.stdout) == (3, True)


def test_evidence_is_about_a_decision_or_a_period(config: Path, invoke: Invoke) -> None:
    assert invoke("audit", "evidence", "--config", config).exit_code == 2
    result = invoke("audit", "evidence", "--after", "2020-01-01", "--config", config)
    assert len(json.loads(result.stdout)["entries"]) >= 4


def test_what_is_no_evidence_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    assert "No such file" in invoke("audit", "verify-evidence", tmp_path / "none").stderr
    (tmp_path / "file").write_text("nothing")
    assert "is not JSON" in invoke("audit", "verify-evidence", tmp_path / "file").stderr
    (tmp_path / "file").write_text("[]")
    assert invoke("audit", "verify-evidence", tmp_path / "file").exit_code == 3


def test_the_last_entries_are_printed_the_latest_at_the_end(server: Server) -> None:
    for action in ("first", "second", "third"):
        server.ok("check", action, agent="bob")
    shown = server.ok("audit", "tail", "-n", "2")
    assert "first" not in shown
    assert shown.index("second") < shown.index("third")


def test_the_trail_is_followed(server: Server) -> None:
    server.ok("check", "first", agent="bob")
    command = [sys.executable, "-m", "cstp_grpc", "audit", "tail", "--follow", "--json", "--agent", server.url]
    environment = {**os.environ, "CSTP_TOKEN": TOKENS["alice"]}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["action"] == "first"
        server.ok("check", "second", agent="bob")
        assert json.loads(process.stdout.readline())["action"] == "second"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
    assert process.returncode == 0
