"""Where the work of TaskService is done: nobody waits on a thread for what is short or written by another one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from cstp_grpc.contract.caller import Caller, current_caller
from cstp_grpc.gen.cstp.v1 import tasks_pb2
from cstp_grpc.modules.tasks.servicer import TaskService
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.lanes import ObservedLane
from tests.modules.tasks.keeping import KeeperKit

KEPT = tasks_pb2.Task(id="t-1", context_id="c-1", state=tasks_pb2.TASK_STATE_WORKING, content=b"x")
ANY_CONTEXT: Any = None
"""The servicer does not use it."""


async def begin_and_read(service: TaskService) -> list[object]:
    current_caller.set(Caller("ada", "ada"))
    found = await service.FindTask(tasks_pb2.FindTaskRequest(key="m-1"), ANY_CONTEXT)
    saved = await service.SaveTask(tasks_pb2.SaveTaskRequest(task=KEPT), ANY_CONTEXT)
    kept = await service.GetTask(tasks_pb2.GetTaskRequest(id="t-1"), ANY_CONTEXT)
    return [found.HasField("task"), saved.version, kept.task.content]


def test_a_task_is_read_on_the_loop_where_it_is_in_a_file(kit: KeeperKit, database_kind: str) -> None:
    lane = ObservedLane()
    service = TaskService(kit.keeper, {}, lane)
    assert asyncio.run(begin_and_read(service)) == [False, 1, b"x"]
    reads = ["find", "get"]
    assert (lane.short, lane.blocking) == ((reads, []) if database_kind == "sqlite" else ([], reads))


def test_saving_does_not_hold_the_event_loop(kit: KeeperKit, writer: GroupCommitWriter) -> None:
    service = TaskService(kit.keeper, {}, ObservedLane())
    begun, released = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        assert released.wait(30)

    async def save_beside_another() -> int:
        current_caller.set(Caller("ada", "ada"))
        held = asyncio.ensure_future(asyncio.to_thread(writer.run, hold))
        await asyncio.to_thread(begun.wait, 30)
        saving = asyncio.ensure_future(service.SaveTask(tasks_pb2.SaveTaskRequest(task=KEPT), ANY_CONTEXT))
        # The loop has this turn although the writer is busy.
        await asyncio.sleep(0)
        assert not saving.done()
        released.set()
        await held
        return (await saving).version

    assert asyncio.run(save_beside_another()) == 1
