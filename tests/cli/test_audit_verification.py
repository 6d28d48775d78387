"""audit verify, checkpoints and public-key."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Invoke, Server
from tests.harness import running, settings


@pytest.fixture
def config(tmp_path: Path, invoke: Invoke) -> Path:
    """The configuration of a server that has stopped after three checks."""
    with running(settings(tmp_path / "data")) as app:
        server = Server(app, invoke)
        for action in ("tidy up", "rename", "test"):
            server.ok("check", action, agent="bob")
    file = tmp_path / "cstp.yaml"
    file.write_text(yaml.safe_dump({"data_dir": str(tmp_path / "data")}))
    return file


def test_the_trail_of_a_stopped_server_is_whole_and_signed(config: Path, invoke: Invoke) -> None:
    report = json.loads(invoke("audit", "verify", "--config", config, "--json").stdout)
    assert (report["whole"], report["entries"], report["checkpoints"], report["afterLastCheckpoint"]) == (True, 3, 1, 0)
    shown = invoke("audit", "verify", "--config", config)
    assert shown.exit_code == 0
    assert shown.stdout == "3 entries in 1 chain, signed by 1 checkpoint.\nThe trail is whole.\n"


def test_what_was_edited_is_named(config: Path, invoke: Invoke, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "data" / "journal.db")) as connection, connection:
        connection.execute("DROP TRIGGER audit_entries_refuse_update")
        connection.execute("UPDATE audit_entries SET requesting_agent = 'another' WHERE id = 2")
    result = invoke("audit", "verify", "--config", config)
    assert result.exit_code == 3
    assert "altered: entry 2 does not match its hash" in result.stdout


def test_a_forged_entry_fails_the_verification_and_the_evidence(config: Path, invoke: Invoke, tmp_path: Path) -> None:
    exported = tmp_path / "checkpoints.jsonl"
    exported.write_text(invoke("audit", "checkpoints", "--config", config).stdout)
    with closing(sqlite3.connect(tmp_path / "data" / "journal.db")) as connection, connection:
        connection.execute("DROP TRIGGER audit_entries_refuse_insert")
        names = "timestamp, event, requesting_agent, request_id, evaluated"
        connection.execute(
            f"INSERT INTO audit_entries (id, {names}) SELECT -5, {names} FROM audit_entries WHERE id = 1"
        )
    result = invoke("audit", "verify", "--checkpoints", exported, "--config", config)
    assert result.exit_code == 3
    assert "inserted: entry -5 has an id that no server gives" in result.stdout
    result = invoke("audit", "evidence", "--after", "2020-01-01", "--config", config)
    assert (result.exit_code, json.loads(result.stdout)["verification"]["whole"]) == (3, False)
    (tmp_path / "evidence.json").write_text(result.stdout)
    result = invoke("audit", "verify-evidence", tmp_path / "evidence.json", "--config", config)
    assert (result.exit_code, "entry -5" in result.stdout) == (3, True)


def test_an_empty_trail_is_not_provable_yet(invoke: Invoke, tmp_path: Path) -> None:
    with running(settings(tmp_path / "data")):
        pass
    file = tmp_path / "cstp.yaml"
    file.write_text(yaml.safe_dump({"data_dir": str(tmp_path / "data")}))
    shown = invoke("audit", "verify", "--config", file)
    assert (shown.exit_code, shown.stdout) == (
        4,
        "0 entries in 0 chains, signed by 0 checkpoints.\nThe trail is not provable yet: it has no entries.\n",
    )
    report = json.loads(invoke("audit", "verify", "--config", file, "--json").stdout)
    assert (report["whole"], report["provable"]) == (False, False)


def test_what_was_exported_is_verified_with_the_exported_key(config: Path, invoke: Invoke, tmp_path: Path) -> None:
    exported, key = tmp_path / "checkpoints.jsonl", tmp_path / "audit.pem"
    exported.write_text(invoke("audit", "checkpoints", "--last", "--config", config).stdout)
    key.write_text(invoke("audit", "public-key", "--config", config).stdout)
    arguments = ("audit", "verify", "--checkpoints", exported, "--public-key", key, "--config", config)
    assert invoke(*arguments).exit_code == 0
    with closing(sqlite3.connect(tmp_path / "data" / "journal.db")) as connection, connection:
        for table in ("audit_checkpoint_heads", "audit_checkpoints", "audit_entries"):
            connection.execute(f"DROP TRIGGER {table}_refuse_delete")
            connection.execute(
                f"DELETE FROM {table} WHERE rowid > 2" if table == "audit_entries" else f"DELETE FROM {table}"
            )
    result = invoke(*arguments)
    assert result.exit_code == 3
    assert "missing: entry 3 of chain 1 is missing, after the one with id 2" in result.stdout


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("{}", "line 1 is not a checkpoint"), ("\n[1", "line 2 is not a checkpoint"), (None, "No such file")],
)
def test_a_file_without_checkpoints_is_refused(
    config: Path, invoke: Invoke, tmp_path: Path, content: str | None, complaint: str
) -> None:
    file = tmp_path / "checkpoints.jsonl"
    if content is not None:
        file.write_text(content)
    result = invoke("audit", "verify", "--checkpoints", file, "--config", config)
    assert (result.exit_code, complaint in result.stderr) == (1, True)


def test_a_file_without_keys_is_refused(config: Path, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("nothing")
    result = invoke("audit", "verify", "--public-key", tmp_path / "key.pem", "--config", config)
    assert (result.exit_code, "holds no public Ed25519 key" in result.stderr) == (1, True)


def test_without_a_database_nothing_is_made(invoke: Invoke, home: Path) -> None:
    result = invoke("audit", "verify")
    assert (result.exit_code, "there is no database" in result.stderr) == (1, True)
    assert list(home.iterdir()) == []
