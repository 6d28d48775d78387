"""Run the tasks of messages: prepare a task, call the method, store the result. Runs outlive their callers."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from a2a.types.a2a_pb2 import Message, SendMessageRequest, Task, TaskState
from a2a.utils.errors import A2AError, InvalidParamsError, UnsupportedOperationError
from a2a.utils.task import validate_history_length

from bridge.a2a import message_parsing, task_results
from bridge.a2a.approval_waits import ApprovalWaits, AwaitedApproval, record_approval, waiting_seconds
from bridge.a2a.call_context import EXTENSION_URI, metadata_request_id
from bridge.a2a.errors import UpstreamError
from bridge.a2a.message_parsing import ANNOUNCE_METHOD, MessageRequest, Params, ParsedMessage, announced_params
from bridge.a2a.task_results import TaskResult
from bridge.a2a.task_store import (
    MAX_TASK_BYTES,
    WAITING_STATES,
    GrpcTaskStore,
    StoredTask,
    TaskQuery,
    TaskVersionConflict,
    copy_task,
    has_ended,
    is_idle,
    state_name,
    with_state,
)
from bridge.call_errors import missing_permission, retry_seconds, unexpected_failure
from bridge.upstream import Forwarder, Metadata
from cstp_grpc.contract import json_values
from cstp_grpc.contract.json_codec import to_proto_json
from cstp_grpc.errors import CstpError, InternalError
from cstp_grpc.gen.cstp.v1 import tasks_pb2

logger = logging.getLogger(__name__)

MAX_UNANSWERED_BYTES: Final = 1_048_576
"""Maximum size of a task before it has a result. Chosen: half of MAX_TASK_BYTES, so that the result finds room."""
SEARCH_PAGE_SIZE: Final = 20
MAX_SEARCH_PAGES: Final = 10
"""Pages of a conversation that are searched for an announcement. Chosen: 200 tasks, in ten calls of the server."""


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A task to run and its request; `version` is its stored version, 0 if it is not stored yet."""

    task: Task
    request: MessageRequest
    media_types: frozenset[str]
    """Those that the artifact may have."""
    push_config: tasks_pb2.PushConfig | None = None
    """Where the caller is notified of the task."""
    version: int = 0


@dataclass(frozen=True, slots=True)
class ConversationContext:
    """The context of a message: its conversation, and the announcement that it refines."""

    context_id: str
    """Empty where none is named."""
    earlier: Params | None = None


class PendingTaskBuilder:
    """Prepare tasks for messages, looking up the caller's tasks that a message refers to."""

    def __init__(self, store: GrpcTaskStore) -> None:
        self._store = store

    async def prepare(self, params: SendMessageRequest, metadata: Metadata) -> PendingTask | StoredTask:
        """Return the task to run for a message, not stored yet, or the one that it began before.

        Raises A2AError.
        """
        configuration = params.configuration
        validate_history_length(configuration)
        media_types = message_parsing.select_output_types(configuration.accepted_output_modes)
        content = message_parsing.parse_message(params.message)
        # A message to a task is recognised by that task's history, one that begins a task by its key.
        if params.message.task_id:
            return await self._continue(params.message, content, media_types, metadata)
        task_id, kept = await self._store.find(message_key(params.message), metadata)
        if kept is not None:
            return require_same_message(params.message, kept)
        # Only now: a repeated message costs one look-up and none of its references.
        conversation = await self._resolve_context(params.message, content, metadata)
        task = new_task(params.message, task_id, conversation.context_id)
        request = with_correlation_id(task, message_parsing.build_request(content, conversation.earlier))
        return PendingTask(record_announcement(task, request), request, media_types)

    async def _continue(
        self, message: Message, content: ParsedMessage, media_types: frozenset[str], metadata: Metadata
    ) -> PendingTask | StoredTask:
        """Return the task to run for a message to a task, or the task of a repeated one. Raises A2AError."""
        stored = await self._store.get(message.task_id, metadata)
        task = stored.task
        if message.context_id and message.context_id != task.context_id:
            raise context_mismatch("message.taskId", task)
        sent = to_history_message(task, message)
        if any(sent.message_id == each.message_id for each in task.history):
            return require_same_message(message, stored)
        earlier = announced_params(task)
        if task.status.state not in WAITING_STATES or earlier is None:
            raise not_waiting_error(task)
        if content.call:
            raise message_parsing.field_error("message.parts", "cannot hold a call: the task waits for values")
        refined = message_parsing.build_request(content, earlier)
        # The intent stays the same one, of which this is a revision.
        params = {**refined.params, "correlationId": earlier.get("correlationId", task.id)}
        request = dataclasses.replace(refined, params=params)
        continued = continue_task(task)
        continued.history.append(sent)
        return PendingTask(record_announcement(continued, request), request, media_types, version=stored.version)

    async def _resolve_context(
        self, message: Message, content: ParsedMessage, metadata: Metadata
    ) -> ConversationContext:
        """Return the conversation context of a message."""
        if message.reference_task_ids:
            return await self._resolve_references(message, metadata)
        if message.context_id and content.has_values:
            return ConversationContext(
                message.context_id, await self._find_last_announcement(message.context_id, metadata)
            )
        return ConversationContext(message.context_id)

    async def _resolve_references(self, message: Message, metadata: Metadata) -> ConversationContext:
        """Return the context for a message that refers to tasks: the last of them that is an announcement counts."""
        tasks = [(await self._store.get(task_id, metadata)).task for task_id in message.reference_task_ids]
        task, earlier = last_announcement(tasks[::-1]) or (tasks[-1], None)
        if message.context_id and message.context_id != task.context_id:
            raise context_mismatch("message.referenceTaskIds", task)
        return ConversationContext(task.context_id, earlier)

    async def _find_last_announcement(self, context_id: str, metadata: Metadata) -> Params | None:
        """Return the params of the latest announcement in a conversation, or None."""
        query = TaskQuery(SEARCH_PAGE_SIZE, context_id=context_id)
        for _ in range(MAX_SEARCH_PAGES):
            page = await self._store.list(query, metadata)
            if found := last_announcement(page.tasks):
                return found[1]
            if not page.next_page_token:
                break
            query = dataclasses.replace(query, page_token=page.next_page_token)
        return None


def continue_task(task: Task) -> Task:
    """Return a copy of a waiting task that goes on."""
    continued = copy_task(task)
    # The artifacts are those of the answer before, which moves from the status into the history.
    del continued.artifacts[:]
    if task.status.HasField("message"):
        continued.history.append(task.status.message)
    return continued


def last_announcement(tasks: Sequence[Task]) -> tuple[Task, Params] | None:
    """Return the first announcement among tasks, latest first, with its params."""
    for task in tasks:
        params = announced_params(task)
        if params is not None:
            return task, params
    return None


def message_key(message: Message) -> str:
    """Return the key that identifies the first message of a task among all of its sender's.

    In a context that the sender names, that is the message id. A message that begins a context of its own is also
    identified by its content, since senders count their messages from the beginning in each.
    """
    content = None if message.context_id else to_proto_json(message)
    # Hashed as JSON, whose quotes keep the parts apart: ids hold whatever senders choose.
    text = json.dumps([message.context_id, message.message_id, content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def require_same_message(message: Message, kept: StoredTask) -> StoredTask:
    """Return the task of a repeated message. Raises InvalidParamsError if the message is another one."""
    sent = to_history_message(kept.task, message)
    # Compared as a whole: the same id with other content is another message, and must not get this task's answer.
    if sent not in kept.task.history:
        raise message_parsing.field_error(
            "message.messageId",
            f"names another message in its context already, which began the task {kept.task.id}; "
            "a message that says something else needs an id of its own",
        )
    return kept


def not_waiting_error(task: Task) -> UnsupportedOperationError:
    """Return the error for a message to a task that does not wait for one."""
    return UnsupportedOperationError(
        f"Task {task.id} takes no more messages, it is {state_name(task)}; follow up in its context "
        f"{task.context_id}, and name it in referenceTaskIds where it should be refined"
    )


def record_announcement(task: Task, request: MessageRequest) -> Task:
    """Record the announced intent in a task's metadata. Raises InvalidParamsError if the task becomes too large."""
    if request.name == ANNOUNCE_METHOD:
        task.ClearField("metadata")
        json_values.set_trusted_struct(
            task.metadata, {EXTENSION_URI: {"method": ANNOUNCE_METHOD, "params": request.params}}
        )
    if task.ByteSize() > MAX_UNANSWERED_BYTES:
        raise message_parsing.field_error(
            "message", f"with what it refines is larger than {MAX_UNANSWERED_BYTES} bytes"
        )
    return task


def new_task(message: Message, task_id: str, context_id: str) -> Task:
    """Create the submitted task of a message, with the message as its history."""
    task = Task(id=task_id, context_id=context_id or str(uuid.uuid4()))
    task.status.state = TaskState.TASK_STATE_SUBMITTED
    task.history.append(to_history_message(task, message))
    return task


def to_history_message(task: Task, message: Message) -> Message:
    """Return a message as the history of a task holds it."""
    sent = Message()
    sent.CopyFrom(message)
    sent.task_id = task.id
    sent.context_id = task.context_id
    return sent


def with_correlation_id(task: Task, request: MessageRequest) -> MessageRequest:
    """Return the request; an announcement without a correlation id gets the task's id."""
    if request.name != ANNOUNCE_METHOD or request.params.get("correlationId") is not None:
        return request
    return dataclasses.replace(request, params={**request.params, "correlationId": task.id})


def context_mismatch(place: str, task: Task) -> InvalidParamsError:
    """Return the error for a message that names a task of another context."""
    return message_parsing.field_error(
        "message.contextId", f"is not the context of {place}, which is {task.context_id}"
    )


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
    """Run tasks: call the gRPC server for a message, and store the result as a task.

    `timeout` is how many seconds a call may take.
    """

    def __init__(self, forwarder: Forwarder, store: GrpcTaskStore, timeout: float) -> None:
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

    async def _save_started(self, pending: PendingTask, state: TaskState, metadata: Metadata) -> StoredTask:
        """Store a task in its first state. Raises A2AError, also if the caller lacks the permission."""
        name = pending.request.name
        # An unknown method has no permission that could be checked; calling it gives the task its error.
        method = name if name in self._forwarder.names else ""
        task = with_state(pending.task, state)
        return await self._store.save(task, pending.version, metadata, self.seconds, method, pending.push_config)

    def wait_for_approval(self, stored: StoredTask, metadata: Metadata) -> None:
        """Go on with a task that waits for an approval once people have decided, unless it does not wait for one."""
        self._approvals.begin(stored, metadata)

    async def follow(
        self, stored: StoredTask, metadata: Metadata, first_pause: float = FIRST_DELAY_SECONDS
    ) -> AsyncGenerator[StoredTask, None]:
        """Yield a task whenever it has changed, until it has ended or waits. Raises UpstreamError."""
        task_id = stored.task.id
        # Polled, because any bridge may run the task: there is no channel between them but the stored task.
        for pause in backoff_delays(first_pause):
            if has_ended(stored.task):
                return
            await asyncio.sleep(pause)
            current = await retry_upstream(lambda: self._store.get(task_id, metadata), self.seconds)
            # A task whose time runs out comes to another state in the same version.
            if (current.version, current.task.status.state) != (stored.version, stored.task.status.state):
                stored = current
                yield stored
                if is_idle(stored.task):
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
        if error is not None and not isinstance(error, (A2AError, TaskVersionConflict)):
            logger.error("answering a message failed", exc_info=error)

    async def _run_unsaved(self, pending: PendingTask, metadata: Metadata) -> Task:
        """Run a task and store it in its final state."""
        try:
            answer = await self._call_method(pending, metadata)
        except CstpError as failure:
            if failure.reason in PROTOCOL_REASONS or missing_permission(failure):
                raise UpstreamError(failure) from failure
            answer = failure_result(pending, failure, metadata)
        task = finish_task(pending, answer, metadata)
        seconds = None if answer.approval is None else waiting_seconds(answer.approval)
        saved = await retry_upstream(lambda: self._store.save(task, 0, metadata, seconds), self._timeout)
        self._approvals.begin(saved, metadata)
        return saved.task

    async def _resume(self, stored: StoredTask, awaited: AwaitedApproval, metadata: Metadata) -> None:
        """Send the request of a task again, whose approval people have decided on. Raises UpstreamError."""
        task = continue_task(stored.task)
        if awaited.request.name == ANNOUNCE_METHOD:
            record_announcement(task, awaited.request)
        else:
            task.ClearField("metadata")
        working = with_state(task, TaskState.TASK_STATE_WORKING)
        try:
            begun = await retry_upstream(
                lambda: self._store.save(working, stored.version, metadata, self.seconds), self.seconds
            )
        except TaskVersionConflict:
            # Its owner has refined or canceled it, or another bridge goes on with it. If that was an attempt of ours
            # whose response was lost, the task fails once its time is over; sent twice, the request would use the
            # approval and request another one.
            return
        pending = PendingTask(task, awaited.request, awaited.media_types, version=stored.version)
        self._spawn(self._finish(pending, begun, metadata))

    async def _run_submitted(self, pending: PendingTask, kept: StoredTask, metadata: Metadata) -> Task:
        """Run a task that is stored as submitted, unless it was canceled or its time is over."""
        try:
            begun = await self._mark_working(pending.task, kept.version, metadata)
        except UpstreamError as refused:
            logger.warning("%s task %s was not begun: %s", metadata_request_id(metadata), pending.task.id, refused)
            raise
        # Nobody else takes up a task from this version, so a task at work in the next one is ours. Only then may
        # anything be sent for it.
        if begun.version != kept.version + 1 or begun.task.status.state != TaskState.TASK_STATE_WORKING:
            return begun.task
        return await self._finish(pending, begun, metadata)

    async def _mark_working(self, task: Task, version: int, metadata: Metadata) -> StoredTask:
        """Store a task as working and return it as stored. Raises UpstreamError."""
        working = with_state(task, TaskState.TASK_STATE_WORKING)
        try:
            return await retry_upstream(
                lambda: self._store.save(working, version, metadata, self.seconds), self.seconds
            )
        except TaskVersionConflict:
            # The task has changed, perhaps by an earlier attempt whose response was lost.
            return await retry_upstream(lambda: self._store.get(task.id, metadata), self.seconds)

    async def _finish(self, pending: PendingTask, started: StoredTask, metadata: Metadata) -> Task:
        """Run a task that is stored as working, and store its result."""
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
        except TaskVersionConflict:
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
    """Return the result for a failure, with fields named as in the message."""
    task_results.name_message_fields(failure, pending.request)
    return task_results.result_of_failure(failure, metadata_request_id(metadata))


def finish_task(pending: PendingTask, answer: TaskResult, metadata: Metadata) -> Task:
    """Return the task with its result, or with a failure if the result is larger than a task may be."""
    task = task_results.with_result(pending.task, answer)
    if answer.approval is not None:
        record_approval(task, pending.request, answer.approval, pending.media_types)
    if task.ByteSize() <= MAX_TASK_BYTES:
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
