"""The tasks of conversations over gRPC, as a bridge keeps them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from cstp_grpc.modules.tasks.sql_store import tasks
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.server.app import App
from tests.databases import POOL_SIZE
from tests.harness import TOKENS, GrpcCaller, Outcome, provide_journal, settings
from tests.waiting import wait_until

NOON = datetime(2026, 2, 4, 12, 0, 0, 123456, UTC)
TASK = {"id": "t-1", "contextId": "c-1", "state": "working", "content": base64.b64encode(b"\0\xff").decode()}
METHODS: dict[str, dict[str, Any]] = {
    "cstp.saveTask": {"task": TASK},
    "cstp.getTask": {"id": "t-1"},
    "cstp.listTasks": {},
}


class Clock:
    """Tells the instant that it was set to."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@contextmanager
def serving(wanted: Settings, clock: Clock) -> Iterator[GrpcCaller]:
    provide_journal(wanted)
    app = App(wanted, clock)
    app.start()
    caller = GrpcCaller(app.target)
    try:
        yield caller
    finally:
        caller.close()
        app.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def caller(tmp_path: Path, clock: Clock) -> Iterator[GrpcCaller]:
    with serving(settings(tmp_path, a2a={"task_days": 2}), clock) as caller:
        yield caller


@pytest.fixture(scope="module")
def shared_caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcCaller]:
    """A caller of a server that tests share, for it keeps no task of theirs."""
    with serving(settings(tmp_path_factory.mktemp("shared")), Clock()) as caller:
        yield caller


def result(outcome: Outcome) -> dict[str, Any]:
    assert outcome.result is not None, outcome
    return outcome.result


def test_a_task_is_kept_changed_read_and_listed(caller: GrpcCaller, clock: Clock) -> None:
    assert result(caller.call("cstp.saveTask", {"task": TASK})) == {
        "version": 1,
        "updatedAt": "2026-02-04T12:00:00.123Z",
    }
    clock.now += timedelta(seconds=1)
    done = {**TASK, "state": "completed", "version": 77, "updatedAt": "1970-01-01T00:00:00Z"}
    saved = result(caller.call("cstp.saveTask", {"task": done, "version": 1}))
    assert saved == {"version": 2, "updatedAt": "2026-02-04T12:00:01.123Z"}
    stored = {**done, **saved}
    assert result(caller.call("cstp.getTask", {"id": "t-1"})) == {"task": stored}
    assert result(caller.call("cstp.listTasks", {})) == {"tasks": [stored], "nextPageToken": "", "total": 1}


def test_a_second_save_of_a_version_is_a_conflict(caller: GrpcCaller) -> None:
    result(caller.call("cstp.saveTask", {"task": TASK}))
    for version in (0, 2):
        refused = caller.call("cstp.saveTask", {"task": TASK, "version": version})
        assert (refused.reason, dict(refused.data or {})["id"]) == ("CONFLICT", "t-1")


def test_a_task_whose_time_ran_out_has_failed(caller: GrpcCaller, clock: Clock) -> None:
    result(caller.call("cstp.saveTask", {"task": TASK, "timeLeft": "1.5s"}))
    clock.now += timedelta(seconds=2)
    failed = result(caller.call("cstp.getTask", {"id": "t-1"}))["task"]
    assert (failed["state"], failed["updatedAt"]) == ("failed", "2026-02-04T12:00:01.623Z")
    assert result(caller.call("cstp.listTasks", {"states": ["failed"]}))["tasks"] == [failed]
    assert caller.call("cstp.saveTask", {"task": TASK, "version": 1}).reason == "CONFLICT"


def test_tasks_are_listed_page_by_page_under_conditions(caller: GrpcCaller, clock: Clock) -> None:
    for number in range(6):
        clock.now += timedelta(seconds=1)
        state = "completed" if number % 2 else "rejected"
        task = {**TASK, "id": f"t-{number}", "contextId": f"c-{number // 4}", "state": state}
        result(caller.call("cstp.saveTask", {"task": task}))
    params = {"contextId": "c-0", "updatedAfter": "2026-02-04T12:00:02.123Z", "states": ["completed", "rejected"]}
    first = result(caller.call("cstp.listTasks", {**params, "pageSize": 2}))
    assert ([task["id"] for task in first["tasks"]], first["total"]) == (["t-3", "t-2"], 3)
    second = result(caller.call("cstp.listTasks", {**params, "pageToken": first["nextPageToken"]}))
    assert ([task["id"] for task in second["tasks"]], second["total"]) == (["t-1"], 3)
    assert second["nextPageToken"] == ""
    other = caller.call("cstp.listTasks", {"pageToken": first["nextPageToken"]})
    assert (other.reason, other.fields) == ("INVALID_ARGUMENT", ("page_token",))


def test_for_other_agents_there_is_no_such_task(caller: GrpcCaller) -> None:
    result(caller.call("cstp.saveTask", {"task": TASK}))
    page = result(caller.call("cstp.listTasks", {"pageSize": 1}))
    bob = TOKENS["bob"]
    unknown, foreign = (caller.call("cstp.getTask", {"id": name}, bob) for name in ("t-0", "t-1"))
    assert (foreign.reason, foreign.message) == ("NOT_FOUND", unknown.message.replace("t-0", "t-1"))
    assert caller.call("cstp.saveTask", {"task": TASK, "version": 1}, bob).reason == "CONFLICT"
    assert result(caller.call("cstp.listTasks", {}, bob)) == {"tasks": [], "nextPageToken": "", "total": 0}
    result(caller.call("cstp.saveTask", {"task": {**TASK, "content": "AA=="}}, bob))
    assert result(caller.call("cstp.getTask", {"id": "t-1"}))["task"] == page["tasks"][0]


def test_an_agent_with_the_default_permissions_may_keep_its_own(caller: GrpcCaller) -> None:
    reader = TOKENS["reader"]
    for method, params in METHODS.items():
        result(caller.call(method, params, reader))


@pytest.mark.parametrize("token", [None, "not-a-token-of-anyone"])
@pytest.mark.parametrize("method", METHODS)
def test_strangers_are_refused(caller: GrpcCaller, method: str, token: str | None) -> None:
    assert caller.call(method, METHODS[method], token).reason == "AUTHENTICATION_REQUIRED"


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("cstp.saveTask", {}, "task"),
        ("cstp.saveTask", {"task": {**TASK, "id": "a b"}}, "task.id"),
        ("cstp.saveTask", {"task": {**TASK, "id": "x" * 129}}, "task.id"),
        ("cstp.saveTask", {"task": {**TASK, "contextId": ""}}, "task.context_id"),
        ("cstp.saveTask", {"task": {**TASK, "contextId": "x" * 201}}, "task.context_id"),
        ("cstp.saveTask", {"task": {**TASK, "state": None}}, "task.state"),
        ("cstp.saveTask", {"task": {**TASK, "content": ""}}, "task.content"),
        ("cstp.saveTask", {"task": TASK, "version": -1}, "version"),
        ("cstp.saveTask", {"task": TASK, "timeLeft": "0s"}, "time_left"),
        ("cstp.saveTask", {"task": TASK, "timeLeft": "604800.001s"}, "time_left"),
        ("cstp.getTask", {"id": ""}, "id"),
        ("cstp.listTasks", {"pageSize": -1}, "page_size"),
        ("cstp.listTasks", {"contextId": ""}, "context_id"),
        ("cstp.listTasks", {"pageToken": "nonsense"}, "page_token"),
    ],
)
def test_what_is_out_of_range_is_named(
    shared_caller: GrpcCaller, method: str, params: dict[str, Any], field: str
) -> None:
    refused = shared_caller.call(method, params)
    assert (refused.reason, refused.fields) == ("INVALID_ARGUMENT", (field,))


def test_the_largest_content_fits(caller: GrpcCaller) -> None:
    content = base64.b64encode(b"x" * 2_097_152).decode()
    result(caller.call("cstp.saveTask", {"task": {**TASK, "content": content}}))
    assert result(caller.call("cstp.getTask", {"id": "t-1"}))["task"]["content"] == content
    assert len(result(caller.call("cstp.listTasks", {}))["tasks"]) == 1


def test_tasks_expire_and_are_removed_when_the_server_runs_again(tmp_path: Path, clock: Clock) -> None:
    wanted = settings(tmp_path, a2a={"task_days": 2})
    database = open_database(wanted.storage_url, POOL_SIZE)
    done = {**TASK, "state": "completed"}
    with serving(wanted, clock) as caller:
        result(caller.call("cstp.saveTask", {"task": done}))
    clock.now += timedelta(days=2) - timedelta(milliseconds=1)
    with serving(wanted, clock) as caller:
        assert result(caller.call("cstp.getTask", {"id": "t-1"}))["task"]["content"] == TASK["content"]
        clock.now += timedelta(milliseconds=1)
        assert caller.call("cstp.getTask", {"id": "t-1"}).reason == "NOT_FOUND"
        assert result(caller.call("cstp.listTasks", {}))["total"] == 0
    with serving(wanted, clock):
        wait_until(lambda: stored(database) == 0, "the expired task is removed")
    database.close()


def stored(database: Database) -> int:
    with database.engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(tasks)).scalar_one()
