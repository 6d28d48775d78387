"""The operations of A2A, over tasks that the gRPC server keeps; nothing of a conversation is held here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
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
    TaskState,
)
from a2a.utils.errors import (
    ExtensionSupportRequiredError,
    TaskNotCancelableError,
    UnsupportedOperationError,
)
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size

from bridge.a2a import answers, shape
from bridge.a2a.cards import Cards
from bridge.a2a.context import EXTENSION_URI, EXTENSIONS, address_of, is_activated, metadata_of
from bridge.a2a.gate import Gate
from bridge.a2a.push import WithoutPush
from bridge.a2a.store import STATES, TaskConflict, TaskQuery, TaskStore
from bridge.a2a.tasks import is_working, last_events, state_name
from bridge.a2a.turns import Turns
from bridge.a2a.work import Worker, growing_pauses, patiently
from bridge.methods import Forwarder
from cstp_grpc.config import Settings

PAGE_SIZE: Final = 50
"""How many tasks a page holds where the caller does not say."""


class Conversations(WithoutPush):
    """Answers the operations of A2A, whatever transport they come by. They raise A2AError."""

    def __init__(self, forwarder: Forwarder, gate: Gate, store: TaskStore, cards: Cards, settings: Settings) -> None:
        self._gate = gate
        self._store = store
        self._cards = cards
        self._turns = Turns(store)
        self._worker = Worker(forwarder, store, settings.server.timeout_seconds)
        self._requires_extension = settings.a2a.require_extension

    async def aclose(self) -> None:
        """Wait for the work in progress."""
        await self._worker.aclose()

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        """Return the task that a message came to, or the task at work where the caller does not wait."""
        shape.check(params)
        self.admit(context)
        metadata = metadata_of(context)
        turn = await self._turns.begin(params, metadata)
        if params.configuration.return_immediately:
            task, _ = await self._worker.start(turn, metadata)
        else:
            task = await self._worker.settle(turn, metadata)
        return apply_history_length(task, params.configuration)

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Yield the task at work, then what it came to."""
        shape.check(params)
        self.admit(context)
        metadata = metadata_of(context)
        turn = await self._turns.begin(params, metadata)
        task, work = await self._worker.start(turn, metadata)
        yield apply_history_length(task, params.configuration)
        for event in last_events(await asyncio.shield(work)):
            yield event

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """Return a task of the caller's."""
        shape.check(params)
        self.admit(context)
        validate_history_length(params)
        return apply_history_length((await self._store.get(params.id, metadata_of(context))).task, params)

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the caller's tasks, last changed first."""
        shape.check(params)
        self.admit(context)
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

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Call off a task at work and return it."""
        shape.check(params)
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

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Yield a task at work, then what it came to, whichever bridge is at it."""
        shape.check(params)
        self.admit(context)
        task = (await self._store.get(params.id, metadata_of(context))).task
        if not is_working(task):
            raise UnsupportedOperationError(f"Task {task.id} has ended, it is {state_name(task)}; get it instead")
        yield task
        for pause in growing_pauses():
            await asyncio.sleep(pause)
            task = (
                await patiently(lambda: self._store.get(params.id, metadata_of(context)), self._worker.seconds)
            ).task
            if not is_working(task):
                break
        for event in last_events(task):
            yield event

    async def on_get_extended_agent_card(
        self,
        params: GetExtendedAgentCardRequest,  # noqa: ARG002 - the interface of the SDK
        context: ServerCallContext,
    ) -> AgentCard:
        """Return the agent card with what holds for the caller."""
        return self._cards.extended(address_of(context), await self._gate.admit(metadata_of(context)))

    def admit(self, context: ServerCallContext) -> None:
        """Refuse callers that lack an extension which the configuration requires."""
        if self._requires_extension and not is_activated(context):
            raise ExtensionSupportRequiredError(f"This agent requires an extension; send {EXTENSIONS}: {EXTENSION_URI}")


def not_cancelable(task: Task) -> TaskNotCancelableError:
    """Return the error of whoever calls off a task that has ended."""
    return TaskNotCancelableError(f"Task {task.id} has ended, it is {state_name(task)}")
