from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf import json_format

from bridge.a2a.errors import UpstreamError
from bridge.a2a.request_handler import A2aRequestHandler
from bridge.a2a.task_store import GrpcTaskStore
from bridge.upstream import open_channel
from cstp_grpc.config import Settings
from cstp_grpc.contract.a2a_tasks import INTERRUPTED_TEXT, NOT_STARTED_TEXT
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from tests.bridge.a2a.talking import (
    ADDRESS,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    READY,
    REJECTED,
    REQUEST_ID,
    SUBMITTED,
    TIMEOUT,
    URI,
    WORKING,
    announced,
    asynchronous,
    calling,
    context,
    conversing,
    data_of,
    error_of,
    result_of,
    sending,
    slow_server,
    until,
    within,
)
from tests.harness import running, settings

ALICE = context("alice")
BOB = context("bob")
STRANGER = context("who?")
AT_ONCE = {"returnImmediately": True}
INTENT = "Deploy auth to production"


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings(tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def core(wanted: Settings) -> Iterator[str]:
    with running(wanted) as app:
        yield f"127.0.0.1:{app.port}"


async def refusal(attempt: Any) -> A2AError:
    """Return the error that an operation ends with."""
    with pytest.raises(A2AError) as caught:
        await attempt
    return caught.value


async def events(stream: Any) -> list[Any]:
    """Return everything that a stream says."""
    return [event async for event in stream]


async def get(conversations: A2aRequestHandler, task: Task) -> Task:
    """Return a task of alice's as it is kept."""
    return await conversations.on_get_task(GetTaskRequest(id=task.id), ALICE)


async def is_in(conversations: A2aRequestHandler, task: Task, *states: int) -> bool:
    return (await get(conversations, task)).status.state in states


async def has_ended(conversations: A2aRequestHandler, task: Task) -> bool:
    return not await is_in(conversations, task, SUBMITTED, WORKING)


def nested(levels: int) -> dict[str, Any]:
    """Return an object of so many levels."""
    return {"a": nested(levels - 1)} if levels > 1 else {}


# Sending


@asynchronous
async def test_an_intent_is_announced_and_answered(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        task = await talk.on_message_send(sending(INTENT, READY), ALICE)
        assert task.status.state == COMPLETED
        assert uuid.UUID(task.id)
        assert uuid.UUID(task.context_id)
        result = result_of(task)
        assert result["guardrailStatus"]["allowed"] is True
        assert result["correlationId"] == task.id
        assert announced(task) == {"intent": INTENT, "correlationId": task.id, "metadata": READY}
        assert task.artifacts[0].parts[1].text.startswith("Allowed: ")
        (said,) = task.history
        assert (said.task_id, said.context_id, said.parts[0].text) == (task.id, task.context_id, INTENT)
        assert await get(talk, task) == task


@asynchronous
async def test_guardrails_that_block_reject(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        task = await talk.on_message_send(
            sending(INTENT, {**READY, "codeReviewCompleted": False, "ciPassing": False}), ALICE
        )
        assert task.status.state == REJECTED
        assert task.status.message.parts[0].text.startswith("Blocked: 2 of 5 guardrails block this intent: ")
        assert len(task.artifacts) == 1


@asynchronous
async def test_a_call_is_answered_with_its_exact_result(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        task = await talk.on_message_send(sending(calling("cstp.queryDecisions", query="nothing", limit=3)), ALICE)
        assert task.status.state == COMPLETED
        fields = {"decisions", "total", "query", "queryTimeMs", "agent", "responses", "totals"}
        assert result_of(task).keys() == fields
        assert task.artifacts[0].name == "cstp.queryDecisions"
        assert not task.HasField("metadata")


@asynchronous
async def test_a_check_that_blocks_rejects(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        action = {"description": "Deploy", "context": {"affectsProduction": True}}
        task = await talk.on_message_send(sending(calling("cstp.checkGuardrails", action=action)), ALICE)
        assert task.status.state == REJECTED


@asynchronous
async def test_an_announcement_can_be_called_too(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        correlation = str(uuid.uuid4())
        named = await talk.on_message_send(
            sending(calling("cstp.announceIntent", intent=INTENT, correlationId=correlation)), ALICE
        )
        unnamed = await talk.on_message_send(sending(calling("cstp.announceIntent", intent=INTENT)), ALICE)
        assert result_of(named)["correlationId"] == correlation
        assert result_of(unnamed)["correlationId"] == unnamed.id


@pytest.mark.parametrize(
    ("request_", "who", "reason"),
    [
        (sending(calling("cstp.queryDecisions", query="x", limit=99)), ALICE, "INVALID_ARGUMENT"),
        (sending(calling("cstp.queryDecisions", quarry="x")), ALICE, "INVALID_ARGUMENT"),
        (sending(calling("cstp.getDecision", id="none")), ALICE, "NOT_FOUND"),
        (sending(calling("cstp.nothing")), ALICE, "METHOD_NOT_FOUND"),
        (sending(calling("cstp.getTask", id="x")), ALICE, "METHOD_NOT_FOUND"),
    ],
)
@asynchronous
async def test_what_cannot_be_answered_fails(
    core: str, wanted: Settings, request_: SendMessageRequest, who: Any, reason: str
) -> None:
    async with conversing(core, wanted) as talk:
        task = await talk.on_message_send(request_, who)
        assert task.status.state == FAILED
        assert not task.artifacts
        error = error_of(task)
        assert (error["reason"], error["requestId"]) == (reason, REQUEST_ID)
        assert task.status.message.parts[0].text == f"Failed: {error['message']} ({reason})"


@asynchronous
async def test_another_content_under_a_correlation_id_is_a_revision(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        given = {"correlationId": str(uuid.uuid4())}
        first = await talk.on_message_send(sending(INTENT, given=given), ALICE)
        second = await talk.on_message_send(sending("Something else", given=given), ALICE)
        assert [result_of(task)["revision"] for task in (first, second)] == [1, 2]


@asynchronous
async def test_wrong_params_of_an_announcement_are_named_by_their_places(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        unknown = await talk.on_message_send(sending(INTENT, given={"stake": "high"}), ALICE)
        place = f'message.metadata["{URI}"].stake'
        assert error_of(unknown)["violations"] == [{"field": place, "description": "is not a known field"}]
        assert error_of(unknown)["message"] == f"{place}: is not a known field"
        too_sure = await talk.on_message_send(sending(INTENT, given={"confidence": 2}), ALICE)
        (violation,) = error_of(too_sure)["violations"]
        assert violation["field"] == f'message.metadata["{URI}"].confidence'
        too_long = await talk.on_message_send(sending("x" * 9000), ALICE)
        (violation,) = error_of(too_long)["violations"]
        assert violation["field"] == "message.parts"


@pytest.mark.parametrize("reason", ["QUERY_FAILED", "GUARDRAIL_EVAL_FAILED", "INVALID_ARGUMENT", "A_LATER_REASON"])
@asynchronous
async def test_failures_of_the_call_are_kept(core: str, wanted: Settings, reason: str) -> None:
    async with slow_server() as slow, conversing(core, wanted, slow.target) as talk:
        slow.reason = reason
        slow.may.set()
        task = await talk.on_message_send(sending(INTENT), ALICE)
        assert (task.status.state, error_of(task)["reason"]) == (FAILED, reason)


@pytest.mark.parametrize(
    "reason", ["AUTHENTICATION_REQUIRED", "RATE_LIMITED", "UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"]
)
@asynchronous
async def test_failures_that_say_nothing_of_the_message_leave_no_task(core: str, wanted: Settings, reason: str) -> None:
    async with slow_server() as slow, conversing(core, wanted, slow.target) as talk:
        slow.reason = reason
        slow.may.set()
        error = await refusal(talk.on_message_send(sending(INTENT, contextId=f"no-task-{reason}"), ALICE))
        assert isinstance(error, UpstreamError)
        assert error.failure.reason == reason
        found = await talk.on_list_tasks(ListTasksRequest(context_id=f"no-task-{reason}"), ALICE)
        assert not found.tasks
        *_, last = await events(talk.on_message_send_stream(sending(INTENT), ALICE))
        assert last.status.state == FAILED
        assert data_of(last.status.message.parts[1])["error"]["reason"] == reason


@asynchronous
async def test_an_answer_that_cannot_be_kept_is_not_given(core: str, wanted: Settings) -> None:
    async with conversing("127.0.0.1:1", within(wanted, 0.1), core) as talk:
        error = await refusal(talk.on_message_send(sending(INTENT), ALICE))
        assert isinstance(error, UpstreamError)
        assert error.failure.reason == "UNAVAILABLE"


@asynchronous
async def test_a_message_and_what_is_kept_of_it_are_not_endless(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        task = await talk.on_message_send(sending("x" * 500_000), ALICE)
        assert error_of(task)["reason"] == "INVALID_ARGUMENT"
        error = await refusal(talk.on_message_send(sending("x" * 550_000), ALICE))
        assert isinstance(error, InvalidParamsError)


@asynchronous
async def test_structures_as_deep_as_a_message_may_have_are_kept_and_read(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        name = str(uuid.uuid4())
        deep = await talk.on_message_send(sending(INTENT, nested(24), contextId=name), ALICE)
        assert deep.status.state == COMPLETED
        called = calling("cstp.announceIntent", intent=INTENT, metadata=nested(24))
        assert (await talk.on_message_send(sending(called, contextId=name), ALICE)).status.state == COMPLETED
        intents = sending(calling("cstp.listIntents", pageSize=2), contextId=name)
        assert len(result_of(await talk.on_message_send(intents, ALICE))["intents"]) == 2
        too_deep = await talk.on_message_send(sending(INTENT, nested(26), contextId=name), ALICE)
        (violation, *_) = error_of(too_deep)["violations"]
        assert violation["field"].startswith("message.parts[1].data.a.a.")
        listed = await talk.on_list_tasks(ListTasksRequest(context_id=name, include_artifacts=True), ALICE)
        assert len(listed.tasks) == 4
        for task in listed.tasks:
            assert StreamResponse.FromString(StreamResponse(task=task).SerializeToString()).task == task
            assert json_format.MessageToDict(task)


@pytest.mark.parametrize("streaming", [False, True])
@asynchronous
async def test_an_answer_beyond_what_a_task_holds_fails(core: str, wanted: Settings, streaming: bool) -> None:
    async with slow_server() as slow, conversing(core, wanted, slow.target) as talk:
        slow.answers["cstp.queryDecisions"] = cstp_pb2.QueryDecisionsResponse(query="x" * 3_000_000)
        slow.may.set()
        request = sending(calling("cstp.queryDecisions", query="x"))
        if streaming:
            *_, last = await events(talk.on_message_send_stream(request, ALICE))
        else:
            last = await talk.on_message_send(request, ALICE)
        assert last.status.state == FAILED
        assert "ask for less" in last.status.message.parts[0].text


@asynchronous
async def test_an_answer_that_cannot_be_read_is_in_the_log_and_ends_the_task(
    core: str, wanted: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with slow_server() as slow, conversing(core, wanted, slow.target) as talk:
        decision = cstp_pb2.DecisionSummary(distance=float("nan"))
        slow.answers["cstp.queryDecisions"] = cstp_pb2.QueryDecisionsResponse(decisions=[decision])
        slow.may.set()
        request = sending(calling("cstp.queryDecisions", query="x"))
        error = await refusal(talk.on_message_send(request, ALICE))
        assert isinstance(error, UpstreamError)
        assert error.failure.reason == "INTERNAL"
        *_, last = await events(talk.on_message_send_stream(request, ALICE))
        assert data_of(last.status.message.parts[1])["error"]["reason"] == "INTERNAL"
        assert f"{REQUEST_ID} cstp.queryDecisions failed in the bridge" in caplog.text


@asynchronous
async def test_the_artifact_has_what_the_caller_accepts(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        request = sending(INTENT, configuration={"acceptedOutputModes": ["text/plain"]})
        (part,) = (await talk.on_message_send(request, ALICE)).artifacts[0].parts
        assert part.WhichOneof("content") == "text"
        request = sending(INTENT, configuration={"acceptedOutputModes": ["image/png"]})
        assert isinstance(await refusal(talk.on_message_send(request, ALICE)), ContentTypeNotSupportedError)


@asynchronous
async def test_history_is_as_long_as_the_caller_wants(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        task = await talk.on_message_send(sending(INTENT, configuration={"historyLength": 0}), ALICE)
        assert not task.history
        assert len((await get(talk, task)).history) == 1
        assert not (await talk.on_get_task(GetTaskRequest(id=task.id, history_length=0), ALICE)).history
        request = sending(INTENT, configuration={"historyLength": -1})
        assert isinstance(await refusal(talk.on_message_send(request, ALICE)), InvalidParamsError)


@asynchronous
async def test_required_members_are_required(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        for attempt in (
            talk.on_message_send(SendMessageRequest(), ALICE),
            talk.on_get_task(GetTaskRequest(), ALICE),
            talk.on_cancel_task(CancelTaskRequest(), ALICE),
            events(talk.on_subscribe_to_task(SubscribeToTaskRequest(), ALICE)),
            events(talk.on_message_send_stream(SendMessageRequest(), ALICE)),
        ):
            assert isinstance(await refusal(attempt), InvalidParamsError)


# Following up


@asynchronous
async def test_new_facts_in_the_context_have_the_intent_judged_again(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        given = {"stakes": "high", "confidence": 0.9}
        blocked = await talk.on_message_send(sending(INTENT, {"affectsProduction": True}, given=given), ALICE)
        await talk.on_message_send(
            sending(calling("cstp.queryDecisions", query="x"), contextId=blocked.context_id), ALICE
        )
        done = {"codeReviewCompleted": True, "ciPassing": True}
        request = sending("code review is done now", done, contextId=blocked.context_id)
        allowed = await talk.on_message_send(request, ALICE)
        assert (blocked.status.state, allowed.status.state) == (INPUT_REQUIRED, COMPLETED)
        assert allowed.context_id == blocked.context_id
        assert announced(allowed) == {
            "intent": INTENT,
            "context": "code review is done now",
            "metadata": READY,
            "correlationId": allowed.id,
            **given,
        }


@asynchronous
async def test_a_refinement_builds_on_the_latest_announcement(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        first = await talk.on_message_send(sending("The first", {"a": 1}), ALICE)
        second = await talk.on_message_send(sending({"b": 2}, contextId=first.context_id), ALICE)
        third = await talk.on_message_send(sending({"c": 3}, contextId=first.context_id), ALICE)
        assert announced(second)["metadata"] == {"a": 1, "b": 2}
        assert announced(third)["metadata"] == {"a": 1, "b": 2, "c": 3}


@asynchronous
async def test_text_alone_in_a_context_is_a_new_intent(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        first = await talk.on_message_send(sending(INTENT, {"affectsProduction": True}), ALICE)
        second = await talk.on_message_send(sending("Rename a variable", contextId=first.context_id), ALICE)
        assert second.context_id == first.context_id
        assert announced(second) == {"intent": "Rename a variable", "correlationId": second.id}


@asynchronous
async def test_a_context_id_of_the_callers_is_taken(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        name = f"my context {uuid.uuid4()} \N{SNOWMAN}"
        task = await talk.on_message_send(sending(INTENT, {"a": 1}, contextId=name), ALICE)
        assert task.context_id == name
        assert announced(task)["metadata"] == {"a": 1}


@asynchronous
async def test_a_context_of_somebody_else_has_nothing_to_refine(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        task = await talk.on_message_send(sending(INTENT), ALICE)
        error = await refusal(talk.on_message_send(sending({"a": 1}, contextId=task.context_id), BOB))
        assert isinstance(error, InvalidParamsError)
        assert "message.parts" in error.message


@asynchronous
async def test_a_reference_refines_and_brings_its_context(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        first = await talk.on_message_send(sending(INTENT, {"a": 1}), ALICE)
        other = await talk.on_message_send(sending("Another"), ALICE)
        query = await talk.on_message_send(sending(calling("cstp.queryDecisions", query="x")), ALICE)
        request = sending("Reviewed now", referenceTaskIds=[other.id, first.id, query.id])
        refined = await talk.on_message_send(request, ALICE)
        assert refined.context_id == first.context_id
        assert announced(refined) == {
            "intent": INTENT,
            "context": "Reviewed now",
            "metadata": {"a": 1},
            "correlationId": refined.id,
        }


@asynchronous
async def test_a_reference_to_a_call_brings_its_context_only(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        query = await talk.on_message_send(sending(calling("cstp.queryDecisions", query="x")), ALICE)
        task = await talk.on_message_send(sending(INTENT, referenceTaskIds=[query.id]), ALICE)
        assert (task.context_id, announced(task)["intent"]) == (query.context_id, INTENT)


@asynchronous
async def test_references_must_be_the_callers_and_of_the_context(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        task = await talk.on_message_send(sending(INTENT), ALICE)
        for who, ids in ((BOB, [task.id]), (ALICE, ["none", task.id])):
            error = await refusal(talk.on_message_send(sending("More", referenceTaskIds=ids), who))
            assert isinstance(error, TaskNotFoundError)
        request = sending("More", referenceTaskIds=[task.id], contextId="another")
        assert isinstance(await refusal(talk.on_message_send(request, ALICE)), InvalidParamsError)


@asynchronous
async def test_a_task_takes_no_second_message(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        task = await talk.on_message_send(sending(INTENT), ALICE)
        same = {"contextId": task.context_id}
        refused: list[tuple[Any, dict[str, Any], type[Exception]]] = [
            (ALICE, {}, UnsupportedOperationError),
            (ALICE, same, UnsupportedOperationError),
            (ALICE, {"contextId": "another"}, InvalidParamsError),
            (BOB, {}, TaskNotFoundError),
        ]
        for who, members, kind in refused:
            error = await refusal(talk.on_message_send(sending("More", taskId=task.id, **members), who))
            assert type(error) is kind


# Work that takes its time


@asynchronous
async def test_a_stream_says_working_then_the_artifact_then_the_end(core: str, wanted: Settings) -> None:
    async with slow_server() as slow, conversing(core, wanted, slow.target) as talk:
        stream = talk.on_message_send_stream(sending(INTENT), ALICE)
        working = await anext(stream)
        assert isinstance(working, Task)
        assert working.status.state == WORKING
        assert await get(talk, working) == working
        slow.may.set()
        artifact, end = await events(stream)
        assert isinstance(artifact, TaskArtifactUpdateEvent)
        assert isinstance(end, TaskStatusUpdateEvent)
        kept = await get(talk, working)
        assert (artifact.artifact, end.status) == (kept.artifacts[0], kept.status)
        assert {(event.task_id, event.context_id) for event in (artifact, end)} == {(kept.id, kept.context_id)}
        assert artifact.last_chunk
        assert end.status.state == COMPLETED


@asynchronous
async def test_a_stream_of_what_fails_has_no_artifact(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        _, end = await events(talk.on_message_send_stream(sending(calling("cstp.nothing")), ALICE))
        assert end.status.state == FAILED


@asynchronous
async def test_a_caller_that_does_not_wait_gets_the_task_submitted(core: str, wanted: Settings) -> None:
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


@pytest.mark.parametrize("streaming", [False, True])
@asynchronous
async def test_a_task_at_work_is_not_canceled(core: str, wanted: Settings, streaming: bool) -> None:
    async with slow_server() as slow, conversing(core, wanted, slow.target) as talk:
        if streaming:
            stream = talk.on_message_send_stream(sending(INTENT), ALICE)
            begun = await anext(stream)
            assert isinstance(begun, Task)
            task = begun
        else:
            task = await talk.on_message_send(sending(INTENT, configuration=AT_ONCE), ALICE)
            await slow.asked.wait()
        error = await refusal(talk.on_cancel_task(CancelTaskRequest(id=task.id), ALICE))
        assert isinstance(error, TaskNotCancelableError)
        assert "cannot be prevented" in error.message
        assert await is_in(talk, task, WORKING)
        slow.may.set()
        await talk.aclose()
        assert await is_in(talk, task, COMPLETED)


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
async def test_what_has_ended_cannot_be_called_off(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        task = await talk.on_message_send(sending(INTENT), ALICE)
        error = await refusal(talk.on_cancel_task(CancelTaskRequest(id=task.id), ALICE))
        assert isinstance(error, TaskNotCancelableError)


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


async def submitted(store: GrpcTaskStore, seconds: float = TIMEOUT) -> Task:
    """Return a task that a bridge has kept and died before it began."""
    task = Task(id=str(uuid.uuid4()), context_id="submitted")
    task.status.state = SUBMITTED
    return (await store.save(task, 0, ALICE.metadata, time_left=seconds)).task


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


@asynchronous
async def test_only_the_owner_subscribes_and_only_to_work(core: str, wanted: Settings) -> None:
    async with slow_server() as slow, conversing(core, wanted, slow.target) as talk:
        task = await talk.on_message_send(sending(INTENT, configuration=AT_ONCE), ALICE)
        subscription = SubscribeToTaskRequest(id=task.id)
        assert isinstance(await refusal(events(talk.on_subscribe_to_task(subscription, BOB))), TaskNotFoundError)
        slow.may.set()
        await talk.aclose()
        error = await refusal(events(talk.on_subscribe_to_task(subscription, ALICE)))
        assert isinstance(error, UnsupportedOperationError)


# Reading


@asynchronous
async def test_tasks_are_listed_newest_first_by_page(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        name = str(uuid.uuid4())
        sent = [await talk.on_message_send(sending(f"{INTENT} {n}", contextId=name), ALICE) for n in range(3)]
        query = ListTasksRequest(context_id=name, page_size=2)
        first = await talk.on_list_tasks(query, ALICE)
        query.page_token = first.next_page_token
        second = await talk.on_list_tasks(query, ALICE)
        listed = [*first.tasks, *second.tasks]
        assert {task.id for task in listed} == {task.id for task in sent}
        moments = [task.status.timestamp.ToNanoseconds() for task in listed]
        assert moments == sorted(moments, reverse=True)
        assert (len(first.tasks), first.page_size, first.total_size) == (2, 2, 3)
        assert (len(second.tasks), second.page_size, second.total_size, second.next_page_token) == (1, 2, 3, "")
        assert not any(task.artifacts for task in listed)


@asynchronous
async def test_a_listing_shows_what_it_is_asked_for(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        name = str(uuid.uuid4())
        await talk.on_message_send(sending(INTENT, {"affectsProduction": True}, contextId=name), ALICE)
        done = await talk.on_message_send(sending(READY, contextId=name), ALICE)
        query = ListTasksRequest(context_id=name, status=COMPLETED, include_artifacts=True, history_length=0)
        answer = await talk.on_list_tasks(query, ALICE)
        (task,) = answer.tasks
        assert task.artifacts == done.artifacts
        assert not task.history
        assert answer.page_size == 50
        query.status_timestamp_after.FromMilliseconds(done.status.timestamp.ToMilliseconds() + 1)
        assert not (await talk.on_list_tasks(query, ALICE)).tasks
        assert not (await talk.on_list_tasks(ListTasksRequest(context_id=name), BOB)).tasks


@pytest.mark.parametrize("state", ["AUTH_REQUIRED"])
@asynchronous
async def test_states_that_never_are_have_no_tasks(core: str, wanted: Settings, state: str) -> None:
    async with conversing(core, wanted) as talk:
        query = ListTasksRequest(status=f"TASK_STATE_{state}", page_size=7)
        answer = await talk.on_list_tasks(query, ALICE)
        assert (len(answer.tasks), answer.total_size, answer.page_size, answer.next_page_token) == (0, 0, 7, "")
        assert isinstance(await refusal(talk.on_list_tasks(query, STRANGER)), UpstreamError)


@pytest.mark.parametrize(
    "query",
    [
        ListTasksRequest(page_size=0),
        ListTasksRequest(page_size=101),
        ListTasksRequest(history_length=-1),
        ListTasksRequest(page_token="none"),
        ListTasksRequest(context_id="c" * 300),
    ],
)
@asynchronous
async def test_a_listing_that_cannot_be_is_refused(core: str, wanted: Settings, query: ListTasksRequest) -> None:
    async with conversing(core, wanted) as talk:
        assert isinstance(await refusal(talk.on_list_tasks(query, ALICE)), InvalidParamsError)


@asynchronous
async def test_tasks_of_others_are_not_there(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        task = await talk.on_message_send(sending(INTENT), ALICE)
        for attempt in (
            talk.on_get_task(GetTaskRequest(id=task.id), BOB),
            talk.on_cancel_task(CancelTaskRequest(id=task.id), BOB),
            talk.on_get_task(GetTaskRequest(id="none"), ALICE),
        ):
            assert isinstance(await refusal(attempt), TaskNotFoundError)


@asynchronous
async def test_the_extended_card_tells_what_holds_for_the_caller(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        card = await talk.on_get_extended_agent_card(GetExtendedAgentCardRequest(), ALICE)
        assert card.supported_interfaces[0].url.startswith(ADDRESS)
        params = next(item.params for item in card.capabilities.extensions if item.uri == URI)
        assert "alice" in str(params)


# Who is let in


@asynchronous
async def test_strangers_are_only_told_that_they_are(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        for attempt in (
            talk.on_message_send(sending(INTENT), STRANGER),
            talk.on_message_send(sending(INTENT, configuration=AT_ONCE), STRANGER),
            events(talk.on_message_send_stream(sending(INTENT), STRANGER)),
            talk.on_get_task(GetTaskRequest(id="any"), STRANGER),
            talk.on_list_tasks(ListTasksRequest(), STRANGER),
            talk.on_cancel_task(CancelTaskRequest(id="any"), STRANGER),
            events(talk.on_subscribe_to_task(SubscribeToTaskRequest(id="any"), STRANGER)),
            talk.on_get_extended_agent_card(GetExtendedAgentCardRequest(), STRANGER),
        ):
            error = await refusal(attempt)
            assert isinstance(error, UpstreamError)
            assert error.failure.reason == "AUTHENTICATION_REQUIRED"


def push_operations(talk: A2aRequestHandler) -> list[Any]:
    return [
        talk.push_configs.create(TaskPushNotificationConfig(), ALICE),
        talk.push_configs.get(GetTaskPushNotificationConfigRequest(), ALICE),
        talk.push_configs.list(ListTaskPushNotificationConfigsRequest(), ALICE),
        talk.push_configs.delete(DeleteTaskPushNotificationConfigRequest(), ALICE),
    ]


@asynchronous
async def test_there_are_no_push_notifications(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        configuration = {"taskPushNotificationConfig": {"url": "https://example.com"}}
        request = sending(INTENT, configuration=configuration)
        for attempt in (*push_operations(talk), talk.on_message_send(request, ALICE)):
            assert isinstance(await refusal(attempt), PushNotificationNotSupportedError)


@asynchronous
async def test_the_extension_may_be_required(core: str, wanted: Settings) -> None:
    strict = wanted.model_copy(update={"a2a": wanted.a2a.model_copy(update={"require_extension": True})})
    async with conversing(core, strict) as talk:
        for attempt in (
            talk.on_message_send(sending(INTENT), ALICE),
            events(talk.on_message_send_stream(sending(INTENT), ALICE)),
            talk.on_get_task(GetTaskRequest(id="any"), ALICE),
            talk.on_list_tasks(ListTasksRequest(), ALICE),
            talk.on_cancel_task(CancelTaskRequest(id="any"), ALICE),
            events(talk.on_subscribe_to_task(SubscribeToTaskRequest(id="any"), ALICE)),
            *push_operations(talk),
        ):
            assert isinstance(await refusal(attempt), ExtensionSupportRequiredError)
        active = context("alice", URI)
        assert (await talk.on_message_send(sending(INTENT), active)).status.state == COMPLETED
        assert await talk.on_get_extended_agent_card(GetExtendedAgentCardRequest(), ALICE)
