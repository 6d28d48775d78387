"""A message that is sent again has the task that it began, whatever happened meanwhile, over every binding."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.a2a.bindings import BINDINGS, Binding, JsonRpc
from tests.bridge.a2a.raw import call, events_of, saying
from tests.bridge.a2a.talking import calling
from tests.harness import GrpcCaller, Peers, peering, running, settings

SENDERS = 16


@dataclass(frozen=True)
class Product:
    """A server with two bridges before it."""

    core: GrpcCaller
    bridges: tuple[Peers, Peers]

    def intents(self, text: str) -> list[Any]:
        """Return the announced intents of a text."""
        page = self.core.call("cstp.listIntents", {"pageSize": 100}).result
        assert page is not None
        return [intent for intent in page["intents"] if intent["intent"] == text]

    def decisions(self, title: str) -> list[Any]:
        """Return the recorded decisions of a title."""
        page = self.core.call("cstp.listDecisions", {"pageSize": 100}).result
        assert page is not None
        return [decision for decision in page["decisions"] if decision["title"] == title]


@contextmanager
def serving(folder: Path, **overrides: Any) -> Iterator[Product]:
    """Run it for the length of a block."""
    wanted = settings(folder, **overrides)
    with running(wanted) as app, peering(wanted, app.target) as first, peering(wanted, app.target) as second:
        core = GrpcCaller(app.target)
        yield Product(core, (first, second))
        core.close()


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with serving(tmp_path_factory.mktemp("repetitions")) as found:
        yield found


@pytest.mark.parametrize("kind", BINDINGS)
def test_the_same_message_is_the_same_task(product: Product, kind: type[Binding]) -> None:
    first, second = map(kind, product.bridges)
    text = f"Deploy {uuid.uuid4()}"
    message: dict[str, Any] = {"messageId": str(uuid.uuid4())}
    task = first.send(text, {"a": 1}, **message).task
    for again in (first, second):
        for at_once in (False, True):
            assert again.send(text, {"a": 1}, at_once=at_once, **message).task == task
    assert len(product.intents(text)) == 1


@pytest.mark.parametrize("kind", BINDINGS)
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("what", ["announcement", "record"])
def test_of_many_at_once_one_is_carried_out(product: Product, kind: type[Binding], at_once: bool, what: str) -> None:
    name = f"{what} {uuid.uuid4()}"
    part = name if what == "announcement" else calling("cstp.recordDecision", decision={"title": name})
    message: dict[str, Any] = {"messageId": str(uuid.uuid4())}
    senders = [kind(peers) for peers, _ in zip(cycle(product.bridges), range(SENDERS), strict=False)]
    with ThreadPoolExecutor(SENDERS) as threads:
        tasks = list(threads.map(lambda sender: sender.send(part, at_once=at_once, **message).task, senders))
    (task_id,) = {task["id"] for task in tasks}
    if not at_once:
        assert all(task == senders[0].get(task_id).task for task in tasks)
    senders[0].send(part, **message)
    assert len(product.intents(name) if what == "announcement" else product.decisions(name)) == 1


@pytest.mark.parametrize("kind", BINDINGS)
def test_other_content_under_the_same_id_in_a_context_is_refused(product: Product, kind: type[Binding]) -> None:
    binding = kind(product.bridges[0])
    text = f"Deploy {uuid.uuid4()}"
    message: dict[str, Any] = {"messageId": "1", "contextId": str(uuid.uuid4())}
    task = binding.send(text, **message).task
    for at_once in (False, True):
        assert binding.send(f"{text} now", at_once=at_once, **message).reason == "INVALID_PARAMS"
    assert not product.intents(f"{text} now")
    assert binding.send(text, **message).task == task


@pytest.mark.parametrize("kind", BINDINGS)
def test_an_id_may_be_used_again_in_another_context(product: Product, kind: type[Binding]) -> None:
    binding = kind(product.bridges[0])
    text = f"Deploy {uuid.uuid4()}"
    contexts: list[dict[str, Any]] = [{}, {"contextId": str(uuid.uuid4())}, {"contextId": str(uuid.uuid4())}]
    tasks = [binding.send(text, messageId="1", **context).task for context in contexts]
    tasks.append(binding.send(f"{text} now", messageId="1").task)
    assert len({task["id"] for task in tasks}) == 4


def test_the_ids_of_another_agent_are_its_own(product: Product) -> None:
    binding = JsonRpc(product.bridges[0])
    message: dict[str, Any] = {"messageId": str(uuid.uuid4()), "contextId": str(uuid.uuid4())}
    task = binding.send("Deploy", **message).task
    other = binding.send("Roll back", who="bob", **message).task
    assert task["id"] != other["id"]
    assert binding.send("Deploy", **message).task == task


def test_the_same_message_is_the_same_task_in_both_versions(product: Product) -> None:
    text = f"Deploy {uuid.uuid4()}"
    message: dict[str, Any] = {"messageId": str(uuid.uuid4()), "contextId": str(uuid.uuid4())}
    ids = {kind(product.bridges[0]).send(text, **message).task.get("id") for kind in BINDINGS}
    assert len(ids) == 1
    assert len(product.intents(text)) == 1


def test_a_stream_of_a_message_that_was_answered_is_its_task(product: Product) -> None:
    binding = JsonRpc(product.bridges[0])
    params = saying("Deploy")
    first = events_of(binding.raw.post(call("SendStreamingMessage", params)))
    (again,) = events_of(binding.raw.post(call("SendStreamingMessage", params)))
    task = again["result"]["task"]
    assert task["id"] == first[0]["result"]["task"]["id"]
    assert task["status"] == first[-1]["result"]["statusUpdate"]["status"]
    assert task["artifacts"]


def test_an_announcement_whose_task_was_not_kept_is_not_made_again(tmp_path: Path) -> None:
    """As when a bridge dies between the two."""
    with serving(tmp_path, rate_limits={"enabled": True, "methods": {"cstp.saveTask": "1/hour"}}) as product:
        binding = JsonRpc(product.bridges[0])
        binding.send("The one that may be kept")
        message: dict[str, Any] = {"messageId": str(uuid.uuid4())}
        assert binding.send("Deploy", **message).reason == "RATE_LIMITED"
        assert binding.send("Deploy", **message).reason == "RATE_LIMITED"
        assert len(product.intents("Deploy")) == 1
