"""Who sees what of A2A: listings, tasks of others, the extended card, strangers, and required extensions."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import (
    ExtensionSupportRequiredError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
)

from bridge.a2a.errors import UpstreamError
from bridge.a2a.request_handler import A2aRequestHandler
from cstp_grpc.config import Settings
from tests.bridge.a2a.operation_calls import ALICE, AT_ONCE, BOB, INTENT, STRANGER, events, refusal
from tests.bridge.a2a.talking import (
    ADDRESS,
    COMPLETED,
    READY,
    URI,
    asynchronous,
    context,
    conversing,
    sending,
)

# Reading


@asynchronous
async def test_tasks_are_listed_newest_first_by_page(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        name = str(uuid.uuid4())
        sent = [await talk.on_message_send(sending(f"{INTENT} {n}", contextId=name), ALICE) for n in range(3)]
        query = ListTasksRequest(context_id=name, page_size=2)
        first = await talk.on_list_tasks(query, ALICE)
        query.page_token = first.next_page_token
        second = await talk.on_list_tasks(query, ALICE)
        listed = [*first.tasks, *second.tasks]
        assert {task.id for task in listed} == {task.id for task in sent}
        moments = [task.status.timestamp.ToNanoseconds() for task in listed]
        assert moments == sorted(moments, reverse=True)
        assert (len(first.tasks), first.page_size, first.total_size) == (2, 2, 3)
        assert (len(second.tasks), second.page_size, second.total_size, second.next_page_token) == (1, 2, 3, "")
        assert not any(task.artifacts for task in listed)


@asynchronous
async def test_a_listing_shows_what_it_is_asked_for(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        name = str(uuid.uuid4())
        await talk.on_message_send(sending(INTENT, {"affectsProduction": True}, contextId=name), ALICE)
        done = await talk.on_message_send(sending(READY, contextId=name), ALICE)
        query = ListTasksRequest(context_id=name, status=COMPLETED, include_artifacts=True, history_length=0)
        answer = await talk.on_list_tasks(query, ALICE)
        (task,) = answer.tasks
        assert task.artifacts == done.artifacts
        assert not task.history
        assert answer.page_size == 50
        query.status_timestamp_after.FromMilliseconds(done.status.timestamp.ToMilliseconds() + 1)
        assert not (await talk.on_list_tasks(query, ALICE)).tasks
        assert not (await talk.on_list_tasks(ListTasksRequest(context_id=name), BOB)).tasks


@pytest.mark.parametrize("state", ["AUTH_REQUIRED"])
@asynchronous
async def test_states_that_never_are_have_no_tasks(core: str, wanted: Settings, state: str) -> None:
    async with conversing(core, wanted) as talk:
        query = ListTasksRequest(status=f"TASK_STATE_{state}", page_size=7)
        answer = await talk.on_list_tasks(query, ALICE)
        assert (len(answer.tasks), answer.total_size, answer.page_size, answer.next_page_token) == (0, 0, 7, "")
        assert isinstance(await refusal(talk.on_list_tasks(query, STRANGER)), UpstreamError)


@pytest.mark.parametrize(
    "query",
    [
        ListTasksRequest(page_size=0),
        ListTasksRequest(page_size=101),
        ListTasksRequest(history_length=-1),
        ListTasksRequest(page_token="none"),
        ListTasksRequest(context_id="c" * 300),
    ],
)
@asynchronous
async def test_a_listing_that_cannot_be_is_refused(core: str, wanted: Settings, query: ListTasksRequest) -> None:
    async with conversing(core, wanted) as talk:
        assert isinstance(await refusal(talk.on_list_tasks(query, ALICE)), InvalidParamsError)


@asynchronous
async def test_tasks_of_others_are_not_there(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        task = await talk.on_message_send(sending(INTENT), ALICE)
        for attempt in (
            talk.on_get_task(GetTaskRequest(id=task.id), BOB),
            talk.on_cancel_task(CancelTaskRequest(id=task.id), BOB),
            talk.on_get_task(GetTaskRequest(id="none"), ALICE),
        ):
            assert isinstance(await refusal(attempt), TaskNotFoundError)


@asynchronous
async def test_the_extended_card_tells_what_holds_for_the_caller(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        card = await talk.on_get_extended_agent_card(GetExtendedAgentCardRequest(), ALICE)
        assert card.supported_interfaces[0].url.startswith(ADDRESS)
        params = next(item.params for item in card.capabilities.extensions if item.uri == URI)
        assert "alice" in str(params)


# Who is let in


@asynchronous
async def test_strangers_are_only_told_that_they_are(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        for attempt in (
            talk.on_message_send(sending(INTENT), STRANGER),
            talk.on_message_send(sending(INTENT, configuration=AT_ONCE), STRANGER),
            events(talk.on_message_send_stream(sending(INTENT), STRANGER)),
            talk.on_get_task(GetTaskRequest(id="any"), STRANGER),
            talk.on_list_tasks(ListTasksRequest(), STRANGER),
            talk.on_cancel_task(CancelTaskRequest(id="any"), STRANGER),
            events(talk.on_subscribe_to_task(SubscribeToTaskRequest(id="any"), STRANGER)),
            talk.on_get_extended_agent_card(GetExtendedAgentCardRequest(), STRANGER),
        ):
            error = await refusal(attempt)
            assert isinstance(error, UpstreamError)
            assert error.failure.reason == "AUTHENTICATION_REQUIRED"


def push_operations(talk: A2aRequestHandler) -> list[Any]:
    return [
        talk.push_configs.create(TaskPushNotificationConfig(), ALICE),
        talk.push_configs.get(GetTaskPushNotificationConfigRequest(), ALICE),
        talk.push_configs.list(ListTaskPushNotificationConfigsRequest(), ALICE),
        talk.push_configs.delete(DeleteTaskPushNotificationConfigRequest(), ALICE),
    ]


@asynchronous
async def test_there_are_no_push_notifications(core: str, wanted: Settings) -> None:
    async with conversing(core, wanted) as talk:
        configuration = {"taskPushNotificationConfig": {"url": "https://example.com"}}
        request = sending(INTENT, configuration=configuration)
        for attempt in (*push_operations(talk), talk.on_message_send(request, ALICE)):
            assert isinstance(await refusal(attempt), PushNotificationNotSupportedError)


@asynchronous
async def test_the_extension_may_be_required(core: str, wanted: Settings) -> None:
    strict = wanted.model_copy(update={"a2a": wanted.a2a.model_copy(update={"require_extension": True})})
    async with conversing(core, strict) as talk:
        for attempt in (
            talk.on_message_send(sending(INTENT), ALICE),
            events(talk.on_message_send_stream(sending(INTENT), ALICE)),
            talk.on_get_task(GetTaskRequest(id="any"), ALICE),
            talk.on_list_tasks(ListTasksRequest(), ALICE),
            talk.on_cancel_task(CancelTaskRequest(id="any"), ALICE),
            events(talk.on_subscribe_to_task(SubscribeToTaskRequest(id="any"), ALICE)),
            *push_operations(talk),
        ):
            assert isinstance(await refusal(attempt), ExtensionSupportRequiredError)
        active = context("alice", URI)
        assert (await talk.on_message_send(sending(INTENT), active)).status.state == COMPLETED
        assert await talk.on_get_extended_agent_card(GetExtendedAgentCardRequest(), ALICE)
