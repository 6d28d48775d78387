"""A task that waits for inputs which guardrails miss, and takes them, over every binding."""

from __future__ import annotations

import uuid
from typing import Any

from tests.bridge.a2a.bindings import Binding
from tests.bridge.a2a.products import Product


def asked_for(task: dict[str, Any]) -> list[str]:
    return [each["name"] for each in task["status"]["message"]["parts"][1]["data"]["missingInputs"]]


def test_inputs_are_asked_for_and_taken_in_the_same_task(binding: Binding, product: Product) -> None:
    text = f"Deploy {uuid.uuid4()}"
    first = binding.send(text, {"affectsProduction": True})
    assert first.state == "input-required"
    assert asked_for(first.task) == ["ciPassing", "codeReviewCompleted"]
    same = {"taskId": first.task["id"]}
    second = binding.send("Reviewed", {"codeReviewCompleted": True}, **same)
    assert second.state == "input-required"
    assert asked_for(second.task) == ["ciPassing"]
    message = {**same, "messageId": str(uuid.uuid4())}
    third = binding.send({"ciPassing": True}, **message)
    assert (third.state, third.task["id"]) == ("completed", first.task["id"])
    assert len(third.task["history"]) == 5
    assert binding.send({"ciPassing": True}, **message).task == third.task
    assert binding.send({"ciPassing": True}, **same).reason == "UNSUPPORTED_OPERATION"
    assert sorted(intent["revision"] for intent in product.intents(text)) == [1, 2, 3]


def test_an_input_that_is_given_and_blocks_rejects(binding: Binding) -> None:
    values = {"affectsProduction": True, "ciPassing": False}
    assert binding.send("Deploy", values).state == "rejected"
    first = binding.send("Deploy", {"affectsProduction": True})
    second = binding.send({"codeReviewCompleted": True, "ciPassing": False}, taskId=first.task["id"])
    assert second.state == "rejected"


def test_a_task_that_waits_can_be_canceled(binding: Binding) -> None:
    task_id = binding.send("Deploy", {"affectsProduction": True}).task["id"]
    assert binding.cancel(task_id).state == "canceled"
    assert binding.send({"ciPassing": True}, taskId=task_id).reason == "UNSUPPORTED_OPERATION"


def test_a_task_that_comes_to_wait_while_it_is_canceled_is_canceled(binding: Binding) -> None:
    for _ in range(5):
        task_id = binding.send("Deploy", {"affectsProduction": True}, at_once=True).task["id"]
        answer = binding.cancel(task_id)
        assert (answer.reason, binding.get(task_id).state) == ("", "canceled")
