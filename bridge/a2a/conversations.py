"""The operations of A2A, over tasks that the gRPC server keeps; nothing of a conversation is held here.

What is worth waiting for goes on in the background until `aclose`, also when its caller leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final

from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
from a2a.server.request_handlers.request_handler import validate_request_params
from a2a.types.a2a_pb2 import (
    AgentCard,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    A2AError,
    ExtensionSupportRequiredError,
    TaskNotCancelableError,
    UnsupportedOperationError,
)
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size

from bridge.a2a import answers
from bridge.a2a.answers import Answer
from bridge.a2a.context import EXTENSION_URI, EXTENSIONS, address_of, is_activated, metadata_of, request_id_in
from bridge.a2a.errors import Refused
from bridge.a2a.gate import WHO_AM_I
from bridge.a2a.push import WithoutPush
from bridge.a2a.store import MAX_BYTES, STATES, StoredTask, TaskConflict, TaskQuery, TaskStore
from bridge.a2a.turns import Turn, Turns
from bridge.methods import Forwarder, Metadata
from bridge.status import Failure
from cstp_grpc.config import Settings

if TYPE_CHECKING:
    from bridge.a2a.cards import Cards

logger = logging.getLogger(__name__)

PROTOCOL_REASONS: Final = {"AUTHENTICATION_REQUIRED", "RATE_LIMITED", "UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"}
"""Failures that say nothing of the message: a caller who waits is told, and no task is kept."""
POLL_SECONDS: Final = 0.2
"""How often a subscription looks at its task."""
MAX_TIME_LEFT: Final = 3600.0
"""The most seconds that the server gives a task at work."""
PAGE_SIZE: Final = 50
"""How many tasks a page holds where the caller does not say."""


class Conversations(WithoutPush):
    """Answers the operations of A2A, whatever transport they come by. They raise A2AError."""

    def __init__(self, forwarder: Forwarder, store: TaskStore, cards: Cards, settings: Settings) -> None:
        self._forwarder = forwarder
        self._store = store
        self._cards = cards
        self._turns = Turns(store)
        self._requires_extension = settings.a2a.require_extension
        # Time for the call and for keeping its answer, and some to spare.
        self._time_left = min(2 * settings.server.timeout_seconds + 10, MAX_TIME_LEFT)
        self._work: set[asyncio.Task[Task]] = set()

    async def aclose(self) -> None:
        """Wait for the work in progress."""
        while self._work:
            await asyncio.wait(set(self._work))

    @validate_request_params
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        """Return the task that a message came to, or the task at work where the caller does not wait."""
        self.admit(context)
        metadata = metadata_of(context)
        turn = await self._turns.begin(params, metadata)
        if params.configuration.return_immediately:
            started = await self._store.save(turn.task, 0, metadata, self._time_left)
            self._spawn(self._finish(turn, started, metadata))
            return apply_history_length(started.task, params.configuration)
        work = self._spawn(self._settle(turn, metadata))
        return apply_history_length(await asyncio.shield(work), params.configuration)

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Yield the task at work, then what it came to."""
        self.admit(context)
        metadata = metadata_of(context)
        turn = await self._turns.begin(params, metadata)
        started = await self._store.save(turn.task, 0, metadata, self._time_left)
        work = self._spawn(self._finish(turn, started, metadata))
        yield apply_history_length(started.task, params.configuration)
        for event in last_events(await asyncio.shield(work)):
            yield event

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """Return a task of the caller's."""
        self.admit(context)
        validate_history_length(params)
        return apply_history_length((await self._store.get(params.id, metadata_of(context))).task, params)

    @validate_request_params
    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the caller's tasks, last changed first."""
        self.admit(context)
        validate_history_length(params)
        if params.HasField("page_size"):
            validate_page_size(params.page_size)
        page_size = params.page_size or PAGE_SIZE
        if params.status and params.status not in STATES:
            # No task is ever in such a state; that is nothing for strangers to hear either.
            await self._access(metadata_of(context))
            return ListTasksResponse(page_size=page_size)
        query = TaskQuery(
            page_size,
            params.page_token,
            params.context_id,
            params.status or None,
            params.status_timestamp_after if params.HasField("status_timestamp_after") else None,
        )
        page = await self._store.list(query, metadata_of(context))
        for task in page.tasks:
            if not params.include_artifacts:
                task.ClearField("artifacts")
        return ListTasksResponse(
            tasks=[apply_history_length(task, params) for task in page.tasks],
            next_page_token=page.next_page_token,
            page_size=page_size,
            total_size=page.total,
        )

    @validate_request_params
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Call off a task at work and return it."""
        self.admit(context)
        metadata = metadata_of(context)
        stored = await self._store.get(params.id, metadata)
        if not is_working(stored.task):
            raise not_cancelable(stored.task)
        try:
            ended = answers.with_answer(stored.task, answers.canceled())
            return (await self._store.save(ended, stored.version, metadata)).task
        except TaskConflict:
            # It ended meanwhile; perhaps it was called off twice at once.
            task = (await self._store.get(params.id, metadata)).task
        if task.status.state != TaskState.TASK_STATE_CANCELED:
            raise not_cancelable(task)
        return task

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Yield a task at work, then what it came to, whichever bridge is at it."""
        self.admit(context)
        task = (await self._store.get(params.id, metadata_of(context))).task
        if not is_working(task):
            raise UnsupportedOperationError(f"Task {task.id} has ended, it is {state_name(task)}; get it instead")
        yield task
        while is_working(task):
            await asyncio.sleep(POLL_SECONDS)
            task = (await self._store.get(params.id, metadata_of(context))).task
        for event in last_events(task):
            yield event

    async def on_get_extended_agent_card(
        self,
        params: GetExtendedAgentCardRequest,  # noqa: ARG002 - the interface of the SDK
        context: ServerCallContext,
    ) -> AgentCard:
        """Return the agent card with what holds for the caller."""
        return self._cards.extended(address_of(context), await self._access(metadata_of(context)))

    def admit(self, context: ServerCallContext) -> None:
        """Refuse callers that lack an extension which the configuration requires."""
        if self._requires_extension and not is_activated(context):
            raise ExtensionSupportRequiredError(f"This agent requires an extension; send {EXTENSIONS}: {EXTENSION_URI}")

    async def _access(self, metadata: Metadata) -> dict[str, Any]:
        """Return what the server says of the caller. Raises Refused for a stranger."""
        try:
            return await self._forwarder.call(WHO_AM_I, {}, metadata)
        except Failure as failure:
            raise Refused(failure) from failure

    def _spawn(self, work: Coroutine[Any, Any, Task]) -> asyncio.Task[Task]:
        """Start work that goes on when its caller leaves."""
        running = asyncio.create_task(work)
        self._work.add(running)
        running.add_done_callback(self._done)
        return running

    def _done(self, work: asyncio.Task[Task]) -> None:
        """Forget finished work. What nobody foresaw goes into the log, since its caller may have left."""
        self._work.discard(work)
        error = None if work.cancelled() else work.exception()
        if error is not None and not isinstance(error, A2AError):
            logger.error("answering a message failed", exc_info=error)

    async def _settle(self, turn: Turn, metadata: Metadata) -> Task:
        """Answer a message and keep its task, in the final state alone."""
        try:
            answer = await self._ask(turn, metadata)
        except Failure as failure:
            if failure.reason in PROTOCOL_REASONS:
                raise Refused(failure) from failure
            answer = failed(turn, failure, metadata)
        return (await self._store.save(ended(turn, answer, metadata), 0, metadata)).task

    async def _finish(self, turn: Turn, started: StoredTask, metadata: Metadata) -> Task:
        """Answer a message whose task is kept as working, and keep the final state; return what is kept in the end."""
        try:
            answer = await self._ask(turn, metadata)
        except Failure as failure:
            answer = failed(turn, failure, metadata)
        try:
            return (await self._store.save(ended(turn, answer, metadata), started.version, metadata)).task
        except TaskConflict:
            # It was called off, or its time ran out; then that is what everybody was told.
            return (await self._store.get(turn.task.id, metadata)).task
        except Refused as refused:
            logger.warning("request %s: task %s lost its answer: %s", request_id_in(metadata), turn.task.id, refused)
            raise

    async def _ask(self, turn: Turn, metadata: Metadata) -> Answer:
        """Return the answer to what a message asks for. Raises Failure."""
        request = turn.request
        result = await self._forwarder.call(request.name, request.params, metadata)
        return answers.answered(request.name, result, turn.media_types)


def failed(turn: Turn, failure: Failure, metadata: Metadata) -> Answer:
    """Return the answer that a failure is to a message."""
    return answers.failed(answers.placed_in_message(failure, turn.request), request_id_in(metadata))


def ended(turn: Turn, answer: Answer, metadata: Metadata) -> Task:
    """Return the task of a turn with its answer, or with a failure where that is larger than a task may be."""
    task = answers.with_answer(turn.task, answer)
    if task.ByteSize() <= MAX_BYTES:
        return task
    failure = Failure("INTERNAL", "The answer is larger than a task holds; ask for less")
    return answers.with_answer(turn.task, failed(turn, failure, metadata))


def last_events(task: Task) -> Iterator[Event]:
    """Yield what a stream says of a task that has ended."""
    for artifact in task.artifacts:
        yield TaskArtifactUpdateEvent(task_id=task.id, context_id=task.context_id, artifact=artifact, last_chunk=True)
    yield TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)


def is_working(task: Task) -> bool:
    """Whether a task has not ended."""
    return task.status.state == TaskState.TASK_STATE_WORKING


def not_cancelable(task: Task) -> TaskNotCancelableError:
    """Return the error of whoever calls off a task that has ended."""
    return TaskNotCancelableError(f"Task {task.id} has ended, it is {state_name(task)}")


def state_name(task: Task) -> str:
    """Return where a task stands, as A2A writes it."""
    return TaskState.Name(task.status.state)
