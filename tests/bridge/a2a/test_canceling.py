"""A task that says canceled has done nothing, whichever bridge is asked, over every binding."""

from __future__ import annotations

import uuid

import pytest

from tests.bridge.a2a.bindings import Binding, Reply
from tests.bridge.a2a.products import Product
from tests.bridge.a2a.talking import calling
from tests.waiting import wait_until

ATTEMPTS = 5


@pytest.mark.parametrize("bridge", [0, 1], ids=["same", "other"])
def test_a_canceled_task_recorded_nothing_and_any_other_has_its_result(
    product: Product, binding: Binding, bridge: int
) -> None:
    canceling = product.binding(type(binding), bridge)
    prefix = str(uuid.uuid4())
    ended = {f"{prefix} {number}": race(binding, canceling, f"{prefix} {number}") for number in range(ATTEMPTS)}
    recorded = {title for title in product.decision_titles() if title.startswith(prefix)}
    assert recorded == {title for title, reply in ended.items() if reply.state == "completed"}


def race(sending: Binding, canceling: Binding, title: str) -> Reply:
    """Return the ended task of a call that records a decision and is canceled at once."""
    call = calling("cstp.recordDecision", decision={"title": title})
    task_id = sending.send(call, at_once=True).task["id"]
    reply = canceling.cancel(task_id)

    def has_ended() -> bool:
        return canceling.get(task_id).state in ("canceled", "completed")

    wait_until(has_ended, "the task has ended")
    ended = canceling.get(task_id)
    if ended.state == "canceled":
        assert reply.state == "canceled"
        assert not ended.task.get("artifacts")
    else:
        assert reply.reason == "TASK_NOT_CANCELABLE"
        assert ended.task["artifacts"]
    return ended
