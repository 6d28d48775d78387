"""What A2A 0.3 over gRPC has of its own: which requests can be understood, and how errors are told apart."""

from __future__ import annotations

import re
from typing import Final

from a2a.compat.v0_3 import a2a_v0_3_pb2, conversions, types
from a2a.compat.v0_3.proto_utils import FromProto
from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP, A2AError, ContentTypeNotSupportedError
from google.protobuf.message import Message

from bridge.a2a.errors import invalid_params
from bridge.a2a.params import MAX_ITEMS, TOO_MANY

TASK: Final = (re.compile(r"tasks/[^/]+"), "tasks/{id}")
CONFIG: Final = (re.compile(r"tasks/[^/]+/pushNotificationConfigs/[^/]+"), "tasks/{id}/pushNotificationConfigs/{id}")

NAMES: Final = {
    a2a_v0_3_pb2.GetTaskRequest: ("name", TASK),
    a2a_v0_3_pb2.CancelTaskRequest: ("name", TASK),
    a2a_v0_3_pb2.TaskSubscriptionRequest: ("name", TASK),
    a2a_v0_3_pb2.CreateTaskPushNotificationConfigRequest: ("parent", TASK),
    a2a_v0_3_pb2.ListTaskPushNotificationConfigRequest: ("parent", TASK),
    a2a_v0_3_pb2.GetTaskPushNotificationConfigRequest: ("name", CONFIG),
    a2a_v0_3_pb2.DeleteTaskPushNotificationConfigRequest: ("name", CONFIG),
}
"""By request: the field that names a resource, and the form of that name."""


def check(request: Message) -> None:
    """Let requests that can be understood pass. Raises InvalidParamsError and ContentTypeNotSupportedError.

    The SDK ignores what follows a name that it knows, and answers INTERNAL to a message that it cannot translate.
    """
    if named := NAMES.get(type(request)):
        field, (form, shown) = named
        if not form.fullmatch(getattr(request, field)):
            description = f"must be of the form {shown}"
            raise invalid_params(f"{field}: {description}", (field, description))
    if isinstance(request, a2a_v0_3_pb2.SendMessageRequest):
        check_message(request)


def check_message(request: a2a_v0_3_pb2.SendMessageRequest) -> None:
    """Let a message pass whose parts can be translated. Raises as `check` does."""
    if len(request.request.content) > MAX_ITEMS:
        raise invalid_params(f"message.content: {TOO_MANY}", ("message.content", TOO_MANY))
    for number, part in enumerate(request.request.content):
        kind = part.WhichOneof("part")
        if kind == "file":
            raise ContentTypeNotSupportedError(f"message.content[{number}]: files are not taken, only text and data")
        if kind is None:
            field, description = f"message.content[{number}]", "must hold text or data"
            raise invalid_params(f"{field}: {description}", (field, description))
    try:
        params = FromProto.message_send_params(request)
        conversions.to_core_send_message_request(types.SendMessageRequest(id=0, params=params))
    except Exception as error:
        # What the SDK raises for such messages is of no common kind.
        raise invalid_params("The message holds values that cannot be understood") from error


def text(error: A2AError) -> str:
    """Return the text of an error. One of A2A's begins with its name, by which clients of 0.3 know it."""
    return f"{type(error).__name__}: {error.message}" if type(error) in JSON_RPC_ERROR_CODE_MAP else error.message
