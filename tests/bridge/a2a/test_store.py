from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from a2a.types.a2a_pb2 import Task
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp

from bridge.a2a.errors import UpstreamError
from bridge.a2a.task_store import GrpcTaskStore, TaskQuery, TaskVersionConflict
from bridge.upstream import open_channel
from cstp_grpc.contract.a2a_tasks import INTERRUPTED_TEXT
from cstp_grpc.gen.cstp.v1 import tasks_pb2
from cstp_grpc.gen.cstp.v1.tasks_pb2_grpc import TaskServiceStub
from tests.bridge.a2a.talking import COMPLETED, FAILED, TIMEOUT, WORKING, asynchronous, context, until

ALICE = context("alice").metadata
BOB = context("bob").metadata
STRANGER = context("who?").metadata


@asynccontextmanager
async def keeping(target: str) -> AsyncIterator[GrpcTaskStore]:
    async with open_channel(target) as channel:
        yield GrpcTaskStore(channel, TIMEOUT)


def new(state: str = "TASK_STATE_WORKING", context_id: str = "") -> Task:
    content = {
        "id": str(uuid.uuid4()),
        "contextId": context_id or str(uuid.uuid4()),
        "status": {"state": state},
        "artifacts": [{"artifactId": "a", "parts": [{"text": "half"}]}],
    }
    return json_format.ParseDict(content, Task())


@asynchronous
async def test_a_task_is_kept_as_it_was_returned(core: str) -> None:
    async with keeping(core) as store:
        task = new("TASK_STATE_COMPLETED")
        saved = await store.save(task, 0, ALICE)
        assert saved == await store.get(task.id, ALICE)
        assert saved.version == 1
        assert saved.task.status.timestamp.seconds > 0
        assert not task.status.HasField("timestamp")


@asynchronous
async def test_a_task_at_work_is_replaced_by_its_version_once(core: str) -> None:
    async with keeping(core) as store:
        task = new()
        first = await store.save(task, 0, ALICE)
        task.status.state = COMPLETED
        second = await store.save(task, first.version, ALICE)
        assert second.task.status.state == COMPLETED
        for version in (0, first.version, second.version):
            with pytest.raises(TaskVersionConflict):
                await store.save(task, version, ALICE)


@asynchronous
async def test_a_task_whose_time_ran_out_says_that_it_was_interrupted(core: str) -> None:
    async with keeping(core) as store:
        task = new()
        saved = await store.save(task, 0, ALICE, time_left=0.001)

        async def has_failed() -> bool:
            return (await store.get(task.id, ALICE)).task.status.state == FAILED

        await until(has_failed, "the task has failed")
        found = (await store.get(task.id, ALICE)).task
        assert found.status.message.parts[0].text == INTERRUPTED_TEXT
        assert not found.artifacts
        assert found.status.timestamp.ToMilliseconds() == saved.task.status.timestamp.ToMilliseconds() + 1
        task.status.state = COMPLETED
        with pytest.raises(TaskVersionConflict):
            await store.save(task, saved.version, ALICE)


@asynchronous
async def test_what_failed_by_itself_keeps_its_words(core: str) -> None:
    async with keeping(core) as store:
        task = new("TASK_STATE_FAILED")
        task.status.message.parts.add(text="its own")
        await store.save(task, 0, ALICE)
        assert (await store.get(task.id, ALICE)).task.status.message.parts[0].text == "its own"


@pytest.mark.parametrize("content", [b"\xff junk", b"\x0a\x01x", b"\x0a\x02\xff\xff"])
@asynchronous
async def test_what_no_bridge_kept_is_no_task(core: str, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with keeping(core) as store, open_channel(core) as channel:
        task, junk = new(), tasks_pb2.Task(id=str(uuid.uuid4()), content=content)
        await store.save(task, 0, ALICE)
        junk.context_id, junk.state = task.context_id, tasks_pb2.TASK_STATE_COMPLETED
        await TaskServiceStub(channel).SaveTask(tasks_pb2.SaveTaskRequest(task=junk), metadata=tuple(ALICE))
        with pytest.raises(TaskNotFoundError):
            await store.get(junk.id, ALICE)
        page = await store.list(TaskQuery(10, context_id=task.context_id), ALICE)
        assert [found.id for found in page.tasks] == [task.id]
        mine = [record for record in caplog.records if record.name == "bridge.a2a.task_store"]
        assert {record.getMessage() for record in mine} == {f"task {junk.id} holds what no bridge kept"}
        assert not [record for record in mine if record.exc_info]


@asynchronous
async def test_a_task_of_somebody_else_is_not_there(core: str) -> None:
    async with keeping(core) as store:
        task = new()
        await store.save(task, 0, ALICE)
        for task_id, who in ((task.id, BOB), ("none", ALICE), ("x" * 300, ALICE), ("", ALICE)):
            with pytest.raises(TaskNotFoundError):
                await store.get(task_id, who)
        assert (await store.list(TaskQuery(10, context_id=task.context_id), BOB)).tasks == []


@asynchronous
async def test_tasks_are_listed_by_page(core: str) -> None:
    async with keeping(core) as store:
        ids = [(await store.save(new(context_id="paged"), 0, ALICE)).task.id for _ in range(3)]
        first = await store.list(TaskQuery(2, context_id="paged"), ALICE)
        second = await store.list(TaskQuery(2, context_id="paged", page_token=first.next_page_token), ALICE)
        assert {task.id for task in (*first.tasks, *second.tasks)} == set(ids)
        assert (len(first.tasks), first.total, second.next_page_token) == (2, 3, "")


@asynchronous
async def test_tasks_are_listed_by_state_and_time(core: str) -> None:
    async with keeping(core) as store:
        await store.save(new(context_id="states"), 0, ALICE)
        done = await store.save(new("TASK_STATE_COMPLETED", "states"), 0, ALICE)
        found = await store.list(TaskQuery(9, context_id="states", state=COMPLETED), ALICE)
        assert [task.id for task in found.tasks] == [done.task.id]
        since = done.task.status.timestamp
        for later, expected in ((0, 1), (1, 0)):
            after = Timestamp()
            after.FromMilliseconds(since.ToMilliseconds() + later)
            query = TaskQuery(9, context_id="states", state=COMPLETED, updated_after=after)
            assert (await store.list(query, ALICE)).total == expected
        assert (await store.list(TaskQuery(9, context_id="states", state=WORKING), ALICE)).total == 1


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (TaskQuery(9, page_token="none"), "pageToken"),
        (TaskQuery(9, context_id="c" * 300), "contextId"),
        (TaskQuery(9, updated_after=Timestamp(nanos=-5)), "statusTimestampAfter"),
    ],
)
@asynchronous
async def test_a_listing_that_cannot_be_is_told_by_the_names_of_a2a(core: str, query: TaskQuery, field: str) -> None:
    async with keeping(core) as store:
        with pytest.raises(InvalidParamsError) as caught:
            await store.list(query, ALICE)
        assert caught.value.data is not None
        assert [item["field"] for item in caught.value.data["errors"]] == [field]


@asynchronous
async def test_strangers_are_refused(core: str) -> None:
    async with keeping(core) as store:
        for attempt in (
            store.get("any", STRANGER),
            store.save(new(), 0, STRANGER),
            store.list(TaskQuery(1), STRANGER),
        ):
            with pytest.raises(UpstreamError) as caught:
                await attempt
            assert caught.value.failure.reason == "AUTHENTICATION_REQUIRED"


@asynchronous
async def test_a_server_that_is_away_is_told() -> None:
    async with keeping("127.0.0.1:1") as store:
        with pytest.raises(UpstreamError) as caught:
            await store.get("any", ALICE)
        assert caught.value.failure.reason == "UNAVAILABLE"
