"""One way to configure push notifications over every binding of A2A, in both versions."""

from __future__ import annotations

import uuid
from typing import Any

import grpc
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb2
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc as old_grpc
from a2a.types import a2a_pb2, a2a_pb2_grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from tests.bridge.a2a.bindings import (
    Binding,
    Grpc,
    HttpJson,
    JsonRpc,
    OldGrpc,
    OldJsonRpc,
    message_of,
    old_message_of,
)
from tests.bridge.a2a.raw import info_of
from tests.harness import TIMEOUT, TOKENS, decoded

Json = dict[str, Any]


class Refused(Exception):
    """The bridge answered with an error; the message is its reason."""


class Pushes(Binding):
    """Configures push notifications as an agent; configurations are flat: id, url, token, scheme, credentials."""

    version = "1.0"

    def create(self, task_id: str, config: Json, who: str = "alice") -> Json:
        raise NotImplementedError

    def read(self, task_id: str, config_id: str, who: str = "alice") -> Json:
        raise NotImplementedError

    def list(self, task_id: str, who: str = "alice") -> list[Json]:
        raise NotImplementedError

    def delete(self, task_id: str, config_id: str, who: str = "alice") -> None:
        raise NotImplementedError

    def announce(self, text: str, config: Json, *, at_once: bool = False, **members: Any) -> Json:
        """Send a text with a configuration, and return the task."""
        raise NotImplementedError


def nested(config: Json) -> Json:
    """Return a flat configuration as 1.0 writes it."""
    plain = {name: value for name, value in config.items() if name not in ("scheme", "credentials")}
    authentication = {name: config[name] for name in ("scheme", "credentials") if name in config}
    return {**plain, "authentication": authentication} if authentication else plain


def old_nested(config: Json) -> Json:
    """Return a flat configuration as 0.3 writes it."""
    found = nested(config)
    if "authentication" in found:
        given = found["authentication"]
        found["authentication"] = {"schemes": [given["scheme"]], "credentials": given["credentials"]}
    return found


def flat(config: Json) -> Json:
    """Return a configuration of either version as a flat one."""
    found = dict(config.get("pushNotificationConfig", config))
    found.pop("taskId", None)
    given = found.pop("authentication", None)
    if given is not None:
        found |= {"scheme": given.get("scheme") or given["schemes"][0], "credentials": given["credentials"]}
    return found


class JsonRpcPushes(JsonRpc, Pushes):
    """A2A 1.0 over JSON-RPC."""

    def create(self, task_id: str, config: Json, who: str = "alice") -> Json:
        return flat(self._result("CreateTaskPushNotificationConfig", {"taskId": task_id, **nested(config)}, who))

    def read(self, task_id: str, config_id: str, who: str = "alice") -> Json:
        return flat(self._result("GetTaskPushNotificationConfig", {"taskId": task_id, "id": config_id}, who))

    def list(self, task_id: str, who: str = "alice") -> list[Json]:
        found = self._result("ListTaskPushNotificationConfigs", {"taskId": task_id}, who)
        return [flat(each) for each in found.get("configs", [])]

    def delete(self, task_id: str, config_id: str, who: str = "alice") -> None:
        found = self._result("DeleteTaskPushNotificationConfig", {"taskId": task_id, "id": config_id}, who)
        assert found == {}

    def announce(self, text: str, config: Json, *, at_once: bool = False, **members: Any) -> Json:
        configuration = {"taskPushNotificationConfig": nested(config), "returnImmediately": at_once}
        params = {"message": message_of((text,), members), "configuration": configuration}
        task: Json = self._result("SendMessage", params, "alice")["task"]
        return task

    def _result(self, method: str, params: Json, who: str) -> Any:
        answer = self.raw.call(method, params, who=who, version=self.version)
        if "error" in answer:
            raise Refused(info_of(answer["error"]["data"])[1])
        return answer["result"]


class OldJsonRpcPushes(OldJsonRpc, JsonRpcPushes):
    """A2A 0.3 over JSON-RPC."""

    version = "0.3"

    def create(self, task_id: str, config: Json, who: str = "alice") -> Json:
        params = {"taskId": task_id, "pushNotificationConfig": old_nested(config)}
        return flat(self._result("tasks/pushNotificationConfig/set", params, who))

    def read(self, task_id: str, config_id: str, who: str = "alice") -> Json:
        params = {"id": task_id, **({"pushNotificationConfigId": config_id} if config_id else {})}
        return flat(self._result("tasks/pushNotificationConfig/get", params, who))

    def list(self, task_id: str, who: str = "alice") -> list[Json]:
        return [flat(each) for each in self._result("tasks/pushNotificationConfig/list", {"id": task_id}, who)]

    def delete(self, task_id: str, config_id: str, who: str = "alice") -> None:
        params = {"id": task_id, "pushNotificationConfigId": config_id}
        assert self._result("tasks/pushNotificationConfig/delete", params, who) is None

    def announce(self, text: str, config: Json, *, at_once: bool = False, **members: Any) -> Json:
        configuration = {"pushNotificationConfig": old_nested(config), "blocking": not at_once}
        params = {"message": old_message_of((text,), members), "configuration": configuration}
        task: Json = self._result("message/send", params, "alice")
        return task


class HttpJsonPushes(HttpJson, Pushes):
    """A2A 1.0 over HTTP+JSON."""

    def create(self, task_id: str, config: Json, who: str = "alice") -> Json:
        return flat(self._request("POST", f"/tasks/{task_id}/pushNotificationConfigs", who, nested(config)))

    def read(self, task_id: str, config_id: str, who: str = "alice") -> Json:
        return flat(self._request("GET", f"/tasks/{task_id}/pushNotificationConfigs/{config_id}", who))

    def list(self, task_id: str, who: str = "alice") -> list[Json]:
        found = self._request("GET", f"/tasks/{task_id}/pushNotificationConfigs", who)
        return [flat(each) for each in found.get("configs", [])]

    def delete(self, task_id: str, config_id: str, who: str = "alice") -> None:
        assert self._request("DELETE", f"/tasks/{task_id}/pushNotificationConfigs/{config_id}", who) == {}

    def announce(self, text: str, config: Json, *, at_once: bool = False, **members: Any) -> Json:
        configuration = {"taskPushNotificationConfig": nested(config), "returnImmediately": at_once}
        body = {"message": message_of((text,), members), "configuration": configuration}
        task: Json = self._request("POST", "/message:send", "alice", body)["task"]
        return task

    def _request(self, method: str, path: str, who: str, body: Json | None = None) -> Any:
        answer = self.raw.send(method, f"/a2a/v1{path}", body, who=who).json
        if "error" in answer:
            raise Refused(info_of(answer["error"]["details"])[1])
        return answer


class GrpcPushes(Grpc, Pushes):
    """A2A 1.0 over gRPC."""

    def create(self, task_id: str, config: Json, who: str = "alice") -> Json:
        request = json_format.ParseDict({"taskId": task_id, **nested(config)}, a2a_pb2.TaskPushNotificationConfig())
        return flat(self._answer("CreateTaskPushNotificationConfig", request, who))

    def read(self, task_id: str, config_id: str, who: str = "alice") -> Json:
        request = a2a_pb2.GetTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)
        return flat(self._answer("GetTaskPushNotificationConfig", request, who))

    def list(self, task_id: str, who: str = "alice") -> list[Json]:
        request = a2a_pb2.ListTaskPushNotificationConfigsRequest(task_id=task_id)
        found = self._answer("ListTaskPushNotificationConfigs", request, who)
        return [flat(each) for each in found.get("configs", [])]

    def delete(self, task_id: str, config_id: str, who: str = "alice") -> None:
        request = a2a_pb2.DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)
        assert self._answer("DeleteTaskPushNotificationConfig", request, who) == {}

    def announce(self, text: str, config: Json, *, at_once: bool = False, **members: Any) -> Json:
        configuration = {"taskPushNotificationConfig": nested(config), "returnImmediately": at_once}
        params = {"message": message_of((text,), members), "configuration": configuration}
        request = json_format.ParseDict(params, a2a_pb2.SendMessageRequest())
        task: Json = self._answer("SendMessage", request, "alice")["task"]
        return task

    def _answer(self, rpc: str, request: Message, who: str) -> Json:
        return self._reply(a2a_pb2_grpc.A2AServiceStub, rpc, request, who, ("a2a-version", "1.0"))

    def _reply(self, stub: Any, rpc: str, request: Message, who: str, *said: tuple[str, str]) -> Json:
        metadata = (("authorization", f"Bearer {TOKENS[who]}"), *said)
        with grpc.insecure_channel(self.target) as channel:
            try:
                answer = getattr(stub(channel), rpc)(request, metadata=metadata, timeout=TIMEOUT)
            except grpc.RpcError as error:
                raise Refused(decoded(error).reason) from error
        return json_format.MessageToDict(answer)


class OldGrpcPushes(OldGrpc, GrpcPushes):
    """A2A 0.3 over gRPC, whose rpc has the id of a configuration beside it."""

    version = "0.3"

    def create(self, task_id: str, config: Json, who: str = "alice") -> Json:
        plain = old_nested({name: value for name, value in config.items() if name != "id"})
        params = {
            "parent": f"tasks/{task_id}",
            "configId": config.get("id", ""),
            "config": {"pushNotificationConfig": plain},
        }
        request = json_format.ParseDict(params, old_pb2.CreateTaskPushNotificationConfigRequest())
        return flat(self._answer("CreateTaskPushNotificationConfig", request, who))

    def read(self, task_id: str, config_id: str, who: str = "alice") -> Json:
        name = f"tasks/{task_id}/pushNotificationConfigs/{config_id}"
        request = old_pb2.GetTaskPushNotificationConfigRequest(name=name)
        return flat(self._answer("GetTaskPushNotificationConfig", request, who))

    def list(self, task_id: str, who: str = "alice") -> list[Json]:
        request = old_pb2.ListTaskPushNotificationConfigRequest(parent=f"tasks/{task_id}")
        found = self._answer("ListTaskPushNotificationConfig", request, who)
        return [flat(each) for each in found.get("configs", [])]

    def delete(self, task_id: str, config_id: str, who: str = "alice") -> None:
        name = f"tasks/{task_id}/pushNotificationConfigs/{config_id}"
        request = old_pb2.DeleteTaskPushNotificationConfigRequest(name=name)
        assert self._answer("DeleteTaskPushNotificationConfig", request, who) == {}

    def announce(self, text: str, config: Json, *, at_once: bool = False, **members: Any) -> Json:
        message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "content": [{"text": text}], **members}
        configuration = {"pushNotification": old_nested(config), "blocking": not at_once}
        params = {"request": message, "configuration": configuration}
        request = json_format.ParseDict(params, old_pb2.SendMessageRequest())
        task: Json = self._answer("SendMessage", request, "alice")["task"]
        return task

    def _answer(self, rpc: str, request: Message, who: str) -> Json:
        return self._reply(old_grpc.A2AServiceStub, rpc, request, who)


PUSHES = (JsonRpcPushes, OldJsonRpcPushes, HttpJsonPushes, GrpcPushes, OldGrpcPushes)
