"""Wait until people have decided on the approvals that tasks need, and go on with the tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from a2a.types.a2a_pb2 import Task, TaskState

from bridge.a2a.call_context import EXTENSION_URI, metadata_request_id
from bridge.a2a.message_parsing import ANNOUNCE_METHOD, IntentAnnouncement, MessageRequest, MethodCall
from bridge.a2a.task_store import StoredTask
from bridge.upstream import Forwarder, Metadata
from cstp_grpc.contract import json_values
from cstp_grpc.errors import CstpError

logger = logging.getLogger(__name__)

GET_APPROVAL: Final = "cstp.getApproval"
PENDING: Final = "pending"
EXPIRED: Final = "expired"
PASSING_REASONS: Final = frozenset({"UNAVAILABLE", "RATE_LIMITED", "DEADLINE_EXCEEDED", "QUERY_FAILED"})
"""Failures after which a later look may succeed."""
FIRST_PAUSE_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 10.0
"""The longest pause between two looks, each 1.5 times as long as the one before. Chosen: people take minutes, and six
looks a minute hardly count against the rate limits of the caller."""
MAX_WAITS: Final = 1000
"""Tasks that one bridge waits for at most, each of which costs a timer and the metadata of its call. Beyond them a task
goes on once its owner gets it."""
MAX_WAITING_SECONDS: Final = 7 * 86_400.0
"""The longest time that the server lets a task wait."""


@dataclass(frozen=True, slots=True)
class AwaitedApproval:
    """The approval that a task waits for, and the request that is sent again once people have decided."""

    id: str
    request: MessageRequest
    media_types: frozenset[str]


def record_approval(
    task: Task, request: MessageRequest, approval: Mapping[str, Any], media_types: frozenset[str]
) -> None:
    """Record in a task's metadata the approval that it waits for, so that any bridge can go on with it."""
    recorded = {
        "method": request.name,
        "params": request.params,
        "approval": {"id": approval["id"], "expiresAt": approval["expiresAt"]},
        "mediaTypes": sorted(media_types),
    }
    task.ClearField("metadata")
    json_values.set_trusted_struct(task.metadata, {EXTENSION_URI: recorded})


def read_awaited_approval(task: Task) -> AwaitedApproval | None:
    """Return the approval that a task waits for, or None if it waits for none."""
    if task.status.state != TaskState.TASK_STATE_AUTH_REQUIRED or EXTENSION_URI not in task.metadata.fields:
        return None
    # Checked as if it were foreign: a token holder can store a task without a bridge. It is sent with the token of
    # whoever gets the task, which is its owner.
    match json_values.render_value(task.metadata.fields[EXTENSION_URI]):
        case {
            "method": str(method),
            "params": dict(params),
            "approval": {"id": str(approval_id)},
            "mediaTypes": list(),
        }:
            media_types = read_media_types(task)
            request = IntentAnnouncement(params) if method == ANNOUNCE_METHOD else MethodCall(method, params)
            return AwaitedApproval(approval_id, request, media_types)
    return None


def read_media_types(task: Task) -> frozenset[str]:
    """Return the media types that the artifact of a waiting task may have."""
    recorded = task.metadata.fields[EXTENSION_URI].struct_value.fields["mediaTypes"].list_value.values
    return frozenset(each.string_value for each in recorded)


def waiting_seconds(approval: Mapping[str, Any]) -> float:
    """Return how long a task may wait for an approval, as long as its request counts."""
    left = (datetime.fromisoformat(approval["expiresAt"]) - datetime.now(UTC)).total_seconds()
    # At least a second, since a task needs some time, and the clocks of the server and the bridge may differ.
    return min(max(left, 1.0), MAX_WAITING_SECONDS)


class ApprovalWaits:
    """Waits in the background for the approvals of tasks, and calls `resume` once people have decided on one.

    It looks with the metadata of the call that stored or got the task, so that nothing is kept but in memory; after a
    restart, the owner's next GetTask has the task waited for again.
    """

    def __init__(
        self, forwarder: Forwarder, resume: Callable[[StoredTask, AwaitedApproval, Metadata], Awaitable[object]]
    ) -> None:
        self._forwarder = forwarder
        self._resume = resume
        self._waits: dict[str, asyncio.Task[None]] = {}

    def begin(self, stored: StoredTask, metadata: Metadata) -> None:
        """Wait for the approval of a task, if it waits for one and nobody here waits for it yet."""
        awaited = read_awaited_approval(stored.task)
        if awaited is None or stored.task.id in self._waits or len(self._waits) >= MAX_WAITS:
            return
        wait = asyncio.create_task(self._wait(stored, awaited, metadata))
        self._waits[stored.task.id] = wait
        wait.add_done_callback(lambda done: self._end(stored.task.id, done))

    async def aclose(self) -> None:
        """Stop waiting."""
        waits = list(self._waits.values())
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    def _end(self, task_id: str, done: asyncio.Task[None]) -> None:
        if self._waits.get(task_id) is done:
            del self._waits[task_id]
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.warning("task %s does not go on by itself: %s", task_id, error)

    async def _wait(self, stored: StoredTask, awaited: AwaitedApproval, metadata: Metadata) -> None:
        """Look until people have decided, then go on with the task; the server ends one that expires."""
        pause = FIRST_PAUSE_SECONDS
        while (status := await self._read_status(awaited.id, metadata)) in (None, PENDING):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, MAX_PAUSE_SECONDS)
        if status != EXPIRED:
            # Before it goes on: it may come to wait for another approval.
            self._waits.pop(stored.task.id, None)
            await self._resume(stored, awaited, metadata)

    async def _read_status(self, approval_id: str, metadata: Metadata) -> str | None:
        """Return the status of an approval, None if it cannot be read now. Raises CstpError."""
        try:
            answer = await self._forwarder.call(GET_APPROVAL, {"id": approval_id}, metadata)
        except CstpError as failure:
            if failure.reason not in PASSING_REASONS:
                raise
            logger.info("%s approval %s: %s", metadata_request_id(metadata), approval_id, failure.message)
            return None
        status: str = answer["approval"]["status"]
        return status
