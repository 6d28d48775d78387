"""The operations of A2A: one table, which each version and binding reads and writes in its own form."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from operator import attrgetter
from typing import Any, Final

from a2a.types import a2a_pb2
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf import empty_pb2, message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from bridge.a2a.call_context import A2aCallContext
from bridge.a2a.errors import violations_error, with_json_names
from bridge.a2a.request_handler import A2aRequestHandler
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import FieldViolation
from cstp_grpc.contract.json_codec import PROTO_JSON, CodecError, from_json, to_proto_json

A2A_SERVICE: Final[ServiceDescriptor] = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]

UnaryOperation = Callable[[Any, A2aCallContext], Awaitable[Any]]
"""Takes a request and returns its response, both in the form of a binding. Raises A2AError."""
StreamingOperation = Callable[[Any, A2aCallContext], AsyncGenerator[Any, None]]
"""Takes a request and yields its responses. Raises A2AError."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of A2A and its names; 0.3 lacks those without such a name."""

    rpc: str
    """The rpc of A2A 1.0, which is also its JSON-RPC method."""
    method_v0_3: str | None
    """The JSON-RPC method of A2A 0.3."""
    rpc_v0_3: str | None
    perform: Callable[[A2aRequestHandler], Callable[[Any, A2aCallContext], Any]]
    """Returns the method of the handler, which takes the request of 1.0."""
    is_streaming: bool = False


OPERATIONS: Final = (
    Operation("SendMessage", "message/send", "SendMessage", lambda handler: handler.on_message_send),
    Operation(
        "SendStreamingMessage",
        "message/stream",
        "SendStreamingMessage",
        lambda handler: handler.on_message_send_stream,
        is_streaming=True,
    ),
    Operation("GetTask", "tasks/get", "GetTask", lambda handler: handler.on_get_task),
    Operation("ListTasks", None, None, lambda handler: handler.on_list_tasks),
    Operation("CancelTask", "tasks/cancel", "CancelTask", lambda handler: handler.on_cancel_task),
    Operation(
        "SubscribeToTask",
        "tasks/resubscribe",
        "TaskSubscription",
        lambda handler: handler.on_subscribe_to_task,
        is_streaming=True,
    ),
    Operation(
        "CreateTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/set",
        "CreateTaskPushNotificationConfig",
        lambda handler: handler.push_configs.create,
    ),
    Operation(
        "GetTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/get",
        "GetTaskPushNotificationConfig",
        lambda handler: handler.push_configs.get,
    ),
    Operation(
        "ListTaskPushNotificationConfigs",
        "tasks/pushNotificationConfig/list",
        "ListTaskPushNotificationConfig",
        lambda handler: handler.push_configs.list,
    ),
    Operation(
        "DeleteTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/delete",
        "DeleteTaskPushNotificationConfig",
        lambda handler: handler.push_configs.delete,
    ),
    Operation(
        "GetExtendedAgentCard",
        "agent/getAuthenticatedExtendedCard",
        "GetAgentCard",
        lambda handler: handler.on_get_extended_agent_card,
    ),
)


@dataclass(frozen=True, slots=True)
class Codec:
    """The form of an operation's requests and responses in one version and binding."""

    read: Callable[[Any], Message]
    """Returns the request of A2A 1.0. Raises A2AError."""
    write: Callable[[Any, Any], Any]
    """Takes the request of 1.0 and the handler's result, or one event of a stream, and returns the response."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One version of A2A in one binding."""

    name: Callable[[Operation], str | None]
    """Returns the name of an operation."""
    codecs: Mapping[str, Codec]
    """By the rpcs of A2A 1.0."""
    uses_json_names: bool
    """Whether errors name fields as JSON does."""
    read_context: Callable[[A2aCallContext, Any], A2aCallContext] = lambda context, _sent: context
    """Returns the context, extended by the request. Raises InvalidParamsError."""


@dataclass(frozen=True, slots=True)
class OperationTable:
    """The operations of one binding by name: those with a single response, and those that stream."""

    answers: Mapping[str, UnaryOperation]
    streams: Mapping[str, StreamingOperation]


def bind_operations(handler: A2aRequestHandler, binding: Binding) -> OperationTable:
    answers: dict[str, UnaryOperation] = {}
    streams: dict[str, StreamingOperation] = {}
    for operation in OPERATIONS:
        if name := binding.name(operation):
            perform, codec = operation.perform(handler), binding.codecs[operation.rpc]
            if operation.is_streaming:
                streams[name] = bind_stream(perform, codec, binding)
            else:
                answers[name] = bind_unary(perform, codec, binding)
    return OperationTable(answers, streams)


def bind_unary(perform: UnaryOperation, codec: Codec, binding: Binding) -> UnaryOperation:
    async def answer(sent: Any, context: A2aCallContext) -> Any:
        request = codec.read(sent)
        try:
            return codec.write(request, await perform(request, binding.read_context(context, sent)))
        except InvalidParamsError as error:
            if not binding.uses_json_names:
                raise
            raise with_json_names(error, type(request)) from error

    return answer


def bind_stream(perform: StreamingOperation, codec: Codec, binding: Binding) -> StreamingOperation:
    async def stream(sent: Any, context: A2aCallContext) -> AsyncGenerator[Any, None]:
        request = codec.read(sent)
        try:
            # Closed when the client leaves: the generators below end what they follow, up to the polling of the stored
            # task.
            async with aclosing(perform(request, binding.read_context(context, sent))) as events:
                async for event in events:
                    yield codec.write(request, event)
        except InvalidParamsError as error:
            if not binding.uses_json_names:
                raise
            raise with_json_names(error, type(request)) from error

    return stream


RESPONSES: Final[Mapping[str, Callable[[Any], Message]]] = {
    "SendMessage": lambda task: a2a_pb2.SendMessageResponse(task=task),
    "SendStreamingMessage": to_stream_response,
    "SubscribeToTask": to_stream_response,
    "DeleteTaskPushNotificationConfig": lambda _nothing: empty_pb2.Empty(),
}
"""Converts a result of the handler to the response of the rpc, where these differ."""


def to_response(rpc: str, _request: Message, result: Any) -> Message:
    response: Message = RESPONSES[rpc](result) if rpc in RESPONSES else result
    return response


def to_json_response(rpc: str, request: Message, result: Any) -> object:
    # Not by the message of the response, into which the task would be copied.
    return {"task": to_proto_json(result)} if rpc == "SendMessage" else to_proto_json(to_response(rpc, request, result))


def to_json_page(request: a2a_pb2.ListTasksRequest, page: a2a_pb2.ListTasksResponse) -> object:
    """Return a page of tasks, whose own members are all required; artifacts are included only on request."""
    tasks = [to_proto_json(task) for task in page.tasks]
    for task in tasks:
        # A2A has both an absent list and an empty one, and protobuf only the latter: absent means that it was not asked
        # for.
        if not request.include_artifacts:
            task.pop("artifacts", None)
        else:
            task.setdefault("artifacts", [])
    return {
        "tasks": tasks,
        "nextPageToken": page.next_page_token,
        "pageSize": page.page_size,
        "totalSize": page.total_size,
    }


def read_json_request(kind: type[Message], params: object) -> Message:
    """Parse the request of an operation. Raises InvalidParamsError."""
    try:
        return from_json(params, kind, PROTO_JSON)
    except CodecError as error:
        # Only the params themselves have no path.
        raise violations_error(
            [each if each.field else FieldViolation("", f"params {each.description}") for each in error.violations]
        ) from error


MESSAGES_V1_0: Final = Binding(
    attrgetter("rpc"),
    {rpc.name: Codec(lambda request: request, partial(to_response, rpc.name)) for rpc in A2A_SERVICE.methods},
    uses_json_names=False,
)
"""A2A 1.0 on the messages of its rpcs."""
JSON_V1_0: Final = Binding(
    attrgetter("rpc"),
    {
        rpc.name: Codec(
            partial(read_json_request, message_factory.GetMessageClass(rpc.input_type)),
            to_json_page if rpc.name == "ListTasks" else partial(to_json_response, rpc.name),
        )
        for rpc in A2A_SERVICE.methods
    },
    uses_json_names=True,
)
"""A2A 1.0 on JSON."""
