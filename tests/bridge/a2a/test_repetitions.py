"""A message that is sent again has the task that it began, whatever happened meanwhile, over every binding."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.a2a.bindings import BINDINGS, Binding, JsonRpc, sending
from tests.bridge.a2a.products import Product, serving
from tests.bridge.a2a.talking import calling

SENDERS = 8


def test_the_same_message_is_the_same_task(product: Product, binding: Binding) -> None:
    first, second = binding, product.binding(type(binding), bridge=1)
    text = f"Deploy {uuid.uuid4()}"
    message: dict[str, Any] = {"messageId": str(uuid.uuid4())}
    task = first.send(text, {"a": 1}, **message).task
    for again in (first, second):
        for at_once in (False, True):
            assert again.send(text, {"a": 1}, at_once=at_once, **message).task == task
    assert len(product.intents(text)) == 1


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("what", ["announcement", "record"])
def test_of_many_at_once_one_is_carried_out(product: Product, binding: Binding, at_once: bool, what: str) -> None:
    name = f"{what} {uuid.uuid4()}"
    part = name if what == "announcement" else calling("cstp.recordDecision", decision={"title": name})
    message: dict[str, Any] = {"messageId": str(uuid.uuid4())}
    bridges = [binding, product.binding(type(binding), bridge=1)]
    senders = [sender for sender, _ in zip(cycle(bridges), range(SENDERS), strict=False)]
    with ThreadPoolExecutor(SENDERS) as threads:
        tasks = list(threads.map(lambda sender: sender.send(part, at_once=at_once, **message).task, senders))
    (task_id,) = {task["id"] for task in tasks}
    if not at_once:
        assert all(task == senders[0].get(task_id).task for task in tasks)
    senders[0].send(part, **message)
    done = len(product.intents(name)) if what == "announcement" else product.decision_titles().count(name)
    assert done == 1


def test_other_content_under_the_same_id_in_a_context_is_refused(product: Product, binding: Binding) -> None:
    text = f"Deploy {uuid.uuid4()}"
    message: dict[str, Any] = {"messageId": "1", "contextId": str(uuid.uuid4())}
    task = binding.send(text, **message).task
    for at_once in (False, True):
        assert binding.send(f"{text} now", at_once=at_once, **message).reason == "INVALID_PARAMS"
    assert not product.intents(f"{text} now")
    assert binding.send(text, **message).task == task


def test_an_id_may_be_used_again_in_another_context(product: Product, binding: Binding) -> None:
    text = f"Deploy {uuid.uuid4()}"
    contexts: list[dict[str, Any]] = [{}, {"contextId": str(uuid.uuid4())}, {"contextId": str(uuid.uuid4())}]
    tasks = [binding.send(text, messageId="1", **context).task for context in contexts]
    tasks.append(binding.send(f"{text} now", messageId="1").task)
    assert len({task["id"] for task in tasks}) == 4


def test_the_ids_of_another_agent_are_its_own(product: Product) -> None:
    binding = product.binding(JsonRpc)
    message: dict[str, Any] = {"messageId": str(uuid.uuid4()), "contextId": str(uuid.uuid4())}
    task = binding.send("Deploy", **message).task
    other = binding.send("Roll back", who="bob", **message).task
    assert task["id"] != other["id"]
    assert binding.send("Deploy", **message).task == task


def test_the_same_message_is_the_same_task_in_both_versions(product: Product) -> None:
    text = f"Deploy {uuid.uuid4()}"
    message: dict[str, Any] = {"messageId": str(uuid.uuid4()), "contextId": str(uuid.uuid4())}
    ids = {product.binding(kind).send(text, **message).task.get("id") for kind in BINDINGS}
    assert len(ids) == 1
    assert len(product.intents(text)) == 1


def test_a_stream_of_a_message_that_was_answered_is_its_task(binding: Binding) -> None:
    params = sending("Deploy")
    begun, _, ended = binding.perform("SendStreamingMessage", params).events
    (again,) = binding.perform("SendStreamingMessage", params).events
    assert again["task"]["id"] == begun["task"]["id"]
    assert again["task"]["status"] == ended["statusUpdate"]["status"]
    assert again["task"]["artifacts"]


def test_an_announcement_whose_task_was_not_kept_is_not_made_again(tmp_path: Path) -> None:
    """As when a bridge dies between the two."""
    with serving(tmp_path, rate_limits={"enabled": True, "methods": {"cstp.saveTask": "1/hour"}}) as product:
        binding = product.binding(JsonRpc)
        binding.send("The one that may be kept")
        message: dict[str, Any] = {"messageId": str(uuid.uuid4())}
        assert binding.send("Deploy", **message).reason == "RATE_LIMITED"
        assert binding.send("Deploy", **message).reason == "RATE_LIMITED"
        assert len(product.intents("Deploy")) == 1


def test_a_repeated_message_beyond_the_rate_limit_has_its_task(tmp_path: Path) -> None:
    with serving(tmp_path, rate_limits={"enabled": True, "methods": {"cstp.announceIntent": "2/hour"}}) as product:
        binding = product.binding(JsonRpc)
        binding.send("The one by which the bridge knows the sender")
        message: dict[str, Any] = {"messageId": str(uuid.uuid4())}
        task = binding.send("Deploy", **message).task
        assert binding.send("Deploy", **message).task == task
        assert binding.send("Roll back").reason == "RATE_LIMITED"
