"""One way to call the operations of A2A over every binding, in both versions: params and results in the JSON of 1.0."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

import grpc
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb2
from a2a.types import a2a_pb2
from google.protobuf import json_format, message_factory
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.bridge.a2a import v0_3_shapes
from tests.bridge.a2a.raw import call, raw_client
from tests.harness import TIMEOUT, TOKENS, Peers

Json = dict[str, Any]

STREAMING = ("SendStreamingMessage", "SubscribeToTask")
OPERATIONS = tuple(rpc.name for rpc in a2a_pb2.DESCRIPTOR.services_by_name["A2AService"].methods)
"""Every operation of 1.0, by which both versions are called here."""
SERIALIZE = methodcaller("SerializeToString")
ERROR_INFO, BAD_REQUEST, RETRY_INFO = (
    f"type.googleapis.com/{kind.DESCRIPTOR.full_name}"
    for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo)
)


@dataclass(frozen=True)
class Refusal:
    """Why a call failed."""

    code: int | str
    """As the binding has it: a code of JSON-RPC, a status of HTTP, or the name of one of gRPC."""
    message: str
    domain: str
    reason: str
    metadata: Mapping[str, str]
    fields: tuple[str, ...] = ()
    retry_delay: str = ""

    @classmethod
    def read(cls, code: int | str, message: str, details: list[Json]) -> Self:
        """Read the details of an error, of which its domain and reason come first."""
        info = details[0]
        assert info["@type"] == ERROR_INFO
        assert info["metadata"]["requestId"]
        bad = [each for detail in details if detail["@type"] == BAD_REQUEST for each in detail["fieldViolations"]]
        assert all(violation["description"] for violation in bad)
        delays = [detail["retryDelay"] for detail in details if detail["@type"] == RETRY_INFO]
        fields = tuple(violation.get("field", "") for violation in bad)
        return cls(code, message, info["domain"], info["reason"], info["metadata"], fields, "".join(delays))


@dataclass(frozen=True)
class Reply:
    """What a call came to: a result or a refusal, of an operation that streams perhaps events."""

    headers: Mapping[str, str]
    """By their names in small letters; of gRPC the initial and the trailing metadata, of a stream once it has ended."""
    result: Json = field(default_factory=dict)
    refusal: Refusal | None = None
    events: tuple[Json, ...] = ()

    @property
    def reason(self) -> str:
        """The reason of the refusal, empty if there is none."""
        return self.refusal.reason if self.refusal else ""

    @property
    def task(self) -> Json:
        """The task that answers; empty for a refusal."""
        found: Json = self.result.get("task", self.result)
        return found

    @property
    def state(self) -> str:
        """The state of the task, such as `input-required`."""
        return state_of(self.task)


def state_of(task: Json) -> str:
    """Return the state of a task or of its update, such as `input-required`."""
    name: str = task["status"]["state"]
    return name.removeprefix("TASK_STATE_").lower().replace("_", "-")


@dataclass
class EventStream:
    """A stream that is read event by event; one that never began has a refusal instead."""

    headers: Mapping[str, str]
    events: Iterator[Json] = field(default_factory=lambda: iter(()))
    refusal: Refusal | None = None

    def __iter__(self) -> Iterator[Json]:
        return self.events

    def next(self) -> Json:
        """Return the next event."""
        return next(self.events)


class BrokenStream(Exception):
    """A stream ended with an error; `refusal` is that."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class Binding(ABC):
    """Calls operations as an agent.

    `who` is an agent of the harness or any token, None for nobody; `headers` are further ones, or metadata of gRPC.
    """

    version: ClassVar[str] = "1.0"
    named_version: ClassVar[str | None] = "1.0"
    """What callers send as `A2A-Version`; clients of 0.3 send none."""
    operations: ClassVar[tuple[str, ...]] = OPERATIONS

    def __init__(self, peers: Peers) -> None:
        self.peers = peers

    @abstractmethod
    def call(
        self, operation: str, params: Json, *, who: str | None = "alice", headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Call an operation that answers once."""

    @abstractmethod
    @contextmanager
    def open_stream(
        self, operation: str, params: Json, *, who: str | None = "alice", headers: Mapping[str, str] | None = None
    ) -> Iterator[EventStream]:
        """Call an operation that streams."""
        yield EventStream({})

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""

    def perform(self, operation: str, params: Json, **caller: Any) -> Reply:
        """Call an operation and read all that it answers, be it once or as a stream."""
        if operation not in STREAMING:
            return self.call(operation, params, **caller)
        with self.open_stream(operation, params, **caller) as stream:
            return Reply(stream.headers, refusal=stream.refusal, events=tuple(stream))

    def send(
        self,
        *parts: Any,
        at_once: bool = False,
        tenant: str = "",
        wanted: Json | None = None,
        who: str = "alice",
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> Reply:
        """Send a message of texts and data; `wanted` is its configuration, `members` are further ones of its own."""
        params = {**sending(*parts, **members), "configuration": {"returnImmediately": at_once, **(wanted or {})}}
        return self.call("SendMessage", with_tenant(params, tenant), who=who, headers=headers)

    def stream(self, *parts: Any, who: str = "alice", **members: Any) -> tuple[Json, ...]:
        """Send a message likewise and return all events."""
        reply = self.perform("SendStreamingMessage", sending(*parts, **members), who=who)
        assert reply.refusal is None
        return reply.events

    def get(self, task_id: str, tenant: str = "", who: str = "alice", **wanted: Any) -> Reply:
        """Read a task."""
        return self.call("GetTask", with_tenant({"id": task_id, **wanted}, tenant), who=who)

    def list_tasks(self, who: str = "alice", **wanted: Any) -> Json:
        """Return a page of tasks."""
        reply = self.call("ListTasks", wanted, who=who)
        assert reply.refusal is None
        return reply.result

    def cancel(self, task_id: str, tenant: str = "", who: str = "alice") -> Reply:
        """Cancel a task."""
        return self.call("CancelTask", with_tenant({"id": task_id}, tenant), who=who)


def part_of(part: Any) -> Json:
    """Return the part of a message that is a text, or data."""
    return {"text": part} if isinstance(part, str) else {"data": part}


def sending(*parts: Any, **members: Any) -> Json:
    """Return the params that send a message of texts and data, with an id of its own unless one is given."""
    found = [part_of(part) for part in parts]
    return {"message": {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": found, **members}}


def with_tenant(params: Json, tenant: str) -> Json:
    """Return params that name a tenant, if there is one to name."""
    return {**params, "tenant": tenant} if tenant else params


class HttpBinding(Binding):
    """A binding over HTTP."""

    def __init__(self, peers: Peers) -> None:
        super().__init__(peers)
        self.raw = raw_client(peers)

    def close(self) -> None:
        """Do nothing: each request has a connection of its own."""

    @abstractmethod
    def request_of(self, operation: str, params: Json) -> tuple[str, str, Any]:
        """Return the method, the path and the body that call an operation."""

    @abstractmethod
    def result_in(self, operation: str, status: int, content: Any) -> Json | Refusal:
        """Return the result in the JSON of an answer."""

    def event_in(self, content: Any) -> Json | Refusal:
        """Return the event in its JSON."""
        return self.result_in("", 200, content)

    def call(
        self, operation: str, params: Json, *, who: str | None = "alice", headers: Mapping[str, str] | None = None
    ) -> Reply:
        method, path, body = self.request_of(operation, params)
        answer = self.raw.send(method, path, body, who=who, version=self.named_version, headers=headers)
        found = self.result_in(operation, answer.status, answer.json)
        told = {name.lower(): value for name, value in answer.headers.items()}
        return Reply(told, refusal=found) if isinstance(found, Refusal) else Reply(told, found)

    @contextmanager
    def open_stream(
        self, operation: str, params: Json, *, who: str | None = "alice", headers: Mapping[str, str] | None = None
    ) -> Iterator[EventStream]:
        method, path, body = self.request_of(operation, params)
        with self.raw.streaming(body, path, self.named_version, method=method, who=who, headers=headers) as stream:
            told = {name.lower(): value for name, value in stream.response.getheaders()}
            if stream.response.headers.get_content_type() != "text/event-stream":
                refusal = self.result_in(operation, stream.response.status, stream.whole())
                assert isinstance(refusal, Refusal)
                yield EventStream(told, refusal=refusal)
                return
            first = self.event_in(stream.next())
            if isinstance(first, Refusal):
                assert stream.next() is None
                yield EventStream(told, refusal=first)
            else:
                yield EventStream(told, self._events(first, stream))

    def _events(self, first: Json, stream: Any) -> Iterator[Json]:
        yield first
        while (content := stream.next()) is not None:
            event = self.event_in(content)
            if isinstance(event, Refusal):
                assert stream.next() is None
                raise BrokenStream(event)
            yield event


class JsonRpc(HttpBinding):
    """A2A 1.0 over JSON-RPC."""

    def request_of(self, operation: str, params: Json) -> tuple[str, str, Any]:
        return "POST", "/a2a", call(operation, params)

    def result_in(self, operation: str, status: int, content: Any) -> Json | Refusal:
        assert (content["jsonrpc"], content["id"]) == ("2.0", 1)
        if "error" in content:
            error = content["error"]
            return Refusal.read(error["code"], error["message"], self.details_in(error["data"]))
        found: Json = content["result"]
        return found

    def details_in(self, data: Any) -> Any:
        """Return the details in the `data` of an error."""
        return data


class OldJsonRpc(JsonRpc):
    """A2A 0.3 over JSON-RPC."""

    version = "0.3"
    named_version = None

    def details_in(self, data: Any) -> Any:
        return data["details"]

    METHODS: ClassVar[dict[str, str]] = {
        "SendMessage": "message/send",
        "SendStreamingMessage": "message/stream",
        "GetTask": "tasks/get",
        "CancelTask": "tasks/cancel",
        "SubscribeToTask": "tasks/resubscribe",
        "CreateTaskPushNotificationConfig": "tasks/pushNotificationConfig/set",
        "GetTaskPushNotificationConfig": "tasks/pushNotificationConfig/get",
        "ListTaskPushNotificationConfigs": "tasks/pushNotificationConfig/list",
        "DeleteTaskPushNotificationConfig": "tasks/pushNotificationConfig/delete",
        "GetExtendedAgentCard": "agent/getAuthenticatedExtendedCard",
    }
    operations = tuple(METHODS)

    def request_of(self, operation: str, params: Json) -> tuple[str, str, Any]:
        return "POST", "/a2a", call(self.METHODS[operation], v0_3_shapes.to_json_params(operation, params))

    def result_in(self, operation: str, status: int, content: Any) -> Json | Refusal:
        found = super().result_in(operation, status, content)
        return found if isinstance(found, Refusal) else v0_3_shapes.result_of(operation, found)

    def event_in(self, content: Any) -> Json | Refusal:
        found = super().result_in("", 200, content)
        return found if isinstance(found, Refusal) else v0_3_shapes.event_of(found)


class HttpJson(HttpBinding):
    """A2A 1.0 over HTTP+JSON; a tenant is named by the path."""

    CONFIGS = "/tasks/{taskId}/pushNotificationConfigs"
    PATHS: ClassVar[dict[str, tuple[str, str]]] = {
        "SendMessage": ("POST", "/message:send"),
        "SendStreamingMessage": ("POST", "/message:stream"),
        "GetTask": ("GET", "/tasks/{id}"),
        "ListTasks": ("GET", "/tasks"),
        "CancelTask": ("POST", "/tasks/{id}:cancel"),
        "SubscribeToTask": ("POST", "/tasks/{id}:subscribe"),
        "CreateTaskPushNotificationConfig": ("POST", CONFIGS),
        "GetTaskPushNotificationConfig": ("GET", f"{CONFIGS}/{{id}}"),
        "ListTaskPushNotificationConfigs": ("GET", CONFIGS),
        "DeleteTaskPushNotificationConfig": ("DELETE", f"{CONFIGS}/{{id}}"),
        "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
    }

    def request_of(self, operation: str, params: Json) -> tuple[str, str, Any]:
        method, template = self.PATHS[operation]
        named = {name for name in ("id", "taskId") if f"{{{name}}}" in template}
        below = f"/{params['tenant']}" if "tenant" in params else ""
        path = f"/a2a/v1{below}{template.format(**params)}"
        rest = v0_3_shapes.without(params, "tenant", *named)
        if method == "POST":
            return method, path, rest
        query = {name: str(value).lower() if isinstance(value, bool) else value for name, value in rest.items()}
        return method, f"{path}?{urlencode(query)}" if query else path, None

    def result_in(self, operation: str, status: int, content: Any) -> Json | Refusal:
        if "error" in content:
            error = content["error"]
            assert error["code"] == status or not operation
            return Refusal.read(error["code"], error["message"], error["details"])
        found: Json = content
        return found


class Grpc(Binding):
    """A2A 1.0 over gRPC."""

    service = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]
    rpcs: ClassVar[dict[str, str]] = {name: name for name in OPERATIONS}

    def __init__(self, peers: Peers) -> None:
        super().__init__(peers)
        self.channel = grpc.insecure_channel(peers.grpc_target)

    def close(self) -> None:
        self.channel.close()

    def request_of(self, operation: str, params: Json) -> Json:
        """Return the JSON of the request."""
        return params

    def result_of(self, operation: str, content: Json) -> Json:
        """Return the result that the JSON of a response says."""
        return content

    def call(
        self, operation: str, params: Json, *, who: str | None = "alice", headers: Mapping[str, str] | None = None
    ) -> Reply:
        rpc = self.service.methods_by_name[self.rpcs[operation]]
        invoke = self.channel.unary_unary(self._path(operation), SERIALIZE, self._read(rpc.output_type))
        try:
            answer, ended = invoke.with_call(
                self._request(operation, params), metadata=self._metadata(who, headers), timeout=TIMEOUT
            )
        except grpc.RpcError as error:
            return Reply(metadata_of(error), refusal=refusal_of(error))
        return Reply(metadata_of(ended), self.result_of(operation, json_format.MessageToDict(answer)))

    @contextmanager
    def open_stream(
        self, operation: str, params: Json, *, who: str | None = "alice", headers: Mapping[str, str] | None = None
    ) -> Iterator[EventStream]:
        rpc = self.service.methods_by_name[self.rpcs[operation]]
        invoke = self.channel.unary_stream(self._path(operation), SERIALIZE, self._read(rpc.output_type))
        stream: Any = invoke(self._request(operation, params), metadata=self._metadata(who, headers), timeout=TIMEOUT)
        try:
            try:
                first = next(stream)
            except grpc.RpcError as error:
                yield EventStream(metadata_of(error), refusal=refusal_of(error))
                return
            told = {key: str(value) for key, value in stream.initial_metadata()}
            yield EventStream(told, self._events(first, stream, told))
        finally:
            stream.cancel()

    def event_of(self, content: Json) -> Json:
        """Return the event in its JSON."""
        return content

    def _events(self, first: Message, stream: Any, headers: dict[str, str]) -> Iterator[Json]:
        yield self.event_of(json_format.MessageToDict(first))
        try:
            for event in stream:
                yield self.event_of(json_format.MessageToDict(event))
        except grpc.RpcError as error:
            if rpc_status.from_call(error) is None:
                # The connection is lost, of which nobody could tell more.
                raise
            raise BrokenStream(refusal_of(error)) from error
        headers.update(metadata_of(stream))

    def _path(self, operation: str) -> str:
        return f"/{self.service.full_name}/{self.rpcs[operation]}"

    def _read(self, kind: Any) -> Any:
        return message_factory.GetMessageClass(kind).FromString

    def _request(self, operation: str, params: Json) -> Message:
        kind = message_factory.GetMessageClass(self.service.methods_by_name[self.rpcs[operation]].input_type)
        return json_format.ParseDict(self.request_of(operation, params), kind())

    def _metadata(self, who: str | None, headers: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
        token = {"authorization": f"Bearer {TOKENS.get(who, who)}"} if who else {}
        version = {"a2a-version": self.named_version} if self.named_version else {}
        further = {name.lower(): value for name, value in (headers or {}).items()}
        return tuple({**token, **version, **further}.items())


class OldGrpc(Grpc):
    """A2A 0.3 over gRPC, which names no tenants."""

    version = "0.3"
    named_version = None
    service = old_pb2.DESCRIPTOR.services_by_name["A2AService"]
    rpcs: ClassVar[dict[str, str]] = {
        **{name: name for name in OPERATIONS if name != "ListTasks"},
        "SubscribeToTask": "TaskSubscription",
        "ListTaskPushNotificationConfigs": "ListTaskPushNotificationConfig",
        "GetExtendedAgentCard": "GetAgentCard",
    }
    operations = tuple(rpcs)

    def request_of(self, operation: str, params: Json) -> Json:
        return v0_3_shapes.to_grpc_params(operation, params)

    def result_of(self, operation: str, content: Json) -> Json:
        return v0_3_shapes.result_of(operation, content)

    def event_of(self, content: Json) -> Json:
        return v0_3_shapes.event_of(content)


def metadata_of(call: Any) -> dict[str, str]:
    """Return the metadata that came back for a call, at its beginning and at its end."""
    return {key: str(value) for key, value in (*(call.initial_metadata() or ()), *(call.trailing_metadata() or ()))}


def refusal_of(error: Any) -> Refusal:
    """Return the refusal in the error of a call over gRPC."""
    status = rpc_status.from_call(error)
    assert status is not None, f"no details: {error}"
    details = [json_format.MessageToDict(detail) for detail in status.details]
    return Refusal.read(error.code().name, status.message, details)


BINDINGS = (JsonRpc, OldJsonRpc, HttpJson, Grpc, OldGrpc)
CURRENT = tuple(kind for kind in BINDINGS if kind.version == "1.0")
"""Those of 1.0, which alone list tasks."""


@contextmanager
def connected(kind: type[Binding], peers: Peers) -> Iterator[Binding]:
    """Open a binding for the length of a block."""
    binding = kind(peers)
    try:
        yield binding
    finally:
        binding.close()
