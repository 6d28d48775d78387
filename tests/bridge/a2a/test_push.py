"""Push notifications over every binding of A2A, in both versions, to a receiver on this machine."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from a2a.client import ClientConfig, create_client
from a2a.types import Role, SendMessageConfiguration, SendMessageRequest, StreamResponse
from a2a.types.a2a_pb2 import Message, Part, TaskPushNotificationConfig, TaskState
from google.protobuf import json_format

from tests.bridge.a2a import v0_3_shapes
from tests.bridge.a2a.bindings import BINDINGS, Binding, HttpJson, JsonRpc, OldJsonRpc, Reply, connected, state_of
from tests.bridge.a2a.operation_params import PARAMS
from tests.bridge.a2a.products import Product, serving
from tests.bridge.a2a.refusals import assert_refused
from tests.bridge.a2a.sdks import plain_http
from tests.harness import TOKENS, Peers, peering, running, settings
from tests.modules.webhooks.receiver import Received, Receiver, receiving
from tests.waiting import wait_until

Json = dict[str, Any]

TEXT = "Refactor the parser"
SECRETS: Json = {
    "token": "token-of-a-task",
    "authentication": {"scheme": "Bearer", "credentials": "credentials-of-a-task"},
}
OTHER_NETWORKS = [
    # A name may lead to this machine, which is seen when it is called.
    "http://192.0.2.1/hook",
    "https://10.0.0.1/hook",
    "https://[::ffff:10.0.0.1]/",
    "ftp://x/",
    "x",
]


@dataclass(frozen=True)
class Pushes:
    """Configures push notifications over a binding."""

    binding: Binding

    def create(self, task_id: str, config: Json, who: str = "alice") -> Reply:
        return self.binding.call("CreateTaskPushNotificationConfig", {"taskId": task_id, **config}, who=who)

    def read(self, task_id: str, config_id: str, who: str = "alice") -> Reply:
        return self.binding.call("GetTaskPushNotificationConfig", {"taskId": task_id, "id": config_id}, who=who)

    def find(self, task_id: str, who: str = "alice") -> Reply:
        return self.binding.call("ListTaskPushNotificationConfigs", {"taskId": task_id}, who=who)

    def delete(self, task_id: str, config_id: str, who: str = "alice") -> Reply:
        return self.binding.call("DeleteTaskPushNotificationConfig", {"taskId": task_id, "id": config_id}, who=who)

    def configs(self, task_id: str) -> list[Json]:
        """Return the configurations of a task, without the task."""
        return [v0_3_shapes.without(each, "taskId") for each in self.find(task_id).result.get("configs", [])]

    def announce(self, config: Json, *, at_once: bool = False, **members: Any) -> Reply:
        """Send a message with a configuration."""
        return self.binding.send(TEXT, at_once=at_once, wanted={"taskPushNotificationConfig": config}, **members)

    def ended(self) -> str:
        """Return the id of a task that has ended, which nobody is notified of."""
        task_id: str = self.binding.send(TEXT).task["id"]
        return task_id

    def tasks_in(self, received: list[Received]) -> list[Json]:
        """Return the tasks that notifications hold, which have the version of who configured them."""
        if self.binding.version == "0.3":
            assert {each.content["kind"] for each in received} == {"task"}
            return [v0_3_shapes.task_of(each.content) for each in received]
        for each in received:
            assert set(each.content) == {"task"}
            json_format.ParseDict(each.content, StreamResponse())
        return [each.content["task"] for each in received]

    def states_in(self, received: list[Received]) -> list[str]:
        return [state_of(task) for task in self.tasks_in(received)]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture
def config(receiver: Receiver) -> Json:
    """A configuration that has the receiver told."""
    return {"url": f"{receiver.url}/hook"}


@pytest.fixture
def pushes(binding: Binding) -> Pushes:
    return Pushes(binding)


@pytest.fixture
def current(product: Product) -> Pushes:
    """One binding, for what does not depend on it."""
    return Pushes(product.binding(JsonRpc))


def told(receiver: Receiver, count: int) -> list[Received]:
    """Return the first notifications once they are there."""
    wait_until(lambda: len(receiver.received) >= count, f"{count} notifications")
    return receiver.received[:count]


# Configurations


def test_configurations_are_made_read_listed_and_removed(pushes: Pushes, config: Json) -> None:
    task_id = pushes.ended()
    mine = {"id": "mine", **config, **SECRETS}
    assert pushes.create(task_id, mine).result == {"taskId": task_id, **mine}
    assert pushes.read(task_id, "mine").result == {"taskId": task_id, **mine}
    assert pushes.configs(task_id) == [mine]
    for _ in range(2):
        assert pushes.delete(task_id, "mine").refusal is None
    assert pushes.configs(task_id) == []
    assert_refused(pushes.binding, pushes.read(task_id, "mine"), "TASK_NOT_FOUND")


def test_a_configuration_without_an_id_gets_one(pushes: Pushes, config: Json) -> None:
    task_id = pushes.ended()
    made = pushes.create(task_id, config).result
    assert made["id"]
    assert pushes.read(task_id, made["id"]).result == made
    pushes.create(task_id, config)
    assert len(pushes.configs(task_id)) == (1 if pushes.binding.version == "0.3" else 2)


def test_clients_of_0_3_need_not_say_which_one_they_read(product: Product, config: Json) -> None:
    pushes = Pushes(product.binding(OldJsonRpc))
    task_id = pushes.ended()
    made = pushes.create(task_id, config).result
    assert pushes.read(task_id, "").result == made


def test_others_find_nothing(pushes: Pushes, config: Json) -> None:
    task_id = pushes.ended()
    mine = {"id": "mine", **config}
    pushes.create(task_id, mine)
    for reply in (
        pushes.create(task_id, mine, who="bob"),
        pushes.read(task_id, "mine", who="bob"),
        pushes.find(task_id, who="bob"),
        pushes.delete(task_id, "mine", who="bob"),
    ):
        assert_refused(pushes.binding, reply, "TASK_NOT_FOUND")
    assert pushes.configs(task_id) == [mine]


def test_addresses_of_other_networks_are_refused(pushes: Pushes) -> None:
    task_id = pushes.ended()
    for url in OTHER_NETWORKS:
        assert_refused(pushes.binding, pushes.create(task_id, {"url": url}), "INVALID_PARAMS")
        assert_refused(pushes.binding, pushes.announce({"url": url}), "INVALID_PARAMS")


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": "a\r\nx-evil: 1"},
        {"authentication": {"scheme": "Bearer x", "credentials": "c"}},
        {"authentication": {"scheme": "Bearer", "credentials": "c\n"}},
        {"id": "a/b"},
        {"token": "x" * 4097},
    ],
)
def test_what_would_break_a_header_or_a_path_is_refused(current: Pushes, config: Json, wrong: Json) -> None:
    assert_refused(current.binding, current.create(current.ended(), {**config, **wrong}), "INVALID_PARAMS")


def test_an_error_names_the_field_where_the_request_has_it(current: Pushes) -> None:
    refusal = assert_refused(current.binding, current.announce({"url": "https://10.0.0.1/hook"}), "INVALID_PARAMS")
    assert refusal.fields == ("configuration.taskPushNotificationConfig.url",)
    given = {"url": "https://x.example/", "authentication": {"scheme": "a b"}}
    refusal = assert_refused(current.binding, current.create(current.ended(), given), "INVALID_PARAMS")
    assert refusal.fields == ("authentication.scheme",)


def test_a_configuration_in_a_message_names_no_task(current: Pushes, config: Json) -> None:
    assert_refused(current.binding, current.announce({**config, "taskId": "t"}), "INVALID_PARAMS")


# Delivery


def test_a_message_that_asks_for_it_has_its_task_told(pushes: Pushes, receiver: Receiver, config: Json) -> None:
    task = pushes.announce({"id": "mine", **config, **SECRETS}).task
    arrived = told(receiver, 2)
    tasks = pushes.tasks_in(arrived)
    assert [state_of(each) for each in tasks] == ["working", "completed"]
    assert {each["id"] for each in tasks} == {task["id"]}
    # A task is told as it is read.
    assert tasks[1] == pushes.binding.get(task["id"]).task
    headers = arrived[1].headers
    assert headers["x-a2a-notification-token"] == SECRETS["token"]
    assert headers["authorization"] == f"Bearer {SECRETS['authentication']['credentials']}"
    old = pushes.binding.version == "0.3"
    assert headers["content-type"] == ("application/json" if old else "application/a2a+json")


def test_who_does_not_wait_is_told_every_change(pushes: Pushes, receiver: Receiver, config: Json) -> None:
    pushes.announce(config, at_once=True)
    assert pushes.states_in(told(receiver, 3)) == ["submitted", "working", "completed"]


def test_a_task_that_ended_before_it_was_configured_is_told_at_once(
    pushes: Pushes, receiver: Receiver, config: Json
) -> None:
    task_id = pushes.ended()
    pushes.create(task_id, config)
    (task,) = pushes.tasks_in(told(receiver, 1))
    assert (task["id"], state_of(task)) == (task_id, "completed")


@pytest.mark.parametrize("binding", [JsonRpc, OldJsonRpc, HttpJson], indirect=True)
def test_a_message_that_is_sent_again_may_bring_a_configuration(
    pushes: Pushes, receiver: Receiver, config: Json
) -> None:
    message: Json = {"messageId": str(uuid.uuid4())}
    task = pushes.binding.send(TEXT, **message).task
    for _ in range(3):
        assert pushes.announce({**config, **SECRETS}, **message).task["id"] == task["id"]
    assert [each["url"] for each in pushes.configs(task["id"])] == [config["url"]]
    assert pushes.states_in(told(receiver, 1)) == ["completed"]
    pushes.announce({**config, **SECRETS, "id": "another"}, **message)
    assert {each["id"] for each in pushes.configs(task["id"])} > {"another"}


def test_a_repeated_message_with_its_configuration_is_told_once(current: Pushes, config: Json) -> None:
    message: Json = {"messageId": str(uuid.uuid4())}
    (task_id,) = {current.announce(config, **message).task["id"] for _ in range(2)}
    assert len(current.configs(task_id)) == 1


def test_many_repetitions_at_once_bring_one_configuration(current: Pushes, config: Json) -> None:
    message: Json = {"messageId": str(uuid.uuid4())}
    task = current.binding.send(TEXT, **message).task
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: current.announce(config, **message), range(16)))
    assert len(current.configs(task["id"])) == 1


def test_a_repeated_message_with_a_wrong_configuration_is_refused(current: Pushes) -> None:
    message: Json = {"messageId": str(uuid.uuid4())}
    current.binding.send(TEXT, **message)
    assert_refused(current.binding, current.announce({"url": "https://10.0.0.1/hook"}, **message), "INVALID_PARAMS")


def test_a_receiver_that_fails_is_told_again_in_order(current: Pushes, receiver: Receiver, config: Json) -> None:
    receiver.statuses = [503, 204]
    current.announce(config)
    assert current.states_in(told(receiver, 3)) == ["working", "working", "completed"]


def test_what_was_told_is_in_the_trail(
    product: Product, current: Pushes, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.statuses = [410]
    with caplog.at_level(logging.DEBUG):
        task = current.announce({"url": f"{receiver.url}/hook-secret", **SECRETS}).task
        told(receiver, 2)
        found: list[Any] = []

        def recorded() -> bool:
            wanted = {"event": "push_notification_sent", "correlationId": task["id"]}
            found[:] = (product.core.call("cstp.listAuditEntries", wanted).result or {})["entries"]
            return len(found) == 2

        wait_until(recorded, "both are on record")
    assert {entry["requestingAgent"] for entry in found} == {"alice"}
    assert {entry["error"] for entry in found} == {"UNAVAILABLE"}
    for secret in (SECRETS["token"], SECRETS["authentication"]["credentials"], "hook-secret"):
        assert secret not in caplog.text
        assert secret not in repr(found)


def test_the_official_client_is_told(peers: Peers, receiver: Receiver, config: Json) -> None:
    async def talk() -> str:
        token = {"Authorization": f"Bearer {TOKENS['alice']}"}
        async with plain_http(headers=token) as http:
            wanted = ClientConfig(
                httpx_client=http,
                streaming=False,
                push_notification_config=TaskPushNotificationConfig(**config, token="mine"),
            )
            client = await create_client(peers.url, wanted)
            said = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text=TEXT)])
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
    tmp_path_factory: pytest.TempPathFactory, config: Json
) -> None:
    with serving(tmp_path_factory.mktemp("off"), a2a={"push": {"enabled": False}}) as product:
        for kind in BINDINGS:
            pushes = Pushes(product.binding(kind))
            for operation in [name for name in kind.operations if "PushNotification" in name]:
                reply = pushes.binding.call(operation, PARAMS[operation][0])
                assert_refused(pushes.binding, reply, "PUSH_NOTIFICATION_NOT_SUPPORTED")
            assert_refused(pushes.binding, pushes.create(pushes.ended(), config), "PUSH_NOTIFICATION_NOT_SUPPORTED")
            assert_refused(pushes.binding, pushes.announce(config), "PUSH_NOTIFICATION_NOT_SUPPORTED")
        card = product.raw.send("GET", "/.well-known/agent-card.json", who=None).json
    assert card["capabilities"]["pushNotifications"] is False


def test_where_only_the_server_has_them_off_they_are_refused_too(
    tmp_path_factory: pytest.TempPathFactory, config: Json
) -> None:
    folder = tmp_path_factory.mktemp("server-off")
    off = settings(folder, a2a={"push": {"enabled": False}})
    with running(off) as app, peering(settings(folder), app.target) as peers, connected(JsonRpc, peers) as binding:
        pushes = Pushes(binding)
        assert_refused(binding, pushes.create(pushes.ended(), config), "PUSH_NOTIFICATION_NOT_SUPPORTED")
        assert_refused(binding, pushes.announce(config), "PUSH_NOTIFICATION_NOT_SUPPORTED")


def test_this_machine_is_not_notified_unless_that_is_allowed(
    tmp_path_factory: pytest.TempPathFactory, receiver: Receiver
) -> None:
    with serving(tmp_path_factory.mktemp("default")) as product:
        pushes = Pushes(product.binding(JsonRpc))
        for url in (receiver.url, receiver.url.replace("127.0.0.1", "localhost"), "https://127.0.0.1:1/"):
            assert_refused(pushes.binding, pushes.create(pushes.ended(), {"url": url}), "INVALID_PARAMS")
    assert receiver.received == []


def test_an_address_on_the_list_may_be_anywhere(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> None:
    allowed = {"push": {"allow": [f"{receiver.url}/hooks/"]}}
    with serving(tmp_path_factory.mktemp("listed"), a2a=allowed) as product:
        pushes = Pushes(product.binding(JsonRpc))
        other = pushes.create(pushes.ended(), {"url": f"{receiver.url}/other"})
        assert_refused(pushes.binding, other, "INVALID_PARAMS")
        pushes.announce({"url": f"{receiver.url}/hooks/1"})
        assert [each.path for each in told(receiver, 2)] == ["/hooks/1"] * 2
