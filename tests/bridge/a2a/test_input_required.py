"""A task that waits for inputs which guardrails miss, and takes them, over every binding."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bridge.a2a.bindings import BINDINGS, Binding
from tests.harness import GrpcCaller, Peers, peering, running, settings


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GrpcCaller, Peers]]:
    wanted = settings(tmp_path_factory.mktemp("input-required"))
    with running(wanted) as app, peering(wanted, app.target) as peers:
        core = GrpcCaller(app.target)
        yield core, peers
        core.close()


def revisions(core: GrpcCaller, text: str) -> list[int]:
    page = core.call("cstp.listIntents", {"pageSize": 100}).result
    assert page is not None
    return sorted(intent["revision"] for intent in page["intents"] if intent["intent"] == text)


def asked_for(task: dict[str, Any]) -> list[str]:
    message = task["status"]["message"]
    parts = message.get("parts", message.get("content"))
    data = parts[1]["data"]
    return [each["name"] for each in data.get("data", data)["missingInputs"]]


@pytest.mark.parametrize("kind", BINDINGS)
def test_inputs_are_asked_for_and_taken_in_the_same_task(
    product: tuple[GrpcCaller, Peers], kind: type[Binding]
) -> None:
    core, peers = product
    binding = kind(peers)
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
    assert revisions(core, text) == [1, 2, 3]


@pytest.mark.parametrize("kind", BINDINGS)
def test_an_input_that_is_given_and_blocks_rejects(product: tuple[GrpcCaller, Peers], kind: type[Binding]) -> None:
    binding = kind(product[1])
    values = {"affectsProduction": True, "ciPassing": False}
    assert binding.send("Deploy", values).state == "rejected"
    first = binding.send("Deploy", {"affectsProduction": True})
    second = binding.send({"codeReviewCompleted": True, "ciPassing": False}, taskId=first.task["id"])
    assert second.state == "rejected"


@pytest.mark.parametrize("kind", BINDINGS)
def test_a_task_that_waits_can_be_canceled(product: tuple[GrpcCaller, Peers], kind: type[Binding]) -> None:
    binding = kind(product[1])
    task_id = binding.send("Deploy", {"affectsProduction": True}).task["id"]
    assert binding.cancel(task_id).state == "canceled"
    assert binding.send({"ciPassing": True}, taskId=task_id).reason == "UNSUPPORTED_OPERATION"


@pytest.mark.parametrize("kind", BINDINGS)
def test_a_task_that_comes_to_wait_while_it_is_canceled_is_canceled(
    product: tuple[GrpcCaller, Peers], kind: type[Binding]
) -> None:
    binding = kind(product[1])
    for _ in range(10):
        task_id = binding.send("Deploy", {"affectsProduction": True}, at_once=True).task["id"]
        answer = binding.cancel(task_id)
        assert (answer.reason, binding.get(task_id).state) == ("", "canceled")
