"""The operations of A2A, over tasks that the gRPC server keeps; nothing of a conversation is held here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final, TypeVar

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
    ExtensionSupportRequiredError,
    TaskNotCancelableError,
    UnsupportedOperationError,
)
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size
from google.protobuf.message import Message

from bridge.a2a import answers, shape
from bridge.a2a.cards import Cards
from bridge.a2a.context import EXTENSION_URI, EXTENSIONS, CallContext, is_activated, metadata_of
from bridge.a2a.errors import Refused
from bridge.a2a.gate import Gate
from bridge.a2a.push import PushOperations, PushService
from bridge.a2a.store import STATES, StoredTask, TaskConflict, TaskQuery, TaskStore
from bridge.a2a.tasks import CANCELABLE, Event, has_ended, last_events, rests, state_name, status_event
from bridge.a2a.turns import Turn, Turns
from bridge.a2a.work import FIRST_PAUSE, Worker
from bridge.methods import Forwarder, Metadata
from bridge.status import Failure
from cstp_grpc.config import Settings

ResultT = TypeVar("ResultT")

PAGE_SIZE: Final = 50
"""How many tasks a page holds where the caller does not say."""
CANCEL_SECONDS: Final = 2.0
"""How long a task at work that cannot be canceled is waited for."""
ATTEMPTS: Final = 2
"""How often a message is begun whose task another one keeps at the same time."""
QUICK: Final = 0.02
"""Seconds until a task that is about to end is first read again."""


class Conversations(PushOperations):
    """Answers the operations of A2A, whatever transport they come by. They raise A2AError."""

    def __init__(
        self,
        forwarder: Forwarder,
        gate: Gate,
        store: TaskStore,
        cards: Cards,
        settings: Settings,
        push: PushService | None = None,
    ) -> None:
        super().__init__(push)
        self._gate = gate
        self._store = store
        self._cards = cards
        self._turns = Turns(store)
        self._worker = Worker(forwarder, store, settings.server.timeout_seconds)
        self._requires_extension = settings.a2a.require_extension

    async def aclose(self) -> None:
        """Wait for the work in progress."""
        await self._worker.aclose()

    async def on_message_send(self, params: SendMessageRequest, context: CallContext) -> Task:
        """Return the task that a message came to, or the task submitted if the caller does not wait."""
        shape.check(params)
        await self.admit(context, params)
        metadata = metadata_of(context)
        if params.configuration.return_immediately:
            task = await self._start(params, context, self._worker.submit)
        else:
            task = await self._start(params, context, self._worker.settle)
        if isinstance(task, StoredTask):
            waiting = not params.configuration.return_immediately
            task = (await self._wait_for_end(task, metadata) if waiting else task).task
        return apply_history_length(task, params.configuration)

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: CallContext
    ) -> AsyncGenerator[Event, None]:
        """Yield the task at work, then what it came to; of a message that was sent before, what has become of it."""
        shape.check(params)
        await self.admit(context, params)
        metadata = metadata_of(context)
        begun = await self._start(params, context, self._worker.begin)
        if isinstance(begun, StoredTask):
            yield apply_history_length(begun.task, params.configuration)
            if rests(begun.task):
                return
            async with aclosing(self._events(begun, metadata)) as events:
                async for event in events:
                    yield event
            return
        task, work = begun
        yield apply_history_length(task, params.configuration)
        for event in last_events(await asyncio.shield(work)):
            yield event

    async def on_get_task(self, params: GetTaskRequest, context: CallContext) -> Task:
        """Return a task of the caller's."""
        shape.check(params)
        await self.admit(context, params)
        validate_history_length(params)
        return apply_history_length((await self._store.get(params.id, metadata_of(context))).task, params)

    async def on_list_tasks(self, params: ListTasksRequest, context: CallContext) -> ListTasksResponse:
        """Return a page of the caller's tasks, last changed first."""
        shape.check(params)
        await self.admit(context, params)
        validate_history_length(params)
        if params.HasField("page_size"):
            validate_page_size(params.page_size)
        page_size = params.page_size or PAGE_SIZE
        if params.status and params.status not in STATES:
            # No task is ever in such a state; that is nothing for strangers to hear either.
            await self._gate.admit(metadata_of(context))
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

    async def on_cancel_task(self, params: CancelTaskRequest, context: CallContext) -> Task:
        """Cancel a task for which nothing was sent yet, or that waits for a message, and return it.

        One that is at work is waited for shortly: it may come to wait, and else the error can say what it came to.
        """
        shape.check(params)
        await self.admit(context, params)
        metadata = metadata_of(context)
        stored = await self._store.get(params.id, metadata)
        while True:
            while stored.task.status.state in CANCELABLE:
                try:
                    ended = answers.with_answer(stored.task, answers.canceled())
                    return (await self._store.save(ended, stored.version, metadata)).task
                except TaskConflict:
                    # It was begun meanwhile, or canceled twice at once.
                    stored = await self._store.get(params.id, metadata)
                    if stored.task.status.state == TaskState.TASK_STATE_CANCELED:
                        return stored.task
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    stored = await self._wait_for_end(stored, metadata, QUICK)
            if stored.task.status.state not in CANCELABLE:
                raise not_cancelable(stored.task)

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: CallContext
    ) -> AsyncGenerator[Event, None]:
        """Yield a task that has not ended, then what becomes of it, whichever bridge is at it."""
        shape.check(params)
        await self.admit(context, params)
        metadata = metadata_of(context)
        stored = await self._store.get(params.id, metadata)
        task = stored.task
        if has_ended(task):
            raise UnsupportedOperationError(f"Task {task.id} has ended, it is {state_name(task)}; get it instead")
        yield task
        async with aclosing(self._events(stored, metadata)) as events:
            async for event in events:
                yield event

    async def on_get_extended_agent_card(
        self,
        params: GetExtendedAgentCardRequest,
        context: CallContext,
    ) -> AgentCard:
        """Return the agent card with what holds for the caller."""
        await self._admit_tenant(context, params)
        return self._cards.extended(context.address, await self._gate.admit(metadata_of(context)))

    async def _start(
        self,
        params: SendMessageRequest,
        context: CallContext,
        start: Callable[[Turn, Metadata], Awaitable[ResultT]],
    ) -> ResultT | StoredTask:
        """Return what starting a message's work returns, or the task that the same message began before."""
        metadata = metadata_of(context)
        push_config = self.inline_config(params, context)
        for _ in range(ATTEMPTS):
            turn = await self._turns.begin(params, metadata)
            if isinstance(turn, StoredTask):
                if push_config is not None:
                    await self.add_inline_config(turn.task.id, params.message.message_id, push_config, metadata)
                return turn
            with suppress(TaskConflict):
                return await start(replace(turn, push_config=push_config), metadata)
            # The same message came by another way at the same time, and its task is kept now.
        raise Refused(Failure("CONFLICT", "The task of this message cannot be kept: its id is taken"))

    async def _wait_for_end(
        self, stored: StoredTask, metadata: Metadata, first_pause: float = FIRST_PAUSE
    ) -> StoredTask:
        """Return a task once it has ended or waits for a message."""
        if rests(stored.task):
            return stored
        async with aclosing(self._worker.follow(stored, metadata, first_pause)) as changes:
            async for changed in changes:
                stored = changed
        return stored

    async def _events(
        self, stored: StoredTask, metadata: Metadata
    ) -> AsyncGenerator[TaskArtifactUpdateEvent | TaskStatusUpdateEvent, None]:
        """Yield what becomes of a task, until it has ended."""
        async with aclosing(self._worker.follow(stored, metadata)) as changes:
            async for changed in changes:
                for event in last_events(changed.task) if rests(changed.task) else [status_event(changed.task)]:
                    yield event

    async def admit(self, context: CallContext, params: Message) -> None:
        """Refuse callers that lack an extension which the configuration requires, or name another tenant than theirs.

        Raises A2AError.
        """
        await self._admit_tenant(context, params)
        if self._requires_extension and not is_activated(context):
            raise ExtensionSupportRequiredError(f"This agent requires an extension; send {EXTENSIONS}: {EXTENSION_URI}")

    async def _admit_tenant(self, context: CallContext, params: Message) -> None:
        """Refuse callers that name another tenant than theirs, in the path or in the params. Raises Refused."""
        named = [context.tenant, getattr(params, "tenant", "")]
        if isinstance(params, SendMessageRequest):
            named.append(params.configuration.task_push_notification_config.tenant)
        tenants = {tenant for tenant in named if tenant}
        if tenants:
            await self._gate.admit_tenants(tenants, metadata_of(context))


def not_cancelable(task: Task) -> TaskNotCancelableError:
    """Return the error of whoever cancels a task that has ended or is at work."""
    if has_ended(task):
        return TaskNotCancelableError(f"Task {task.id} has ended, it is {state_name(task)}")
    return TaskNotCancelableError(
        f"Task {task.id} is {state_name(task)}: what it asks for has been sent and cannot be prevented; get its result"
    )
