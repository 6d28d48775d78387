"""Prepare the tasks of messages: the task that a message begins or continues, and its request."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from collections.abc import Sequence
from typing import Final

from a2a.types.a2a_pb2 import Message, SendMessageRequest, Task, TaskState
from a2a.utils.errors import A2AError, InvalidParamsError, TaskNotFoundError, UnsupportedOperationError
from a2a.utils.task import validate_history_length

from bridge.a2a import message_parsing, task_store
from bridge.a2a.call_context import EXTENSION_URI
from bridge.a2a.message_parsing import ANNOUNCE_METHOD, MessageRequest, Params, ParsedMessage, announced_params
from bridge.upstream import Metadata
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract import json_values
from cstp_grpc.contract.json_codec import to_proto_json
from cstp_grpc.gen.cstp.v1 import tasks_pb2

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
    """The media types that the artifact may have."""
    push_config: tasks_pb2.PushConfig | None = None
    """Where the caller is notified of the task."""
    version: int = 0
    is_looked_up: bool = True
    """False for a task that may exist, since its id was derived and no call has checked it."""


@dataclass(frozen=True, slots=True)
class ConversationContext:
    """The context of a message: its conversation, and the announcement that it refines."""

    context_id: str
    """Empty if the message names no context."""
    earlier: Params | None = None


class PendingTaskBuilder:
    """Prepares tasks for messages, looking up the caller's tasks that a message refers to."""

    def __init__(self, store: task_store.GrpcTaskStore) -> None:
        self._store = store

    async def prepare(self, params: SendMessageRequest, metadata: Metadata) -> PendingTask | task_store.StoredTask:
        """Return the task to run for a message, not stored yet, or the one that it began before.

        Almost all messages are new: the task of one that refers to no others is not looked up if the agent of its
        sender is known. Raises A2AError.
        """
        configuration = params.configuration
        validate_history_length(configuration)
        media_types = message_parsing.select_output_types(configuration.accepted_output_modes)
        content = message_parsing.parse_message(params.message)
        # A message to a task is recognised by that task's history, one that begins a task by its key.
        if params.message.task_id:
            return await self._continue(params.message, content, media_types, metadata)
        key, message = message_key(params.message), params.message
        refers = message.reference_task_ids or (message.context_id and content.has_values)
        task_id = None if refers else self._store.derive_id(key, metadata)
        is_looked_up = task_id is None
        if task_id is None:
            task_id, kept = await self._store.find(key, metadata)
            if kept is not None:
                return require_same_message(params.message, kept)
        # Only now: a repeated message costs one look-up and none of its references.
        conversation = await self._resolve_context(params.message, content, metadata)
        task = new_task(params.message, task_id, conversation.context_id)
        request = with_correlation_id(task, message_parsing.build_request(content, conversation.earlier))
        return PendingTask(record_announcement(task, request), request, media_types, is_looked_up=is_looked_up)

    async def find_begun(
        self, task_id: str, message: Message, metadata: Metadata, refusal: A2AError
    ) -> task_store.StoredTask:
        """Return the task with this id, which the message began before.

        Raises `refusal` if the caller has no such task, InvalidParamsError if another message began it, UpstreamError.
        """
        # Not by the key of the message: if the agent of its sender was renamed, the server derives another id from it.
        try:
            return require_same_message(message, await self._store.get(task_id, metadata))
        except TaskNotFoundError:
            raise refusal from None

    async def _continue(
        self, message: Message, content: ParsedMessage, media_types: frozenset[str], metadata: Metadata
    ) -> PendingTask | task_store.StoredTask:
        """Return the task to run for a message to a task, or the task of a repeated one. Raises A2AError."""
        stored = await self._store.get(message.task_id, metadata)
        task = stored.task
        if message.context_id and message.context_id != task.context_id:
            raise context_mismatch("message.taskId", task)
        sent = to_history_message(task, message)
        if any(sent.message_id == each.message_id for each in task.history):
            return require_same_message(message, stored)
        earlier = announced_params(task)
        if task.status.state not in task_store.WAITING_STATES or earlier is None:
            raise UnsupportedOperationError(
                f"Task {task.id} takes no more messages, it is {task_store.state_name(task)}; follow up in its context "
                f"{task.context_id}, and name it in referenceTaskIds where it should be refined"
            )
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
        query = task_store.TaskQuery(SEARCH_PAGE_SIZE, context_id=context_id)
        for _ in range(MAX_SEARCH_PAGES):
            page = await self._store.list(query, metadata)
            if found := last_announcement(page.tasks):
                return found[1]
            if not page.next_page_token:
                break
            query = dataclasses.replace(query, page_token=page.next_page_token)
        return None


def continue_task(task: Task) -> Task:
    continued = task_store.copy_task(task)
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
    # Hashed as JSON, whose quotes separate the parts: senders choose the ids freely.
    text = json.dumps([message.context_id, message.message_id, content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def require_same_message(message: Message, kept: task_store.StoredTask) -> task_store.StoredTask:
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


def record_announcement(task: Task, request: MessageRequest) -> Task:
    """Record the announced intent in a task's metadata. Raises InvalidParamsError if the task becomes too large."""
    if request.name == ANNOUNCE_METHOD:
        task.ClearField("metadata")
        json_values.set_trusted_struct(
            task.metadata, {EXTENSION_URI: {"method": ANNOUNCE_METHOD, "params": request.params}}
        )
    if task.ByteSize() > MAX_UNANSWERED_BYTES:
        raise message_parsing.field_error(
            "message", f"exceeds {MAX_UNANSWERED_BYTES} bytes with the announcement that it refines"
        )
    return task


def new_task(message: Message, task_id: str, context_id: str) -> Task:
    task = Task(id=task_id, context_id=context_id or str(uuid.uuid4()))
    task.status.state = TaskState.TASK_STATE_SUBMITTED
    task.history.append(to_history_message(task, message))
    return task


def to_history_message(task: Task, message: Message) -> Message:
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
    return message_parsing.field_error(
        "message.contextId", f"is not the context of {place}, which is {task.context_id}"
    )
