"""Nothing that was answered without a server is lost when its process is killed, whatever others do meanwhile."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cstp_grpc.client import CstpClient
from tests.databases import write_journal
from tests.harness import TOKENS, running, settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KILLS = 8
PROCESSES = 2

WORK = """
import itertools, sys
from cstp_grpc.client import CstpClient
with CstpClient(f"local:{sys.argv[1]}", agent="alice") as client:
    for number in itertools.count():
        key = f"{sys.argv[2]}-{number}"
        announced = client.announce_intent("Put a queue between the services", correlation_id=key, visibility="shared")
        print("intent", key, announced.revision, flush=True)
        print("decision", client.record_decision(f"Use queue {key}", request_id=key).id, key, flush=True)
        client.query_decisions("a queue")
"""
"""Prints what was answered, line by line."""


def start_worker(folder: Path, name: str) -> subprocess.Popen[str]:
    """Start a process that writes until it is killed, and wait for its first answer."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, str(folder), name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first, process.stderr and process.stderr.read()
    return process


def test_what_was_answered_is_there_after_any_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CSTP_CONFIG", raising=False)
    monkeypatch.setenv("CSTP_EMBEDDING__PROVIDER", "lexical")
    write_journal(tmp_path / "journal.db")
    decisions: dict[str, str] = {}
    intents: set[str] = set()
    for round_number in range(KILLS):
        names = [f"{round_number}-{number}" for number in range(PROCESSES)]
        workers = [start_worker(tmp_path, name) for name in names]
        # The moment is random on purpose; nothing is waited for.
        threading.Event().wait(random.uniform(0.0, 0.5))
        for worker in workers:
            worker.kill()
        for name, worker in zip(names, workers, strict=True):
            intents.add(f"{name}-0")
            for line in worker.communicate()[0].splitlines():
                kind, identifier, key = line.split()
                if kind == "decision":
                    decisions[identifier] = f"Use queue {key}"
                else:
                    intents.add(identifier)
        # The next process has the folder at once, whatever the killed ones held.
        with CstpClient(f"local:{tmp_path}", agent="alice") as client:
            found = {decision.id: decision.title for decision in client.list_decisions()}
            assert decisions.items() <= found.items()
            assert intents <= {intent.correlation_id for intent in client.list_intents()}
            announced = {entry.correlation_id for entry in client.list_audit_entries(event="intent_announced")}
            assert intents <= announced
            # A repetition after the kill is the same decision.
            identifier, title = next(iter(decisions.items()), ("", ""))
            if identifier:
                key = title.removeprefix("Use queue ")
                assert client.record_decision(title, request_id=key).id == identifier
    with running(settings(tmp_path)) as app, CstpClient(app.url, TOKENS["alice"]) as remote:
        assert decisions.keys() <= {decision.id for decision in remote.list_decisions()}
