"""Asking peers by gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import grpc
from google.protobuf.message import DecodeError, Message

from cstp_grpc.client.contract import Method
from cstp_grpc.client.federation import results
from cstp_grpc.client.federation.results import MAX_ANSWER_BYTES, Metadata, Result
from cstp_grpc.client.tls import channel_credentials
from cstp_grpc.client.transport import authorization, channel_options, grpc_address
from cstp_grpc.contract.rpc_errors import error_from_rpc, read_error_details
from cstp_grpc.errors import ServerUnreachable

OPTIONS: Final[Mapping[str, int]] = {
    "grpc.max_receive_message_length": MAX_ANSWER_BYTES,
    # A peer is asked once: what is lost costs a call, what is repeated costs the peer more when it is least able to.
    "grpc.enable_retries": 0,
}
GARBLED: Final[Mapping[str, str]] = {
    "Failed parsing HTTP/2": "no HTTP/2",
    "CLIENT: Received message larger": f"more than {MAX_ANSWER_BYTES} bytes",
}
"""What gRPC says of bytes that are no answer, and what is told of it: no status tells them from other failures."""


class GrpcLink:
    """Calls on one channel. Safe for many threads. Raises InvalidArgument."""

    def __init__(self, target: str, token: str | None, root_certificates: bytes | None, *, secure: bool) -> None:
        address = grpc_address(target)
        options = list((dict(channel_options(address)) | dict(OPTIONS)).items())
        self._metadata = authorization(token)
        self._calls: dict[str, Any] = {}
        if secure:
            self._channel = grpc.secure_channel(address, channel_credentials(root_certificates), options)
        else:
            self._channel = grpc.insecure_channel(address, options)

    def call(self, method: Method, request: Message, seconds: float, metadata: Metadata) -> Result:
        """Return what came of a call, within `seconds`."""
        try:
            content = self._callable(method)(request, timeout=seconds, metadata=(*self._metadata, *metadata))
        except grpc.RpcError as error:
            return of_failure(error)
        try:
            return results.answered(method.response.FromString(content))
        except DecodeError:
            return results.not_understood("no message of the contract")

    def close(self) -> None:
        """Close the channel, which ends calls in progress."""
        self._channel.close()

    def _callable(self, method: Method) -> Any:
        # Without a deserializer of gRPC's, whose failures cannot be told from those of the peer.
        return self._calls.get(method.path) or self._calls.setdefault(
            method.path, self._channel.unary_unary(method.path, method.request.SerializeToString, None)
        )


def of_failure(error: grpc.RpcError) -> Result:
    """Return what a failed call came to; the words of a peer of ours are told on, those of gRPC are not."""
    call = cast(grpc.Call, error)  # every error of a channel's call is the call too
    details = call.details() or ""
    if garbled := next((words for mark, words in GARBLED.items() if mark in details), None):
        return results.not_understood(garbled, details)
    found = error_from_rpc(error, "it")
    if read_error_details(call) is not None:
        return results.of_error(found)
    if isinstance(found, ServerUnreachable):
        return results.not_there(details)
    return results.of_error(type(found)(f"gRPC status {call.code().name}"))
