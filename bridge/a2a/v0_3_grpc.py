"""The operations of A2A 0.3 over gRPC; imported at the first call, see `load_sdk_v0_3`."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from a2a.compat.v0_3 import a2a_v0_3_pb2, conversions, types
from a2a.compat.v0_3.proto_utils import TASK_NAME_MATCH, TASK_PUSH_CONFIG_NAME_MATCH, FromProto, ToProto
from a2a.types import a2a_pb2
from a2a.utils.errors import ContentTypeNotSupportedError
from google.protobuf import empty_pb2
from google.protobuf.message import Message

from bridge.a2a import v0_3_json
from bridge.a2a.errors import invalid_params, violations_error
from bridge.a2a.message_parsing import MAX_ITEMS, TOO_MANY
from bridge.a2a.operations import Binding, Codec
from bridge.a2a.task_store import TaskEvent
from cstp_grpc.contract.errors import FieldViolation

NO_ID: Final = 0
"""The SDK's requests want an id, which gRPC has not."""

TASK_NAME_FORM: Final = (re.compile(r"tasks/[^/]+"), "tasks/{id}")
CONFIG_NAME_FORM: Final = (
    re.compile(r"tasks/[^/]+/pushNotificationConfigs/[^/]+"),
    "tasks/{id}/pushNotificationConfigs/{id}",
)

NAMED_RESOURCES: Final = {
    a2a_v0_3_pb2.GetTaskRequest: ("name", TASK_NAME_FORM),
    a2a_v0_3_pb2.CancelTaskRequest: ("name", TASK_NAME_FORM),
    a2a_v0_3_pb2.TaskSubscriptionRequest: ("name", TASK_NAME_FORM),
    a2a_v0_3_pb2.CreateTaskPushNotificationConfigRequest: ("parent", TASK_NAME_FORM),
    a2a_v0_3_pb2.ListTaskPushNotificationConfigRequest: ("parent", TASK_NAME_FORM),
    a2a_v0_3_pb2.GetTaskPushNotificationConfigRequest: ("name", CONFIG_NAME_FORM),
    a2a_v0_3_pb2.DeleteTaskPushNotificationConfigRequest: ("name", CONFIG_NAME_FORM),
}
"""By request: the field that names a resource, and the form of that name."""


def to_send_message_request(request: a2a_v0_3_pb2.SendMessageRequest) -> a2a_pb2.SendMessageRequest:
    """Convert a sent message to a request of A2A 1.0. Raises InvalidParamsError."""
    try:
        params = FromProto.message_send_params(request)
        return conversions.to_core_send_message_request(types.SendMessageRequest(id=NO_ID, params=params))
    except Exception as error:
        # The SDK raises various exceptions for such messages.
        raise invalid_params("The message holds values that cannot be understood") from error


def to_get_task_request(request: a2a_v0_3_pb2.GetTaskRequest) -> a2a_pb2.GetTaskRequest:
    params = FromProto.task_query_params(request)
    return conversions.to_core_get_task_request(types.GetTaskRequest(id=NO_ID, params=params))


def to_cancel_task_request(request: a2a_v0_3_pb2.CancelTaskRequest) -> a2a_pb2.CancelTaskRequest:
    params = FromProto.task_id_params(request)
    return conversions.to_core_cancel_task_request(types.CancelTaskRequest(id=NO_ID, params=params))


def to_subscribe_request(request: a2a_v0_3_pb2.TaskSubscriptionRequest) -> a2a_pb2.SubscribeToTaskRequest:
    params = FromProto.task_id_params(request)
    return conversions.to_core_subscribe_to_task_request(types.TaskResubscriptionRequest(id=NO_ID, params=params))


def to_push_config(request: a2a_v0_3_pb2.CreateTaskPushNotificationConfigRequest) -> a2a_pb2.TaskPushNotificationConfig:
    # The SDK does not read the id of a configuration from where the rpc has it.
    config = request.config.push_notification_config
    config.id = config.id or request.config_id
    params = FromProto.task_push_notification_config_request(request)
    return conversions.to_core_create_task_push_notification_config_request(
        types.SetTaskPushNotificationConfigRequest(id=NO_ID, params=params)
    )


def to_get_config_request(
    request: a2a_v0_3_pb2.GetTaskPushNotificationConfigRequest,
) -> a2a_pb2.GetTaskPushNotificationConfigRequest:
    task_id, config_id = parse_config_name(request.name)
    return a2a_pb2.GetTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)


def to_list_configs_request(
    request: a2a_v0_3_pb2.ListTaskPushNotificationConfigRequest,
) -> a2a_pb2.ListTaskPushNotificationConfigsRequest:
    match = TASK_NAME_MATCH.match(request.parent)
    assert match is not None, "names are checked before they are read"
    return a2a_pb2.ListTaskPushNotificationConfigsRequest(task_id=match[1])


def to_delete_config_request(
    request: a2a_v0_3_pb2.DeleteTaskPushNotificationConfigRequest,
) -> a2a_pb2.DeleteTaskPushNotificationConfigRequest:
    task_id, config_id = parse_config_name(request.name)
    return a2a_pb2.DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)


def parse_config_name(name: str) -> tuple[str, str]:
    match = TASK_PUSH_CONFIG_NAME_MATCH.match(name)
    assert match is not None, "names are checked before they are read"
    return match[1], match[2]


def to_task_v0_3(task: a2a_pb2.Task) -> a2a_v0_3_pb2.Task:
    return ToProto.task(conversions.to_compat_task(task))


def to_push_config_v0_3(config: a2a_pb2.TaskPushNotificationConfig) -> a2a_v0_3_pb2.TaskPushNotificationConfig:
    return ToProto.task_push_notification_config(conversions.to_compat_task_push_notification_config(config))


def to_push_configs_v0_3(
    found: a2a_pb2.ListTaskPushNotificationConfigsResponse,
) -> a2a_v0_3_pb2.ListTaskPushNotificationConfigResponse:
    return a2a_v0_3_pb2.ListTaskPushNotificationConfigResponse(configs=map(to_push_config_v0_3, found.configs))


def to_event_v0_3(event: TaskEvent) -> a2a_v0_3_pb2.StreamResponse:
    return ToProto.stream_response(v0_3_json.to_event_v0_3(event))


def check_request(request: Message) -> None:
    """Raise InvalidParamsError or ContentTypeNotSupportedError if a request cannot be converted.

    The SDK ignores what follows a valid resource name.
    """
    if named := NAMED_RESOURCES.get(type(request)):
        field, (form, shown) = named
        if not form.fullmatch(getattr(request, field)):
            raise violations_error([FieldViolation(field, f"must be of the form {shown}")])
    if isinstance(request, a2a_v0_3_pb2.SendMessageRequest):
        check_message(request)


def check_message(request: a2a_v0_3_pb2.SendMessageRequest) -> None:
    """Raise as `check_request` does if the parts of a message cannot be converted."""
    if len(request.request.content) > MAX_ITEMS:
        raise violations_error([FieldViolation("message.content", TOO_MANY)])
    for number, part in enumerate(request.request.content):
        kind = part.WhichOneof("part")
        if kind == "file":
            raise ContentTypeNotSupportedError(f"message.content[{number}]: files are not taken, only text and data")
        if kind is None:
            raise violations_error([FieldViolation(f"message.content[{number}]", "must hold text or data")])


def build_codec(read: Callable[[Any], Message], write: Callable[[Any], Message]) -> Codec:
    def read_request(request: Message) -> Message:
        check_request(request)
        return read(request)

    return Codec(read_request, lambda _request, result: write(result))


MESSAGES_V0_3: Final = Binding(
    attrgetter("rpc_v0_3"),
    {
        "SendMessage": build_codec(
            to_send_message_request, lambda task: a2a_v0_3_pb2.SendMessageResponse(task=to_task_v0_3(task))
        ),
        "SendStreamingMessage": build_codec(to_send_message_request, to_event_v0_3),
        "GetTask": build_codec(to_get_task_request, to_task_v0_3),
        "CancelTask": build_codec(to_cancel_task_request, to_task_v0_3),
        "SubscribeToTask": build_codec(to_subscribe_request, to_event_v0_3),
        "CreateTaskPushNotificationConfig": build_codec(to_push_config, to_push_config_v0_3),
        "GetTaskPushNotificationConfig": build_codec(to_get_config_request, to_push_config_v0_3),
        "ListTaskPushNotificationConfigs": build_codec(to_list_configs_request, to_push_configs_v0_3),
        "DeleteTaskPushNotificationConfig": build_codec(to_delete_config_request, lambda _nothing: empty_pb2.Empty()),
        "GetExtendedAgentCard": build_codec(
            lambda _request: a2a_pb2.GetExtendedAgentCardRequest(),
            lambda card: ToProto.agent_card(conversions.to_compat_agent_card(card)),
        ),
    },
    uses_json_names=False,
)
"""A2A 0.3 on the messages of its rpcs."""
