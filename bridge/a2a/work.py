"""Answering messages: work that goes on when its caller leaves, and that leaves no task at work for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

from a2a.types.a2a_pb2 import Task, TaskState
from a2a.utils.errors import A2AError

from bridge.a2a import answers
from bridge.a2a.answers import Answer
from bridge.a2a.context import request_id_in
from bridge.a2a.errors import Refused
from bridge.a2a.store import MAX_BYTES, StoredTask, TaskConflict, TaskStore
from bridge.a2a.tasks import has_ended, in_state, rests
from bridge.a2a.turns import Turn
from bridge.methods import Forwarder, Metadata
from bridge.status import UNFORESEEN, Failure

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

FIRST_PAUSE: Final = 0.2
"""Seconds until something is asked for again; each further pause is half as long again."""
LAST_PAUSE: Final = 2.0
"""The longest pause: what is asked counts against the limits of the caller."""
PROTOCOL_REASONS: Final = {"AUTHENTICATION_REQUIRED", "RATE_LIMITED", "UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"}
"""Failures that say nothing of the message: a caller who waits is told, and no task is kept. Nor is one kept if the
caller lacks a permission."""
MAX_SECONDS: Final = 3600.0
"""The longest that the server lets a task be at work."""


class Worker:
    """Asks the gRPC server what messages ask for, and keeps the answers as tasks.

    `timeout` is how many seconds a call may take.
    """

    def __init__(self, forwarder: Forwarder, store: TaskStore, timeout: float) -> None:
        self._forwarder = forwarder
        self._store = store
        self._timeout = timeout
        # Time for the call, and twice as much for keeping its answer.
        self.seconds: Final = min(3 * timeout, MAX_SECONDS)
        """How long a task may be at work."""
        self._work: set[asyncio.Task[Task]] = set()

    async def aclose(self) -> None:
        """Wait for the work in progress."""
        while self._work:
            await asyncio.wait(set(self._work))

    async def settle(self, turn: Turn, metadata: Metadata) -> Task:
        """Return the task of a turn with its answer, kept in this final state alone where a retry does no harm.

        Otherwise, and if its owner is to be notified, it is kept as working before anything is done, and returned like
        that if its answer cannot be kept, so that nobody is told that nothing happened. Raises A2AError, and
        TaskConflict if the same message begins it elsewhere at the same time.
        """
        if (
            turn.version == 0
            and turn.push_config is None
            and self._forwarder.is_repeatable(turn.request.name, turn.request.params)
        ):
            return await asyncio.shield(self._spawn(self._settle(turn, metadata)))
        task, work = await self.begin(turn, metadata)
        try:
            return await asyncio.shield(work)
        except Refused:
            return task

    async def begin(self, turn: Turn, metadata: Metadata) -> tuple[Task, asyncio.Task[Task]]:
        """Return the task of a turn, kept as working, and the work that ends with the task as it is kept in the end.

        Raises A2AError and TaskConflict, as `settle` does.
        """
        begun = await self._keep_new(turn, TaskState.TASK_STATE_WORKING, metadata)
        return begun.task, self._spawn(self._finish(turn, begun, metadata))

    async def submit(self, turn: Turn, metadata: Metadata) -> Task:
        """Return the task of a turn, kept as submitted, which is begun later unless it is canceled first.

        Raises A2AError and TaskConflict, as `settle` does.
        """
        kept = await self._keep_new(turn, TaskState.TASK_STATE_SUBMITTED, metadata)
        self._spawn(self._begin_submitted(turn, kept, metadata))
        return kept.task

    async def _keep_new(self, turn: Turn, state: TaskState, metadata: Metadata) -> StoredTask:
        """Return the task of a turn as it is kept in a state. Raises A2AError, also if its caller may not ask."""
        name = turn.request.name
        method = name if name in self._forwarder.names else ""
        task = in_state(turn.task, state)
        return await self._store.save(task, turn.version, metadata, self.seconds, method, turn.push_config)

    async def follow(
        self, stored: StoredTask, metadata: Metadata, first_pause: float = FIRST_PAUSE
    ) -> AsyncGenerator[StoredTask, None]:
        """Yield a task again whenever it has changed, until it has ended. Raises Refused."""
        task_id = stored.task.id
        for pause in growing_pauses(first_pause):
            if has_ended(stored.task):
                return
            await asyncio.sleep(pause)
            current = await patiently(lambda: self._store.get(task_id, metadata), self.seconds)
            # A task whose time runs out comes to another state in the same version.
            if (current.version, current.task.status.state) != (stored.version, stored.task.status.state):
                stored = current
                yield stored
                if rests(stored.task):
                    return

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
        if error is not None and not isinstance(error, (A2AError, TaskConflict)):
            logger.error("answering a message failed", exc_info=error)

    async def _settle(self, turn: Turn, metadata: Metadata) -> Task:
        """Answer a message and keep its task."""
        try:
            answer = await self._ask(turn, metadata)
        except Failure as failure:
            if failure.reason in PROTOCOL_REASONS or failure.missing_permission:
                raise Refused(failure) from failure
            answer = failed(turn, failure, metadata)
        task = ended(turn, answer, metadata)
        return (await patiently(lambda: self._store.save(task, 0, metadata), self._timeout)).task

    async def _begin_submitted(self, turn: Turn, kept: StoredTask, metadata: Metadata) -> Task:
        """Answer a message whose task is kept as submitted, unless it was canceled or its time ran out."""
        try:
            begun = await self._mark_begun(turn.task, kept.version, metadata)
        except Refused as refused:
            logger.warning("%s task %s was not begun: %s", request_id_in(metadata), turn.task.id, refused)
            raise
        # Nobody else takes up a task from this version, so a task at work in the next one is ours. Only then may
        # anything be sent for it.
        if begun.version != kept.version + 1 or begun.task.status.state != TaskState.TASK_STATE_WORKING:
            return begun.task
        return await self._finish(turn, begun, metadata)

    async def _mark_begun(self, task: Task, version: int, metadata: Metadata) -> StoredTask:
        """Return a task as it is kept after an attempt to keep it as working. Raises Refused."""
        working = in_state(task, TaskState.TASK_STATE_WORKING)
        try:
            return await patiently(lambda: self._store.save(working, version, metadata, self.seconds), self.seconds)
        except TaskConflict:
            # It has changed, perhaps by an earlier attempt of which nobody heard that it succeeded.
            return await patiently(lambda: self._store.get(task.id, metadata), self.seconds)

    async def _finish(self, turn: Turn, started: StoredTask, metadata: Metadata) -> Task:
        """Answer a message whose task is kept as working, and keep what it came to."""
        try:
            answer = await self._ask(turn, metadata)
        except Failure as failure:
            answer = failed(turn, failure, metadata)
        task = ended(turn, answer, metadata)
        try:
            return await self._keep(task, started.version, metadata, self.seconds - self._timeout)
        except Refused as refused:
            logger.warning("%s task %s lost its answer: %s", request_id_in(metadata), task.id, refused)
            raise

    async def _keep(self, task: Task, version: int, metadata: Metadata, seconds: float) -> Task:
        """Return an ended task as it is kept, which is tried for so many seconds. Raises Refused."""
        try:
            return (await patiently(lambda: self._store.save(task, version, metadata), seconds)).task
        except TaskConflict:
            # Its time ran out, or an earlier attempt kept it and nobody heard so: it has ended as everybody is told.
            return (await patiently(lambda: self._store.get(task.id, metadata), seconds)).task

    async def _ask(self, turn: Turn, metadata: Metadata) -> Answer:
        """Return the answer to what a message asks for. Raises Failure."""
        request = turn.request
        try:
            result = await self._forwarder.call(request.name, request.params, metadata)
            return answers.answered(request.name, result, turn.media_types)
        except Failure:
            raise
        except Exception as error:
            logger.exception("%s %s failed in the bridge", request_id_in(metadata), request.name)
            raise Failure(*UNFORESEEN) from error


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


async def patiently(attempt: Callable[[], Awaitable[ResultT]], seconds: float) -> ResultT:
    """Return what an attempt returns, made again for so many seconds. Raises Refused.

    It is made again when the server says when, and while the server is away.
    """
    clock = asyncio.get_running_loop()
    end = clock.time() + seconds
    pauses = growing_pauses()
    while True:
        try:
            return await attempt()
        except Refused as refused:
            is_away = refused.failure.reason == "UNAVAILABLE"
            pause = refused.failure.retry_after or (next(pauses) if is_away else None)
            if pause is None or clock.time() + pause > end:
                raise
        await asyncio.sleep(pause)


def growing_pauses(first: float = FIRST_PAUSE) -> Iterator[float]:
    """Yield the seconds between attempts, for as long as anybody makes them."""
    pause = first
    while True:
        yield pause
        pause = min(pause * 1.5, LAST_PAUSE)
