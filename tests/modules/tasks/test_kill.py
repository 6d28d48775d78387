"""Every change of a task is told when the server is killed, whatever it was doing."""

from __future__ import annotations

import uuid
from collections import defaultdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import grpc
import pytest
from a2a.types.a2a_pb2 import Task, TaskStatus

from cstp_grpc.gen.cstp.v1 import tasks_pb2, tasks_pb2_grpc
from tests.harness import TOKENS
from tests.killing import count_kills, killed_at_work, server_process
from tests.modules.webhooks.receiver import Receiver, receiving
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 5
AGENTS = 3
GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
TELLING_SECONDS = 200.0
"""What was being sent when a server was killed is sent again when its lease is over."""
ORDER = ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]


def kept(task_id: str, state: str) -> tasks_pb2.Task:
    """Return a task as a bridge keeps it."""
    content = Task(id=task_id, context_id="c", status=TaskStatus(state=state))
    return tasks_pb2.Task(
        id=task_id,
        context_id="c",
        state=tasks_pb2.TaskState.Value(state),
        content=content.SerializeToString(),
    )


def change_tasks(channel: grpc.Channel, url: str, changed: dict[str, int]) -> None:
    """Save tasks state after state until the server is gone, and write down how many states of each it kept."""
    service = tasks_pb2_grpc.TaskServiceStub(channel)
    given: dict[str, Any] = {"metadata": (("authorization", f"Bearer {TOKENS['alice']}"),), "timeout": 30}
    config = tasks_pb2.PushConfig(url=url, format=tasks_pb2.PUSH_FORMAT_A2A_1_0)
    try:
        while True:
            task_id = uuid.uuid4().hex
            for version, state in enumerate(ORDER):
                first: dict[str, Any] = {"push_config": config} if version == 0 else {}
                service.SaveTask(
                    tasks_pb2.SaveTaskRequest(task=kept(task_id, state), version=version, **first), **given
                )
                changed[task_id] = version + 1
    except grpc.RpcError as error:
        if error.code() not in GONE:
            raise


def told(receiver: Receiver) -> dict[str, list[str]]:
    """Return the states that each task was told in, in their order."""
    found: dict[str, list[str]] = defaultdict(list)
    for received in list(receiver.received):
        task = received.content["task"]
        found[task["id"]].append(task["status"]["state"])
    return found


def test_changes_are_told_in_their_order(tmp_path: Path) -> None:
    changed: dict[str, int] = {}
    with receiving() as receiver:
        for _ in count_kills(KILLS, changed):
            with server_process("tests.modules.tasks.serving", str(tmp_path)) as (process, channel):
                killed_at_work(partial(change_tasks, channel, f"{receiver.url}/hook", changed), AGENTS, process.kill)

        def are_told() -> bool:
            found = told(receiver)
            return all(set(ORDER[:count]) <= set(found[task_id]) for task_id, count in changed.items())

        with server_process("tests.modules.tasks.serving", str(tmp_path)):
            wait_until(are_told, "every change is told", TELLING_SECONDS)
    for states in told(receiver).values():
        # One may be told twice, but never one after a later one.
        in_order = [state for state, _ in groupby(states) if state in ORDER]
        assert in_order == ORDER[: len(in_order)]
