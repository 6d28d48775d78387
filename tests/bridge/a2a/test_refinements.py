"""Messages that refine an announcement, by their context, by references, and by the task that they go to."""

from __future__ import annotations

import uuid
from typing import Any

from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from cstp_grpc.config import Settings
from tests.bridge.a2a.operation_calls import ALICE, BOB, INTENT, refusal
from tests.bridge.a2a.talking import (
    COMPLETED,
    INPUT_REQUIRED,
    READY,
    announced,
    asynchronous,
    calling,
    conversing,
    sending,
)

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
