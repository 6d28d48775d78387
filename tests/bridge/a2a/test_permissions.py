"""A message that asks for what its sender may not do is refused, and no task is kept of it, over every binding."""

from __future__ import annotations

import uuid
from typing import Any

import grpc
import pytest

from cstp_grpc.gen.cstp.v1 import tasks_pb2
from cstp_grpc.gen.cstp.v1.tasks_pb2_grpc import TaskServiceStub
from tests.bridge.a2a.bindings import Binding, sending
from tests.bridge.a2a.refusals import assert_refused
from tests.bridge.a2a.talking import calling
from tests.harness import TIMEOUT, TOKENS

MESSAGES: dict[str, Any] = {
    "intent": "Deploy",
    "record": calling("cstp.recordDecision", decision={"title": "Use it"}),
    "list": calling("cstp.listIntents"),
}
READER = (("authorization", f"Bearer {TOKENS['reader']}"),)


def kept_tasks(target: str, context: str) -> int:
    """Return how many tasks the reader has in a context."""
    with grpc.insecure_channel(target) as channel:
        request = tasks_pb2.ListTasksRequest(context_id=context)
        return TaskServiceStub(channel).ListTasks(request, metadata=READER, timeout=TIMEOUT).total


@pytest.mark.parametrize("message", MESSAGES)
def test_a_missing_permission_is_an_error_before_any_task(binding: Binding, core: str, message: str) -> None:
    context = str(uuid.uuid4())
    params = sending(MESSAGES[message], contextId=context)
    for operation, told in (
        ("SendMessage", params),
        ("SendMessage", {**params, "configuration": {"returnImmediately": True}}),
        ("SendStreamingMessage", params),
    ):
        refusal = assert_refused(binding, binding.perform(operation, told, who="reader"), "PERMISSION_DENIED")
        assert refusal.metadata["permission"] in refusal.message
    assert kept_tasks(core, context) == 0


def test_a_task_that_a_permission_is_missing_for_is_not_kept(core: str) -> None:
    """The server decides it, so that no bridge can forget to ask."""
    context = str(uuid.uuid4())
    task = tasks_pb2.Task(id="t", context_id=context, state=tasks_pb2.TASK_STATE_SUBMITTED, content=b"x")
    with grpc.insecure_channel(core) as channel:
        request = tasks_pb2.SaveTaskRequest(task=task, method="cstp.recordDecision")
        with pytest.raises(grpc.RpcError) as caught:
            TaskServiceStub(channel).SaveTask(request, metadata=READER, timeout=TIMEOUT)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert kept_tasks(core, context) == 0
