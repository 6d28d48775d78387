"""The callers of the operations of A2A, and how to see what became of a task."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from a2a.types.a2a_pb2 import (
    GetTaskRequest,
    Task,
)
from a2a.utils.errors import (
    A2AError,
)

from bridge.a2a.call_context import A2aCallContext
from bridge.a2a.request_handler import A2aRequestHandler
from bridge.a2a.task_store import GrpcTaskStore
from tests.bridge.a2a.talking import (
    SUBMITTED,
    TIMEOUT,
    WORKING,
    context,
)

ALICE = context("alice")
BOB = context("bob")
STRANGER = context("who?")
AT_ONCE = {"returnImmediately": True}
INTENT = "Deploy auth to production"


async def refusal(attempt: Any) -> A2AError:
    """Return the error that an operation ends with."""
    with pytest.raises(A2AError) as caught:
        await attempt
    return caught.value


async def events(stream: Any) -> list[Any]:
    """Return everything that a stream says."""
    return [event async for event in stream]


async def get(conversations: A2aRequestHandler, task: Task) -> Task:
    """Return a task of alice's as it is kept."""
    return await conversations.on_get_task(GetTaskRequest(id=task.id), ALICE)


async def is_in(conversations: A2aRequestHandler, task: Task, *states: int) -> bool:
    return (await get(conversations, task)).status.state in states


async def has_ended(conversations: A2aRequestHandler, task: Task) -> bool:
    return not await is_in(conversations, task, SUBMITTED, WORKING)


async def submitted(store: GrpcTaskStore, seconds: float = TIMEOUT, caller: A2aCallContext = ALICE) -> Task:
    """Return a task that a bridge has kept and died before it began."""
    task = Task(id=str(uuid.uuid4()), context_id="submitted")
    task.status.state = SUBMITTED
    return (await store.save(task, 0, caller.metadata, time_left=seconds)).task
