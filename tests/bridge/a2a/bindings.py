"""One way to send messages and to cancel tasks over every binding of A2A, in both versions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb2
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc as old_grpc
from a2a.types import a2a_pb2, a2a_pb2_grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from tests.bridge.a2a.raw import Raw, info_of
from tests.bridge.support import Client
from tests.harness import TIMEOUT, TOKENS, Peers, decoded

Json = dict[str, Any]


@dataclass(frozen=True)
class Answered:
    """A task as every binding shows it in the words of 1.0, or the reason of an error."""

    task: Json = field(default_factory=dict)
    reason: str = ""

    @property
    def state(self) -> str:
        """The state of the task without its prefix, in small letters with hyphens as 0.3 writes it."""
        state: str = self.task["status"]["state"]
        return state.removeprefix("TASK_STATE_").lower().replace("_", "-").replace("cancelled", "canceled")


class Binding:
    """Sends messages as an agent."""

    def __init__(self, peers: Peers) -> None:
        host, _, port = peers.url.removeprefix("http://").rpartition(":")
        self.raw = Raw(Client(host, int(port)))
        self.target = peers.grpc_target

    def send(
        self, *parts: Any, at_once: bool = False, who: str = "alice", tenant: str = "", **members: Any
    ) -> Answered:
        """Send a message of text parts and data parts with a message id of its own unless one is given."""
        raise NotImplementedError

    def cancel(self, task_id: str, who: str = "alice", tenant: str = "") -> Answered:
        """Cancel a task."""
        raise NotImplementedError

    def get(self, task_id: str, who: str = "alice", tenant: str = "") -> Answered:
        """Read a task."""
        raise NotImplementedError


def message_of(parts: tuple[Any, ...], members: Json) -> Json:
    """Return a message in the JSON of 1.0."""
    content = [{"text": part} if isinstance(part, str) else {"data": part} for part in parts]
    return {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": content, **members}


def old_message_of(parts: tuple[Any, ...], members: Json) -> Json:
    """Return a message in the JSON of 0.3."""
    content = [{"kind": "text", "text": p} if isinstance(p, str) else {"kind": "data", "data": p} for p in parts]
    return {"kind": "message", "messageId": str(uuid.uuid4()), "role": "user", "parts": content, **members}


def with_tenant(params: Json, tenant: str) -> Json:
    """Return params that name a tenant, if there is one to name."""
    return {**params, "tenant": tenant} if tenant else params


class JsonRpc(Binding):
    """A2A 1.0 over JSON-RPC."""

    def send(
        self, *parts: Any, at_once: bool = False, who: str = "alice", tenant: str = "", **members: Any
    ) -> Answered:
        params = {"message": message_of(parts, members), "configuration": {"returnImmediately": at_once}}
        return self._called("SendMessage", with_tenant(params, tenant), who)

    def cancel(self, task_id: str, who: str = "alice", tenant: str = "") -> Answered:
        return self._called("CancelTask", with_tenant({"id": task_id}, tenant), who)

    def get(self, task_id: str, who: str = "alice", tenant: str = "") -> Answered:
        return self._called("GetTask", with_tenant({"id": task_id}, tenant), who)

    def _called(self, method: str, params: Json, who: str) -> Answered:
        answer = self.raw.call(method, params, who=who)
        if "error" in answer:
            return Answered(reason=info_of(answer["error"]["data"])[1])
        return Answered(answer["result"].get("task", answer["result"]))


class OldJsonRpc(Binding):
    """A2A 0.3 over JSON-RPC."""

    def send(
        self, *parts: Any, at_once: bool = False, who: str = "alice", tenant: str = "", **members: Any
    ) -> Answered:
        params = {"message": old_message_of(parts, members), "configuration": {"blocking": not at_once}}
        return self._called("message/send", with_tenant(params, tenant), who)

    def cancel(self, task_id: str, who: str = "alice", tenant: str = "") -> Answered:
        return self._called("tasks/cancel", with_tenant({"id": task_id}, tenant), who)

    def get(self, task_id: str, who: str = "alice", tenant: str = "") -> Answered:
        return self._called("tasks/get", with_tenant({"id": task_id}, tenant), who)

    def _called(self, method: str, params: Json, who: str) -> Answered:
        answer = self.raw.call(method, params, who=who, version="0.3")
        if "error" in answer:
            return Answered(reason=info_of(answer["error"]["data"])[1])
        return Answered(answer["result"])


class HttpJson(Binding):
    """A2A 1.0 over HTTP+JSON; a tenant is named by the path."""

    def send(
        self, *parts: Any, at_once: bool = False, who: str = "alice", tenant: str = "", **members: Any
    ) -> Answered:
        body = {"message": message_of(parts, members), "configuration": {"returnImmediately": at_once}}
        return self._asked("POST", "/message:send", who, tenant, body)

    def cancel(self, task_id: str, who: str = "alice", tenant: str = "") -> Answered:
        return self._asked("POST", f"/tasks/{task_id}:cancel", who, tenant)

    def get(self, task_id: str, who: str = "alice", tenant: str = "") -> Answered:
        return self._asked("GET", f"/tasks/{task_id}", who, tenant)

    def _asked(self, method: str, path: str, who: str, tenant: str, body: Json | None = None) -> Answered:
        below = f"/{tenant}" if tenant else ""
        answer = self.raw.send(method, f"/a2a/v1{below}{path}", body, who=who).json
        if "error" in answer:
            return Answered(reason=info_of(answer["error"]["details"])[1])
        return Answered(answer.get("task", answer))


class Grpc(Binding):
    """A2A 1.0 over gRPC."""

    def send(
        self, *parts: Any, at_once: bool = False, who: str = "alice", tenant: str = "", **members: Any
    ) -> Answered:
        params = {"message": message_of(parts, members), "configuration": {"returnImmediately": at_once}}
        request = json_format.ParseDict(with_tenant(params, tenant), a2a_pb2.SendMessageRequest())
        return self._called("SendMessage", request, who)

    def cancel(self, task_id: str, who: str = "alice", tenant: str = "") -> Answered:
        return self._called("CancelTask", a2a_pb2.CancelTaskRequest(id=task_id, tenant=tenant), who)

    def get(self, task_id: str, who: str = "alice", tenant: str = "") -> Answered:
        return self._called("GetTask", a2a_pb2.GetTaskRequest(id=task_id, tenant=tenant), who)

    def _called(self, rpc: str, request: Message, who: str) -> Answered:
        return call(self.target, a2a_pb2_grpc.A2AServiceStub, rpc, request, who, {"a2a-version": "1.0"})


class OldGrpc(Binding):
    """A2A 0.3 over gRPC, which names no tenants."""

    def send(
        self, *parts: Any, at_once: bool = False, who: str = "alice", tenant: str = "", **members: Any
    ) -> Answered:
        content = [{"text": p} if isinstance(p, str) else {"data": {"data": p}} for p in parts]
        message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "content": content, **members}
        request = {"request": message, "configuration": {"blocking": not at_once}}
        return self._called("SendMessage", json_format.ParseDict(request, old_pb2.SendMessageRequest()), who)

    def cancel(self, task_id: str, who: str = "alice", tenant: str = "") -> Answered:
        return self._called("CancelTask", old_pb2.CancelTaskRequest(name=f"tasks/{task_id}"), who)

    def get(self, task_id: str, who: str = "alice", tenant: str = "") -> Answered:
        return self._called("GetTask", old_pb2.GetTaskRequest(name=f"tasks/{task_id}"), who)

    def _called(self, rpc: str, request: Message, who: str) -> Answered:
        return call(self.target, old_grpc.A2AServiceStub, rpc, request, who, {})


def call(
    target: str, stub: Callable[[grpc.Channel], Any], rpc: str, request: Message, who: str, said: Mapping[str, str]
) -> Answered:
    """Return what a call over gRPC came to."""
    metadata = (("authorization", f"Bearer {TOKENS[who]}"), *said.items())
    with grpc.insecure_channel(target) as channel:
        try:
            answer = getattr(stub(channel), rpc)(request, metadata=metadata, timeout=TIMEOUT)
        except grpc.RpcError as error:
            return Answered(reason=decoded(error).reason or "")
    shown = json_format.MessageToDict(answer)
    return Answered(shown.get("task", shown))


BINDINGS = (JsonRpc, OldJsonRpc, HttpJson, Grpc, OldGrpc)
