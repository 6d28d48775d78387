"""What tasks tell of themselves."""

from __future__ import annotations

from collections.abc import Iterator

from a2a.types.a2a_pb2 import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent


def last_events(task: Task) -> Iterator[TaskArtifactUpdateEvent | TaskStatusUpdateEvent]:
    """Yield what a stream says of a task that has ended: its artifact, where it has one, then its status."""
    for artifact in task.artifacts:
        yield TaskArtifactUpdateEvent(task_id=task.id, context_id=task.context_id, artifact=artifact, last_chunk=True)
    yield TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)


def is_working(task: Task) -> bool:
    """Whether a task has not ended."""
    return task.status.state == TaskState.TASK_STATE_WORKING


def state_name(task: Task) -> str:
    """Return where a task stands, as A2A writes it."""
    return TaskState.Name(task.status.state)


def copy_of(task: Task) -> Task:
    """Return a copy of a task."""
    copy = Task()
    copy.CopyFrom(task)
    return copy
