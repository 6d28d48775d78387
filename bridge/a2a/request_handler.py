"""The A2A request handler: every operation, over tasks that the gRPC server stores; it holds no state of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from typing import Final, TypeVar

import grpc
from a2a.types import a2a_pb2
from a2a.utils.errors import A2AError, ExtensionSupportRequiredError, TaskNotCancelableError, UnsupportedOperationError
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size
from google.protobuf.message import Message

from bridge.a2a import call_context, task_results, task_store
from bridge.a2a.agent_card import AgentCardBuilder
from bridge.a2a.errors import UpstreamError
from bridge.a2a.message_parsing import check_required_fields
from bridge.a2a.push_configs import PushConfigOperations
from bridge.a2a.task_preparation import PendingTask, PendingTaskBuilder
from bridge.a2a.task_runner import FIRST_DELAY_SECONDS, TaskRunner
from bridge.a2a.task_store import GrpcTaskStore, StoredTask, TaskEvent, TaskVersionConflict
from bridge.call_observation import BridgeCallObserver
from bridge.http_request import BodyReader, CallOriginReporter, PublicUrlResolver
from bridge.upstream import Forwarder, Metadata
from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.errors import Conflict, RateLimited
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.stream_limit import StreamLimit

ResultT = TypeVar("ResultT")

DEFAULT_PAGE_SIZE: Final = 50
"""The default number of tasks on a page (A2A 1.0, ListTasksRequest.page_size)."""
CANCEL_SECONDS: Final = 2.0
"""Maximum seconds to wait for a working task, which cannot be canceled. Chosen: most calls end within it."""
MAX_START_ATTEMPTS: Final = 2
"""Attempts to start a message to a task that changes meanwhile. Chosen: the second finds a repeated message in it."""
CANCEL_POLL_SECONDS: Final = 0.02
"""Seconds until a task that is about to end is first read again."""


class A2aRequestHandler:
    """Handles the operations of A2A for every transport. They raise A2AError.

    `push_channel` leads to the server that stores push configurations; without it these are off.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        access: call_context.A2aAccessCheck,
        store: GrpcTaskStore,
        cards: AgentCardBuilder,
        settings: Settings,
        push_channel: grpc.aio.Channel | None = None,
    ) -> None:
        timeout = settings.server.timeout_seconds
        self.push_configs = PushConfigOperations(push_channel, timeout, self.check_access)
        self._access = access
        self._store = store
        self._cards = cards
        self._pending_tasks = PendingTaskBuilder(store)
        self._runner = TaskRunner(forwarder, store, timeout)
        self._requires_extension = settings.a2a.require_extension
        self._subscriptions = StreamLimit(
            "streams about tasks", settings.a2a.subscriptions_per_caller, "a2a.subscriptions_per_caller"
        )

    async def aclose(self) -> None:
        """Wait for the tasks in progress."""
        await self._runner.aclose()

    async def on_message_send(
        self, params: a2a_pb2.SendMessageRequest, context: call_context.A2aCallContext
    ) -> a2a_pb2.Task:
        """Return the finished task of a message, or the submitted task if the caller does not wait."""
        # The shape comes first, as it costs no call of the server.
        check_required_fields(params)
        await self.check_access(context, params)
        metadata = context.metadata
        if params.configuration.return_immediately:
            task = await self._start(params, context, self._runner.submit)
        else:
            task = await self._start(params, context, self._runner.run)
        if isinstance(task, StoredTask):
            waiting = not params.configuration.return_immediately
            # The same message again: whoever runs its task, this caller waits for the same end.
            task = (await self._wait_for_end(task, metadata) if waiting else task).task
        return apply_history_length(task, params.configuration)

    async def on_message_send_stream(
        self, params: a2a_pb2.SendMessageRequest, context: call_context.A2aCallContext
    ) -> AsyncGenerator[TaskEvent, None]:
        """Yield the working task, then its final events; for a repeated message, those of its stored task."""
        check_required_fields(params)
        await self.check_access(context, params)
        metadata = context.metadata
        begun = await self._start(params, context, self._runner.start)
        if isinstance(begun, StoredTask):
            shown = apply_history_length(begun.task, params.configuration)
            if task_store.is_idle(begun.task):
                yield shown
                return
            async with aclosing(self._stream_task(shown, begun, metadata)) as events:
                async for event in events:
                    yield event
            return
        task, work = begun
        yield apply_history_length(task, params.configuration)
        # Shielded: a caller that disconnects ends its stream and not the task.
        for event in task_store.final_events(await asyncio.shield(work)):
            yield event

    async def on_get_task(self, params: a2a_pb2.GetTaskRequest, context: call_context.A2aCallContext) -> a2a_pb2.Task:
        check_required_fields(params)
        await self.check_access(context, params)
        validate_history_length(params)
        metadata = context.metadata
        stored = await self._store.get(params.id, metadata)
        # A bridge that was started since does not wait for it yet.
        self._runner.wait_for_approval(stored, metadata)
        return apply_history_length(stored.task, params)

    async def on_list_tasks(
        self, params: a2a_pb2.ListTasksRequest, context: call_context.A2aCallContext
    ) -> a2a_pb2.ListTasksResponse:
        """Return a page of the caller's tasks, last changed first."""
        check_required_fields(params)
        await self.check_access(context, params)
        validate_history_length(params)
        if params.HasField("page_size"):
            validate_page_size(params.page_size)
        page_size = params.page_size or DEFAULT_PAGE_SIZE
        if params.status and params.status not in task_store.SERVER_STATES:
            # No task is ever in such a state. Security: still only known callers get an answer.
            await self._access.fetch_access(context.metadata)
            return a2a_pb2.ListTasksResponse(page_size=page_size)
        query = task_store.TaskQuery(
            page_size,
            params.page_token,
            params.context_id,
            params.status or None,
            params.status_timestamp_after if params.HasField("status_timestamp_after") else None,
        )
        page = await self._store.list(query, context.metadata)
        for task in page.tasks:
            if not params.include_artifacts:
                task.ClearField("artifacts")
        return a2a_pb2.ListTasksResponse(
            tasks=[apply_history_length(task, params) for task in page.tasks],
            next_page_token=page.next_page_token,
            page_size=page_size,
            total_size=page.total,
        )

    async def on_cancel_task(
        self, params: a2a_pb2.CancelTaskRequest, context: call_context.A2aCallContext
    ) -> a2a_pb2.Task:
        """Cancel a task that was not started yet or waits for input, and return it.

        A working task is awaited for CANCEL_SECONDS: it may come to wait for input, or else the error can name its
        final state.
        """
        check_required_fields(params)
        await self.check_access(context, params)
        metadata = context.metadata
        stored = await self._store.get(params.id, metadata)
        while True:
            # Saved with the version that was read, so that a task which starts meanwhile is never overwritten.
            while stored.task.status.state in task_store.CANCELABLE_STATES:
                try:
                    ended = task_results.with_result(stored.task, task_results.canceled_result())
                    return (await self._store.save(ended, stored.version, metadata)).task
                except TaskVersionConflict:
                    # It was started, or canceled by another call, since it was read.
                    stored = await self._store.get(params.id, metadata)
                    if stored.task.status.state == a2a_pb2.TaskState.TASK_STATE_CANCELED:
                        return stored.task
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    stored = await self._wait_for_end(stored, metadata, CANCEL_POLL_SECONDS)
            # It may have come to wait for input, and can be canceled after all: around again.
            if stored.task.status.state not in task_store.CANCELABLE_STATES:
                sent = "its request has been sent and cannot be prevented; get its result"
                state = task_store.state_name(stored.task)
                reason = f"has ended, it is {state}" if task_store.has_ended(stored.task) else f"is {state}: {sent}"
                raise TaskNotCancelableError(f"Task {stored.task.id} {reason}")

    async def on_subscribe_to_task(
        self, params: a2a_pb2.SubscribeToTaskRequest, context: call_context.A2aCallContext
    ) -> AsyncGenerator[TaskEvent, None]:
        """Yield a task that has not ended, then its events, whichever bridge runs it."""
        check_required_fields(params)
        await self.check_access(context, params)
        metadata = context.metadata
        stored = await self._store.get(params.id, metadata)
        task = stored.task
        # A2A 1.0, SubscribeToTask: a task in a terminal state is refused, as it has no more events.
        if task_store.has_ended(task):
            raise UnsupportedOperationError(
                f"Task {task.id} has ended, it is {task_store.state_name(task)}; get it instead"
            )
        self._runner.wait_for_approval(stored, metadata)
        async with aclosing(self._stream_task(task, stored, metadata)) as events:
            async for event in events:
                yield event

    async def on_get_extended_agent_card(
        self, params: a2a_pb2.GetExtendedAgentCardRequest, context: call_context.A2aCallContext
    ) -> a2a_pb2.AgentCard:
        """Return the agent card with the caller's permissions and limits."""
        await self._check_tenant(context, params)
        return self._cards.build_extended(context.address, await self._access.fetch_access(context.metadata))

    async def _start(
        self,
        params: a2a_pb2.SendMessageRequest,
        context: call_context.A2aCallContext,
        start: Callable[[PendingTask, Metadata], Awaitable[ResultT]],
    ) -> ResultT | StoredTask:
        """Start the task of a message with `start`, or return the task that the same message began before."""
        metadata = context.metadata
        push_config = None
        if params.configuration.HasField("task_push_notification_config"):
            push_config = self.push_configs.read_inline_config(params, context)
        refusal: A2AError = UpstreamError(Conflict("The task of this message cannot be kept: its id is taken"))
        for _ in range(MAX_START_ATTEMPTS):
            pending = await self._pending_tasks.prepare(params, metadata)
            if isinstance(pending, StoredTask):
                stored = pending
            else:
                try:
                    return await start(replace(pending, push_config=push_config), metadata)
                except TaskVersionConflict:
                    # The task that it continues has changed, or the same message arrived before or elsewhere.
                    if pending.version:
                        continue
                except A2AError as error:
                    if pending.is_looked_up:
                        raise
                    # The server may have refused the call before it checked that the task is new.
                    refusal = error
                stored = await self._pending_tasks.find_begun(pending.task.id, params.message, metadata, refusal)
            if push_config is not None:
                await self.push_configs.add_inline_config(
                    stored.task.id, params.message.message_id, push_config, metadata
                )
            return stored
        raise refusal

    async def _wait_for_end(
        self, stored: StoredTask, metadata: Metadata, first_pause: float = FIRST_DELAY_SECONDS
    ) -> StoredTask:
        if task_store.is_idle(stored.task):
            return stored
        async with aclosing(self._runner.follow(stored, metadata, first_pause)) as changes:
            async for changed in changes:
                stored = changed
        return stored

    async def _stream_task(
        self, shown: a2a_pb2.Task, stored: StoredTask, metadata: Metadata
    ) -> AsyncGenerator[TaskEvent, None]:
        """Yield a task as it is shown, then its events until it has ended.

        Raises UpstreamError if the caller has too many such streams open.
        """
        with self._hold_subscription(metadata):
            yield shown
            async with aclosing(self._runner.follow(stored, metadata)) as changes:
                async for changed in changes:
                    for event in (
                        task_store.final_events(changed.task)
                        if task_store.is_idle(changed.task)
                        else [task_store.status_event(changed.task)]
                    ):
                        yield event

    @contextmanager
    def _hold_subscription(self, metadata: Metadata) -> Iterator[None]:
        """Count a stream about a task for the length of a block. Raises UpstreamError if the caller has too many."""
        caller = tuple(value for name, value in metadata if name in task_store.CREDENTIAL_KEYS)
        with ExitStack() as held:
            try:
                held.enter_context(self._subscriptions.hold(caller))
            except RateLimited as error:
                raise UpstreamError(error) from error
            yield

    async def check_access(self, context: call_context.A2aCallContext, params: Message) -> None:
        """Raise A2AError if a required extension is missing or the call names another tenant than the caller's."""
        await self._check_tenant(context, params)
        if self._requires_extension and not call_context.is_extension_activated(context):
            raise ExtensionSupportRequiredError(
                f"This agent requires an extension; send {call_context.EXTENSIONS_HEADER}: {call_context.EXTENSION_URI}"
            )

    async def _check_tenant(self, context: call_context.A2aCallContext, params: Message) -> None:
        """Raise UpstreamError if the path or the params name another tenant than the caller's."""
        # Wherever a tenant can be named it must be the caller's own: the server knows the tenant from the token alone.
        named = [context.tenant, getattr(params, "tenant", "")]
        if isinstance(params, a2a_pb2.SendMessageRequest):
            named.append(params.configuration.task_push_notification_config.tenant)
        tenants = {tenant for tenant in named if tenant}
        if tenants:
            await self._access.require_own_tenants(tenants, context.metadata)


@dataclass(frozen=True, slots=True)
class A2aServices:
    """The parts that every A2A transport uses."""

    handler: A2aRequestHandler
    access: call_context.A2aAccessCheck
    bodies: BodyReader
    forwarder: Forwarder
    cards: AgentCardBuilder
    address: PublicUrlResolver
    origins: CallOriginReporter
    observer: BridgeCallObserver
