"""Which states of a task may follow which, and what becomes of a task whose time has run out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cstp_grpc.vocabulary import TaskState

LAPSED: Final[Mapping[TaskState, TaskState]] = {
    TaskState.SUBMITTED: TaskState.FAILED,
    TaskState.WORKING: TaskState.FAILED,
    # The guardrails' verdict stands if nobody gives what it asks for.
    TaskState.INPUT_REQUIRED: TaskState.REJECTED,
}
"""The states that can still change, and the state that each becomes when the time of the task has run out."""

CANCELABLE: Final = frozenset({TaskState.SUBMITTED, TaskState.INPUT_REQUIRED})
"""The states in which nothing of what the task asks for was sent, so that canceling prevents it."""


def states_before(state: TaskState) -> frozenset[TaskState]:
    """Return the states that a task may leave for another one."""
    return CANCELABLE if state is TaskState.CANCELED else frozenset(LAPSED)
