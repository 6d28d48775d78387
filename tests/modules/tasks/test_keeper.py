"""Tasks on every database."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import func, select, text

from cstp_grpc.contract.enums import TaskState
from cstp_grpc.contract.errors import Conflict, InvalidArgument, NotFound, QueryFailed, Unavailable
from cstp_grpc.modules.tasks.model import Task, TaskFilter
from cstp_grpc.modules.tasks.repository import (
    DEFAULT_WORK_TIME,
    MAX_PAGE,
    REMOVAL_BATCH,
    TaskContent,
    TaskRepository,
)
from cstp_grpc.modules.tasks.sql_store import SqlTaskStore, tasks
from cstp_grpc.platform.storage.background_work import ExpiryTask
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.pagination import MAX_BYTES, PageRequest
from tests.databases import POOL_SIZE, ServerWriter
from tests.modules.tasks.keeping import KEPT, NOON, OPEN, Clock, KeeperKit
from tests.paging import walk
from tests.waiting import wait_until

pytestmark = pytest.mark.above_stores

logger = logging.getLogger(__name__)

SUBMITTED, WORKING, COMPLETED = TaskState.SUBMITTED, TaskState.WORKING, TaskState.COMPLETED
FAILED, CANCELED = TaskState.FAILED, TaskState.CANCELED
MINUTE = timedelta(minutes=1)
MILLISECOND = timedelta(milliseconds=1)
ADA = TaskFilter("ada")
ALL = PageRequest(MAX_PAGE)


def ids(kit: KeeperKit, conditions: TaskFilter = ADA) -> list[str]:
    return [task.id for task in kit.keeper.page(conditions, ALL).items]


def rows(database: Database) -> int:
    with database.engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(tasks)).scalar_one()


@pytest.mark.contract("SqlTaskStore.add", "SqlTaskStore.get")
def test_a_task_comes_back_as_it_was_saved(kit: KeeperKit) -> None:
    kit.clock.now += timedelta(microseconds=1999)
    saved = kit.save(content=b"\0\xff", context_id="é")
    assert saved == Task("t-1", "é", COMPLETED, b"\0\xff", 1, NOON + MILLISECOND)
    assert kit.keeper.get("ada", "t-1") == saved
    assert kit.keeper.page(ADA, ALL).items == (saved,)


def test_a_task_at_work_is_replaced_version_by_version(kit: KeeperKit) -> None:
    kit.save(state=WORKING, content=b"one")
    kit.clock.now += MINUTE
    assert kit.save(state=WORKING, version=1, content=b"two").version == 2
    kit.clock.now += MINUTE
    last = kit.save(version=2, content=b"three")
    assert last == Task("t-1", "c-1", COMPLETED, b"three", 3, NOON + 2 * MINUTE)
    assert kit.keeper.get("ada", "t-1") == last


@pytest.mark.parametrize("version", [0, 1, 3])
def test_another_version_than_the_stored_one_is_a_conflict(kit: KeeperKit, version: int) -> None:
    kit.save(state=WORKING)
    stored = kit.save(state=WORKING, version=1)
    with pytest.raises(Conflict, match="t-1"):
        kit.save(version=version, content=b"other")
    assert kit.keeper.get("ada", "t-1") == stored


@pytest.mark.parametrize("state", sorted(set(TaskState) - set(OPEN)))
@pytest.mark.contract("SqlTaskStore.replace")
def test_a_task_that_ended_does_not_change(kit: KeeperKit, state: TaskState) -> None:
    stored = kit.save(state=state)
    for version in (0, 1):
        with pytest.raises(Conflict):
            kit.save(state=WORKING, version=version)
    assert kit.keeper.get("ada", "t-1") == stored


def test_a_task_is_canceled_until_it_is_at_work(kit: KeeperKit) -> None:
    kit.save("t-1", SUBMITTED)
    assert kit.save("t-1", CANCELED, 1).state is CANCELED
    kit.save("t-2", SUBMITTED)
    begun = kit.save("t-2", WORKING, 1)
    for version in (1, 2):
        with pytest.raises(Conflict):
            kit.save("t-2", CANCELED, version)
    assert kit.keeper.get("ada", "t-2") == begun
    assert kit.save("t-2", COMPLETED, 2).state is COMPLETED


@pytest.mark.both_databases
def test_of_beginning_and_canceling_at_once_one_is_taken(kit: KeeperKit, database: Database) -> None:
    """Also if they reach different replicas."""
    writer = ServerWriter(database)
    keepers = [kit.keeper, TaskRepository(kit.store, writer, kit.clock, KEPT)]
    taken = []
    with ThreadPoolExecutor(8) as callers:
        for number in range(20):
            task_id = f"t-{number}"
            kit.save(task_id, SUBMITTED)

            def save(state: TaskState, keeper: TaskRepository, task_id: str = task_id) -> TaskState | None:
                try:
                    return asyncio.run(keeper.write("ada", TaskContent(task_id, "c-1", state, b"x"), 1)).state
                except Conflict:
                    return None

            states = [WORKING, CANCELED, CANCELED, WORKING]
            found = callers.map(save, states, [keepers[place % 2] for place in range(len(states))])
            taken.append([state for state in found if state is not None])
            assert taken[-1] == [kit.keeper.get("ada", task_id).state]
    writer.close()


def test_a_task_that_is_not_there_cannot_be_replaced(kit: KeeperKit) -> None:
    with pytest.raises(Conflict, match="The task t-1 cannot change so in version 1"):
        kit.save(version=1)


@pytest.mark.both_databases
def test_of_many_saves_of_one_version_one_is_taken(kit: KeeperKit, database: Database) -> None:
    """Also where they reach different replicas."""
    kit.save(state=WORKING)
    writer = ServerWriter(database)
    keepers = [kit.keeper, TaskRepository(kit.store, writer, kit.clock, KEPT)]

    def save(number: int) -> bytes | None:
        content = TaskContent("t-1", "c-1", COMPLETED, str(number).encode())
        try:
            return asyncio.run(keepers[number % 2].write("ada", content, 1)).content
        except Conflict:
            return None

    with ThreadPoolExecutor(8) as callers:
        taken = [content for content in callers.map(save, range(16)) if content is not None]
    assert taken == [kit.keeper.get("ada", "t-1").content]
    writer.close()


def test_agents_see_nothing_of_each_others_tasks(kit: KeeperKit) -> None:
    kit.save(state=WORKING)
    other = kit.save(agent="bob", content=b"bob's")
    assert kit.keeper.get("bob", "t-1") == other
    with pytest.raises(NotFound):
        kit.keeper.get("eve", "t-1")
    with pytest.raises(Conflict):
        kit.save(agent="eve", version=1)
    assert kit.keeper.page(TaskFilter("bob"), ALL).items == (other,)
    page = kit.keeper.page(TaskFilter("eve"), ALL)
    assert (page.items, page.total) == ((), 0)


def test_an_id_that_no_database_keeps_is_not_found(kit: KeeperKit) -> None:
    with pytest.raises(NotFound):
        kit.keeper.get("ada", "a\0")


def test_a_key_names_one_task_of_an_agent(kit: KeeperKit, database: Database) -> None:
    """Also for another replica, and before the task is saved."""
    task_id, nothing = kit.keeper.find("ada", "m-1")
    assert nothing is None
    saved = kit.save(task_id, agent="ada")
    writer = ServerWriter(database)
    assert TaskRepository(kit.store, writer, kit.clock, KEPT).find("ada", "m-1") == (task_id, saved)
    writer.close()
    others = {kit.keeper.find(agent, key)[0] for agent, key in (("bob", "m-1"), ("ada", "m-2"), ("ad", "am-1"))}
    assert len(others - {task_id}) == 3
    kit.clock.now += KEPT
    assert kit.keeper.find("ada", "m-1") == (task_id, None)


# Lapsing


@pytest.mark.parametrize("state", [SUBMITTED, WORKING])
@pytest.mark.parametrize(("given", "left"), [(None, DEFAULT_WORK_TIME), (MINUTE, MINUTE)])
def test_a_task_fails_when_its_time_runs_out(
    kit: KeeperKit, given: timedelta | None, left: timedelta, state: TaskState
) -> None:
    saved = kit.save(state=state, time_left=given)
    kit.clock.now = NOON + left - MILLISECOND
    assert kit.keeper.get("ada", "t-1") == saved
    kit.clock.now = NOON + left
    lapsed = replace(saved, state=FAILED, updated_at=NOON + left)
    assert kit.keeper.get("ada", "t-1") == lapsed
    kit.clock.now += MINUTE
    assert kit.keeper.page(ADA, ALL).items == (lapsed,)
    with pytest.raises(Conflict):
        kit.save(version=1)


def test_a_task_that_waits_for_input_is_rejected_when_its_time_runs_out(kit: KeeperKit) -> None:
    saved = kit.save(state=TaskState.INPUT_REQUIRED)
    kit.clock.now += timedelta(minutes=30)
    assert kit.save(state=WORKING, version=1).version == 2
    kit.save(state=TaskState.INPUT_REQUIRED, version=2, time_left=MINUTE)
    kit.save("t-2", TaskState.INPUT_REQUIRED)
    assert kit.save("t-2", CANCELED, 1).state is CANCELED
    kit.clock.now += MINUTE
    assert kit.keeper.get("ada", "t-1").state is TaskState.REJECTED
    assert ids(kit, replace(ADA, states=(TaskState.REJECTED,))) == [saved.id]


def test_a_lapsed_task_is_listed_as_failed_where_its_change_belongs(kit: KeeperKit) -> None:
    kit.save("lapsing", WORKING, time_left=2 * MINUTE)
    kit.save("failed", FAILED)
    kit.clock.now = NOON + MINUTE
    kit.save("between")
    kit.save("working", WORKING)
    assert ids(kit) == ["working", "between", "lapsing", "failed"]
    assert ids(kit, replace(ADA, states=(WORKING,))) == ["working", "lapsing"]
    kit.clock.now = NOON + 3 * MINUTE
    kit.save("after")
    assert ids(kit) == ["after", "lapsing", "working", "between", "failed"]
    assert ids(kit, replace(ADA, states=(WORKING,))) == ["working"]
    assert ids(kit, replace(ADA, states=(FAILED,))) == ["lapsing", "failed"]
    assert ids(kit, replace(ADA, updated_after=NOON + 2 * MINUTE)) == ["after", "lapsing"]
    assert kit.keeper.page(replace(ADA, states=(FAILED,)), PageRequest(1)).total == 2


# Expiry


def test_an_expired_task_is_gone_before_it_is_removed(kit: KeeperKit, database: Database) -> None:
    kit.save("lapsed", WORKING, time_left=MINUTE)
    kit.save("ended")
    kit.clock.now = NOON + KEPT
    with pytest.raises(NotFound):
        kit.keeper.get("ada", "ended")
    page = kit.keeper.page(ADA, ALL)
    assert ([task.id for task in page.items], page.total) == (["lapsed"], 1)
    kit.clock.now += MINUTE
    assert kit.keeper.page(ADA, ALL).total == 0
    assert rows(database) == 2


def test_an_expired_task_makes_room_for_one_of_its_id(kit: KeeperKit) -> None:
    kit.save(state=WORKING, context_id="old", content=b"old")
    kit.clock.now += KEPT + DEFAULT_WORK_TIME
    new = kit.save(context_id="new", content=b"new")
    assert kit.keeper.get("ada", "t-1") == new == Task("t-1", "new", COMPLETED, b"new", 1, kit.clock.now)


def test_expired_tasks_are_removed_in_batches(kit: KeeperKit, database: Database) -> None:
    for number in range(REMOVAL_BATCH + 3):
        kit.save(f"t-{number}", agent=f"agent-{number % 3}")
    kit.clock.now += MINUTE
    kit.save("younger")
    kit.clock.now = NOON + KEPT
    assert [kit.keeper.remove_expired() for _ in range(3)] == [True, False, False]
    assert ids(kit) == ["younger"]
    assert rows(database) == 1


@pytest.mark.contract("SqlTaskStore.remove_expired")
def test_the_remover_does_not_pause_while_there_is_more(kit: KeeperKit, database: Database) -> None:
    for number in range(REMOVAL_BATCH * 2 + 1):
        kit.save(f"t-{number}")
    kit.clock.now += KEPT
    remover = expiry_task(kit, 3600)
    remover.start()
    try:
        wait_until(lambda: rows(database) == 0, "the expired tasks are removed")
    finally:
        remover.stop()


def test_the_remover_removes_what_expires_until_it_is_stopped(kit: KeeperKit, database: Database) -> None:
    kit.save()
    kit.clock.now += KEPT
    remover = expiry_task(kit, 0.01)
    remover.start()
    try:
        wait_until(lambda: rows(database) == 0, "the expired tasks are removed")
        kit.save()
        kit.clock.now += KEPT
        wait_until(lambda: rows(database) == 0, "the next one is removed")
    finally:
        remover.stop()
    kit.save()
    kit.clock.now += KEPT
    assert rows(database) == 1


def test_the_remover_goes_on_when_the_database_answers_again(
    kit: KeeperKit, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    kit.save()
    kit.clock.now += KEPT
    rename(database, "tasks", "lost")
    remover = expiry_task(kit, 0.01)
    with caplog.at_level(logging.WARNING, logger.name):
        remover.start()
        try:
            wait_until(lambda: bool(warnings(caplog)), "the failure is logged")
            rename(database, "lost", "tasks")
            wait_until(lambda: rows(database) == 0, "the expired task is removed")
        finally:
            remover.stop()
    assert len(warnings(caplog)) == 1


def test_a_remover_that_was_never_started_can_be_stopped(kit: KeeperKit) -> None:
    expiry_task(kit, 3600).stop()


def expiry_task(kit: KeeperKit, interval: float) -> ExpiryTask:
    """The task that removes expired tasks."""
    return ExpiryTask("task-removal", kit.keeper.remove_expired, interval, logger, "expired tasks are not removed")


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == logger.name]


def rename(database: Database, old: str, new: str) -> None:
    with database.engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))


# Paging


@pytest.mark.contract("SqlTaskStore.page")
def test_a_page_holds_at_most_a_hundred(kit: KeeperKit) -> None:
    for number in range(MAX_PAGE + 1):
        kit.save(f"t-{number}")
    page = kit.keeper.page(ADA, PageRequest(1000))
    assert (len(page.items), page.total) == (MAX_PAGE, MAX_PAGE + 1)
    assert len(kit.keeper.page(ADA, PageRequest()).items) == 50
    assert len(walk(lambda request: kit.keeper.page(ADA, request), [1000])) == MAX_PAGE + 1


def test_large_tasks_are_all_listed_in_pages_that_fit_a_message(kit: KeeperKit) -> None:
    sizes = [MAX_BYTES * 2, MAX_BYTES // 2 - 1000, MAX_BYTES // 2 - 1000, MAX_BYTES, 1, 1]
    for number, size in enumerate(sizes):
        kit.save(f"t-{number}", content=b"x" * size)
        kit.clock.now += MILLISECOND
    pages, token = [], ""
    for _ in sizes:
        page = kit.keeper.page(ADA, PageRequest(10, token))
        pages.append([task.id for task in page.items])
        assert page.total == len(sizes)
        token = page.next_token
        if not token:
            break
    assert pages == [["t-5", "t-4"], ["t-3"], ["t-2", "t-1"], ["t-0"]]


def test_a_token_is_bound_to_its_conditions(kit: KeeperKit) -> None:
    kit.save("t-1")
    kit.save("t-2")
    token = kit.keeper.page(ADA, PageRequest(1)).next_token
    for conditions in (TaskFilter("bob"), replace(ADA, context_id="c-1"), replace(ADA, states=(COMPLETED,))):
        with pytest.raises(InvalidArgument, match="page_token"):
            kit.keeper.page(conditions, PageRequest(1, token))
    with pytest.raises(InvalidArgument, match="page_token"):
        kit.keeper.page(ADA, PageRequest(1, "nonsense"))


def test_a_database_that_does_not_answer_is_told_without_its_reasons(empty_database_url: str) -> None:
    database = open_database(empty_database_url, POOL_SIZE)
    writer = ServerWriter(database)
    writer.close()
    keeper = TaskRepository(SqlTaskStore(database), writer, Clock(), KEPT)
    with pytest.raises(QueryFailed, match=r"^the journal cannot be read now; try again$"):
        keeper.page(ADA, ALL)
    with pytest.raises(QueryFailed):
        keeper.get("ada", "t-1")
    with pytest.raises(Unavailable):
        keeper.remove_expired()
    database.close()
