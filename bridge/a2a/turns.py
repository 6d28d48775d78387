"""What a message begins: a task of its own, in a conversation, and what is to be asked for it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from a2a.types.a2a_pb2 import Message, SendMessageRequest, Task, TaskState
from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError
from a2a.utils.task import validate_history_length

from bridge.a2a import media, messages
from bridge.a2a.context import EXTENSION_URI
from bridge.a2a.messages import ANNOUNCE, Content, Params, Request, announced_in
from bridge.a2a.proto_json import to_json
from bridge.a2a.store import StoredTask, TaskQuery, TaskStore
from bridge.a2a.tasks import WAITING, copy_of, state_name
from bridge.methods import Metadata
from cstp_grpc.client import json_known
from cstp_grpc.gen.cstp.v1 import tasks_pb2

MAX_BYTES: Final = 1_048_576
"""The largest task before it has an answer: half of what is kept, so that the answer finds room."""
PAGE: Final = 20
MAX_PAGES: Final = 10
"""How many pages of a conversation are searched for an announcement."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A task to work on, and what is asked for it; `version` is the one that it is kept in, 0 if it is not yet."""

    task: Task
    request: Request
    media_types: frozenset[str]
    """Those that the artifact may have."""
    push_config: tasks_pb2.PushConfig | None = None
    """Where the caller is notified of the task."""
    version: int = 0


@dataclass(frozen=True, slots=True)
class Footing:
    """What a message builds on: a conversation, and in it an announcement that it refines."""

    context_id: str
    """Empty where none is named."""
    earlier: Params | None = None


class Turns:
    """Begins turns, with a look at the tasks of the caller's that a message names."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store

    async def begin(self, params: SendMessageRequest, metadata: Metadata) -> Turn | StoredTask:
        """Return the turn that a message begins, of which nothing is kept yet, or the task that it began before.

        Raises A2AError.
        """
        configuration = params.configuration
        validate_history_length(configuration)
        media_types = media.wanted(configuration.accepted_output_modes)
        content = messages.read(params.message)
        if params.message.task_id:
            return await self._continue(params.message, content, media_types, metadata)
        task_id, kept = await self._store.find(key_of(params.message), metadata)
        if kept is not None:
            return same_message(params.message, kept)
        footing = await self._footing(params.message, content, metadata)
        task = new_task(params.message, task_id, footing.context_id)
        request = named_after(task, messages.request_of(content, footing.earlier))
        return Turn(about(task, request), request, media_types)

    async def _continue(
        self, message: Message, content: Content, media_types: frozenset[str], metadata: Metadata
    ) -> Turn | StoredTask:
        """Return the turn that a message to a task begins, or the task if the message came before. Raises A2AError."""
        stored = await self._store.get(message.task_id, metadata)
        task = stored.task
        if message.context_id and message.context_id != task.context_id:
            raise other_context("message.taskId", task)
        said = placed_in(task, message)
        if any(said.message_id == each.message_id for each in task.history):
            return same_message(message, stored)
        earlier = announced_in(task)
        if task.status.state != WAITING or earlier is None:
            raise takes_no_more(task)
        if content.call:
            raise messages.wrong("message.parts", "cannot hold a call: the task waits for values")
        refined = messages.request_of(content, earlier)
        # The intent stays the same one, of which this is a revision.
        params = {**refined.params, "correlationId": earlier.get("correlationId", task.id)}
        request = dataclasses.replace(refined, params=params)
        continued = copy_of(task)
        del continued.artifacts[:]
        if task.status.HasField("message"):
            continued.history.append(task.status.message)
        continued.history.append(said)
        return Turn(about(continued, request), request, media_types, version=stored.version)

    async def _footing(self, message: Message, content: Content, metadata: Metadata) -> Footing:
        """Return what a message builds on."""
        if message.reference_task_ids:
            return await self._referred(message, metadata)
        if message.context_id and content.has_values:
            return Footing(message.context_id, await self._last_announced(message.context_id, metadata))
        return Footing(message.context_id)

    async def _referred(self, message: Message, metadata: Metadata) -> Footing:
        """Return what a message builds on that refers to tasks: the last of them that is an announcement counts."""
        tasks = [(await self._store.get(task_id, metadata)).task for task_id in message.reference_task_ids]
        task, earlier = last_announcement(tasks[::-1]) or (tasks[-1], None)
        if message.context_id and message.context_id != task.context_id:
            raise other_context("message.referenceTaskIds", task)
        return Footing(task.context_id, earlier)

    async def _last_announced(self, context_id: str, metadata: Metadata) -> Params | None:
        """Return the params of the latest announcement in a conversation; None where there is none."""
        query = TaskQuery(PAGE, context_id=context_id)
        for _ in range(MAX_PAGES):
            page = await self._store.list(query, metadata)
            if found := last_announcement(page.tasks):
                return found[1]
            if not page.next_page_token:
                break
            query = dataclasses.replace(query, page_token=page.next_page_token)
        return None


def last_announcement(tasks: Sequence[Task]) -> tuple[Task, Params] | None:
    """Return the first announcement among tasks, latest first, with its params."""
    for task in tasks:
        params = announced_in(task)
        if params is not None:
            return task, params
    return None


def key_of(message: Message) -> str:
    """Return what tells the message that begins a task apart from all others of its sender.

    In a context that the sender names, that is the message id. A message that begins a context of its own is also known
    by its content, since senders count their messages from the beginning in each.
    """
    content = None if message.context_id else to_json(message)
    text = json.dumps([message.context_id, message.message_id, content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def same_message(message: Message, kept: StoredTask) -> StoredTask:
    """Return the task that a message began when it was sent before. Raises InvalidParamsError for another message."""
    said = placed_in(kept.task, message)
    if said not in kept.task.history:
        raise messages.wrong(
            "message.messageId",
            f"names another message in its context already, which began the task {kept.task.id}; "
            "a message that says something else needs an id of its own",
        )
    return kept


def takes_no_more(task: Task) -> UnsupportedOperationError:
    """Return the error of a message to a task that does not wait for one."""
    return UnsupportedOperationError(
        f"Task {task.id} takes no more messages, it is {state_name(task)}; follow up in its context "
        f"{task.context_id}, and name it in referenceTaskIds where it should be refined"
    )


def about(task: Task, request: Request) -> Task:
    """Return a task that says what it announces, if it does. Raises InvalidParamsError if it becomes too large."""
    if request.name == ANNOUNCE:
        task.ClearField("metadata")
        json_known.fill_struct(task.metadata, {EXTENSION_URI: {"method": ANNOUNCE, "params": request.params}})
    if task.ByteSize() > MAX_BYTES:
        raise messages.wrong("message", f"with what it refines is larger than {MAX_BYTES} bytes")
    return task


def new_task(message: Message, task_id: str, context_id: str) -> Task:
    """Return the task that a message begins, with the message as its history."""
    task = Task(id=task_id, context_id=context_id or str(uuid.uuid4()))
    task.status.state = TaskState.TASK_STATE_SUBMITTED
    task.history.append(placed_in(task, message))
    return task


def placed_in(task: Task, message: Message) -> Message:
    """Return a message as the history of a task holds it."""
    said = Message()
    said.CopyFrom(message)
    said.task_id = task.id
    said.context_id = task.context_id
    return said


def named_after(task: Task, request: Request) -> Request:
    """Return what is asked for; an announcement without a correlation id gets the task's."""
    if request.name != ANNOUNCE or request.params.get("correlationId") is not None:
        return request
    return dataclasses.replace(request, params={**request.params, "correlationId": task.id})


def other_context(place: str, task: Task) -> InvalidParamsError:
    """Return the error of a message that names a task of another context."""
    return messages.wrong("message.contextId", f"is not the context of {place}, which is {task.context_id}")
