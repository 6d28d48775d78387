"""Push notifications over every binding of A2A, in both versions, to a receiver on this machine."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from a2a.client import ClientConfig, create_client
from a2a.types import Role, SendMessageConfiguration, SendMessageRequest, StreamResponse
from a2a.types.a2a_pb2 import Message, Part, TaskPushNotificationConfig, TaskState
from google.protobuf import json_format

from tests.bridge.a2a.pushing import PUSHES, HttpJsonPushes, JsonRpcPushes, OldJsonRpcPushes, Pushes, Refused
from tests.bridge.a2a.sdks import plain_http
from tests.harness import TOKENS, GrpcCaller, Peers, peering, running, settings
from tests.waiting import wait_until
from tests.webhooks.receiver import Received, Receiver, receiving

SECRETS = {"token": "token-of-a-task", "scheme": "Bearer", "credentials": "credentials-of-a-task"}


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Peers, GrpcCaller]]:
    """A server that may notify this machine, with a bridge before it."""
    wanted = settings(tmp_path_factory.mktemp("pushing"), a2a={"push": {"allow_loopback": True}})
    with running(wanted) as app, peering(wanted, app.target) as peers:
        core = GrpcCaller(app.target)
        yield peers, core
        core.close()


@pytest.fixture
def peers(product: tuple[Peers, GrpcCaller]) -> Peers:
    return product[0]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture(params=PUSHES, ids=lambda kind: kind.__name__)
def pushes(request: pytest.FixtureRequest, peers: Peers) -> Pushes:
    found: Pushes = request.param(peers)
    return found


def told(receiver: Receiver, count: int) -> list[Received]:
    """Return the first notifications once they are there."""
    wait_until(lambda: len(receiver.received) >= count, f"{count} notifications")
    return receiver.received[:count]


def task_in(received: Received, version: str) -> Any:
    """Return the task that a notification holds."""
    if version == "0.3":
        assert received.content["kind"] == "task"
        return received.content
    assert set(received.content) == {"task"}
    json_format.ParseDict(received.content, StreamResponse())
    return received.content["task"]


def states(tasks: list[Any]) -> list[str]:
    return [task["status"]["state"].removeprefix("TASK_STATE_").lower() for task in tasks]


def finished(pushes: Pushes) -> str:
    """Return the id of a task that has ended, which nobody is notified of."""
    task_id: str = pushes.send("Refactor the parser").task["id"]
    return task_id


# Configurations


def test_configurations_are_made_read_listed_and_removed(pushes: Pushes, receiver: Receiver) -> None:
    task_id = finished(pushes)
    config = {"id": "mine", "url": f"{receiver.url}/hook", **SECRETS}
    assert pushes.create(task_id, config) == config
    assert pushes.read(task_id, "mine") == config
    assert pushes.list(task_id) == [config]
    for _ in range(2):
        pushes.delete(task_id, "mine")
    assert pushes.list(task_id) == []
    with pytest.raises(Refused, match="TASK_NOT_FOUND"):
        pushes.read(task_id, "mine")


def test_a_configuration_without_an_id_gets_one(pushes: Pushes, receiver: Receiver) -> None:
    task_id = finished(pushes)
    made = pushes.create(task_id, {"url": f"{receiver.url}/hook"})
    assert made["id"]
    assert pushes.read(task_id, made["id"]) == made
    pushes.create(task_id, {"url": f"{receiver.url}/hook"})
    assert len(pushes.list(task_id)) == (1 if pushes.version == "0.3" else 2)


def test_clients_of_0_3_need_not_say_which_one_they_read(peers: Peers, receiver: Receiver) -> None:
    pushes = OldJsonRpcPushes(peers)
    task_id = finished(pushes)
    made = pushes.create(task_id, {"url": f"{receiver.url}/hook"})
    assert pushes.read(task_id, "") == made


def test_others_find_nothing(pushes: Pushes, receiver: Receiver) -> None:
    task_id = finished(pushes)
    config = {"id": "mine", "url": f"{receiver.url}/hook"}
    pushes.create(task_id, config)
    for attempt in (
        lambda: pushes.create(task_id, config, who="bob"),
        lambda: pushes.read(task_id, "mine", who="bob"),
        lambda: pushes.list(task_id, who="bob"),
        lambda: pushes.delete(task_id, "mine", who="bob"),
    ):
        with pytest.raises(Refused, match="TASK_NOT_FOUND"):
            attempt()
    assert pushes.list(task_id) == [config]


@pytest.mark.parametrize(
    "url", ["http://agents.example.com/hook", "https://10.0.0.1/hook", "https://[::ffff:10.0.0.1]/", "ftp://x/", "x"]
)
def test_addresses_of_other_networks_are_refused(pushes: Pushes, url: str) -> None:
    task_id = finished(pushes)
    if url == "http://agents.example.com/hook":
        # A name may lead to this machine, which is seen when it is called.
        url = "http://192.0.2.1/hook"
    with pytest.raises(Refused, match="INVALID_PARAMS"):
        pushes.create(task_id, {"url": url})
    with pytest.raises(Refused, match="INVALID_PARAMS"):
        pushes.announce("Refactor the parser", {"url": url})


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": "a\r\nx-evil: 1"},
        {"scheme": "Bearer x", "credentials": "c"},
        {"scheme": "Bearer", "credentials": "c\n"},
        {"id": "a/b"},
        {"token": "x" * 4097},
    ],
)
def test_what_would_break_a_header_or_a_path_is_refused(peers: Peers, receiver: Receiver, wrong: Any) -> None:
    pushes = JsonRpcPushes(peers)
    with pytest.raises(Refused, match="INVALID_PARAMS"):
        pushes.create(finished(pushes), {"url": f"{receiver.url}/hook", **wrong})


def test_an_error_names_the_field_where_the_request_has_it(peers: Peers) -> None:
    pushes = JsonRpcPushes(peers)
    config = {"url": "https://10.0.0.1/hook"}
    params = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}}
    refused = pushes.raw.call("SendMessage", {**params, "configuration": {"taskPushNotificationConfig": config}})
    assert "configuration.taskPushNotificationConfig.url" in refused["error"]["message"]
    given = {"taskId": finished(pushes), "url": "https://x.example/", "authentication": {"scheme": "a b"}}
    refused = pushes.raw.call("CreateTaskPushNotificationConfig", given)
    assert "authentication.scheme" in refused["error"]["message"]


def test_a_configuration_in_a_message_names_no_task(peers: Peers, receiver: Receiver) -> None:
    with pytest.raises(Refused, match="INVALID_PARAMS"):
        JsonRpcPushes(peers).announce("Refactor", {"url": receiver.url, "taskId": "t"})


# Delivery


def test_a_message_that_asks_for_it_has_its_task_told(pushes: Pushes, receiver: Receiver) -> None:
    task = pushes.announce("Refactor the parser", {"id": "mine", "url": f"{receiver.url}/hook", **SECRETS})
    arrived = told(receiver, 2)
    tasks = [task_in(each, pushes.version) for each in arrived]
    assert states(tasks) == ["working", "completed"]
    assert {each["id"] for each in tasks} == {task["id"]}
    assert tasks[1]["artifacts"]
    headers = arrived[1].headers
    assert headers["x-a2a-notification-token"] == SECRETS["token"]
    assert headers["authorization"] == f"Bearer {SECRETS['credentials']}"
    old = pushes.version == "0.3"
    assert headers["content-type"] == ("application/json" if old else "application/a2a+json")


def test_who_does_not_wait_is_told_every_change(pushes: Pushes, receiver: Receiver) -> None:
    pushes.announce("Refactor the parser", {"url": f"{receiver.url}/hook"}, at_once=True)
    tasks = [task_in(each, pushes.version) for each in told(receiver, 3)]
    assert states(tasks) == ["submitted", "working", "completed"]


def test_a_task_that_ended_before_it_was_configured_is_told_at_once(pushes: Pushes, receiver: Receiver) -> None:
    task_id = finished(pushes)
    pushes.create(task_id, {"url": f"{receiver.url}/hook"})
    (arrived,) = told(receiver, 1)
    task = task_in(arrived, pushes.version)
    assert (task["id"], states([task])) == (task_id, ["completed"])


@pytest.mark.parametrize("kind", [JsonRpcPushes, OldJsonRpcPushes, HttpJsonPushes])
def test_a_message_that_is_sent_again_may_bring_a_configuration(
    peers: Peers, receiver: Receiver, kind: type[Pushes]
) -> None:
    pushes = kind(peers)
    message: dict[str, Any] = {"messageId": str(uuid.uuid4())}
    task = pushes.send("Refactor the parser", **message).task
    config = {"url": f"{receiver.url}/hook", **SECRETS}
    for _ in range(3):
        assert pushes.announce("Refactor the parser", config, **message)["id"] == task["id"]
    assert [each["url"] for each in pushes.list(task["id"])] == [config["url"]]
    (arrived,) = told(receiver, 1)
    assert states([task_in(arrived, pushes.version)]) == ["completed"]
    pushes.announce("Refactor the parser", {**config, "id": "another"}, **message)
    assert {each["id"] for each in pushes.list(task["id"])} > {"another"}


def test_a_repeated_message_with_its_configuration_is_told_once(peers: Peers, receiver: Receiver) -> None:
    pushes = JsonRpcPushes(peers)
    message: dict[str, Any] = {"messageId": str(uuid.uuid4())}
    for _ in range(2):
        task = pushes.announce("Refactor the parser", {"url": f"{receiver.url}/hook"}, **message)
    assert len(pushes.list(task["id"])) == 1


def test_many_repetitions_at_once_bring_one_configuration(peers: Peers, receiver: Receiver) -> None:
    message: dict[str, Any] = {"messageId": str(uuid.uuid4())}
    task = JsonRpcPushes(peers).send("Refactor the parser", **message).task
    senders = [JsonRpcPushes(peers) for _ in range(16)]
    config = {"url": f"{receiver.url}/hook"}
    with ThreadPoolExecutor(len(senders)) as threads:
        list(threads.map(lambda pushes: pushes.announce("Refactor the parser", config, **message), senders))
    assert len(senders[0].list(task["id"])) == 1


def test_a_repeated_message_with_a_wrong_configuration_is_refused(peers: Peers) -> None:
    pushes = JsonRpcPushes(peers)
    message: dict[str, Any] = {"messageId": str(uuid.uuid4())}
    pushes.send("Refactor the parser", **message)
    with pytest.raises(Refused, match="INVALID_PARAMS"):
        pushes.announce("Refactor the parser", {"url": "https://10.0.0.1/hook"}, **message)


def test_a_task_is_told_as_it_is_read(peers: Peers, receiver: Receiver) -> None:
    for pushes in (HttpJsonPushes(peers), OldJsonRpcPushes(peers)):
        task = pushes.announce("Refactor the parser", {"url": f"{receiver.url}/hook"})
        arrived = told(receiver, 2)[1]
        assert task_in(arrived, pushes.version) == pushes.get(task["id"]).task
        receiver.received.clear()


def test_a_receiver_that_fails_is_told_again_in_order(peers: Peers, receiver: Receiver) -> None:
    receiver.statuses = [503, 204]
    JsonRpcPushes(peers).announce("Refactor the parser", {"url": f"{receiver.url}/hook"})
    tasks = [task_in(each, "1.0") for each in told(receiver, 3)]
    assert states(tasks) == ["working", "working", "completed"]


def test_what_was_told_is_in_the_trail(
    product: tuple[Peers, GrpcCaller], receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    peers, core = product
    receiver.statuses = [410]
    with caplog.at_level(logging.DEBUG):
        task = JsonRpcPushes(peers).announce("Refactor", {"url": f"{receiver.url}/hook-secret", **SECRETS})
        told(receiver, 2)
        found: list[Any] = []

        def recorded() -> bool:
            wanted = {"event": "push_notification_sent", "correlationId": task["id"]}
            found[:] = (core.call("cstp.listAuditEntries", wanted).result or {})["entries"]
            return len(found) == 2

        wait_until(recorded, "both are on record")
    assert {entry["requestingAgent"] for entry in found} == {"alice"}
    assert {entry["error"] for entry in found} == {"UNAVAILABLE"}
    for secret in (SECRETS["token"], SECRETS["credentials"], "hook-secret"):
        assert secret not in caplog.text
        assert secret not in repr(found)


def test_the_official_client_is_told(peers: Peers, receiver: Receiver) -> None:
    async def talk() -> str:
        token = {"Authorization": f"Bearer {TOKENS['alice']}"}
        config = TaskPushNotificationConfig(url=f"{receiver.url}/hook", token="mine")
        async with plain_http(headers=token) as http:
            wanted = ClientConfig(httpx_client=http, streaming=False, push_notification_config=config)
            client = await create_client(peers.url, wanted)
            said = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text="Refactor the parser")])
            configuration = SendMessageConfiguration(return_immediately=True)
            async for answer in client.send_message(SendMessageRequest(message=said, configuration=configuration)):
                return answer.task.id
        raise AssertionError

    task_id = asyncio.run(talk())
    last = json_format.ParseDict(told(receiver, 3)[2].content, StreamResponse()).task
    assert (last.id, last.status.state) == (task_id, TaskState.TASK_STATE_COMPLETED)
    assert receiver.received[2].headers["x-a2a-notification-token"] == "mine"


# Settings


def test_where_they_are_off_the_card_says_so_and_they_are_refused(
    tmp_path_factory: pytest.TempPathFactory, receiver: Receiver
) -> None:
    wanted = settings(tmp_path_factory.mktemp("off"), a2a={"push": {"enabled": False}})
    with running(wanted) as app, peering(wanted, app.target) as peers:
        for kind in PUSHES:
            pushes = kind(peers)
            task_id = finished(pushes)
            with pytest.raises(Refused, match="PUSH_NOTIFICATION_NOT_SUPPORTED"):
                pushes.create(task_id, {"url": f"{receiver.url}/hook"})
            with pytest.raises(Refused, match="PUSH_NOTIFICATION_NOT_SUPPORTED"):
                pushes.announce("Refactor the parser", {"url": f"{receiver.url}/hook"})
        card = pushes.raw.send("GET", "/.well-known/agent-card.json", who=None).json
    assert card["capabilities"]["pushNotifications"] is False


def test_where_only_the_server_has_them_off_they_are_refused_too(
    tmp_path_factory: pytest.TempPathFactory, receiver: Receiver
) -> None:
    folder = tmp_path_factory.mktemp("server-off")
    off = settings(folder, a2a={"push": {"enabled": False}})
    with running(off) as app, peering(settings(folder), app.target) as peers:
        pushes = JsonRpcPushes(peers)
        with pytest.raises(Refused, match="PUSH_NOTIFICATION_NOT_SUPPORTED"):
            pushes.create(finished(pushes), {"url": f"{receiver.url}/hook"})
        with pytest.raises(Refused, match="PUSH_NOTIFICATION_NOT_SUPPORTED"):
            pushes.announce("Refactor the parser", {"url": f"{receiver.url}/hook"})


def test_this_machine_is_not_notified_unless_that_is_allowed(
    tmp_path_factory: pytest.TempPathFactory, receiver: Receiver
) -> None:
    wanted = settings(tmp_path_factory.mktemp("default"))
    with running(wanted) as app, peering(wanted, app.target) as peers:
        pushes = JsonRpcPushes(peers)
        for url in (receiver.url, receiver.url.replace("127.0.0.1", "localhost"), "https://127.0.0.1:1/"):
            with pytest.raises(Refused, match="INVALID_PARAMS"):
                pushes.create(finished(pushes), {"url": url})
    assert receiver.received == []


def test_an_address_on_the_list_may_be_anywhere(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> None:
    wanted = settings(tmp_path_factory.mktemp("listed"), a2a={"push": {"allow": [f"{receiver.url}/hooks/"]}})
    with running(wanted) as app, peering(wanted, app.target) as peers:
        pushes = JsonRpcPushes(peers)
        with pytest.raises(Refused, match="INVALID_PARAMS"):
            pushes.create(finished(pushes), {"url": f"{receiver.url}/other"})
        pushes.announce("Refactor the parser", {"url": f"{receiver.url}/hooks/1"})
        assert [each.path for each in told(receiver, 2)] == ["/hooks/1"] * 2
