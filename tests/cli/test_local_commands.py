"""The commands of the protocol and the journal on a data folder, without a server."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Invoke
from tests.databases import write_journal
from tests.harness import running, settings


@pytest.fixture(autouse=True)
def folder(home: Path) -> Path:
    """The data folder of a configuration file that the working folder has."""
    (home / "cstp.yaml").write_text("data_dir: data\nembedding: {provider: lexical}\n")
    (home / "data").mkdir()
    write_journal(home / "data" / "journal.db")
    return home / "data"


def ask(invoke: Invoke, *arguments: object, exit_code: int = 0) -> Any:
    """Run a command without a server, and return the JSON that it prints."""
    result = invoke(*arguments, "--local", "--config", "cstp.yaml", "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stderr)["error"] if exit_code == 1 else json.loads(result.stdout)


def test_a_person_grants_an_approval_with_the_printed_command(invoke: Invoke) -> None:
    asking = ("check", "--command", "rm -rf docs", "--local", "--config", "cstp.yaml")
    asked = invoke(*asking)
    assert asked.exit_code == 4
    (grant,) = (line for line in asked.output.splitlines() if "cstp approvals grant" in line)
    assert "is granted: developer may do it once" in invoke(*shlex.split(grant)[1:]).output
    assert invoke(*asking).exit_code == 0


def test_decisions_are_recorded_found_reviewed_and_measured(invoke: Invoke) -> None:
    recorded = ask(invoke, "record", "Use a queue between the services", "--confidence", "0.9")["decision"]
    assert recorded["agent"] == "developer"
    assert [found["id"] for found in ask(invoke, "query", "a queue")["decisions"]] == [recorded["id"]]
    ask(invoke, "review", recorded["id"], "--outcome", "failure", "--notes", "Watch its length")
    assert ask(invoke, "list")["decisions"][0]["outcome"] == "failure"
    announced = ask(invoke, "announce", "Put a queue between two services")
    assert announced["similarDecisions"][0]["id"] == recorded["id"]
    assert ask(invoke, "calibration")["count"] == 1
    events = [entry["event"] for entry in ask(invoke, "audit")["entries"]]
    assert {"decision_recorded", "decision_reviewed", "intent_announced"} <= set(events)


def test_a_blocked_action_exits_as_with_a_server(invoke: Invoke) -> None:
    options = ["--stakes", "critical", "--confidence", "0.1", "--context", "affectsProduction=true"]
    assert not ask(invoke, "check", "Deploy", *options, exit_code=3)["allowed"]


def test_records_of_files_are_imported(invoke: Invoke, home: Path) -> None:
    (home / "records.jsonl").write_text('{"title": "Use a queue"}\n{"title": "Use no queue"}\n')
    assert len(ask(invoke, "import", "records.jsonl", "--as", "carol")["results"]) == 2
    assert {found["agent"] for found in ask(invoke, "list", "--as", "carol")["decisions"]} == {"carol"}


def test_a_folder_can_be_called_like_an_agent(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The token of the environment is for a server.
    monkeypatch.setenv("CSTP_TOKEN", "a-token-of-a-server")
    monkeypatch.setenv("CSTP_EMBEDDING__PROVIDER", "lexical")
    assert invoke("record", "Use a queue", "--agent", "local:data").exit_code == 0
    (home / "agents.yaml").write_text("agents: [{name: notes, url: 'local:data'}]\n")
    assert "Use a queue" in invoke("list", "--agent", "notes").stdout


def test_a_folder_that_a_server_has_is_refused_with_its_process(invoke: Invoke, folder: Path) -> None:
    with running(settings(folder)):
        error = ask(invoke, "list", exit_code=1)
    assert error["reason"] == "UNAVAILABLE"
    assert "is in use by the cstp process" in error["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--local", "--agent", "grpc://127.0.0.1:1"],
        ["list", "--local", "--token", "a-token"],
        ["list", "--agent", "grpc://127.0.0.1:1", "--as", "carol"],
    ],
)
def test_options_for_a_server_are_not_mixed_with_those_for_a_folder(arguments: list[str], invoke: Invoke) -> None:
    assert invoke(*arguments).exit_code == 2


def test_what_only_a_server_has_is_refused(invoke: Invoke) -> None:
    assert "needs a server" in ask(invoke, "call", "liaison.listSessions", exit_code=1)["message"]
