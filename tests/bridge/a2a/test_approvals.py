"""Tasks that wait until people have decided on an approval, over every binding."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from a2a.types.a2a_pb2 import GetTaskRequest, TaskState

from bridge.a2a.request_handler import A2aRequestHandler
from tests.bridge.a2a.bindings import BINDINGS, Binding
from tests.bridge.a2a.products import Product, serving
from tests.bridge.a2a.talking import asynchronous, calling, context, conversing, data_of, until
from tests.bridge.a2a.talking import sending as sending_message
from tests.bridge.a2a.tasks import result_of
from tests.harness import TOKENS, GrpcCaller
from tests.modules.approvals.serving import RULEBOOK
from tests.waiting import wait_until

ROWS = {"rows": 5000}


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A product whose rules ask for approvals."""
    with serving(tmp_path_factory.mktemp("asking"), cstp={"guardrails": {"config_path": str(RULEBOOK)}}) as found:
        yield found


@pytest.fixture(params=BINDINGS, ids=lambda kind: kind.__name__)
def asked(request: pytest.FixtureRequest, asking: Product) -> Binding:
    """Each binding of the product."""
    return asking.binding(request.param)


def decide(core: GrpcCaller, decision: str, approval_id: str) -> None:
    """Grant or deny an approval as Bob."""
    outcome = core.call(f"cstp.{decision}Approval", {"id": approval_id, "comment": "Said Bob"}, TOKENS["bob"])
    assert outcome.reason is None, outcome


def awaited(task: dict[str, Any]) -> dict[str, Any]:
    """Return the approval that the status of a task names."""
    approval: dict[str, Any] = task["status"]["message"]["parts"][1]["data"]["approval"]
    return approval


def test_an_intent_goes_on_once_it_is_approved(asked: Binding, asking: Product) -> None:
    text = f"Update prices {uuid.uuid4()}"
    waiting = asked.send(text, ROWS)
    assert waiting.state == "auth-required"
    approval = awaited(waiting.task)
    assert approval["id"] in waiting.task["status"]["message"]["parts"][0]["text"]
    task_id = waiting.task["id"]
    assert asked.get(task_id).state == "auth-required"
    decide(asking.core, "grant", approval["id"])
    wait_until(lambda: asked.get(task_id).state == "completed", "the task goes on")
    done = asked.get(task_id).task
    assert result_of(done)["guardrailStatus"]["approval"]["status"] == "used"
    # The question stays in the history, and the intent is one.
    assert len(done["history"]) == 2
    assert [intent["revision"] for intent in asking.intents(text)] == [1]


def test_a_check_that_is_denied_is_rejected(asked: Binding, asking: Product) -> None:
    action = {"description": f"Update prices {uuid.uuid4()}", "context": ROWS}
    waiting = asked.send(calling("cstp.checkGuardrails", action=action))
    assert waiting.state == "auth-required"
    decide(asking.core, "deny", awaited(waiting.task)["id"])
    wait_until(lambda: asked.get(waiting.task["id"]).state == "rejected", "the task goes on")
    said = asked.get(waiting.task["id"]).task["status"]["message"]["parts"][0]["text"]
    assert said == "Denied: nobody may do this action: Said Bob"


def test_a_task_that_waits_for_an_approval_can_be_canceled_and_refined(asked: Binding) -> None:
    task_id = asked.send(f"Update prices {uuid.uuid4()}", ROWS).task["id"]
    assert asked.cancel(task_id).state == "canceled"
    refined = asked.send(f"Update prices {uuid.uuid4()}", ROWS).task["id"]
    assert asked.send({"rows": 5}, taskId=refined).state == "completed"


async def state_of_task(conversations: A2aRequestHandler, task_id: str) -> TaskState:
    """Return the state of a task of alice."""
    return (await conversations.on_get_task(GetTaskRequest(id=task_id), context())).status.state


@asynchronous
async def test_a_bridge_that_was_started_later_goes_on_with_a_task(tmp_path: Path) -> None:
    with serving(tmp_path, cstp={"guardrails": {"config_path": str(RULEBOOK)}}) as product:
        target, settings = product.core.target, product.settings
        async with conversing(target, settings) as first:
            action = {"description": "Update prices", "context": ROWS}
            task = await first.on_message_send(
                sending_message(calling("cstp.checkGuardrails", action=action)), context()
            )
            assert task.status.state == TaskState.TASK_STATE_AUTH_REQUIRED
        decide(product.core, "grant", data_of(task.status.message.parts[1])["approval"]["id"])
        async with conversing(target, settings) as second:

            async def is_completed() -> bool:
                return await state_of_task(second, task.id) == TaskState.TASK_STATE_COMPLETED

            await until(is_completed, "the task goes on")


def test_of_bridges_that_wait_for_one_task_a_single_one_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path, cstp={"guardrails": {"config_path": str(RULEBOOK)}}) as product:
        first, second = (product.binding(BINDINGS[0], number) for number in range(2))
        actions = [{"description": f"Update prices {number}", "context": ROWS} for number in range(8)]
        tasks = [first.send(calling("cstp.checkGuardrails", action=action)).task for action in actions]
        for task in tasks:
            assert second.get(task["id"]).state == "auth-required"
        for task in tasks:
            decide(product.core, "grant", awaited(task)["id"])
        wait_until(lambda: {second.get(task["id"]).state for task in tasks} == {"completed"}, "the tasks go on")
        # A second try would have requested an approval once more.
        page = product.core.call("cstp.listApprovals", {}).result
        assert page is not None
        assert [each["status"] for each in page["approvals"]] == ["used"] * len(tasks)
