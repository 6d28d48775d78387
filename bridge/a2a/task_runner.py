"""Run the tasks of messages: call the method, store the result, and wait for approvals. Runs outlive their callers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from a2a.types.a2a_pb2 import Task, TaskState
from a2a.utils.errors import A2AError

from bridge.a2a import task_results, task_store
from bridge.a2a.call_context import EXTENSION_URI, metadata_request_id
from bridge.a2a.errors import UpstreamError
from bridge.a2a.message_parsing import ANNOUNCE_METHOD, IntentAnnouncement, MessageRequest, MethodCall
from bridge.a2a.task_preparation import PendingTask, continue_task, record_announcement
from bridge.a2a.task_results import TaskResult
from bridge.call_errors import missing_permission, retry_seconds, unexpected_failure
from bridge.upstream import Forwarder, Metadata
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract import json_values
from cstp_grpc.contract.errors import CstpError, InternalError
from cstp_grpc.contract.task_ids import NEW_TASK_METADATA_KEY

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

FIRST_DELAY_SECONDS: Final = 0.2
"""Seconds before the first repeated read or attempt; each further delay is 1.5 times as long."""
MAX_DELAY_SECONDS: Final = 2.0
"""The longest delay. Chosen: each read counts against the caller's rate limits, and two seconds are hardly noticed."""
PROTOCOL_REASONS: Final = {"AUTHENTICATION_REQUIRED", "RATE_LIMITED", "UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"}
"""Reasons of failures that are not caused by the message. A waiting caller gets such a failure as an error, and no task
is stored; likewise if the caller lacks a permission."""
MAX_WORK_SECONDS: Final = 3600.0
"""The longest time that the server lets a task be working."""


class TaskRunner:
    """Runs tasks: calls the gRPC server for a message, and stores the result as a task.

    `timeout` is how many seconds a call may take.
    """

    def __init__(self, forwarder: Forwarder, store: task_store.GrpcTaskStore, timeout: float) -> None:
        self._forwarder = forwarder
        self._store = store
        self._timeout = timeout
        # Time for the call, and twice as much to store its result. If the bridge is killed meanwhile, the server ends
        # the task as failed once this time is over.
        self.seconds: Final = min(3 * timeout, MAX_WORK_SECONDS)
        """How long a task may be at work."""
        # Keeps references, since the event loop has only weak ones, and a task that is collected never ends.
        self._work: set[asyncio.Task[Task]] = set()
        self._approvals = ApprovalWaits(forwarder, self._resume)

    async def aclose(self) -> None:
        """Wait for the tasks in progress, and no longer for approvals."""
        await self._approvals.aclose()
        while self._work:
            # A copy, since work that ends removes itself; and a loop, since calls in progress may start more.
            await asyncio.wait(set(self._work))

    async def run(self, pending: PendingTask, metadata: Metadata) -> Task:
        """Run a task and return it ended; only the final state is stored if a retry is harmless.

        Otherwise, and if its owner is to be notified, it is stored as working before the call, and returned in that
        state if the result cannot be stored. Raises A2AError, and TaskVersionConflict if the same message starts it
        elsewhere at the same time.
        """
        if (
            pending.version == 0
            and pending.push_config is None
            and self._forwarder.is_repeatable(pending.request.name, pending.request.params)
        ):
            # Shielded: a caller that disconnects does not stop its task. If the bridge is killed, nothing was stored,
            # and the repeated message runs again, which is harmless here.
            return await asyncio.shield(self._spawn(self._run_unsaved(pending, metadata)))
        task, work = await self.start(pending, metadata)
        try:
            return await asyncio.shield(work)
        except UpstreamError:
            return task

    async def start(self, pending: PendingTask, metadata: Metadata) -> tuple[Task, asyncio.Task[Task]]:
        """Store a task as working, start it, and return it with the work that returns its final state.

        Raises A2AError and TaskVersionConflict, as `run` does.
        """
        begun = await self._save_started(pending, TaskState.TASK_STATE_WORKING, metadata)
        return begun.task, self._spawn(self._finish(pending, begun, metadata))

    async def submit(self, pending: PendingTask, metadata: Metadata) -> Task:
        """Store a task as submitted and return it; it starts later unless it is canceled first.

        Raises A2AError and TaskVersionConflict, as `run` does.
        """
        kept = await self._save_started(pending, TaskState.TASK_STATE_SUBMITTED, metadata)
        self._spawn(self._run_submitted(pending, kept, metadata))
        return kept.task

    async def _save_started(self, pending: PendingTask, state: TaskState, metadata: Metadata) -> task_store.StoredTask:
        """Store a task in its first state. Raises A2AError, also if the caller lacks the permission."""
        name = pending.request.name
        # An unknown method has no permission that could be checked; calling it gives the task its error.
        method = name if name in self._forwarder.names else ""
        task = task_store.with_state(pending.task, state)
        return await self._store.save(task, pending.version, metadata, self.seconds, method, pending.push_config)

    def wait_for_approval(self, stored: task_store.StoredTask, metadata: Metadata) -> None:
        """Go on with a task that waits for an approval once people have decided, unless it does not wait for one."""
        self._approvals.begin(stored, metadata)

    async def follow(
        self, stored: task_store.StoredTask, metadata: Metadata, first_pause: float = FIRST_DELAY_SECONDS
    ) -> AsyncGenerator[task_store.StoredTask, None]:
        """Yield a task whenever it has changed, until it has ended or waits. Raises UpstreamError."""
        task_id = stored.task.id
        # Polled, because any bridge may run the task: there is no channel between them but the stored task.
        for pause in backoff_delays(first_pause):
            if task_store.has_ended(stored.task):
                return
            await asyncio.sleep(pause)
            current = await retry_upstream(lambda: self._store.get(task_id, metadata), self.seconds)
            # A task whose time runs out comes to another state in the same version.
            if (current.version, current.task.status.state) != (stored.version, stored.task.status.state):
                stored = current
                yield stored
                if task_store.is_idle(stored.task):
                    return

    def _spawn(self, work: Coroutine[Any, Any, Task]) -> asyncio.Task[Task]:
        """Start work that outlives its caller."""
        running = asyncio.create_task(work)
        self._work.add(running)
        running.add_done_callback(self._forget_work)
        return running

    def _forget_work(self, work: asyncio.Task[Task]) -> None:
        """Forget finished work and log an unexpected error, since its caller may be gone."""
        self._work.discard(work)
        error = None if work.cancelled() else work.exception()
        if error is not None and not isinstance(error, (A2AError, task_store.TaskVersionConflict)):
            logger.error("answering a message failed", exc_info=error)

    async def _run_unsaved(self, pending: PendingTask, metadata: Metadata) -> Task:
        new_task = (NEW_TASK_METADATA_KEY, pending.task.id)
        try:
            answer = await self._call_method(pending, [*metadata, new_task])
        except CstpError as failure:
            if failure.reason == "CONFLICT" and failure.metadata.get("id") == pending.task.id:
                raise task_store.TaskVersionConflict(pending.task.id) from failure
            if failure.reason in PROTOCOL_REASONS or missing_permission(failure):
                raise UpstreamError(failure) from failure
            answer = failure_result(pending, failure, metadata)
        task = finish_task(pending, answer, metadata)
        seconds = None if answer.approval is None else waiting_seconds(answer.approval)
        saved = await retry_upstream(lambda: self._store.save(task, 0, metadata, seconds), self._timeout)
        self._approvals.begin(saved, metadata)
        return saved.task

    async def _resume(self, stored: task_store.StoredTask, awaited: AwaitedApproval, metadata: Metadata) -> None:
        """Send the request of a task again, whose approval people have decided on. Raises UpstreamError."""
        task = continue_task(stored.task)
        if awaited.request.name == ANNOUNCE_METHOD:
            record_announcement(task, awaited.request)
        else:
            task.ClearField("metadata")
        working = task_store.with_state(task, TaskState.TASK_STATE_WORKING)
        try:
            begun = await retry_upstream(
                lambda: self._store.save(working, stored.version, metadata, self.seconds), self.seconds
            )
        except task_store.TaskVersionConflict:
            # Its owner has refined or canceled it, or another bridge goes on with it. If that was an attempt of ours
            # whose response was lost, the task fails once its time is over; sent twice, the request would use the
            # approval and request another one.
            return
        pending = PendingTask(task, awaited.request, awaited.media_types, version=stored.version)
        self._spawn(self._finish(pending, begun, metadata))

    async def _run_submitted(self, pending: PendingTask, kept: task_store.StoredTask, metadata: Metadata) -> Task:
        """Run a task that is stored as submitted, unless it was canceled or its time is over."""
        try:
            begun = await self._mark_working(pending.task, kept.version, metadata)
        except UpstreamError as refused:
            logger.warning("%s task %s was not begun: %s", metadata_request_id(metadata), pending.task.id, refused)
            raise
        # No other bridge continues a task from this version, so the working task in the next version is ours. Only then
        # may the request be sent.
        if begun.version != kept.version + 1 or begun.task.status.state != TaskState.TASK_STATE_WORKING:
            return begun.task
        return await self._finish(pending, begun, metadata)

    async def _mark_working(self, task: Task, version: int, metadata: Metadata) -> task_store.StoredTask:
        """Store a task as working and return it as stored. Raises UpstreamError."""
        working = task_store.with_state(task, TaskState.TASK_STATE_WORKING)
        try:
            return await retry_upstream(
                lambda: self._store.save(working, version, metadata, self.seconds), self.seconds
            )
        except task_store.TaskVersionConflict:
            # The task has changed, perhaps by an earlier attempt whose response was lost.
            return await retry_upstream(lambda: self._store.get(task.id, metadata), self.seconds)

    async def _finish(self, pending: PendingTask, started: task_store.StoredTask, metadata: Metadata) -> Task:
        try:
            answer = await self._call_method(pending, metadata)
        except CstpError as failure:
            answer = failure_result(pending, failure, metadata)
        task = finish_task(pending, answer, metadata)
        try:
            # `seconds` covers the call too: one timeout is spent, and the rest remains for storing.
            seconds = None if answer.approval is None else waiting_seconds(answer.approval)
            return await self._save_ended(task, started.version, metadata, self.seconds - self._timeout, seconds)
        except UpstreamError as refused:
            logger.warning("%s task %s lost its answer: %s", metadata_request_id(metadata), task.id, refused)
            raise

    async def _save_ended(
        self, task: Task, version: int, metadata: Metadata, seconds: float, time_left: float | None
    ) -> Task:
        """Store a task that has ended or waits, retrying for this many seconds, and return it. Raises UpstreamError."""
        try:
            saved = await retry_upstream(lambda: self._store.save(task, version, metadata, time_left), seconds)
            self._approvals.begin(saved, metadata)
            return saved.task
        except task_store.TaskVersionConflict:
            # Its time ran out, or an earlier attempt stored it and the response was lost; what is stored counts.
            return (await retry_upstream(lambda: self._store.get(task.id, metadata), seconds)).task

    async def _call_method(self, pending: PendingTask, metadata: Metadata) -> TaskResult:
        """Call the method of a request and return the result. Raises CstpError."""
        request = pending.request
        try:
            result = await self._forwarder.call(request.name, request.params, metadata)
            return task_results.result_of_call(request.name, result, pending.media_types)
        except CstpError:
            raise
        except Exception as error:
            logger.exception("%s %s failed in the bridge", metadata_request_id(metadata), request.name)
            raise unexpected_failure() from error


def failure_result(pending: PendingTask, failure: CstpError, metadata: Metadata) -> TaskResult:
    task_results.name_message_fields(failure, pending.request)
    return task_results.result_of_failure(failure, metadata_request_id(metadata))


def finish_task(pending: PendingTask, answer: TaskResult, metadata: Metadata) -> Task:
    task = task_results.with_result(pending.task, answer)
    if answer.approval is not None:
        record_approval(task, pending.request, answer.approval, pending.media_types)
    if task.ByteSize() <= task_store.MAX_TASK_BYTES:
        return task
    failure = InternalError("The answer is larger than a task holds; ask for less")
    return task_results.with_result(pending.task, failure_result(pending, failure, metadata))


async def retry_upstream(attempt: Callable[[], Awaitable[ResultT]], seconds: float) -> ResultT:
    """Return the result of an attempt, retried for this many seconds. Raises UpstreamError.

    An attempt is repeated after the delay that the server names, and while the server is unavailable.
    """
    clock = asyncio.get_running_loop()
    end = clock.time() + seconds
    pauses = backoff_delays()
    while True:
        try:
            return await attempt()
        except UpstreamError as refused:
            is_away = refused.failure.reason == "UNAVAILABLE"
            pause = retry_seconds(refused.failure) or (next(pauses) if is_away else None)
            # Not after a pause that would end beyond the limit: the caller gets the last error now instead of later.
            if pause is None or clock.time() + pause > end:
                raise
        await asyncio.sleep(pause)


def backoff_delays(first: float = FIRST_DELAY_SECONDS) -> Iterator[float]:
    """Yield the delays between attempts in seconds, without end."""
    pause = first
    while True:
        yield pause
        pause = min(pause * 1.5, MAX_DELAY_SECONDS)


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
    # Not trusted: a token holder can store a task without a bridge. The request is sent with the token of the caller
    # that gets the task, which is its owner.
    match json_values.render_value(task.metadata.fields[EXTENSION_URI]):
        case {
            "method": str(method),
            "params": dict(params),
            "approval": {"id": str(approval_id)},
            "mediaTypes": list(media_types),
        }:
            request = IntentAnnouncement(params) if method == ANNOUNCE_METHOD else MethodCall(method, params)
            return AwaitedApproval(approval_id, request, frozenset(map(str, media_types)))
    return None


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
        self,
        forwarder: Forwarder,
        resume: Callable[[task_store.StoredTask, AwaitedApproval, Metadata], Awaitable[object]],
    ) -> None:
        self._forwarder = forwarder
        self._resume = resume
        self._waits: dict[str, asyncio.Task[None]] = {}

    def begin(self, stored: task_store.StoredTask, metadata: Metadata) -> None:
        """Wait for the approval of a task, if it waits for one and nobody here waits for it yet."""
        awaited = read_awaited_approval(stored.task)
        if awaited is None or stored.task.id in self._waits or len(self._waits) >= MAX_WAITS:
            return
        wait = asyncio.create_task(self._wait(stored, awaited, metadata))
        self._waits[stored.task.id] = wait
        wait.add_done_callback(lambda done: self._end(stored.task.id, done))

    async def aclose(self) -> None:
        waits = list(self._waits.values())
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    def _end(self, task_id: str, done: asyncio.Task[None]) -> None:
        if self._waits.get(task_id) is done:
            del self._waits[task_id]
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.warning("task %s does not go on by itself: %s", task_id, error)

    async def _wait(self, stored: task_store.StoredTask, awaited: AwaitedApproval, metadata: Metadata) -> None:
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
