from __future__ import annotations

import uuid
from typing import Any

import pytest
from a2a.types.a2a_pb2 import (
    ListTasksRequest,
    SendMessageRequest,
    StreamResponse,
)
from a2a.utils.errors import (
    InvalidParamsError,
)
from google.protobuf import json_format

from bridge.a2a.errors import UpstreamError
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.platform.config import Settings
from tests.bridge.a2a.operation_calls import ALICE, INTENT, events, refusal
from tests.bridge.a2a.talking import (
    COMPLETED,
    FAILED,
    READY,
    REJECTED,
    REQUEST_ID,
    URI,
    asynchronous,
    calling,
    conversing,
    data_of,
    error_of,
    result_of,
    sending,
    slow_server,
    within,
)


def nested(levels: int) -> dict[str, Any]:
    """Return an object of so many levels."""
    return {"a": nested(levels - 1)} if levels > 1 else {}


# Sending


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
