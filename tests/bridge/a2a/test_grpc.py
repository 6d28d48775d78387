"""A2A over gRPC: a bridge on real sockets, called through the SDK's generated stubs for both versions."""

from __future__ import annotations

import threading
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import grpc
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb2
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc as old_grpc
from a2a.types import a2a_pb2, a2a_pb2_grpc
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from bridge.a2a.errors import grpc_error, invalid_params
from bridge.a2a.grpc_server import truncate_status
from bridge.a2a.message_parsing import MAX_ITEMS
from cstp_grpc.config import Settings
from cstp_grpc.errors import FieldViolation
from cstp_grpc.gen.cstp.v1 import access_pb2, cstp_pb2, tasks_pb2
from tests.bridge.support import Scripted
from tests.harness import TIMEOUT, TOKENS, Peers, peering, running, settings
from tests.waiting import wait_until

EXTENSION = "urn:cstp:extension:v1"
INTENT = "Deploy the payment service to production"
QUERY = {"method": "cstp.queryDecisions", "params": {"query": "payment service"}}

ALICE = ("authorization", f"Bearer {TOKENS['alice']}")
BOB = ("authorization", f"Bearer {TOKENS['bob']}")
V1 = ("a2a-version", "1.0")

CURRENT, OLD = (module.DESCRIPTOR.services_by_name["A2AService"] for module in (a2a_pb2, old_pb2))
RPCS = [pytest.param(rpc, id=rpc.full_name) for service in (CURRENT, OLD) for rpc in service.methods]

COMPLETED = a2a_pb2.TASK_STATE_COMPLETED
SUBMITTED = a2a_pb2.TASK_STATE_SUBMITTED
WORKING = a2a_pb2.TASK_STATE_WORKING


@dataclass(frozen=True)
class Wire:
    """A channel to a bridge and the stubs of both versions on it."""

    channel: grpc.Channel
    current: Any
    old: Any


@contextmanager
def wired(target: str) -> Iterator[Wire]:
    with grpc.insecure_channel(target) as channel:
        yield Wire(channel, a2a_pb2_grpc.A2AServiceStub(channel), old_grpc.A2AServiceStub(channel))


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    wanted = settings(tmp_path_factory.mktemp("a2a-grpc"), server={"port": 0, "max_body_bytes": 200_000})
    with running(wanted) as app, peering(wanted, app.target) as found:
        yield found


@pytest.fixture(scope="module")
def wire(peers: Peers) -> Iterator[Wire]:
    """A bridge before a server with agents."""
    with wired(peers.grpc_target) as found:
        yield found


@pytest.fixture
def core(server: Scripted) -> Scripted:
    """A server that knows everybody, allows everything and remembers the last task."""
    kept: list[tasks_pb2.Task] = []

    def save(request: tasks_pb2.SaveTaskRequest, _: Any) -> tasks_pb2.SaveTaskResponse:
        task = tasks_pb2.Task()
        task.CopyFrom(request.task)
        task.version = request.version + 1
        kept[:] = [task]
        return tasks_pb2.SaveTaskResponse(version=task.version)

    server.plays |= {
        "cstp.getAccess": lambda request, context: access_pb2.GetAccessResponse(),
        "cstp.announceIntent": lambda request, context: cstp_pb2.AnnounceIntentResponse(),
        "cstp.saveTask": save,
        "cstp.findTask": lambda request, context: tasks_pb2.FindTaskResponse(id=str(uuid.uuid4())),
        "cstp.getTask": lambda request, context: tasks_pb2.GetTaskResponse(task=kept[0]),
    }
    return server


@dataclass(frozen=True)
class Work:
    """An announcement that the server is at; `go_on` lets it end."""

    begun: threading.Event
    go_on: threading.Event


@pytest.fixture
def work(core: Scripted) -> Iterator[Work]:
    found = Work(threading.Event(), threading.Event())

    def announce(request: Any, context: grpc.ServicerContext) -> cstp_pb2.AnnounceIntentResponse:
        found.begun.set()
        found.go_on.wait(TIMEOUT)
        return cstp_pb2.AnnounceIntentResponse()

    core.plays["cstp.announceIntent"] = announce
    yield found
    found.go_on.set()


def without_agents(drain_seconds: float = TIMEOUT) -> Settings:
    """Return the settings of a bridge on free ports."""
    return Settings.model_validate(
        {"server": {"port": 0}, "a2a": {"grpc_port": 0}, "grpc": {"drain_seconds": drain_seconds}}
    )


def called(stub: Any, rpc: str, request: Message, *metadata: tuple[str, str]) -> Any:
    """Return what an rpc answers, of a stream all of it."""
    answer = getattr(stub, rpc)(request, metadata=metadata, timeout=TIMEOUT)
    return list(cast("Iterator[Any]", answer)) if isinstance(answer, grpc.Call) else answer


@dataclass(frozen=True)
class Failure:
    """How a call failed."""

    code: grpc.StatusCode
    domain: str
    reason: str
    message: str
    request_id: str
    fields: tuple[str, ...]


def failed(stub: Any, rpc: str, request: Message, *metadata: tuple[str, str]) -> Failure:
    """Return how an rpc fails."""
    return failure(lambda: called(stub, rpc, request, *metadata))


def failure(call: Callable[[], Any]) -> Failure:
    """Return how a call fails, which has to tell its request id in both places."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    status = rpc_status.from_call(caught.value)
    assert status is not None, f"no details: {caught.value}"
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        for found in (info, bad):
            if detail.Is(found.DESCRIPTOR):
                detail.Unpack(found)
    assert status.details[0].Is(info.DESCRIPTOR)
    trailing: Any = caught.value.trailing_metadata()
    request_id = dict(trailing)["x-request-id"]
    assert info.metadata["requestId"] == request_id
    fields = tuple(violation.field for violation in bad.field_violations)
    return Failure(caught.value.code(), info.domain, info.reason, status.message, request_id, fields)


def said(*parts: Any, **members: Any) -> a2a_pb2.SendMessageRequest:
    """Return a message of A2A 1.0: texts as they are, anything else as data."""
    request = a2a_pb2.SendMessageRequest(**members)
    request.message.message_id = str(uuid.uuid4())
    request.message.role = a2a_pb2.ROLE_USER
    for part in parts:
        if isinstance(part, str):
            request.message.parts.add(text=part)
        else:
            json_format.ParseDict(part, request.message.parts.add().data)
    return request


def said_before(*parts: old_pb2.Part) -> old_pb2.SendMessageRequest:
    """Return an intent in A2A 0.3, followed by other parts."""
    content = [old_pb2.Part(text=INTENT), *parts]
    return old_pb2.SendMessageRequest(
        request=old_pb2.Message(message_id=str(uuid.uuid4()), role=old_pb2.ROLE_USER, content=content)
    )


def task_of(wire: Wire, *metadata: tuple[str, str]) -> a2a_pb2.Task:
    """Return the task that an intent comes to, by default one of alice's."""
    return called(wire.current, "SendMessage", said(INTENT), *(metadata or (V1, ALICE))).task


def sent(channel: grpc.Channel, rpc: MethodDescriptor, body: bytes, *metadata: tuple[str, str]) -> None:
    """Call an rpc with bytes of any kind and wait for its end."""
    path = f"/{rpc.containing_service.full_name}/{rpc.name}"
    if rpc.server_streaming:
        stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path)
        list(stream(body, metadata=metadata, timeout=TIMEOUT))
    else:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
        call(body, metadata=metadata, timeout=TIMEOUT)


def test_a_text_is_announced(wire: Wire) -> None:
    task = task_of(wire)
    assert task.status.state == COMPLETED
    data, text = task.artifacts[0].parts
    assert json_format.MessageToDict(data.data)["correlationId"] == task.id
    assert "Allowed" in text.text


def test_a_data_part_is_a_call(wire: Wire) -> None:
    task = called(wire.current, "SendMessage", said(QUERY), V1, ALICE).task
    assert json_format.MessageToDict(task.artifacts[0].parts[0].data)["query"] == "payment service"


def test_a_stream_tells_the_work_the_artifact_and_the_end(wire: Wire) -> None:
    events = called(wire.current, "SendStreamingMessage", said(INTENT), V1, ALICE)
    assert [event.WhichOneof("payload") for event in events] == ["task", "artifact_update", "status_update"]
    assert events[0].task.status.state == WORKING
    assert events[2].status_update.status.state == COMPLETED


def test_tasks_are_got_and_listed(wire: Wire) -> None:
    task = task_of(wire)
    assert called(wire.current, "GetTask", a2a_pb2.GetTaskRequest(id=task.id), V1, ALICE) == task
    page = called(wire.current, "ListTasks", a2a_pb2.ListTasksRequest(context_id=task.context_id), V1, ALICE)
    assert [listed.id for listed in page.tasks] == [task.id]
    assert page.total_size == 1


def test_a_finished_task_is_neither_called_off_nor_followed(wire: Wire) -> None:
    task = task_of(wire)
    found = failed(wire.current, "CancelTask", a2a_pb2.CancelTaskRequest(id=task.id), V1, ALICE)
    assert (found.code, found.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TASK_NOT_CANCELABLE")
    assert found.domain == "a2a-protocol.org"
    found = failed(wire.current, "SubscribeToTask", a2a_pb2.SubscribeToTaskRequest(id=task.id), V1, ALICE)
    assert (found.code, found.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "UNSUPPORTED_OPERATION")


def test_the_work_on_a_task_is_followed_and_not_canceled(work: Work, target: str) -> None:
    with peering(without_agents(), target) as found, wired(found.grpc_target) as wire:
        request = said(INTENT, configuration=a2a_pb2.SendMessageConfiguration(return_immediately=True))
        task = called(wire.current, "SendMessage", request, V1).task
        assert task.status.state == SUBMITTED
        assert work.begun.wait(TIMEOUT)
        events = wire.current.SubscribeToTask(
            a2a_pb2.SubscribeToTaskRequest(id=task.id), metadata=(V1,), timeout=TIMEOUT
        )
        assert next(events).task.id == task.id
        refused = failed(wire.current, "CancelTask", a2a_pb2.CancelTaskRequest(id=task.id), V1)
        assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TASK_NOT_CANCELABLE")
        work.go_on.set()
        assert [event.status_update.status.state for event in events][1:] == [COMPLETED]


def test_push_notifications_are_not_configured_for_tasks_that_do_not_exist(wire: Wire) -> None:
    old_name = "tasks/t/pushNotificationConfigs/c"
    calls: list[tuple[Any, str, Message]] = [
        (
            wire.current,
            "CreateTaskPushNotificationConfig",
            a2a_pb2.TaskPushNotificationConfig(task_id="t", url="https://agents.example.com"),
        ),
        (
            wire.current,
            "GetTaskPushNotificationConfig",
            a2a_pb2.GetTaskPushNotificationConfigRequest(task_id="t", id="c"),
        ),
        (
            wire.current,
            "ListTaskPushNotificationConfigs",
            a2a_pb2.ListTaskPushNotificationConfigsRequest(task_id="t"),
        ),
        (
            wire.current,
            "DeleteTaskPushNotificationConfig",
            a2a_pb2.DeleteTaskPushNotificationConfigRequest(task_id="t", id="c"),
        ),
        (
            wire.old,
            "CreateTaskPushNotificationConfig",
            old_pb2.CreateTaskPushNotificationConfigRequest(
                parent="tasks/t",
                config_id="c",
                config=old_pb2.TaskPushNotificationConfig(
                    push_notification_config=old_pb2.PushNotificationConfig(url="https://agents.example.com")
                ),
            ),
        ),
        (
            wire.old,
            "GetTaskPushNotificationConfig",
            old_pb2.GetTaskPushNotificationConfigRequest(name=old_name),
        ),
        (
            wire.old,
            "ListTaskPushNotificationConfig",
            old_pb2.ListTaskPushNotificationConfigRequest(parent="tasks/t"),
        ),
        (
            wire.old,
            "DeleteTaskPushNotificationConfig",
            old_pb2.DeleteTaskPushNotificationConfigRequest(name=old_name),
        ),
    ]
    for stub, rpc, request in calls:
        version = [V1] if stub is wire.current else []
        found = failed(stub, rpc, request, ALICE, *version)
        assert (found.code, found.reason) == (grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND"), rpc


def test_the_extended_card_is_of_the_caller_and_names_the_bridge(wire: Wire, peers: Peers) -> None:
    card = called(wire.current, "GetExtendedAgentCard", a2a_pb2.GetExtendedAgentCardRequest(), V1, ALICE)
    urls = {interface.protocol_binding: interface.url for interface in card.supported_interfaces}
    assert urls["JSONRPC"].startswith(f"{peers.url}/")
    assert urls["GRPC"] == peers.grpc_target
    old = called(wire.old, "GetAgentCard", old_pb2.GetAgentCardRequest(), ALICE)
    assert old.url.startswith(peers.url)


def test_the_configured_address_is_on_the_extended_card(core: Scripted, target: str) -> None:
    wanted = without_agents()
    public = wanted.server.model_copy(update={"public_url": "https://agent.example.com/"})
    with peering(wanted.model_copy(update={"server": public}), target) as found, wired(found.grpc_target) as wire:
        card = called(wire.current, "GetExtendedAgentCard", a2a_pb2.GetExtendedAgentCardRequest(), V1)
        urls = {interface.protocol_binding: interface.url for interface in card.supported_interfaces}
        assert urls["HTTP+JSON"] == "https://agent.example.com/a2a/v1"


def test_version_0_3_is_spoken_too(wire: Wire) -> None:
    task = called(wire.old, "SendMessage", said_before(), ALICE).task
    assert task.status.state == old_pb2.TASK_STATE_COMPLETED
    data, text = task.artifacts[0].parts
    assert json_format.MessageToDict(data.data.data)["correlationId"] == task.id
    assert "Allowed" in text.text
    events = called(wire.old, "SendStreamingMessage", said_before(), ALICE)
    assert [event.WhichOneof("payload") for event in events] == ["task", "artifact_update", "status_update"]
    assert events[2].status_update.final
    name = f"tasks/{task.id}"
    assert called(wire.old, "GetTask", old_pb2.GetTaskRequest(name=name), ALICE).id == task.id
    found = failed(wire.old, "CancelTask", old_pb2.CancelTaskRequest(name=name), ALICE)
    assert (found.code, found.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TASK_NOT_CANCELABLE")
    found = failed(wire.old, "TaskSubscription", old_pb2.TaskSubscriptionRequest(name=name), ALICE)
    assert (found.code, found.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "UNSUPPORTED_OPERATION")


@pytest.mark.parametrize("rpc", RPCS)
@pytest.mark.parametrize("body", [b"", b"\xff\xff"], ids=["empty", "no message"])
@pytest.mark.parametrize("version", [[], [V1], [("a2a-version", "7.0")]], ids=["none", "1.0", "unknown"])
def test_strangers_learn_only_that_they_are_strangers(
    wire: Wire, rpc: MethodDescriptor, body: bytes, version: list[tuple[str, str]]
) -> None:
    found = failure(lambda: sent(wire.channel, rpc, body, *version))
    assert found.code is grpc.StatusCode.UNAUTHENTICATED
    assert (found.domain, found.reason) == ("cstp", "AUTHENTICATION_REQUIRED")
    assert not found.fields


@pytest.mark.parametrize("rpc", RPCS)
def test_bytes_that_are_no_message_are_invalid(wire: Wire, rpc: MethodDescriptor) -> None:
    version = [V1] if rpc.containing_service is CURRENT else []
    found = failure(lambda: sent(wire.channel, rpc, b"\xff\xff", ALICE, *version))
    assert found.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (found.domain, found.reason) == ("a2a-protocol.org", "INVALID_PARAMS")


def test_a_message_beyond_the_limit_is_refused(wire: Wire) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        called(wire.current, "SendMessage", said("x" * 250_000), V1, ALICE)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("own", ["1.0", "0.3"])
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([], "0.3"),
        ([""], "0.3"),
        (["0.3"], "0.3"),
        (["0.3.0"], "0.3"),
        (["1.0"], "1.0"),
        (["1.0.5"], "1.0"),
        (["0.2"], None),
        (["2.0"], None),
        (["one"], None),
        (["1.0", "0.3"], None),
    ],
)
def test_each_service_takes_its_own_version(wire: Wire, own: str, given: list[str], meant: str | None) -> None:
    versions = [("a2a-version", version) for version in given]
    if own == "1.0":
        found = failed(wire.current, "GetTask", a2a_pb2.GetTaskRequest(id="t"), ALICE, *versions)
    else:
        found = failed(wire.old, "GetTask", old_pb2.GetTaskRequest(name="tasks/t"), ALICE, *versions)
    if own == meant:
        assert (found.code, found.reason) == (grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND")
    else:
        assert (found.code, found.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "VERSION_NOT_SUPPORTED")
        assert "A2A-Version" in found.message
        assert own in found.message


def test_the_task_of_another_does_not_exist(wire: Wire) -> None:
    for id_ in (task_of(wire).id, "no-such-task"):
        for rpc, request in (
            ("GetTask", a2a_pb2.GetTaskRequest(id=id_)),
            ("CancelTask", a2a_pb2.CancelTaskRequest(id=id_)),
            ("SubscribeToTask", a2a_pb2.SubscribeToTaskRequest(id=id_)),
        ):
            found = failed(wire.current, rpc, request, V1, BOB)
            assert (found.code, found.reason) == (grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND")
        for rpc, old_request in (
            ("GetTask", old_pb2.GetTaskRequest(name=f"tasks/{id_}")),
            ("CancelTask", old_pb2.CancelTaskRequest(name=f"tasks/{id_}")),
            ("TaskSubscription", old_pb2.TaskSubscriptionRequest(name=f"tasks/{id_}")),
        ):
            found = failed(wire.old, rpc, old_request, BOB)
            assert (found.code, found.reason) == (grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND")
            # By this, clients of 0.3 know which error it is.
            assert found.message.startswith("TaskNotFoundError: ")
    assert not called(wire.current, "ListTasks", a2a_pb2.ListTasksRequest(), V1, BOB).tasks


@pytest.mark.parametrize("name", ["", "t", "tasks/", "tasks/x/y", "tasks/x/", "/tasks/x"])
def test_a_name_that_is_none_of_a_task_is_invalid(wire: Wire, name: str) -> None:
    for rpc, request, field in (
        ("GetTask", old_pb2.GetTaskRequest(name=name), "name"),
        ("CancelTask", old_pb2.CancelTaskRequest(name=name), "name"),
        ("TaskSubscription", old_pb2.TaskSubscriptionRequest(name=name), "name"),
        ("CreateTaskPushNotificationConfig", old_pb2.CreateTaskPushNotificationConfigRequest(parent=name), "parent"),
        ("ListTaskPushNotificationConfig", old_pb2.ListTaskPushNotificationConfigRequest(parent=name), "parent"),
        ("GetTaskPushNotificationConfig", old_pb2.GetTaskPushNotificationConfigRequest(name=name), "name"),
        ("DeleteTaskPushNotificationConfig", old_pb2.DeleteTaskPushNotificationConfigRequest(name=name), "name"),
    ):
        found = failed(wire.old, rpc, request, ALICE)
        assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMS"), rpc
        assert found.fields == (field,)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({}, "INVALID_PARAMS"),
        ({"file": {"fileWithBytes": "/w=="}}, "CONTENT_TYPE_NOT_SUPPORTED"),
        ({"file": {"fileWithUri": "http://localhost/x"}}, "CONTENT_TYPE_NOT_SUPPORTED"),
        ({"data": {"data": {}}, "metadata": {"data_part_compat": True}}, "INVALID_PARAMS"),
    ],
)
def test_a_part_that_cannot_be_understood_is_invalid(wire: Wire, part: dict[str, Any], reason: str) -> None:
    request = said_before(json_format.ParseDict(part, old_pb2.Part()))
    for rpc in ("SendMessage", "SendStreamingMessage"):
        found = failed(wire.old, rpc, request, ALICE)
        assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)


@pytest.mark.parametrize("rpc", ["SendMessage", "SendStreamingMessage"])
def test_a_message_of_endless_parts_is_invalid(wire: Wire, rpc: str) -> None:
    current = said("Deploy")
    current.message.parts.extend([a2a_pb2.Part(text="x")] * MAX_ITEMS)
    old = said_before(*[old_pb2.Part(text="x")] * (MAX_ITEMS + 1))
    for found in (failed(wire.current, rpc, current, V1, ALICE), failed(wire.old, rpc, old, ALICE)):
        assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMS")
        assert len(found.fields) == 1


def test_a_number_that_json_lacks_is_invalid_in_0_3(wire: Wire) -> None:
    request = said_before()
    request.metadata.fields["x"].number_value = float("nan")
    found = failed(wire.old, "SendMessage", request, ALICE)
    assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMS")


@pytest.mark.parametrize(
    ("keys", "echoed"),
    [
        ({}, set()),
        ({"a2a-extensions": "urn:other"}, set()),
        ({"a2a-extensions": EXTENSION}, {"a2a-extensions"}),
        ({"a2a-extensions": f"urn:other, {EXTENSION}"}, {"a2a-extensions"}),
        ({"x-a2a-extensions": EXTENSION}, {"a2a-extensions", "x-a2a-extensions"}),
    ],
)
def test_an_activated_extension_is_echoed(wire: Wire, keys: dict[str, str], echoed: set[str]) -> None:
    request = a2a_pb2.ListTasksRequest()
    _, call = wire.current.ListTasks.with_call(request, metadata=(V1, ALICE, *keys.items()), timeout=TIMEOUT)
    found = {key: value for key, value in call.initial_metadata() if key.endswith("extensions")}
    assert found == dict.fromkeys(echoed, EXTENSION)
    stream = wire.old.SendStreamingMessage(said_before(), metadata=(ALICE, *keys.items()), timeout=TIMEOUT)
    assert {key for key, _ in stream.initial_metadata() if key.endswith("extensions")} == echoed
    assert len(list(stream)) == 3


def test_an_extension_that_is_required_is_asked_for(tmp_path: Path) -> None:
    wanted = settings(tmp_path, a2a={"require_extension": True})
    with running(wanted) as app, peering(wanted, app.target) as found, wired(found.grpc_target) as wire:
        refused = failed(wire.current, "SendMessage", said(INTENT), V1, ALICE)
        assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "EXTENSION_SUPPORT_REQUIRED")
        assert task_of(wire, V1, ALICE, ("a2a-extensions", EXTENSION)).status.state == COMPLETED


@pytest.mark.parametrize(("given", "kept"), [("r-1", True), ("no good", False), ("x" * 129, False)])
def test_the_request_id_of_the_caller_is_kept_where_it_is_well_formed(wire: Wire, given: str, kept: bool) -> None:
    metadata = (V1, ALICE, ("x-request-id", given))
    found = failed(wire.current, "GetTask", a2a_pb2.GetTaskRequest(id="t"), *metadata)
    assert (found.request_id == given) is kept
    _, call = wire.current.ListTasks.with_call(a2a_pb2.ListTasksRequest(), metadata=metadata, timeout=TIMEOUT)
    answered = dict(call.trailing_metadata())["x-request-id"]
    assert (answered == given) is kept


def test_the_server_gets_what_identifies_and_traces_a_call(core: Scripted, target: str) -> None:
    told = {"authorization": "Bearer a", "traceparent": "00-1", "tracestate": "a=b", "x-request-id": "r-1"}
    with peering(without_agents(), target) as found, wired(found.grpc_target) as wire:
        task_of(wire, V1, *told.items(), ("x-other", "x"))
        assert {seen.method for seen in core.seen} == {"cstp.findTask", "cstp.announceIntent", "cstp.saveTask"}
        for seen in core.seen:
            assert {key: value for key, value in seen.metadata.items() if key in (*told, "x-other")} == told
        core.seen.clear()
        task_of(wire, V1, ("tracestate", "x" * 1025))
        assert core.seen
        assert not [seen for seen in core.seen if {"authorization", "tracestate"} & set(seen.metadata)]


def test_what_nobody_foresaw_tells_nothing(core: Scripted, target: str, caplog: pytest.LogCaptureFixture) -> None:
    content = a2a_pb2.Task(id="t", context_id="secret").SerializeToString()
    broken = tasks_pb2.Task(id="t", context_id="secret", state=tasks_pb2.TASK_STATE_UNSPECIFIED, content=content)
    core.plays["cstp.getTask"] = lambda request, context: tasks_pb2.GetTaskResponse(task=broken)
    with peering(without_agents(), target) as found, wired(found.grpc_target) as wire:
        for stub, rpc, request in (
            (wire.current, "GetTask", a2a_pb2.GetTaskRequest(id="t")),
            (wire.current, "SubscribeToTask", a2a_pb2.SubscribeToTaskRequest(id="t")),
            (wire.old, "GetTask", old_pb2.GetTaskRequest(name="tasks/t")),
        ):
            answer = failed(stub, rpc, request, *([V1] if stub is wire.current else []))
            assert (answer.code, answer.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL_ERROR")
            assert answer.message.endswith(
                "Something unforeseen happened; the server's log tells more under the request id"
            )
            assert "secret" not in answer.message
            assert f"{answer.request_id} {rpc} failed in the bridge" in caplog.text


def test_errors_are_cut_to_what_clients_take() -> None:
    long = invalid_params("ä" * 50_000, *(FieldViolation(f"field{number}", "is wrong") for number in range(5000)))
    status = truncate_status(grpc_error(long, "r-1"))
    assert len(quote(status.message)) + len(b64encode(status.SerializeToString())) < 8192
    assert status.message.startswith("ää")
    assert status.message.endswith("…")
    (only,) = status.details
    info = error_details_pb2.ErrorInfo()
    assert only.Unpack(info)
    assert info.metadata["requestId"] == "r-1"
    short = grpc_error(invalid_params("x", FieldViolation("field", "is wrong")), "r-1")
    assert truncate_status(grpc_error(invalid_params("x", FieldViolation("field", "is wrong")), "r-1")) == short


def test_health_and_reflection_are_open(wire: Wire) -> None:
    names = [CURRENT.full_name, OLD.full_name]
    health = health_pb2_grpc.HealthStub(wire.channel)
    for name in ("", *names):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    ask = reflection_pb2.ServerReflectionRequest
    stub = reflection_pb2_grpc.ServerReflectionStub(wire.channel)
    methods = [method.full_name for service in (CURRENT, OLD) for method in service.methods]
    asked = [ask(list_services=""), *(ask(file_containing_symbol=name) for name in (*names, *methods))]
    listed, *files = stub.ServerReflectionInfo(iter(asked), timeout=TIMEOUT)
    shown = {service.name for service in listed.list_services_response.service}
    versions = {"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}
    assert shown == {*names, "grpc.health.v1.Health", *versions}
    assert all(file.file_descriptor_response.file_descriptor_proto for file in files)
    current = wire.channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ask.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    assert list(current(iter(asked), timeout=TIMEOUT)) == [listed, *files]


def test_strangers_cannot_hold_every_stream(core: Scripted, target: str) -> None:
    with peering(without_agents(), target) as found, wired(found.grpc_target) as wire:
        watched: list[Any] = []

        def watch() -> None:
            watched.append(health_pb2_grpc.HealthStub(wire.channel).Watch(health_pb2.HealthCheckRequest()))
            next(watched[-1])

        def watch_on() -> None:
            for _ in range(1000):
                watch()

        with pytest.raises(grpc.RpcError) as caught:
            watch_on()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        reflected = reflection_pb2_grpc.ServerReflectionStub(wire.channel).ServerReflectionInfo(asked)
        with pytest.raises(grpc.RpcError) as caught:
            next(reflected)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert task_of(wire, V1).status.state == COMPLETED

        def free_again() -> bool:
            try:
                watch()
            except grpc.RpcError:
                return False
            return True

        watched[0].cancel()
        wait_until(free_again, "a place is free again", TIMEOUT)
        for stream in watched:
            stream.cancel()


def test_a_stream_may_end_before_the_bridge_does(work: Work, target: str) -> None:
    with ThreadPoolExecutor(1) as pool, ExitStack() as opened:
        found = opened.enter_context(peering(without_agents(), target))
        with wired(found.grpc_target) as wire:
            events = wire.current.SendStreamingMessage(said(INTENT), metadata=(V1,), timeout=TIMEOUT)
            assert next(events).task.status.state == WORKING
            health = health_pb2_grpc.HealthStub(wire.channel)
            watched = health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
            assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
            closing = pool.submit(opened.close)
            assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watched.cancel()
            work.go_on.set()
            assert [event.WhichOneof("payload") for event in events] == ["artifact_update", "status_update"]
            closing.result(TIMEOUT)


def test_a_stream_that_goes_on_and_on_is_broken_off(work: Work, target: str) -> None:
    with ThreadPoolExecutor(1) as pool, ExitStack() as opened:
        found = opened.enter_context(peering(without_agents(drain_seconds=0), target))
        with wired(found.grpc_target) as wire:
            events = wire.current.SendStreamingMessage(said(INTENT), metadata=(V1,), timeout=TIMEOUT)
            assert next(events).task.status.state == WORKING
            closing = pool.submit(opened.close)
            with pytest.raises(grpc.RpcError) as caught:
                next(events)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            closing.result(TIMEOUT)


def test_work_that_nobody_waits_for_is_done_before_the_bridge_ends(work: Work, core: Scripted, target: str) -> None:
    with ThreadPoolExecutor(1) as pool, ExitStack() as opened:
        found = opened.enter_context(peering(without_agents(), target))
        with wired(found.grpc_target) as wire:
            request = said(INTENT, configuration=a2a_pb2.SendMessageConfiguration(return_immediately=True))
            assert called(wire.current, "SendMessage", request, V1).task.status.state == SUBMITTED
            assert work.begun.wait(TIMEOUT)
            closing = pool.submit(opened.close)
            channel_ended(wire.channel)
            work.go_on.set()
            closing.result(TIMEOUT)
    saved = [seen.request for seen in core.seen if seen.method == "cstp.saveTask"]
    states = [tasks_pb2.TaskState.Name(request.task.state) for request in saved]
    assert states == ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]


def channel_ended(channel: grpc.Channel) -> None:
    """Wait until the other end of a channel listens no more."""
    states: list[grpc.ChannelConnectivity] = []
    channel.subscribe(states.append)
    lost = {grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.TRANSIENT_FAILURE}
    wait_until(lambda: bool(lost & set(states)), "the connection is lost", TIMEOUT)
