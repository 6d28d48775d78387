"""Decode A2A tasks as bridges store them, and encode push notifications about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, cast

from a2a.types.a2a_pb2 import Role, StreamResponse, Task, TaskState
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.contract import json_values
from cstp_grpc.contract.enums import PushFormat
from cstp_grpc.contract.enums import TaskState as Word

INTERRUPTED_TEXT: Final = "The answer was interrupted; what the message asks for may have been done, or not"
NOT_STARTED_TEXT: Final = "The task was given up before it started; nothing that the message asks for was done"
UNANSWERED_TEXT: Final = "Blocked: what the guardrails asked for was not given in time"
UNDECIDED_TEXT: Final = "Blocked: nobody decided in time on the approval that it needs"
EXPIRED_TASK_TEXTS: Final = {
    TaskState.TASK_STATE_SUBMITTED: NOT_STARTED_TEXT,
    TaskState.TASK_STATE_WORKING: INTERRUPTED_TEXT,
    TaskState.TASK_STATE_INPUT_REQUIRED: UNANSWERED_TEXT,
    TaskState.TASK_STATE_AUTH_REQUIRED: UNDECIDED_TEXT,
}
"""The status text of expired tasks, by the state they were stored in."""
TEXT_MEDIA_TYPE: Final = "text/plain"
A2A_STATES: Final[Mapping[str, TaskState]] = {
    word.value: cast(TaskState, TaskState.Value(f"TASK_STATE_{word.name}")) for word in Word
}
"""The A2A task states by the words of TaskState, which have the same names."""


def decode_stored_task(
    task_id: str, context_id: str, content: bytes, state: TaskState, updated_at: Timestamp
) -> Task | None:
    """Decode a stored task, with its state and timestamp replaced by those of the server.

    Return None if the content is not this task: anyone with a token can store arbitrary content without going through a
    bridge.
    """
    try:
        task = Task.FromString(content)
    except DecodeError:
        return None
    if (task.id, task.context_id) != (task_id, context_id):
        return None
    # The content is as the bridge stored it; only an expiry changes the state on the server alone.
    if state != task.status.state and task.status.state in EXPIRED_TASK_TEXTS:
        mark_interrupted(task, EXPIRED_TASK_TEXTS[task.status.state])
    task.status.state = state
    task.status.timestamp.CopyFrom(updated_at)
    return task


def mark_interrupted(task: Task, text: str) -> None:
    """Set the status message of an expired task, and remove its artifacts."""
    task.ClearField("artifacts")
    message = task.status.message
    message.Clear()
    # Derived from the task, so that every reading of it gives the same message.
    message.message_id = f"{task.id}-interrupted"
    message.task_id = task.id
    message.context_id = task.context_id
    message.role = Role.ROLE_AGENT
    message.parts.add(text=text, media_type=TEXT_MEDIA_TYPE)


def encode_notification(
    task_id: str, context_id: str, content: bytes, state: str, updated_at: datetime, written: PushFormat
) -> bytes | None:
    """Return the body of a push notification about a stored task, or None if the content is not that task.

    The body is the JSON of a StreamResponse with the task; for A2A 0.3, of the task alone. `state` is a value of
    TaskState.
    """
    since = Timestamp()
    since.FromDatetime(updated_at)
    task = decode_stored_task(task_id, context_id, content, A2A_STATES[state], since)
    if task is None:
        return None
    if written is PushFormat.A2A_0_3:
        # Imported late: it takes 0.2 s (measured), and only notifications of 0.3 need it.
        from a2a.compat.v0_3 import conversions

        return encode_json_bytes(
            conversions.to_compat_task(task).model_dump(mode="json", by_alias=True, exclude_none=True)
        )
    return encode_json_bytes(json_format.MessageToDict(StreamResponse(task=task)))


def encode_json_bytes(value: Any) -> bytes:
    """Encode a JSON value as UTF-8, with whole numbers written as integers."""
    return json.dumps(json_values.restore_integers(value), ensure_ascii=False, allow_nan=False).encode()
