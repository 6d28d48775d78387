"""Nothing that was acknowledged is lost when the server is killed, whatever it was doing."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf.duration_pb2 import Duration

from cstp_grpc.gen.cstp.v1 import (
    audit_pb2,
    audit_pb2_grpc,
    cstp_pb2,
    cstp_pb2_grpc,
    intents_pb2,
    intents_pb2_grpc,
    journal_pb2,
    journal_pb2_grpc,
    pre_actions_pb2,
    pre_actions_pb2_grpc,
    tasks_pb2,
    tasks_pb2_grpc,
    types_pb2,
)
from tests.killing import killed_at_work

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SAMPLE = 20
"""How many decisions are searched for after each kill."""
KILLS = 20
WRITERS = 4
TOKEN = "kill-test-token"
METADATA = ("authorization", f"Bearer {TOKEN}")
OTHER_TOKEN = "other-kill-test-token"
TASK_TIME = Duration(seconds=7 * 24 * 3600)
"""How long a task may be at work: the most that there is, since the server's clock may be set forward meanwhile."""
ATTEMPTS = ("Do", "Undo")
"""What is announced under each correlation id, one after the other."""
PERMISSIONS = ["query", "check", "announce", "record", "review", "admin", "converse", "route"]
TOKENS = [
    {"name": name, "token": token, "permissions": PERMISSIONS}
    for name, token in (("tester", TOKEN), ("other", OTHER_TOKEN))
]
"""The agent that writes, and the one that is told of its intents."""


@dataclass
class Acknowledged:
    """What the server said is on disk, by the identifiers that the clients chose."""

    decisions: dict[str, str] = field(default_factory=dict)
    """Titles by decision id."""
    intents: dict[str, int] = field(default_factory=dict)
    """Revisions by correlation id."""
    checks: set[str] = field(default_factory=set)
    """Request ids of checks."""
    tasks: dict[str, int] = field(default_factory=dict)
    """Versions by task id."""
    closings: set[str] = field(default_factory=set)
    """Correlation ids of closed intents."""
    thoughts: set[str] = field(default_factory=set)
    """Ids of thoughts about decisions and about intents."""
    pre_actions: dict[str, str] = field(default_factory=dict)
    """Ids of the decisions that were recorded with intents, by correlation id."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A `cstp serve` process on the same folder each time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> grpc.Channel:
        self.port = free_port()
        config = self._folder / "cstp.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "data_dir": str(self._folder / "var"),
                    "grpc": {"port": self.port},
                    "auth": {"tokens": TOKENS},
                    # Loads sooner than all packs, at each of many starts.
                    "cstp": {"guardrails": {"preset": "default"}},
                    "embedding": {"provider": "lexical"},
                    "rate_limits": {"enabled": False},
                    "thoughts": {"per_agent": 1_000_000},
                    "liaison": {"pillars": {"content": {"agent": "tester"}}},
                }
            )
        )
        command = [sys.executable, "-m", "cstp_grpc", "serve", "--config", str(config), "--no-bridge"]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        grpc.channel_ready_future(channel).result(60)
        return channel

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)


def write(
    channel: grpc.Channel, done: Acknowledged, lock: threading.Lock, stopping: threading.Event | None = None
) -> None:
    """Record, announce and check until the server is gone or an event is set, noting what it acknowledged."""
    journal = journal_pb2_grpc.JournalServiceStub(channel)
    cstp = cstp_pb2_grpc.CstpServiceStub(channel)
    closes = intents_pb2_grpc.IntentServiceStub(channel)
    keeping = tasks_pb2_grpc.TaskServiceStub(channel)
    acting = pre_actions_pb2_grpc.PreActionServiceStub(channel)
    try:
        while stopping is None or not stopping.is_set():
            key = uuid.uuid4().hex
            metadata = (METADATA, ("x-request-id", key))
            title = f"Decide on {key}"
            content = journal_pb2.DecisionContent(title=title, context="under load")
            recorded = journal.RecordDecision(
                journal_pb2.RecordDecisionRequest(request_id=key, decision=content), metadata=metadata, timeout=30
            )
            with lock:
                done.decisions[recorded.decision.id] = title
            for attempt in ATTEMPTS:
                announced = cstp.AnnounceIntent(shared_intent(attempt, key), metadata=metadata, timeout=30)
                with lock:
                    done.intents[key] = announced.revision
            for thinking in (
                journal_pb2.RecordThoughtRequest(text=key, decision_id=recorded.decision.id),
                journal_pb2.RecordThoughtRequest(text=key, correlation_id=key),
            ):
                thought = journal.RecordThought(thinking, metadata=metadata, timeout=30).thought
                with lock:
                    done.thoughts.add(thought.id)
            if is_to_be_closed(key):
                closing = intents_pb2.CloseIntentRequest(correlation_id=key, outcome=types_pb2.OUTCOME_SUCCESS)
                closes.CloseIntent(closing, metadata=metadata, timeout=30)
                with lock:
                    done.closings.add(key)
            acted = acting.PreAction(action_with_decision(key), metadata=metadata, timeout=30)
            with lock:
                done.pre_actions[acted.feedback.correlation_id] = acted.decision.id
            action = cstp_pb2.Action(description=f"Do {key}")
            cstp.CheckGuardrails(cstp_pb2.CheckGuardrailsRequest(action=action), metadata=metadata, timeout=30)
            with lock:
                done.checks.add(key)
            for version, state in enumerate((tasks_pb2.TASK_STATE_WORKING, tasks_pb2.TASK_STATE_COMPLETED)):
                task = tasks_pb2.Task(id=key, context_id="load", state=state, content=b"content")
                saving = tasks_pb2.SaveTaskRequest(task=task, version=version, time_left=TASK_TIME)
                saved = keeping.SaveTask(saving, metadata=metadata, timeout=30)
                with lock:
                    done.tasks[key] = saved.version
    except grpc.RpcError as error:
        if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):  # type: ignore[attr-defined]
            raise


def shared_intent(attempt: str, key: str) -> cstp_pb2.AnnounceIntentRequest:
    """Return the announcement of a shared intent."""
    return cstp_pb2.AnnounceIntentRequest(
        intent=f"{attempt} {key}", correlation_id=key, visibility=types_pb2.VISIBILITY_SHARED
    )


ACTED = "Act on "
"""How the intents begin that are announced with a decision."""


def action_with_decision(key: str) -> pre_actions_pb2.PreActionRequest:
    """Return an intent that is announced with its decision."""
    announcement = cstp_pb2.AnnounceIntentRequest(intent=f"{ACTED}{key}", correlation_id=f"act-{key}")
    return pre_actions_pb2.PreActionRequest(announcement=announcement)


def is_to_be_closed(key: str) -> bool:
    """Return True for about half of the keys."""
    return int(key[-1], 16) % 2 == 0


def everything(stub_call: Any, request: Any, items: str) -> list[Any]:
    """Return the items of every page."""
    found: list[Any] = []
    request.page_size = 1000
    while True:
        page = stub_call(request, metadata=(METADATA,), timeout=60)
        found += getattr(page, items)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def verify(channel: grpc.Channel, done: Acknowledged) -> None:
    """Everything that was acknowledged is there, and search finds it."""
    journal = journal_pb2_grpc.JournalServiceStub(channel)
    audit = audit_pb2_grpc.AuditServiceStub(channel)
    decisions = {
        d.id: d.title for d in everything(journal.ListDecisions, journal_pb2.ListDecisionsRequest(), "decisions")
    }
    assert done.decisions.items() <= decisions.items()
    listed = everything(audit.ListIntents, audit_pb2.ListIntentsRequest(agent="tester"), "intents")
    intents = {(i.correlation_id, i.revision): i.previous_revision for i in listed}
    assert done.intents.items() <= intents.keys()
    assert all((key, previous) in intents for (key, _), previous in intents.items() if previous)
    of_tester = audit_pb2.ListAuditEntriesRequest(requesting_agent="tester")
    entries = everything(audit.ListAuditEntries, of_tester, "entries")
    judged = {e.request_id for e in entries if e.event == audit_pb2.AUDIT_EVENT_GUARDRAIL_CHECK}
    announced = {
        (e.correlation_id, e.intent_revision) for e in entries if e.event == audit_pb2.AUDIT_EVENT_INTENT_ANNOUNCED
    }
    assert done.checks <= judged
    keeping = tasks_pb2_grpc.TaskServiceStub(channel)
    tasks = {t.id: t.version for t in everything(keeping.ListTasks, tasks_pb2.ListTasksRequest(), "tasks")}
    assert all(tasks[key] >= version for key, version in done.tasks.items())
    thoughts = everything(journal.ListThoughts, journal_pb2.ListThoughtsRequest(), "thoughts")
    assert done.thoughts <= {thought.id for thought in thoughts}
    # No intent without its entry, no entry without its intent: they are one transaction.
    assert intents.keys() == announced
    closed = {(i.correlation_id, i.revision) for i in listed if i.HasField("closing")}
    assert done.closings <= {key for key, _ in closed}
    assert closed == {
        (e.correlation_id, e.intent_revision) for e in entries if e.event == audit_pb2.AUDIT_EVENT_INTENT_CLOSED
    }
    # Of an intent and its decision, both are there or neither, whether or not it was acknowledged.
    acted = {i.correlation_id for i in listed if i.intent.startswith(ACTED)}
    assert acted == {f"act-{title.removeprefix(ACTED)}" for title in decisions.values() if title.startswith(ACTED)}
    assert set(done.pre_actions) <= acted
    assert set(done.pre_actions.values()) <= decisions.keys()
    cstp = cstp_pb2_grpc.CstpServiceStub(channel)
    for key in [key for key, revision in done.intents.items() if revision == len(ATTEMPTS)][-SAMPLE:]:
        request = shared_intent(ATTEMPTS[-1], key)
        assert cstp.AnnounceIntent(request, metadata=(METADATA,), timeout=30).revision == len(ATTEMPTS)
        if not is_to_be_closed(key):
            assert is_told(cstp, key)
    sample = random.sample(sorted(done.decisions.items()), min(SAMPLE, len(done.decisions)))
    assert all(finds(cstp, *wanted) for wanted in sample)


def is_told(cstp: cstp_pb2_grpc.CstpServiceStub, key: str) -> bool:
    """Return True if another agent that announces the same is told of a shared intent."""
    request = cstp_pb2.AnnounceIntentRequest(intent=f"{ATTEMPTS[-1]} {key}", correlation_id=key)
    metadata = (("authorization", f"Bearer {OTHER_TOKEN}"),)
    answer = cstp.AnnounceIntent(request, metadata=metadata, timeout=30)
    return key in {related.correlation_id for related in answer.related_intents}


def finds(cstp: cstp_pb2_grpc.CstpServiceStub, wanted: str, title: str) -> bool:
    """Whether a search for a decision's title finds it."""
    request = cstp_pb2.QueryDecisionsRequest(query=title, limit=50, min_score=0)
    return wanted in {
        decision.id for decision in cstp.QueryDecisions(request, metadata=(METADATA,), timeout=30).decisions
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that does not outlive a test that fails."""
    made = Server(tmp_path)
    yield made
    made.kill()


def test_nothing_acknowledged_is_lost(server: Server) -> None:
    done, lock = Acknowledged(), threading.Lock()
    for _ in range(KILLS):
        with server.start() as channel:
            verify(channel, done)
            killed_at_work(partial(write, channel, done, lock), WRITERS, server.kill, latest=1.5)
    with server.start() as channel:
        verify(channel, done)
    assert server.stop() == 0
    counts = {
        name: len(getattr(done, name))
        for name in ("decisions", "intents", "checks", "tasks", "closings", "thoughts", "pre_actions")
    }
    assert min(counts.values()) > KILLS, json.dumps(counts)
