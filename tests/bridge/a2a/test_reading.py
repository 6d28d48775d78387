"""Tasks that are read, listed, canceled and followed, over every binding."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.bridge.a2a.bindings import BINDINGS, CURRENT, Binding, OldGrpc, sending
from tests.bridge.a2a.products import Product
from tests.bridge.a2a.refusals import assert_refused
from tests.bridge.a2a.talking import READY
from tests.bridge.a2a.tasks import INTENT, QUERY

WITH_ZERO = [kind for kind in BINDINGS if kind is not OldGrpc]
"""Over gRPC, 0.3 cannot tell a number of 0 from none."""
NOT_READY = {"affectsProduction": True}
CONFIG = {"url": "https://agents.example.com/hook"}
ABOUT_A_TASK: dict[str, Any] = {
    "GetTask": {"id": "no-such-task"},
    "CancelTask": {"id": "no-such-task"},
    "SubscribeToTask": {"id": "no-such-task"},
    "SendMessage": sending(INTENT, taskId="no-such-task"),
    "SendStreamingMessage": sending(INTENT, taskId="no-such-task"),
    "CreateTaskPushNotificationConfig": {"taskId": "no-such-task", **CONFIG},
    "GetTaskPushNotificationConfig": {"taskId": "no-such-task", "id": "c"},
    "ListTaskPushNotificationConfigs": {"taskId": "no-such-task"},
    "DeleteTaskPushNotificationConfig": {"taskId": "no-such-task", "id": "c"},
}


def context_of(binding: Binding, count: int) -> tuple[str, list[Any]]:
    """Return a new context and its tasks, which begin with the earliest."""
    context = str(uuid.uuid4())
    return context, [binding.send(f"{INTENT} {number}", contextId=context).task for number in range(count)]


def test_a_task_can_be_had_again_from_every_bridge(binding: Binding, product: Product) -> None:
    task = binding.send(INTENT).task
    assert binding.get(task["id"]).task == task
    assert product.binding(type(binding), bridge=1).get(task["id"]).task == task


@pytest.mark.parametrize("binding", WITH_ZERO, indirect=True)
def test_a_task_can_be_had_without_its_history(binding: Binding) -> None:
    task = binding.send(INTENT).task
    assert "history" not in binding.get(task["id"], historyLength=0).task
    assert len(binding.get(task["id"], historyLength=1).task["history"]) == 1


def test_a_task_that_has_ended_stays_as_it_is(binding: Binding) -> None:
    task = binding.send(INTENT).task
    assert_refused(binding, binding.cancel(task["id"]), "TASK_NOT_CANCELABLE")
    assert_refused(binding, binding.perform("SubscribeToTask", {"id": task["id"]}), "UNSUPPORTED_OPERATION")
    for operation in ("SendMessage", "SendStreamingMessage"):
        assert_refused(binding, binding.perform(operation, sending(INTENT, taskId=task["id"])), "UNSUPPORTED_OPERATION")
    assert binding.get(task["id"]).task == task


@pytest.mark.parametrize("operation", ABOUT_A_TASK)
def test_there_is_no_task_that_nobody_began(binding: Binding, operation: str) -> None:
    assert_refused(binding, binding.perform(operation, ABOUT_A_TASK[operation]), "TASK_NOT_FOUND")


@pytest.mark.parametrize("operation", ["GetTask", "CancelTask", "SubscribeToTask", "SendMessage"])
def test_the_task_of_another_is_no_task(binding: Binding, operation: str) -> None:
    task_id = binding.send(INTENT).task["id"]
    about = {"id": task_id} if operation != "SendMessage" else sending(INTENT, taskId=task_id)
    there = assert_refused(binding, binding.perform(operation, about, who="bob"), "TASK_NOT_FOUND")
    nowhere = assert_refused(binding, binding.perform(operation, ABOUT_A_TASK[operation], who="bob"), "TASK_NOT_FOUND")
    assert there.message.replace(task_id, "no-such-task") == nowhere.message


@pytest.mark.parametrize("binding", CURRENT, indirect=True)
def test_tasks_are_listed_newest_first_by_page(binding: Binding) -> None:
    context, sent = context_of(binding, 3)
    pages, token = [], ""
    for _ in range(2):
        pages.append(binding.list_tasks(contextId=context, pageSize=2, pageToken=token))
        token = pages[-1].get("nextPageToken", "")
    assert [[task["id"] for task in page["tasks"]] for page in pages] == [
        [sent[2]["id"], sent[1]["id"]],
        [sent[0]["id"]],
    ]
    assert [(page["pageSize"], page["totalSize"]) for page in pages] == [(2, 3)] * 2
    assert token == ""


@pytest.mark.parametrize("binding", CURRENT, indirect=True)
def test_a_listing_shows_what_it_is_asked_for(binding: Binding) -> None:
    context, (task,) = context_of(binding, 1)
    (plain,) = binding.list_tasks(contextId=context)["tasks"]
    assert plain == {name: value for name, value in task.items() if name != "artifacts"}
    (whole,) = binding.list_tasks(contextId=context, includeArtifacts=True)["tasks"]
    assert whole == task
    (short,) = binding.list_tasks(contextId=context, historyLength=0, includeArtifacts=False)["tasks"]
    assert "history" not in short
    assert binding.list_tasks(contextId=context)["pageSize"] == 50


@pytest.mark.parametrize("binding", CURRENT, indirect=True)
def test_tasks_are_listed_by_conversation_state_and_time(binding: Binding) -> None:
    context = str(uuid.uuid4())
    blocked = binding.send(INTENT, NOT_READY, contextId=context).task
    passed = binding.send(INTENT, READY, contextId=context).task
    query = binding.send(QUERY, contextId=context).task
    binding.send("Something else")
    later = query["status"]["timestamp"]
    wanted: dict[str, tuple[Any, list[Any]]] = {
        "all": ({}, [query, passed, blocked]),
        "waiting": ({"status": "TASK_STATE_INPUT_REQUIRED"}, [blocked]),
        "completed": ({"status": "TASK_STATE_COMPLETED"}, [query, passed]),
        "working": ({"status": "TASK_STATE_WORKING"}, []),
        "never": ({"status": "TASK_STATE_AUTH_REQUIRED"}, []),
        "later": ({"statusTimestampAfter": later}, [query]),
        "in the future": ({"statusTimestampAfter": "2999-01-01T00:00:00Z"}, []),
    }
    for name, (asked, expected) in wanted.items():
        page = binding.list_tasks(contextId=context, **asked)
        assert [task["id"] for task in page.get("tasks", [])] == [task["id"] for task in expected], name
        assert page.get("totalSize", 0) == len(expected), name
        assert page["pageSize"] == 50


@pytest.mark.parametrize("binding", CURRENT, indirect=True)
def test_the_tasks_of_others_are_not_listed(binding: Binding) -> None:
    context, (task,) = context_of(binding, 1)
    assert not binding.list_tasks(who="bob", contextId=context).get("tasks")
    assert task["id"] not in [found["id"] for found in binding.list_tasks(who="bob").get("tasks", [])]


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ({"pageSize": 0}, ["pageSize"]),
        ({"pageSize": -1}, ["pageSize"]),
        ({"pageSize": 101}, ["pageSize"]),
        ({"historyLength": -1}, ["historyLength"]),
        ({"pageToken": "none"}, ["pageToken"]),
        ({"contextId": "c" * 300}, ["contextId"]),
    ],
)
@pytest.mark.parametrize("binding", CURRENT, indirect=True)
def test_a_listing_that_cannot_be_is_refused(binding: Binding, asked: Any, fields: list[str]) -> None:
    assert_refused(binding, binding.call("ListTasks", asked), "INVALID_PARAMS")
