"""What tasks tell of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from a2a.types.a2a_pb2 import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent

Event = Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent
"""What a stream says of a task."""
WAITING: Final = TaskState.TASK_STATE_INPUT_REQUIRED
"""The state of a task that takes a further message."""
CANCELABLE: Final = frozenset({TaskState.TASK_STATE_SUBMITTED, WAITING})
"""The states in which the server lets a task be canceled: what it asks for was not sent, or blocked."""
OPEN: Final = CANCELABLE | {TaskState.TASK_STATE_WORKING}
"""The states of tasks that have not ended."""


def last_events(task: Task) -> Iterator[TaskArtifactUpdateEvent | TaskStatusUpdateEvent]:
    """Yield what a stream says of a task that has ended: its artifact, if it has one, then its status."""
    for artifact in task.artifacts:
        yield TaskArtifactUpdateEvent(task_id=task.id, context_id=task.context_id, artifact=artifact, last_chunk=True)
    yield status_event(task)


def status_event(task: Task) -> TaskStatusUpdateEvent:
    """Return what a stream says of a task that came to another state."""
    return TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)


def has_ended(task: Task) -> bool:
    """Return whether a task can no longer change."""
    return task.status.state not in OPEN


def rests(task: Task) -> bool:
    """Return whether nobody is at a task: it has ended or waits for a message."""
    return has_ended(task) or task.status.state == WAITING


def in_state(task: Task, state: TaskState) -> Task:
    """Return the task in a state about which there is nothing to say yet."""
    changed = copy_of(task)
    changed.status.Clear()
    changed.status.state = state
    return changed


def state_name(task: Task) -> str:
    """Return where a task stands, as A2A writes it."""
    return TaskState.Name(task.status.state)


def copy_of(task: Task) -> Task:
    """Return a copy of a task."""
    copy = Task()
    copy.CopyFrom(task)
    return copy
