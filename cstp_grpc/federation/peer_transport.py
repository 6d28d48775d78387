"""Call a peer over gRPC or JSON-RPC, and classify the result."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final, cast

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from cstp_grpc import errors
from cstp_grpc.client.fetching import HttpResponse, ResponseTooLarge, fetch_response
from cstp_grpc.client.grpc_transport import bearer_header, channel_options, grpc_address
from cstp_grpc.client.jsonrpc_transport import (
    drop_unknown_fields,
    encode_call,
    error_from_jsonrpc,
    jsonrpc_url,
    tls_context,
)
from cstp_grpc.client.tls import channel_credentials
from cstp_grpc.contract import json_codec
from cstp_grpc.contract.error_reasons import error_class_for_http_status
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.contract.rpc_errors import error_from_rpc, read_error_details
from cstp_grpc.contract.untrusted_text import MAX_REASON_CHARACTERS, to_single_line
from cstp_grpc.enums import PeerStatus
from cstp_grpc.errors import CstpError, ServerUnreachable

CallMetadata = Sequence[tuple[str, str]]
"""Sent with the request: gRPC metadata, or HTTP headers."""

MAX_PEER_RESPONSE_BYTES: Final = 4 * 1024 * 1024
"""The largest response that is read from a peer."""
SERVER_FAILURES: Final = (errors.Unavailable, errors.QueryFailed, errors.InternalError, errors.LiaisonAgentUnavailable)
"""Errors that mean that an agent failed, in contrast to a rejection."""


@dataclass(frozen=True, slots=True)
class PeerCallResult:
    """The result of calling a peer: an answer if the status is ANSWERED.

    Otherwise `error` may add a reason, whose message is one line and safe for callers. `cause` is the text of the
    library below, for the log only.
    """

    status: PeerStatus
    answer: Message | None = None
    error: CstpError | None = None
    cause: str = ""


TIMED_OUT_RESULT: Final = PeerCallResult(PeerStatus.TIMED_OUT)
SKIPPED_RESULT: Final = PeerCallResult(PeerStatus.SKIPPED)


def result_of_answer(answer: Message) -> PeerCallResult:
    """Return the result for a response."""
    return PeerCallResult(PeerStatus.ANSWERED, answer)


def unreadable_result(why: str, cause: str = "") -> PeerCallResult:
    """Return the result for a response that could not be read."""
    return PeerCallResult(PeerStatus.NOT_UNDERSTOOD, error=errors.InternalError(why), cause=cause)


def no_connection_result(cause: str) -> PeerCallResult:
    """Return the result for an address where no server answers."""
    return PeerCallResult(PeerStatus.UNREACHABLE, cause=cause)


def unavailable_result(why: str) -> PeerCallResult:
    """Return the result for a peer that was not called or does not work."""
    return PeerCallResult(PeerStatus.UNREACHABLE, error=errors.Unavailable(why))


def result_of_error(error: CstpError) -> PeerCallResult:
    """Return the result for an error response."""
    if isinstance(error, errors.DeadlineExceeded):
        return TIMED_OUT_RESULT
    status = PeerStatus.UNREACHABLE if isinstance(error, SERVER_FAILURES) else PeerStatus.REFUSED
    return PeerCallResult(
        status, error=type(error)(to_single_line(error.message[: 2 * MAX_REASON_CHARACTERS])[:MAX_REASON_CHARACTERS])
    )


CHANNEL_OPTIONS: Final[Mapping[str, int]] = {
    "grpc.max_receive_message_length": MAX_PEER_RESPONSE_BYTES,
    # A peer is asked once: what is lost costs a call, what is repeated costs the peer more when it is least able to.
    "grpc.enable_retries": 0,
}
UNREADABLE_RESPONSES: Final[Mapping[str, str]] = {
    "Failed parsing HTTP/2": "no HTTP/2",
    "CLIENT: Received message larger": f"more than {MAX_PEER_RESPONSE_BYTES} bytes",
}
"""The errors for gRPC texts about unreadable bytes; no status code distinguishes them from other failures."""


class GrpcPeerTransport:
    """Calls a peer over one gRPC channel. Thread-safe. Raises InvalidArgument."""

    def __init__(self, target: str, token: str | None, root_certificates: bytes | None, *, secure: bool) -> None:
        address = grpc_address(target)
        options = list((dict(channel_options(address)) | dict(CHANNEL_OPTIONS)).items())
        self._metadata = bearer_header(token)
        self._calls: dict[str, Any] = {}
        if secure:
            self._channel = grpc.secure_channel(address, channel_credentials(root_certificates), options)
        else:
            self._channel = grpc.insecure_channel(address, options)

    def call(self, method: RpcMethod, request: Message, seconds: float, metadata: CallMetadata) -> PeerCallResult:
        """Return the result of a call, within `seconds`."""
        try:
            content = self._callable(method)(request, timeout=seconds, metadata=(*self._metadata, *metadata))
        except grpc.RpcError as error:
            return result_of_rpc_error(error)
        try:
            return result_of_answer(method.response.FromString(content))
        except DecodeError:
            return unreadable_result("no message of the contract")

    def close(self) -> None:
        """Close the channel, which cancels calls in progress."""
        self._channel.close()

    def _callable(self, method: RpcMethod) -> Any:
        # Without a deserializer of gRPC's, whose failures cannot be told from those of the peer.
        return self._calls.get(method.path) or self._calls.setdefault(
            method.path, self._channel.unary_unary(method.path, method.request.SerializeToString, None)
        )


def result_of_rpc_error(error: grpc.RpcError) -> PeerCallResult:
    """Return the result of a failed call; texts of CSTP servers are passed on, those of gRPC are not."""
    call = cast(grpc.Call, error)  # every error of a channel's call is the call too
    details = call.details() or ""
    if garbled := next((words for mark, words in UNREADABLE_RESPONSES.items() if mark in details), None):
        return unreadable_result(garbled, details)
    found = error_from_rpc(error, "it")
    if read_error_details(call) is not None:
        return result_of_error(found)
    if isinstance(found, ServerUnreachable):
        return no_connection_result(details)
    return result_of_error(type(found)(f"gRPC status {call.code().name}"))


JSON_MEDIA_TYPE: Final = "application/json"


class HttpPeerTransport:
    """Calls a peer by JSON-RPC, each call on its own connection. Thread-safe. Raises InvalidArgument."""

    def __init__(
        self,
        target: str,
        token: str | None,
        root_certificates: bytes | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = jsonrpc_url(target)
        self._headers = {"content-type": JSON_MEDIA_TYPE, "accept": JSON_MEDIA_TYPE} | dict(bearer_header(token))
        self._tls = tls_context(root_certificates)
        self._clock = clock
        self._ids = itertools.count(1)

    def call(self, method: RpcMethod, request: Message, seconds: float, metadata: CallMetadata) -> PeerCallResult:
        """Return the result of a call, within `seconds`."""
        call_id = next(self._ids)
        body, headers = encode_call(method, request, call_id), self._headers | dict(metadata)
        try:
            answer = fetch_response(
                "POST", self._url, headers, body, seconds, self._tls, MAX_PEER_RESPONSE_BYTES, self._clock
            )
        except TimeoutError:
            return TIMED_OUT_RESULT
        except OSError as error:
            return no_connection_result(str(error))
        except ResponseTooLarge as error:
            return unreadable_result(str(error))
        except HTTPException as error:
            return unreadable_result("no HTTP", repr(error))
        return result_of_http_response(answer, call_id, method)

    def close(self) -> None:
        """Do nothing: connections are closed after each call."""


def result_of_http_response(answer: HttpResponse, call_id: int, method: RpcMethod) -> PeerCallResult:
    """Return the result of a call from its HTTP response."""
    content = parse_json_body(answer)
    if not isinstance(content, dict) or content.get("jsonrpc") != "2.0":
        return result_of_http_status(answer.status)
    if isinstance(content.get("error"), dict):
        return result_of_error(error_from_jsonrpc(content["error"]))
    result = content.get("result")
    if content.get("id") != call_id or not isinstance(result, dict):
        return unreadable_result("it belongs to no call")
    try:
        known = drop_unknown_fields(result, cast(Descriptor, method.response.DESCRIPTOR))
        return result_of_answer(json_codec.from_json(known, method.response))
    except json_codec.CodecError as error:
        return unreadable_result("it does not fit the contract", str(error))


def parse_json_body(answer: HttpResponse) -> Any:
    """Return the JSON value of a response, or None if it has none."""
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON_MEDIA_TYPE:
        return None
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return None


def result_of_http_status(status: int) -> PeerCallResult:
    """Return the result for an HTTP response that is not JSON-RPC."""
    words = f"HTTP {status} without JSON-RPC"
    if error_class := error_class_for_http_status(status):
        return result_of_error(error_class(words))
    return unavailable_result(words) if status >= 500 else unreadable_result(words)
