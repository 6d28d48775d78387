"""A tenant that a request names is that of its token, or the request is refused, over every binding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2, a2a_pb2_grpc
from google.protobuf.message import Message

from tests.bridge.a2a.bindings import BINDINGS, Binding, HttpJson, JsonRpc, OldGrpc, OldJsonRpc
from tests.bridge.a2a.raw import call, info_of, saying, saying_in_0_3
from tests.harness import TIMEOUT, TOKENS, Peers, decoded, peering, running, settings

OWN = {"alice": "default", "carol": "other"}
NAMING = [kind for kind in BINDINGS if kind is not OldGrpc]

SENDING = a2a_pb2.SendMessageRequest(message={"message_id": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]})
OPERATIONS: list[tuple[str, Message]] = [
    ("SendMessage", SENDING),
    ("SendStreamingMessage", SENDING),
    ("GetTask", a2a_pb2.GetTaskRequest(id="t")),
    ("ListTasks", a2a_pb2.ListTasksRequest()),
    ("CancelTask", a2a_pb2.CancelTaskRequest(id="t")),
    ("SubscribeToTask", a2a_pb2.SubscribeToTaskRequest(id="t")),
    ("CreateTaskPushNotificationConfig", a2a_pb2.TaskPushNotificationConfig(task_id="t", url="https://a.example.com")),
    ("GetTaskPushNotificationConfig", a2a_pb2.GetTaskPushNotificationConfigRequest(task_id="t", id="c")),
    ("ListTaskPushNotificationConfigs", a2a_pb2.ListTaskPushNotificationConfigsRequest(task_id="t")),
    ("DeleteTaskPushNotificationConfig", a2a_pb2.DeleteTaskPushNotificationConfigRequest(task_id="t", id="c")),
    ("GetExtendedAgentCard", a2a_pb2.GetExtendedAgentCardRequest()),
]
"""Every operation of 1.0."""
PATHS = [
    ("POST", "/message:send", saying("x")),
    ("POST", "/message:stream", saying("x")),
    ("GET", "/tasks/t", None),
    ("GET", "/tasks", None),
    ("POST", "/tasks/t:cancel", None),
    ("POST", "/tasks/t:subscribe", None),
    ("GET", "/tasks/t:subscribe", None),
    ("POST", "/tasks/t/pushNotificationConfigs", {"url": "https://a.example.com"}),
    ("GET", "/tasks/t/pushNotificationConfigs", None),
    ("GET", "/tasks/t/pushNotificationConfigs/c", None),
    ("DELETE", "/tasks/t/pushNotificationConfigs/c", None),
    ("GET", "/extendedAgentCard", None),
]
OLD_METHODS: dict[str, Any] = {
    "message/send": saying_in_0_3("x"),
    "message/stream": saying_in_0_3("x"),
    "tasks/get": {"id": "t"},
    "tasks/cancel": {"id": "t"},
    "tasks/resubscribe": {"id": "t"},
    "tasks/pushNotificationConfig/list": {"id": "t"},
}


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    wanted = settings(tmp_path_factory.mktemp("tenants"))
    with running(wanted) as app, peering(wanted, app.target) as found:
        yield found


@pytest.mark.parametrize("kind", NAMING)
@pytest.mark.parametrize("who", OWN)
def test_the_tenant_of_the_token_may_be_named(peers: Peers, kind: type[Binding], who: str) -> None:
    binding = kind(peers)
    task = binding.send("Deploy", who=who, tenant=OWN[who]).task
    assert binding.get(task["id"], who=who, tenant=OWN[who]).task == task == binding.get(task["id"], who=who).task
    assert binding.cancel(task["id"], who=who, tenant=OWN[who]).reason == "TASK_NOT_CANCELABLE"


@pytest.mark.parametrize("kind", NAMING)
@pytest.mark.parametrize("who", OWN)
@pytest.mark.parametrize("tenant", ["other", "default", "nobody", "Default"])
def test_another_tenant_is_refused(peers: Peers, kind: type[Binding], who: str, tenant: str) -> None:
    if tenant == OWN[who]:
        return
    binding = kind(peers)
    assert binding.send("Deploy", who=who, tenant=tenant).reason == "PERMISSION_DENIED"
    assert binding.send("Deploy", who=who, tenant=tenant, at_once=True).reason == "PERMISSION_DENIED"
    task = binding.send("Deploy", who=who).task
    assert binding.get(task["id"], who=who, tenant=tenant).reason == "PERMISSION_DENIED"
    assert binding.cancel(task["id"], who=who, tenant=tenant).reason == "PERMISSION_DENIED"


@pytest.mark.parametrize(("rpc", "request_"), OPERATIONS)
def test_every_operation_over_grpc_looks_at_the_tenant(peers: Peers, rpc: str, request_: Any) -> None:
    naming = type(request_)()
    naming.CopyFrom(request_)
    naming.tenant = "nobody"
    metadata = (("authorization", f"Bearer {TOKENS['alice']}"), ("a2a-version", "1.0"))
    with grpc.insecure_channel(peers.grpc_target) as channel:
        invoke = getattr(a2a_pb2_grpc.A2AServiceStub(channel), rpc)
        with pytest.raises(grpc.RpcError) as caught:
            list(invoke(naming, metadata=metadata, timeout=TIMEOUT))
    assert decoded(caught.value).reason == "PERMISSION_DENIED"


@pytest.mark.parametrize(("method", "path", "body"), PATHS)
def test_every_path_looks_at_the_tenant(peers: Peers, method: str, path: str, body: Any) -> None:
    raw = HttpJson(peers).raw
    answer = raw.send(method, f"/a2a/v1/nobody{path}", body)
    assert (answer.status, info_of(answer.json["error"]["details"])[1]) == (403, "PERMISSION_DENIED")
    own = raw.send(method, f"/a2a/v1/default{path}", body)
    plain = raw.send(method, f"/a2a/v1{path}", body)
    assert own.status == plain.status != 403
    if method in ("GET", "DELETE"):
        assert raw.send(method, f"/a2a/v1{path}?tenant=nobody").status == 403


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_tenant_beside_the_path_is_looked_at_too(peers: Peers, method: str) -> None:
    raw = HttpJson(peers).raw
    path, body = (
        ("/tasks?tenant=nobody", None) if method == "GET" else ("/message:send", {**saying("x"), "tenant": "nobody"})
    )
    for prefix in ("", "/default"):
        assert raw.send(method, f"/a2a/v1{prefix}{path}", body).status == 403


@pytest.mark.parametrize("method", OLD_METHODS)
def test_every_operation_of_0_3_looks_at_the_tenant(peers: Peers, method: str) -> None:
    raw = OldJsonRpc(peers).raw
    error = raw.call(method, {**OLD_METHODS[method], "tenant": "nobody"}, version="0.3")["error"]
    assert info_of(error["data"])[1] == "PERMISSION_DENIED"
    wrong = raw.post(call(method, {**OLD_METHODS[method], "tenant": 1}), version="0.3")
    assert b"-32602" in wrong.body
    assert b"tenant: must be a string" in wrong.body


def test_a_batch_has_the_tenant_of_each_call(peers: Peers) -> None:
    raw = OldJsonRpc(peers).raw
    calls = [
        call("message/send", {**saying_in_0_3("x"), "tenant": "nobody"}),
        call("message/send", saying_in_0_3("x"), id=2),
    ]
    first, second = raw.post(calls, version="0.3").json
    assert "error" in first
    assert second["result"]["status"]["state"] == "completed"


def test_a_stranger_learns_nothing_of_tenants(peers: Peers) -> None:
    raw = JsonRpc(peers).raw
    for tenant in ("default", "nobody"):
        answer = raw.post(
            {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"tenant": tenant}}, who="stranger"
        )
        assert answer.status == 401
