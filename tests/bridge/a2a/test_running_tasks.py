"""Tasks at work: streams of them, work that outlives its caller, canceling, and following them from another bridge."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import pytest
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
    Task,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    TaskNotCancelableError,
    UnsupportedOperationError,
)

from bridge.a2a.errors import UpstreamError
from bridge.a2a.task_store import GrpcTaskStore
from bridge.upstream import open_channel
from cstp_grpc.contract.a2a_tasks import INTERRUPTED_TEXT, NOT_STARTED_TEXT
from cstp_grpc.platform.config import Settings
from tests.bridge.a2a.operation_calls import (
    ALICE,
    AT_ONCE,
    BOB,
    INTENT,
    events,
    get,
    has_ended,
    refusal,
    submitted,
)
from tests.bridge.a2a.talking import (
    CANCELED,
    COMPLETED,
    FAILED,
    REQUEST_ID,
    SUBMITTED,
    TIMEOUT,
    WORKING,
    asynchronous,
    conversing,
    sending,
    slow_server,
    until,
    within,
)
from tests.harness import running, settings

# Work that takes its time


@asynchronous
async def test_a_task_that_is_submitted_takes_no_message(core: str, wanted: Settings) -> None:
    async with slow_server() as slow, conversing(core, wanted, slow.target) as talk:
        task = await talk.on_message_send(sending(INTENT, configuration=AT_ONCE), ALICE)
        assert task.status.state == SUBMITTED
        assert not task.artifacts
        same: dict[str, Any] = {"taskId": task.id, "contextId": task.context_id}
        for reference in ({"taskId": task.id}, same):
            error = await refusal(talk.on_message_send(sending("More", **reference), ALICE))
            assert isinstance(error, UnsupportedOperationError)
        slow.may.set()
        await until(lambda: has_ended(talk, task), "the task has ended")
        assert (await get(talk, task)).status.state == COMPLETED


@asynchronous
async def test_work_goes_on_when_the_reader_of_a_stream_leaves(core: str, wanted: Settings) -> None:
    async with slow_server() as slow, conversing(core, wanted, slow.target) as talk:
        stream = talk.on_message_send_stream(sending(INTENT), ALICE)
        task = await anext(stream)
        assert isinstance(task, Task)
        await stream.aclose()
        slow.may.set()
        await until(lambda: has_ended(talk, task), "the task has ended")


@pytest.mark.parametrize("streaming", [False, True])
@asynchronous
async def test_work_goes_on_when_a_waiting_caller_is_cut_off(core: str, wanted: Settings, streaming: bool) -> None:
    async with slow_server() as slow, conversing(core, wanted, slow.target) as talk:
        request = sending(INTENT, contextId=str(uuid.uuid4()))
        wait = (
            events(talk.on_message_send_stream(request, ALICE)) if streaming else talk.on_message_send(request, ALICE)
        )
        caller = asyncio.create_task(wait)
        await slow.asked.wait()
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        slow.may.set()

        async def is_answered() -> bool:
            listed = ListTasksRequest(context_id=request.message.context_id, status=COMPLETED)
            return (await talk.on_list_tasks(listed, ALICE)).total_size == 1

        await until(is_answered, "the answer is kept")


@asynchronous
async def test_closing_waits_for_the_work(core: str, wanted: Settings) -> None:
    async with slow_server() as slow, conversing(core, wanted, slow.target) as talk:
        task = await talk.on_message_send(sending(INTENT, configuration=AT_ONCE), ALICE)
        closing = asyncio.create_task(talk.aclose())
        await slow.asked.wait()
        assert not closing.done()
        slow.may.set()
        await closing
        assert await has_ended(talk, task)


@asynchronous
async def test_an_answer_that_is_lost_in_the_background_is_in_the_log(
    wanted: Settings, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    async with slow_server() as slow:
        with running(settings(tmp_path_factory.mktemp("away"))) as app:
            async with conversing(f"127.0.0.1:{app.port}", within(wanted, 0.5), slow.target) as talk:
                task = await talk.on_message_send(sending(INTENT, configuration=AT_ONCE), ALICE)
                await slow.asked.wait()
                app.stop()
                slow.may.set()
                with caplog.at_level(logging.WARNING, "bridge"):
                    await talk.aclose()
        (record,) = [record for record in caplog.records if record.name.startswith("bridge")]
        assert f"{REQUEST_ID} task {task.id} lost its answer" in record.getMessage()


@asynchronous
async def test_an_answer_waits_in_the_background_for_its_turn_to_be_kept(
    wanted: Settings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    limits = {"enabled": True, "methods": {"cstp.saveTask": "1/second"}}
    with running(settings(tmp_path_factory.mktemp("limited"), rate_limits=limits)) as app:
        async with conversing(f"127.0.0.1:{app.port}", wanted) as talk:
            *_, last = await events(talk.on_message_send_stream(sending(INTENT), ALICE))
            assert last.status.state == COMPLETED


# Canceling


@asynchronous
async def test_canceling_work_that_is_about_to_end_says_what_it_came_to(core: str, wanted: Settings) -> None:
    async with slow_server() as slow, conversing(core, wanted, slow.target) as talk:
        task = await talk.on_message_send(sending(INTENT, configuration=AT_ONCE), ALICE)
        await slow.asked.wait()
        canceling = asyncio.create_task(refusal(talk.on_cancel_task(CancelTaskRequest(id=task.id), ALICE)))
        slow.may.set()
        error = await canceling
        assert isinstance(error, TaskNotCancelableError)
        assert error.message == f"Task {task.id} has ended, it is TASK_STATE_COMPLETED"


@asynchronous
async def test_canceling_twice_at_once_is_canceling(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk, open_channel(core) as channel:
        task = await submitted(GrpcTaskStore(channel, TIMEOUT))
        attempts = [talk.on_cancel_task(CancelTaskRequest(id=task.id), ALICE) for _ in range(4)]
        for outcome in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(outcome, Task):
                assert outcome.status.state == CANCELED
            else:
                assert isinstance(outcome, TaskNotCancelableError)
        assert (await get(talk, task)).status.state == CANCELED


# Subscribing


@asynchronous
async def test_a_second_bridge_follows_what_a_first_began(core: str, wanted: Settings) -> None:
    async with (
        slow_server() as slow,
        conversing(core, wanted, slow.target) as first,
        conversing(core, wanted) as second,
    ):
        task = await first.on_message_send(sending(INTENT, configuration=AT_ONCE), ALICE)
        await slow.asked.wait()
        followed = second.on_subscribe_to_task(SubscribeToTaskRequest(id=task.id), ALICE)
        found = await anext(followed)
        assert isinstance(found, Task)
        assert found.status.state == WORKING
        slow.may.set()
        artifact, end = await events(followed)
        assert (artifact.task_id, artifact.context_id, end.status.state) == (task.id, task.context_id, COMPLETED)


@asynchronous
async def test_a_subscription_tells_every_state_that_it_sees(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as first, conversing(core, wanted) as second, open_channel(core) as channel:
        store = GrpcTaskStore(channel, TIMEOUT)
        task = await submitted(store)
        followed = first.on_subscribe_to_task(SubscribeToTaskRequest(id=task.id), ALICE)
        assert await anext(followed) == task
        task.status.state = WORKING
        await store.save(task, 1, ALICE.metadata)
        begun = await anext(followed)
        assert isinstance(begun, TaskStatusUpdateEvent)
        assert (begun.task_id, begun.status.state) == (task.id, WORKING)
        await followed.aclose()
        other = await submitted(store)
        followed = first.on_subscribe_to_task(SubscribeToTaskRequest(id=other.id), ALICE)
        await anext(followed)
        await second.on_cancel_task(CancelTaskRequest(id=other.id), ALICE)
        (end,) = await events(followed)
        assert end.status.state == CANCELED


@asynchronous
async def test_a_caller_may_have_so_many_subscriptions_open(core: str, wanted: Settings) -> None:
    limited = wanted.model_copy(update={"a2a": wanted.a2a.model_copy(update={"subscriptions_per_caller": 1})})
    async with conversing(core, limited) as talk, open_channel(core) as channel:
        store = GrpcTaskStore(channel, TIMEOUT)
        requested = SubscribeToTaskRequest(id=(await submitted(store)).id)
        first = talk.on_subscribe_to_task(requested, ALICE)
        await anext(first)
        with pytest.raises(UpstreamError, match=r"a2a\.subscriptions_per_caller") as refused:
            await anext(talk.on_subscribe_to_task(requested, ALICE))
        assert refused.value.failure.reason == "RATE_LIMITED"
        other = talk.on_subscribe_to_task(SubscribeToTaskRequest(id=(await submitted(store, caller=BOB)).id), BOB)
        assert isinstance(await anext(other), Task)
        await other.aclose()
        await first.aclose()
        again = talk.on_subscribe_to_task(requested, ALICE)
        assert isinstance(await anext(again), Task)
        await again.aclose()


@pytest.mark.parametrize(("state", "text"), [(SUBMITTED, NOT_STARTED_TEXT), (WORKING, INTERRUPTED_TEXT)])
@asynchronous
async def test_a_subscription_ends_when_the_time_of_its_task_runs_out(
    core: str, wanted: Settings, state: TaskState, text: str
) -> None:
    async with conversing(core, wanted) as talk, open_channel(core) as channel:
        task = Task(id=str(uuid.uuid4()), context_id="gone")
        task.status.state = state
        store = GrpcTaskStore(channel, TIMEOUT)
        await store.save(task, 0, ALICE.metadata, time_left=0.5)
        _, end = await events(talk.on_subscribe_to_task(SubscribeToTaskRequest(id=task.id), ALICE))
        assert (end.status.state, end.status.message.parts[0].text) == (FAILED, text)
