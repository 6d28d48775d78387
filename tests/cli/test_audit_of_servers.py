"""The audit commands with --agent: everything without the files and the database of the server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke, Server


@pytest.fixture
def busy(server: Server) -> Server:
    for action in ("tidy up", "rename", "test"):
        server.ok("check", action, agent="bob")
    return server


def test_a_server_proves_its_trail(busy: Server, tmp_path: Path, invoke: Invoke) -> None:
    evidence = tmp_path / "evidence.json"
    evidence.write_text(busy.ok("audit", "evidence", "--after", "2020-01-01"))
    checkpoints = tmp_path / "checkpoints.jsonl"
    checkpoints.write_text(busy.ok("audit", "checkpoints"))
    key = tmp_path / "key.pem"
    key.write_text(busy.ok("audit", "public-key"))

    assert busy.ok("audit", "verify", "--checkpoints", checkpoints, "--public-key", key) == (
        "3 entries in 1 chain, signed by 1 checkpoint.\nThe trail is whole.\n"
    )
    verified = invoke("audit", "verify-evidence", evidence, "--public-key", key)
    assert (verified.exit_code, verified.stdout) == (0, "Proved: 3 entries.\n")


def test_a_server_exports_its_trail(busy: Server) -> None:
    lines = busy.ok("audit", "export").splitlines()

    assert [json.loads(line)["action"] for line in lines] == ["tidy up", "rename", "test"]
    assert len(busy.ok("audit", "export", "--format", "csv").splitlines()) == 4


def test_evidence_that_nothing_proves_yet_is_not_forged(busy: Server, tmp_path: Path, invoke: Invoke) -> None:
    document = json.loads(busy.ok("audit", "evidence", "--after", "2020-01-01"))
    (tmp_path / "key.pem").write_text(busy.ok("audit", "public-key"))
    del document["proofs"][0]["checkpoint"]
    file = tmp_path / "evidence.json"
    verify = ("audit", "verify-evidence", file, "--public-key", tmp_path / "key.pem")

    file.write_text(json.dumps(document))
    unproved = invoke(*verify)
    document["entries"][0]["allowed"] = False
    file.write_text(json.dumps(document))
    forged = invoke(*verify)

    assert (unproved.exit_code, unproved.stdout.splitlines()[-1]) == (4, "It is not provable yet.")
    assert (forged.exit_code, forged.stdout.splitlines()[-1]) == (3, "Something is not proved.")


def test_a_folder_proves_its_trail_without_a_server(invoke: Invoke, tmp_path: Path) -> None:
    folder = ("--agent", f"local:{tmp_path / 'alone'}")
    environment = {"CSTP_EMBEDDING__PROVIDER": "lexical"}
    assert invoke("check", "tidy up", *folder, env=environment).exit_code == 0

    evidence = invoke("audit", "evidence", "--after", "2020-01-01", *folder, env=environment)

    assert evidence.exit_code == 0, evidence.output
    assert json.loads(evidence.stdout)["verification"]["provable"] is True
    assert invoke("audit", "verify", *folder, env=environment).exit_code == 0


def test_others_may_not_verify(busy: Server) -> None:
    result = busy("audit", "verify", agent="reader")

    assert (result.exit_code, "permission admin" in result.stderr) == (1, True)
