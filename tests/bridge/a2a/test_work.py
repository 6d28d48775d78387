"""What is kept of messages while the server is away, or has no room for more."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from a2a.types.a2a_pb2 import CancelTaskRequest, GetTaskRequest, ListTasksRequest, TaskStatusUpdateEvent
from a2a.utils.errors import A2AError, InvalidParamsError
from google.rpc import error_details_pb2

from bridge.a2a.errors import UpstreamError
from cstp_grpc.contract.task_ids import NEW_TASK_METADATA_KEY
from cstp_grpc.gen.cstp.v1 import audit_pb2, audit_pb2_grpc, cstp_pb2, journal_pb2, tasks_pb2
from cstp_grpc.platform.config import Settings
from tests.bridge.a2a.talking import (
    CANCELED,
    COMPLETED,
    FAILED,
    WORKING,
    asynchronous,
    calling,
    context,
    conversing,
    sending,
    until,
    within,
)
from tests.bridge.support import Scripted, bare, fail
from tests.harness import running, settings

ALICE = context("alice")
RECORD = calling("cstp.recordDecision", decision={"title": "Use it"})
WITH_ID = calling("cstp.recordDecision", decision={"title": "Use it"}, requestId="r-1")
AT_ONCE = {"returnImmediately": True}
AWAY = bare(grpc.StatusCode.UNAVAILABLE)


class Kept:
    """The tasks of a scripted server; `plays` are how the first saves go, before they go as they should."""

    def __init__(self, server: Scripted) -> None:
        self.server = server
        self.tasks: dict[str, tasks_pb2.Task] = {}
        self.plays: list[Callable[[Any, Any], Any]] = []
        self.agent = ""
        """The agent of the caller, by which bridges derive ids of tasks; empty as from an older server."""
        self.done = 0
        """How many calls did something."""
        plays: dict[str, Callable[[Any, Any], Any]] = {
            "cstp.saveTask": lambda request, context: (self.plays.pop(0) if self.plays else self.save)(
                request, context
            ),
            "cstp.findTask": self.find,
            "cstp.getTask": self.get,
            "cstp.announceIntent": self.answer(cstp_pb2.AnnounceIntentResponse()),
            "cstp.recordDecision": self.answer(journal_pb2.RecordDecisionResponse()),
        }
        server.plays |= plays

    def find(self, request: tasks_pb2.FindTaskRequest, context: grpc.ServicerContext) -> tasks_pb2.FindTaskResponse:
        return tasks_pb2.FindTaskResponse(id=request.key, task=self.tasks.get(request.key), agent=self.agent)

    def get(self, request: tasks_pb2.GetTaskRequest, context: grpc.ServicerContext) -> Any:
        if request.id not in self.tasks:
            return fail(grpc.StatusCode.NOT_FOUND, "NOT_FOUND")(request, context)
        return tasks_pb2.GetTaskResponse(task=self.tasks[request.id])

    def answer(self, response: Any) -> Callable[[Any, grpc.ServicerContext], Any]:
        """Return a play that does its work once for each task, as the server's methods do."""

        def play(request: Any, context: grpc.ServicerContext) -> Any:
            task_id = str(dict(context.invocation_metadata()).get(NEW_TASK_METADATA_KEY))
            if task_id in self.tasks:
                return fail(grpc.StatusCode.ALREADY_EXISTS, "CONFLICT", "It exists", id=task_id)(request, context)
            self.done += 1
            return response

        return play

    def save(self, request: tasks_pb2.SaveTaskRequest, context: grpc.ServicerContext) -> tasks_pb2.SaveTaskResponse:
        there = self.tasks.get(request.task.id, tasks_pb2.Task())
        if there.version != request.version:
            fail(grpc.StatusCode.ABORTED, "CONFLICT")(request, context)
        task = tasks_pb2.Task()
        task.CopyFrom(request.task)
        task.version = request.version + 1
        self.tasks[task.id] = task
        return tasks_pb2.SaveTaskResponse(version=task.version)

    def save_silently(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Save, and break down before anybody hears of it."""
        self.save(request, context)
        return AWAY(request, context)

    def called(self, name: str) -> int:
        """Return how often a method was called."""
        return len([seen for seen in self.server.seen if seen.method == name])


@pytest.fixture
def kept(server: Scripted) -> Kept:
    return Kept(server)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings(tmp_path_factory.mktemp("work"))


def full(hours: int) -> Any:
    """Return a play that has no room for so many hours."""
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromSeconds(hours * 3600)
    return fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED", "Too many calls", retry)


@asynchronous
async def test_nothing_is_done_twice_because_its_task_cannot_be_kept(kept: Kept, target: str, wanted: Settings) -> None:
    async with conversing(target, wanted) as talk:
        kept.plays = [full(1)]
        with pytest.raises(UpstreamError) as caught:
            await talk.on_message_send(sending(RECORD), ALICE)
        assert caught.value.failure.reason == "RATE_LIMITED"
        assert kept.called("cstp.recordDecision") == 0


@asynchronous
async def test_who_cannot_be_told_the_answer_is_told_the_task(kept: Kept, target: str, wanted: Settings) -> None:
    async with conversing(target, wanted) as talk:
        kept.plays = [kept.save, full(1)]
        task = await talk.on_message_send(sending(RECORD), ALICE)
        assert kept.called("cstp.recordDecision") == 1
        assert task.status.state == WORKING
        assert task.id in kept.tasks


@pytest.mark.parametrize(
    ("message", "saves"),
    [
        ("Deploy", 1),
        (calling("cstp.announceIntent", intent="Deploy"), 1),
        (calling("cstp.queryDecisions", query="x"), 1),
        (calling("cstp.nothing"), 1),
        (WITH_ID, 1),
        (RECORD, 2),
    ],
)
@asynchronous
async def test_one_save_is_enough_where_a_retry_does_no_harm(
    kept: Kept, target: str, wanted: Settings, message: Any, saves: int
) -> None:
    async with conversing(target, wanted) as talk:
        assert (await talk.on_message_send(sending(message), ALICE)).status.state != WORKING
        assert kept.called("cstp.saveTask") == saves


@pytest.mark.parametrize("message", ["Deploy", RECORD])
@asynchronous
async def test_a_new_message_of_a_known_sender_is_not_looked_up(
    kept: Kept, target: str, wanted: Settings, message: Any
) -> None:
    kept.agent = "alice"
    async with conversing(target, wanted) as talk:
        for _ in range(3):
            assert (await talk.on_message_send(sending(message), ALICE)).status.state == COMPLETED
        assert kept.called("cstp.findTask") == 1
        await talk.on_message_send(sending(message), context("bob"))
        assert kept.called("cstp.findTask") == 2
    assert len(kept.tasks) == 4


@asynchronous
async def test_a_repeated_message_of_a_known_sender_has_no_effect(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app:
        async with conversing(app.target, settings(tmp_path)) as talk:
            await talk.on_message_send(sending("Deploy"), ALICE)
            for message in ("Roll back", RECORD, calling("cstp.checkGuardrails", action={"description": "Stop"})):
                params = sending(message, contextId=str(uuid.uuid4()))
                task = await talk.on_message_send(params, ALICE)
                assert task.status.state == COMPLETED
                entries = await audit_entries(app.target)
                assert await talk.on_message_send(params, ALICE) == task
                params.message.parts[0].text = "Something else"
                with pytest.raises(InvalidParamsError, match="names another message"):
                    await talk.on_message_send(params, ALICE)
                assert await audit_entries(app.target) == entries


@pytest.mark.parametrize("message", ["Roll back", RECORD, WITH_ID])
@asynchronous
async def test_a_repeated_message_of_a_renamed_sender_is_not_sent_again(
    kept: Kept, target: str, wanted: Settings, message: Any
) -> None:
    """The ids that the server derives are others than those of the bridge, as after a change of the token's agent."""
    kept.agent = "alice"
    async with conversing(target, wanted) as talk:
        await talk.on_message_send(sending("Deploy"), ALICE)
        params = sending(message, contextId=str(uuid.uuid4()))
        task = await talk.on_message_send(params, ALICE)
        assert await talk.on_message_send(params, ALICE) == task
        params.message.parts[0].text = "Something else"
        with pytest.raises(InvalidParamsError, match="names another message"):
            await talk.on_message_send(params, ALICE)
        assert len(kept.tasks) == 2
        assert kept.done == 2


@pytest.mark.parametrize("message", ["Roll back", RECORD, WITH_ID])
@asynchronous
async def test_a_message_whose_task_belongs_to_another_agent_is_refused(
    kept: Kept, target: str, wanted: Settings, message: Any
) -> None:
    """Its sender may not read the task that the message conflicts with."""
    kept.agent = "alice"
    async with conversing(target, wanted) as talk:
        await talk.on_message_send(sending("Deploy"), ALICE)
        params = sending(message, contextId=str(uuid.uuid4()))
        await talk.on_message_send(params, ALICE)
        kept.server.plays["cstp.getTask"] = fail(grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
        with pytest.raises(UpstreamError, match="its id is taken"):
            await talk.on_message_send(params, ALICE)
        assert kept.done == 2


MISSING = fail(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "It failed", permission="PERMISSION_WRITE")


@pytest.mark.parametrize("message", ["Roll back", RECORD, WITH_ID])
@pytest.mark.parametrize("refusal", [MISSING, full(1)])
@asynchronous
async def test_a_repeated_message_whose_call_is_refused_has_its_task(
    kept: Kept, target: str, wanted: Settings, message: Any, refusal: Any
) -> None:
    kept.agent = "alice"
    async with conversing(target, wanted) as talk:
        await talk.on_message_send(sending("Deploy"), ALICE)
        params = sending(message)
        task = await talk.on_message_send(params, ALICE)
        assert kept.called("cstp.getTask") == 0
        kept.server.plays |= dict.fromkeys(("cstp.announceIntent", "cstp.recordDecision", "cstp.saveTask"), refusal)
        assert await talk.on_message_send(params, ALICE) == task
        with pytest.raises(UpstreamError) as caught:
            await talk.on_message_send(sending(message), ALICE)
        assert caught.value.failure.reason in ("PERMISSION_DENIED", "RATE_LIMITED")
        assert len(kept.tasks) == 2


async def audit_entries(target: str) -> int:
    """Return how many audit entries alice has."""
    async with grpc.aio.insecure_channel(target) as channel:
        metadata = [each for each in ALICE.metadata if each[0] == "authorization"]
        stub: Any = audit_pb2_grpc.AuditServiceStub(channel)
        answer = await stub.ListAuditEntries(audit_pb2.ListAuditEntriesRequest(page_size=100), metadata=metadata)
    return len(answer.entries)


@pytest.mark.parametrize("message", ["Deploy", RECORD, WITH_ID])
@pytest.mark.parametrize("streaming", [False, True])
@asynchronous
async def test_an_answer_outlives_a_restart_of_the_server(
    kept: Kept, target: str, wanted: Settings, message: Any, streaming: bool
) -> None:
    async with conversing(target, wanted) as talk:
        started = [kept.save] if streaming or message is RECORD else []
        kept.plays = [*started, AWAY, AWAY]
        if streaming:
            *_, last = [event async for event in talk.on_message_send_stream(sending(message), ALICE)]
            assert isinstance(last, TaskStatusUpdateEvent)
        else:
            last = await talk.on_message_send(sending(message), ALICE)
        assert last.status.state == COMPLETED
        (task,) = kept.tasks.values()
        assert task.state == tasks_pb2.TASK_STATE_COMPLETED


@pytest.mark.parametrize("message", ["Deploy", RECORD])
@asynchronous
async def test_an_answer_that_was_kept_after_all_is_given(
    kept: Kept, target: str, wanted: Settings, message: Any
) -> None:
    async with conversing(target, wanted) as talk:
        kept.plays = [*([kept.save] if message is RECORD else []), kept.save_silently]
        assert (await talk.on_message_send(sending(message), ALICE)).status.state == COMPLETED


@pytest.mark.parametrize("message", ["Deploy", RECORD])
@asynchronous
async def test_guardrails_that_forbid_a_call_fail_its_task(
    kept: Kept, target: str, wanted: Settings, message: Any
) -> None:
    """Unlike a missing permission, this says something of the message."""
    blocks = error_details_pb2.PreconditionFailure()
    blocks.violations.add(type="no-secrets", subject="No secrets", description="It holds a secret")
    forbidden = fail(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "Guardrails forbid it", blocks)
    async with conversing(target, wanted) as talk:
        kept.server.plays |= {"cstp.announceIntent": forbidden, "cstp.recordDecision": forbidden}
        task = await talk.on_message_send(sending(message), ALICE)
        assert task.status.state == FAILED
        assert task.id in kept.tasks


@asynchronous
async def test_what_is_canceled_before_it_is_begun_is_never_sent(kept: Kept, target: str, wanted: Settings) -> None:
    """The server is away when the task should be begun, and the cancellation comes first when it is back."""
    async with conversing(target, wanted) as talk, conversing(target, wanted) as other:
        kept.plays = [kept.save, AWAY]
        task = await talk.on_message_send(sending(RECORD, configuration=AT_ONCE), ALICE)

        async def is_away() -> bool:
            return not kept.plays

        await until(is_away, "the attempt to begin has failed")
        canceled = await other.on_cancel_task(CancelTaskRequest(id=task.id), ALICE)
        assert canceled.status.state == CANCELED
        await talk.aclose()
        assert kept.called("cstp.recordDecision") == 0
        assert kept.tasks[task.id].state == tasks_pb2.TASK_STATE_CANCELED


@asynchronous
async def test_what_was_begun_though_nobody_heard_so_is_sent(kept: Kept, target: str, wanted: Settings) -> None:
    async with conversing(target, wanted) as talk:
        kept.plays = [kept.save, kept.save_silently]
        task = await talk.on_message_send(sending(RECORD, configuration=AT_ONCE), ALICE)
        await talk.aclose()
        assert kept.called("cstp.recordDecision") == 1
        assert kept.tasks[task.id].state == tasks_pb2.TASK_STATE_COMPLETED


@asynchronous
async def test_what_cannot_be_begun_is_never_sent(
    kept: Kept, target: str, wanted: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with conversing(target, wanted) as talk:
        kept.plays = [kept.save, full(1)]
        task = await talk.on_message_send(sending(RECORD, configuration=AT_ONCE), ALICE)
        with caplog.at_level(logging.WARNING, "bridge"):
            await talk.aclose()
        assert kept.called("cstp.recordDecision") == 0
        assert kept.tasks[task.id].state == tasks_pb2.TASK_STATE_SUBMITTED
        assert f"task {task.id} was not begun" in caplog.text


@asynchronous
async def test_the_server_is_not_waited_for_for_ever(kept: Kept, target: str, wanted: Settings) -> None:
    async with conversing(target, within(wanted, 0.5)) as talk:
        kept.plays = [AWAY] * 100
        with pytest.raises(UpstreamError) as caught:
            await talk.on_message_send(sending("Deploy"), ALICE)
        assert caught.value.failure.reason == "UNAVAILABLE"


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[str]:
    """A server that does everything with tasks once."""
    limits = {f"cstp.{name}": "1/hour" for name in ("saveTask", "getTask", "listTasks")}
    with running(settings(tmp_path, rate_limits={"enabled": True, "methods": limits})) as app:
        yield app.target


@asynchronous
async def test_limits_name_nothing_that_callers_do_not_know(limited: str, wanted: Settings) -> None:
    async with conversing(limited, within(wanted, 5)) as talk:
        first = await talk.on_message_send(sending("Deploy"), ALICE)
        for attempt in (
            lambda: talk.on_message_send(sending("Deploy"), ALICE),
            lambda: talk.on_get_task(GetTaskRequest(id=first.id), ALICE),
            lambda: talk.on_list_tasks(ListTasksRequest(), ALICE),
        ):
            errors = []
            for _ in range(2):
                try:
                    await attempt()
                except A2AError as error:
                    errors.append(error)
            last = errors[-1]
            assert isinstance(last, UpstreamError)
            assert last.failure.reason == "RATE_LIMITED"
            assert last.message.startswith("Too many operations on tasks: 1 per 1 hour is the limit; try again in ")
            assert "Task" not in last.message
