"""JSON-RPC 2.0 over HTTP transport, for servers behind a bridge."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from cstp_grpc.client.grpc_transport import ResponseStream
from cstp_grpc.client.jsonrpc_calls import JsonRpcCalls
from cstp_grpc.contract import errors, json_codec
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.contract.methods import RpcMethod


class JsonRpcTransport:
    """Posts each call to a bridge on its own connection. Thread-safe."""

    def __init__(
        self,
        target: str,
        token: str | None,
        *,
        root_certificates: bytes | None,
        client_certificate: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = JsonRpcCalls(
            target,
            token,
            root_certificates=root_certificates,
            client_certificate=client_certificate,
            clock=clock,
        )

    def call(self, method: RpcMethod, request: Message, timeout: float) -> Message:
        result = self._calls.call(method.name, message_to_params(method, request), timeout)
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


def message_to_params(method: RpcMethod, request: Message) -> Any:
    """Return the params of a request. Raises InvalidArgument if it has values that JSON cannot express."""
    try:
        return json_codec.to_json(request)
    except ValueError as error:
        raise InvalidArgument(f"{method.name}: {error}") from error


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
