"""The operations of A2A 0.3 over JSON-RPC, by its names and in its shapes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, TypeVar

from a2a.compat.v0_3 import conversions, types
from a2a.types.a2a_pb2 import ListTaskPushNotificationConfigsResponse
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf import json_format, struct_pb2
from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bridge.a2a import params
from bridge.a2a.context import CallContext
from bridge.a2a.conversations import Conversations
from bridge.a2a.operations import Answer, Operations, Stream
from bridge.a2a.tasks import Event
from cstp_grpc.client import json_known
from cstp_grpc.client.json_forms import MAX_VIOLATIONS, Problems, Refusal, shown

ModelT = TypeVar("ModelT", bound=BaseModel)
CoreT = TypeVar("CoreT", bound=Message)
ResultT = TypeVar("ResultT")

OldEvent = types.Task | types.Message | types.TaskStatusUpdateEvent | types.TaskArtifactUpdateEvent

# The handler wants an id, but the one of the call is written by whoever answers it.
NO_ID: Final = ""
PARTS: Final = ("TextPart", "FilePart", "DataPart")
CHOICES: Final = {*PARTS, "FileWithBytes", "FileWithUri", "TaskIdParams", "GetTaskPushNotificationConfigParams"}
"""What pydantic puts into a path to tell the choices of a union apart."""
KINDS: Final = "must be 'text', 'file' or 'data'"
FREE_FORM: Final = {"data", "metadata"}
ENVELOPE: Final = 4
"""How many objects and lists of params are around the free-form data of a part."""
WORDS: Final[Mapping[str, str]] = {
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


def operations(handler: Conversations) -> Operations:
    """Return the operations of A2A 0.3."""
    return Operations(
        answers={
            "message/send": unary(
                types.SendMessageRequest,
                conversions.to_core_send_message_request,
                handler.on_message_send,
                conversions.to_compat_task,
            ),
            "tasks/get": unary(
                types.GetTaskRequest,
                conversions.to_core_get_task_request,
                handler.on_get_task,
                conversions.to_compat_task,
            ),
            "tasks/cancel": unary(
                types.CancelTaskRequest,
                conversions.to_core_cancel_task_request,
                handler.on_cancel_task,
                conversions.to_compat_task,
            ),
            "tasks/pushNotificationConfig/set": unary(
                types.SetTaskPushNotificationConfigRequest,
                conversions.to_core_create_task_push_notification_config_request,
                handler.on_create_task_push_notification_config,
                conversions.to_compat_task_push_notification_config,
            ),
            "tasks/pushNotificationConfig/get": unary(
                types.GetTaskPushNotificationConfigRequest,
                conversions.to_core_get_task_push_notification_config_request,
                handler.on_get_task_push_notification_config,
                conversions.to_compat_task_push_notification_config,
            ),
            "tasks/pushNotificationConfig/list": unary(
                types.ListTaskPushNotificationConfigRequest,
                conversions.to_core_list_task_push_notification_config_request,
                handler.on_list_task_push_notification_configs,
                old_push_configs,
            ),
            "tasks/pushNotificationConfig/delete": unary(
                types.DeleteTaskPushNotificationConfigRequest,
                conversions.to_core_delete_task_push_notification_config_request,
                handler.on_delete_task_push_notification_config,
                lambda _nothing: None,
            ),
            "agent/getAuthenticatedExtendedCard": unary(
                types.GetAuthenticatedExtendedCardRequest,
                conversions.to_core_get_extended_agent_card_request,
                handler.on_get_extended_agent_card,
                conversions.to_compat_agent_card,
            ),
        },
        streams={
            "message/stream": streaming(
                types.SendMessageRequest, conversions.to_core_send_message_request, handler.on_message_send_stream
            ),
            "tasks/resubscribe": streaming(
                types.TaskResubscriptionRequest,
                conversions.to_core_subscribe_to_task_request,
                handler.on_subscribe_to_task,
            ),
        },
    )


def unary(
    model: type[ModelT],
    convert: Callable[[ModelT], CoreT],
    perform: Callable[[CoreT, CallContext], Awaitable[ResultT]],
    show: Callable[[ResultT], object],
) -> Answer:
    """Return an operation that answers once."""

    async def answer(given: object, context: CallContext) -> object:
        request = converted(read(given, model), convert)
        try:
            return render(show(await perform(request, within_tenant(context, given))))
        except InvalidParamsError as error:
            raise params.named(error, type(request)) from error

    return answer


def streaming(
    model: type[ModelT],
    convert: Callable[[ModelT], CoreT],
    perform: Callable[[CoreT, CallContext], AsyncGenerator[Event, None]],
) -> Stream:
    """Return an operation that streams."""

    async def stream(given: object, context: CallContext) -> AsyncGenerator[object, None]:
        request = converted(read(given, model), convert)
        try:
            async with aclosing(perform(request, within_tenant(context, given))) as events:
                async for event in events:
                    yield render(old_event(event))
        except InvalidParamsError as error:
            raise params.named(error, type(request)) from error

    return stream


def old_event(event: Event) -> OldEvent:
    """Return what a stream of 0.3 says."""
    return conversions.to_compat_stream_response(to_stream_response(event)).result


def old_push_configs(found: ListTaskPushNotificationConfigsResponse) -> list[types.TaskPushNotificationConfig]:
    """Return the configurations of a task as 0.3 has them."""
    return [conversions.to_compat_task_push_notification_config(each) for each in found.configs]


def within_tenant(context: CallContext, given: object) -> CallContext:
    """Return the context of a call with the tenant that its params name. Raises InvalidParamsError.

    0.3 has no such member, but whoever names a tenant must not be answered as one of another.
    """
    tenant = given.get("tenant") if isinstance(given, dict) else None
    if tenant is None:
        return context
    if not isinstance(tenant, str):
        raise params.refused([("tenant", "must be a string")])
    return replace(context, tenant=tenant)


def render(result: object) -> object:
    """Return a result as 0.3 writes it."""
    if isinstance(result, list):
        return [render(item) for item in result]
    if isinstance(result, BaseModel):
        return json_known.with_integers(result.model_dump(mode="json", by_alias=True, exclude_none=True))
    return result


def read(given: object, model: type[ModelT]) -> ModelT:
    """Return the request that params describe. Raises InvalidParamsError."""
    check_values(given)
    check_lists(given, "")
    check_kinds(given)
    try:
        return model.model_validate({"id": NO_ID, "params": given})
    except ValidationError as error:
        raise refused(error.errors(include_url=False, include_input=False)) from error


def check_values(given: object) -> None:
    """Let params pass whose values a message can hold wherever they are. Raises InvalidParamsError.

    Those are finite numbers, valid Unicode and no endless nesting.
    """
    problems = Problems()
    try:
        json_known.put_struct(struct_pb2.Struct(), given, "", problems, 1 - ENVELOPE)
    except Refusal as refusal:
        problems.add("", f"params {refusal}")
    if problems.found:
        raise params.refused([(item.field.removeprefix("."), item.description) for item in problems.found])


def check_lists(given: object, path: str) -> None:
    """Let params pass whose lists are not too long. Raises InvalidParamsError."""
    if isinstance(given, dict):
        for name, value in given.items():
            if name not in FREE_FORM:
                check_lists(value, f"{path}.{shown(name)}" if path else shown(name))
    elif isinstance(given, list):
        if len(given) > params.MAX_ITEMS:
            raise params.refused([(path, params.TOO_MANY)])
        for position, item in enumerate(given):
            check_lists(item, f"{path}[{position}]")


def check_kinds(given: object) -> None:
    """Let a message pass whose parts say what they are. Raises InvalidParamsError.

    The SDK's types take a part without `kind` for whatever else it fits.
    """
    message = given.get("message") if isinstance(given, dict) else None
    parts = message.get("parts") if isinstance(message, dict) else None
    if not isinstance(parts, list):
        return
    silent = [n for n, part in enumerate(parts) if isinstance(part, dict) and "kind" not in part]
    if silent:
        raise params.refused([(f"message.parts[{n}].kind", KINDS) for n in silent[:MAX_VIOLATIONS]])


def converted(request: ModelT, convert: Callable[[ModelT], CoreT]) -> CoreT:
    """Return a request as one of 1.0. Raises InvalidParamsError for what 1.0 cannot hold."""
    try:
        return convert(request)
    except (ValueError, KeyError, TypeError, json_format.ParseError) as error:
        raise params.refused([("", "params hold a value that the operation cannot take")]) from error


def refused(errors: Sequence[ErrorDetails]) -> InvalidParamsError:
    """Return the error that names the wrong fields."""
    # Pydantic tells what is wrong with a part as each kind of part. What it is not, as its `kind` says, is left out.
    ruled_out = {error["loc"][:-1] for error in errors if error["loc"][-1] == "kind" and error["loc"][-2] in PARTS}
    found: dict[str, str] = {}
    for error in errors:
        location = error["loc"]
        if not any(location[:length] in ruled_out for length in range(len(location))):
            found.setdefault(path_of(location), describe(error))
    for place in {choice[:-1] for choice in ruled_out}:
        if all((*place, part) in ruled_out for part in PARTS):
            found[f"{path_of(place)}.kind"] = KINDS
    return params.refused(list(found.items())[:MAX_VIOLATIONS])


def path_of(location: tuple[int | str, ...]) -> str:
    """Return pydantic's path as one of JSON, without what is around the params."""
    path = ""
    for part in location[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in CHOICES:
            path += ("." if path else "") + shown(part)
    return path


def describe(error: ErrorDetails) -> str:
    """Return what a field must be."""
    expected = error.get("ctx", {}).get("expected")
    return f"must be {expected}" if expected else WORDS.get(error["type"], "is not what A2A 0.3 takes there")
