"""The operations of A2A 0.3 over JSON-RPC: its method names, requests and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, TypeVar

from a2a.compat.v0_3 import conversions, types
from a2a.types import a2a_pb2
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf import json_format, struct_pb2
from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bridge.a2a.call_context import A2aCallContext
from bridge.a2a.errors import violations_error
from bridge.a2a.message_parsing import MAX_ITEMS, TOO_MANY
from bridge.a2a.operations import Binding, Codec
from bridge.a2a.task_store import TaskEvent
from cstp_grpc.contract import json_values
from cstp_grpc.contract.errors import FieldViolation
from cstp_grpc.contract.json_scalars import MAX_VIOLATIONS, InvalidValue, ViolationCollector, printable_key

ModelT = TypeVar("ModelT", bound=BaseModel)
CoreT = TypeVar("CoreT", bound=Message)

EventV03 = types.Task | types.Message | types.TaskStatusUpdateEvent | types.TaskArtifactUpdateEvent

# The SDK's model requires an id; the one of the call is added by the JSON-RPC endpoint.
NO_ID: Final = ""
NO_HISTORY: Final = 0
"""The length of a history that is not wanted, which the SDK's conversions take for one that is not limited."""
PART_TYPES: Final = ("TextPart", "FilePart", "DataPart")
UNION_CHOICES: Final = {
    *PART_TYPES,
    "FileWithBytes",
    "FileWithUri",
    "TaskIdParams",
    "GetTaskPushNotificationConfigParams",
}
"""Names that pydantic inserts into a path for the choices of a union; the JSON has no such members."""
KIND_MESSAGE: Final = "must be 'text', 'file' or 'data'"
FREE_FORM: Final = {"data", "metadata"}
ENVELOPE_DEPTH: Final = 4
"""Levels of params around the free-form data of a part: params, message, parts, part."""
ERROR_WORDS: Final[Mapping[str, str]] = {
    "missing": "is required",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
"""By pydantic's types of errors."""


def to_send_message_request(request: types.SendMessageRequest) -> a2a_pb2.SendMessageRequest:
    converted = conversions.to_core_send_message_request(request)
    wanted = request.params.configuration
    if wanted is not None and wanted.history_length == NO_HISTORY:
        converted.configuration.history_length = NO_HISTORY
    return converted


def to_get_task_request(request: types.GetTaskRequest) -> a2a_pb2.GetTaskRequest:
    converted = conversions.to_core_get_task_request(request)
    if request.params.history_length == NO_HISTORY:
        converted.history_length = NO_HISTORY
    return converted


def to_event_v0_3(event: TaskEvent) -> EventV03:
    return conversions.to_compat_stream_response(to_stream_response(event)).result


def to_push_configs_v0_3(
    found: a2a_pb2.ListTaskPushNotificationConfigsResponse,
) -> list[types.TaskPushNotificationConfig]:
    return [conversions.to_compat_task_push_notification_config(each) for each in found.configs]


def with_named_tenant(context: A2aCallContext, params: object) -> A2aCallContext:
    """Return the context with the tenant that the params name. Raises InvalidParamsError.

    A2A 0.3 has no such member, but a caller that names a tenant must not be served as one of another tenant.
    """
    tenant = params.get("tenant") if isinstance(params, dict) else None
    if tenant is None:
        return context
    if not isinstance(tenant, str):
        raise violations_error([FieldViolation("tenant", "must be a string")])
    return replace(context, tenant=tenant)


def to_json_value(result: object) -> object:
    if isinstance(result, list):
        return [to_json_value(item) for item in result]
    if isinstance(result, BaseModel):
        return json_values.restore_integers(result.model_dump(mode="json", by_alias=True, exclude_none=True))
    return result


def parse_request(params: object, model: type[ModelT]) -> ModelT:
    """Parse the request from params. Raises InvalidParamsError."""
    # Before pydantic, which takes free-form data as it is: NaN, lone surrogates and any nesting.
    check_values(params)
    check_list_lengths(params, "")
    check_part_kinds(params)
    try:
        return model.model_validate({"id": NO_ID, "params": params})
    except ValidationError as error:
        raise pydantic_errors_to_a2a(error.errors(include_url=False, include_input=False)) from error


def check_values(params: object) -> None:
    """Raise InvalidParamsError unless all values are ones that a message can hold.

    That means finite numbers, valid Unicode and bounded nesting.
    """
    problems = ViolationCollector()
    try:
        # Starts at a negative depth, so that the levels around the free-form data of a part do not count.
        json_values.set_struct(struct_pb2.Struct(), params, "", problems, 1 - ENVELOPE_DEPTH)
    except InvalidValue as refusal:
        problems.add("", f"params {refusal}")
    if problems.found:
        raise violations_error([each._replace(field=each.field.removeprefix(".")) for each in problems.found])


def check_list_lengths(value: object, path: str) -> None:
    """Raise InvalidParamsError if a list is too long."""
    if isinstance(value, dict):
        for name, member in value.items():
            if name not in FREE_FORM:
                check_list_lengths(member, f"{path}.{printable_key(name)}" if path else printable_key(name))
    elif isinstance(value, list):
        if len(value) > MAX_ITEMS:
            raise violations_error([FieldViolation(path, TOO_MANY)])
        for position, item in enumerate(value):
            check_list_lengths(item, f"{path}[{position}]")


def check_part_kinds(params: object) -> None:
    """Raise InvalidParamsError if a part has no `kind`.

    The SDK's types accept a part without `kind` as any type that it fits.
    """
    message = params.get("message") if isinstance(params, dict) else None
    parts = message.get("parts") if isinstance(message, dict) else None
    if not isinstance(parts, list):
        return
    without_kind = [n for n, part in enumerate(parts) if isinstance(part, dict) and "kind" not in part]
    if without_kind:
        places = [f"message.parts[{number}].kind" for number in without_kind[:MAX_VIOLATIONS]]
        raise violations_error([FieldViolation(place, KIND_MESSAGE) for place in places])


def to_v1_0(request: ModelT, convert: Callable[[ModelT], CoreT]) -> CoreT:
    """Convert a request to A2A 1.0. Raises InvalidParamsError if 1.0 cannot represent it."""
    try:
        return convert(request)
    # The SDK's conversions raise these without documenting them, for instance for a part without content.
    except (ValueError, KeyError, TypeError, json_format.ParseError) as error:
        raise violations_error([FieldViolation("", "params hold a value that the operation cannot take")]) from error


def pydantic_errors_to_a2a(errors: Sequence[ErrorDetails]) -> InvalidParamsError:
    # For a union, pydantic reports errors for every choice. Those of choices that the part's `kind` rules out are
    # dropped.
    ruled_out = {error["loc"][:-1] for error in errors if error["loc"][-1] == "kind" and error["loc"][-2] in PART_TYPES}
    found: dict[str, str] = {}
    for error in errors:
        location = error["loc"]
        if not any(location[:length] in ruled_out for length in range(len(location))):
            found.setdefault(field_path(location), describe_error(error))
    for place in {choice[:-1] for choice in ruled_out}:
        if all((*place, part) in ruled_out for part in PART_TYPES):
            found[f"{field_path(place)}.kind"] = KIND_MESSAGE
    return violations_error([FieldViolation(*item) for item in list(found.items())[:MAX_VIOLATIONS]])


def field_path(location: tuple[int | str, ...]) -> str:
    """Return the JSON path for a pydantic location, without the envelope of the params."""
    path = ""
    for part in location[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in UNION_CHOICES:
            path += ("." if path else "") + printable_key(part)
    return path


def describe_error(error: ErrorDetails) -> str:
    expected = error.get("ctx", {}).get("expected")
    return f"must be {expected}" if expected else ERROR_WORDS.get(error["type"], "is not what A2A 0.3 takes there")


def build_codec(model: type[ModelT], convert: Callable[[ModelT], CoreT], show: Callable[[Any], object]) -> Codec:
    """Build a codec from the SDK's model of the request, and its conversions to 1.0 and of the result from 1.0."""
    return Codec(
        lambda params: to_v1_0(parse_request(params, model), convert),
        lambda _request, result: to_json_value(show(result)),
    )


JSON_V0_3: Final = Binding(
    attrgetter("method_v0_3"),
    {
        "SendMessage": build_codec(types.SendMessageRequest, to_send_message_request, conversions.to_compat_task),
        "SendStreamingMessage": build_codec(types.SendMessageRequest, to_send_message_request, to_event_v0_3),
        "GetTask": build_codec(types.GetTaskRequest, to_get_task_request, conversions.to_compat_task),
        "CancelTask": build_codec(
            types.CancelTaskRequest, conversions.to_core_cancel_task_request, conversions.to_compat_task
        ),
        "SubscribeToTask": build_codec(
            types.TaskResubscriptionRequest, conversions.to_core_subscribe_to_task_request, to_event_v0_3
        ),
        "CreateTaskPushNotificationConfig": build_codec(
            types.SetTaskPushNotificationConfigRequest,
            conversions.to_core_create_task_push_notification_config_request,
            conversions.to_compat_task_push_notification_config,
        ),
        "GetTaskPushNotificationConfig": build_codec(
            types.GetTaskPushNotificationConfigRequest,
            conversions.to_core_get_task_push_notification_config_request,
            conversions.to_compat_task_push_notification_config,
        ),
        "ListTaskPushNotificationConfigs": build_codec(
            types.ListTaskPushNotificationConfigRequest,
            conversions.to_core_list_task_push_notification_config_request,
            to_push_configs_v0_3,
        ),
        "DeleteTaskPushNotificationConfig": build_codec(
            types.DeleteTaskPushNotificationConfigRequest,
            conversions.to_core_delete_task_push_notification_config_request,
            lambda _nothing: None,
        ),
        "GetExtendedAgentCard": build_codec(
            types.GetAuthenticatedExtendedCardRequest,
            conversions.to_core_get_extended_agent_card_request,
            conversions.to_compat_agent_card,
        ),
    },
    uses_json_names=True,
    read_context=with_named_tenant,
)
"""A2A 0.3 on JSON, by its JSON-RPC methods."""
