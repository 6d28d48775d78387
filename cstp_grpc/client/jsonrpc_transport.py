"""JSON-RPC 2.0 over HTTP transport for messages, for servers behind a bridge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from cstp_grpc.client.grpc_transport import ResponseStream
from cstp_grpc.client.json_rpc import JsonRpcConnection
from cstp_grpc.contract import errors, json_codec
from cstp_grpc.contract.methods import RpcMethod


class JsonRpcTransport:
    """Makes each call over a JsonRpcConnection. Thread-safe."""

    def __init__(self, connection: JsonRpcConnection) -> None:
        self._connection = connection

    def call(self, method: RpcMethod, request: Message, timeout: float) -> Message:
        result = self._connection.call(method.name, params_of_request(method, request), timeout)
        try:
            return json_codec.from_json(
                drop_unknown_fields(result, cast(Descriptor, method.response.DESCRIPTOR)), method.response
            )
        except json_codec.CodecError as error:
            raise errors.InternalError(f"The answer to {method.name} does not fit the contract: {error}") from error

    def send(self, method: RpcMethod, requests: Iterable[Message], timeout: float) -> Message:  # noqa: ARG002
        """Raise MethodNotFound: JSON-RPC carries no streams."""
        raise errors.MethodNotFound(f"{method.name} takes a stream, which JSON-RPC cannot carry: use a grpc:// address")

    def watch(self, method: RpcMethod, request: Message, timeout: float | None) -> ResponseStream:  # noqa: ARG002
        """Raise MethodNotFound: JSON-RPC carries no streams."""
        raise errors.MethodNotFound(
            f"{method.name} answers with a stream, which JSON-RPC cannot carry: use a grpc:// address"
        )

    def close(self) -> None:
        """Do nothing: connections are closed after each call."""


def params_of_request(method: RpcMethod, request: Message) -> dict[str, Any]:
    """Return a request as JSON. Raises InvalidArgument if it has values that JSON cannot express."""
    try:
        return json_codec.to_json(request)
    except ValueError as error:
        raise errors.InvalidArgument(f"{method.name}: {error}") from error


def drop_unknown_fields(value: Any, descriptor: Descriptor) -> Any:
    """Remove members of a JSON value that are not fields of the message.

    Servers of a newer contract may send more than this client knows; protobuf ignores such fields likewise.
    """
    # Well-known types have JSON forms of their own, which are not objects of their fields.
    if not isinstance(value, dict) or descriptor.file.package == "google.protobuf":
        return value
    found = {}
    for field in descriptor.fields:
        if field.json_name not in value:
            continue
        item, inner = value[field.json_name], field.message_type
        if inner is None or inner.GetOptions().map_entry:
            found[field.json_name] = item
        elif field.is_repeated and isinstance(item, list):
            found[field.json_name] = [drop_unknown_fields(part, inner) for part in item]
        else:
            found[field.json_name] = drop_unknown_fields(item, inner)
    return found
