"""Tasks of A2A as bridges keep them: reading them back, and writing notifications of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, cast

from a2a.types.a2a_pb2 import Role, StreamResponse, Task, TaskState
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.client import json_known
from cstp_grpc.vocabulary import PushFormat
from cstp_grpc.vocabulary import TaskState as Word

INTERRUPTED: Final = "The answer was interrupted; what the message asks for may have been done, or not"
NOT_BEGUN: Final = "The task was given up before anything of what the message asks for was done"
UNANSWERED: Final = "Blocked: what the guardrails asked for was not given in time"
LAPSED: Final = {
    TaskState.TASK_STATE_SUBMITTED: NOT_BEGUN,
    TaskState.TASK_STATE_WORKING: INTERRUPTED,
    TaskState.TASK_STATE_INPUT_REQUIRED: UNANSWERED,
}
"""What is said of tasks whose time ran out, by the states in which they were kept."""
TEXT: Final = "text/plain"
STATES: Final[Mapping[str, TaskState]] = {
    word.value: cast(TaskState, TaskState.Value(f"TASK_STATE_{word.name}")) for word in Word
}
"""The states of A2A by the words of the domain, which have the same names."""


def read_task(task_id: str, context_id: str, content: bytes, state: TaskState, updated_at: Timestamp) -> Task | None:
    """Return a kept task as A2A shows it; its state, and since when it holds, are those of the server.

    None if the content is no such task: whoever has a token may save what it likes past every bridge.
    """
    try:
        task = Task.FromString(content)
    except DecodeError:
        return None
    if (task.id, task.context_id) != (task_id, context_id):
        return None
    if state != task.status.state and task.status.state in LAPSED:
        mark_interrupted(task, LAPSED[task.status.state])
    task.status.state = state
    task.status.timestamp.CopyFrom(updated_at)
    return task


def mark_interrupted(task: Task, text: str) -> None:
    """Say in the status of a task whose time ran out what became of it."""
    task.ClearField("artifacts")
    message = task.status.message
    message.Clear()
    message.message_id = f"{task.id}-interrupted"
    message.task_id = task.id
    message.context_id = task.context_id
    message.role = Role.ROLE_AGENT
    message.parts.add(text=text, media_type=TEXT)


def write_notification(
    task_id: str, context_id: str, content: bytes, state: str, updated_at: datetime, written: PushFormat
) -> bytes | None:
    """Return the body of a push notification on a kept task; None if the content is no such task.

    It is a StreamResponse with the task, for 0.3 the task alone, as JSON. `state` is a word of the vocabulary's
    TaskState.
    """
    since = Timestamp()
    since.FromDatetime(updated_at)
    task = read_task(task_id, context_id, content, STATES[state], since)
    if task is None:
        return None
    if written is PushFormat.A2A_0_3:
        # It takes 0.2 s to import, and clients of 0.3 alone need it.
        from a2a.compat.v0_3 import conversions

        return to_bytes(conversions.to_compat_task(task).model_dump(mode="json", by_alias=True, exclude_none=True))
    return to_bytes(json_format.MessageToDict(StreamResponse(task=task)))


def to_bytes(value: Any) -> bytes:
    """Return a JSON value as it is sent, with whole numbers as such."""
    return json.dumps(json_known.with_integers(value), ensure_ascii=False, allow_nan=False).encode()
