"""The shapes of A2A 0.3, in JSON and over gRPC, and how they say what 1.0 says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def renamed(values: Json, **names: str) -> Json:
    """Return an object with some of its members under other names, and the rest as they are."""
    return {names.get(name, name): value for name, value in values.items()}


def changed(values: Json, **changes: Callable[[Any], Any]) -> Json:
    """Return an object in which members are changed that it has."""
    return {name: changes[name](value) if name in changes else value for name, value in values.items()}


# What is sent over JSON-RPC


def to_json_part(part: Json) -> Json:
    """Return a part of 1.0 as 0.3 writes it in JSON."""
    if "text" in part or "data" in part:
        return {"kind": "text" if "text" in part else "data", **part}
    return {"kind": "file", "file": {"bytes": part["raw"]} if "raw" in part else {"uri": part["url"]}}


def to_json_message(message: Json) -> Json:
    """Return a message of 1.0 as 0.3 writes it in JSON."""
    parts = [to_json_part(part) for part in message["parts"]]
    return {"kind": "message", **message, "role": "user", "parts": parts}


def to_push_config(config: Json) -> Json:
    """Return a push configuration of 1.0 as 0.3 writes it."""
    return changed(config, authentication=lambda given: {"schemes": [given["scheme"]], **without(given, "scheme")})


def without(values: Json, *names: str) -> Json:
    """Return an object without some of its members."""
    return {name: value for name, value in values.items() if name not in names}


def to_configuration(configuration: Json, push_name: str) -> Json:
    """Return the configuration beside a message, as 0.3 has it."""
    told = changed(configuration, taskPushNotificationConfig=to_push_config, returnImmediately=lambda now: not now)
    return renamed(told, taskPushNotificationConfig=push_name, returnImmediately="blocking")


def to_json_params(operation: str, params: Json) -> Json:
    """Return the params of an operation over JSON-RPC."""
    if "Message" in operation:
        return changed(
            params,
            message=to_json_message,
            configuration=lambda given: to_configuration(given, "pushNotificationConfig"),
        )
    if operation == "CreateTaskPushNotificationConfig":
        config = without(params, "taskId", "tenant")
        return {**without(params, *config), "pushNotificationConfig": to_push_config(config)}
    if operation.endswith(("PushNotificationConfig", "PushNotificationConfigs")):
        return renamed(
            {name: value for name, value in params.items() if value}, id="pushNotificationConfigId", taskId="id"
        )
    return params


# What is sent over gRPC


def to_grpc_part(part: Json) -> Json:
    """Return a part of 1.0 as the messages of 0.3 have it."""
    if "raw" in part or "url" in part:
        return {"file": {"fileWithBytes": part["raw"]} if "raw" in part else {"fileWithUri": part["url"]}}
    return changed(part, data=lambda data: {"data": data})


def to_grpc_message(message: Json) -> Json:
    """Return a message of 1.0 as the messages of 0.3 have it."""
    return renamed(changed(message, parts=lambda parts: [to_grpc_part(part) for part in parts]), parts="content")


def to_grpc_params(operation: str, params: Json) -> Json:
    """Return the request of an operation over gRPC, which names resources by paths."""
    if "Message" in operation:
        told = changed(
            params, message=to_grpc_message, configuration=lambda given: to_configuration(given, "pushNotification")
        )
        return renamed(told, message="request")
    if operation == "CreateTaskPushNotificationConfig":
        config = {"pushNotificationConfig": to_push_config(without(params, "taskId", "id"))}
        return {"parent": f"tasks/{params['taskId']}", "configId": params.get("id", ""), "config": config}
    if operation == "ListTaskPushNotificationConfigs":
        return {"parent": f"tasks/{params['taskId']}"}
    if operation.endswith("PushNotificationConfig"):
        return {"name": f"tasks/{params['taskId']}/pushNotificationConfigs/{params['id']}"}
    if "id" in params:
        return {"name": f"tasks/{params['id']}", **without(params, "id")}
    return params


# What is answered


def state_of(word: str) -> str:
    """Return the state of 1.0 for one of 0.3, in JSON or over gRPC."""
    name = word.removeprefix("TASK_STATE_").upper().replace("-", "_").replace("CANCELLED", "CANCELED")
    return f"TASK_STATE_{name}"


def part_of(part: Json) -> Json:
    """Return a part as 1.0 writes it."""
    data = part.get("data")
    if data is not None and "kind" not in part:
        return {**part, "data": data["data"]}
    return without(part, "kind")


def parts_of(parts: list[Json]) -> list[Json]:
    """Return the parts of a message or an artifact as 1.0 writes them."""
    return [part_of(part) for part in parts]


def message_of(message: Json) -> Json:
    """Return a message as 1.0 writes it."""
    found = changed(renamed(without(message, "kind"), content="parts"), parts=parts_of)
    return changed(found, role=lambda role: f"ROLE_{role.removeprefix('ROLE_').upper()}")


def status_of(status: Json) -> Json:
    """Return the status of a task as 1.0 writes it."""
    return changed(status, state=state_of, message=message_of)


def artifact_of(artifact: Json) -> Json:
    """Return an artifact as 1.0 writes it."""
    return changed(artifact, parts=parts_of)


def task_of(task: Json) -> Json:
    """Return a task as 1.0 writes it."""
    return changed(
        without(task, "kind"),
        status=status_of,
        artifacts=lambda found: [artifact_of(each) for each in found],
        history=lambda found: [message_of(each) for each in found],
    )


def event_of(event: Json) -> Json:
    """Return an event of a stream as 1.0 writes it: a member that says what it is, with the rest in it."""
    if "kind" not in event:
        return changed(event, task=task_of, statusUpdate=update_of, artifactUpdate=update_of)
    if event["kind"] == "task":
        return {"task": task_of(event)}
    return {{"status-update": "statusUpdate", "artifact-update": "artifactUpdate"}[event["kind"]]: update_of(event)}


def update_of(update: Json) -> Json:
    """Return an update of a task as 1.0 writes it; `final` is a member of 0.3 alone."""
    return changed(without(update, "kind", "final"), status=status_of, artifact=artifact_of)


def push_config_of(config: Json) -> Json:
    """Return a push configuration of a task as 1.0 writes it."""
    inner = changed(
        config["pushNotificationConfig"],
        authentication=lambda given: {"scheme": given["schemes"][0], **without(given, "schemes")},
    )
    task_id = config["name"].split("/")[1] if "name" in config else config["taskId"]
    return {"taskId": task_id, **inner}


def result_of(operation: str, result: Any) -> Json:
    """Return the result of an operation as 1.0 has it."""
    if operation == "SendMessage":
        return {"task": task_of(result.get("task", result))}
    if operation in ("GetTask", "CancelTask"):
        return task_of(result)
    if operation == "ListTaskPushNotificationConfigs":
        found = result if isinstance(result, list) else result.get("configs", [])
        return {"configs": [push_config_of(config) for config in found]}
    if operation == "DeleteTaskPushNotificationConfig":
        assert not result
        return {}
    if operation.endswith("PushNotificationConfig"):
        return push_config_of(result)
    found_card: Json = result
    return found_card
