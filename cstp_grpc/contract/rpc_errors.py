"""Reads the google.rpc.Status that a failed gRPC call carries. The server, the bridge and the clients share it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message

from cstp_grpc import errors
from cstp_grpc.contract.error_reasons import error_for_reason, reason_for_grpc_code
from cstp_grpc.errors import BlockingGuardrail, CstpError, FieldViolation

if TYPE_CHECKING:
    from google.rpc import status_pb2

    FailedCall = grpc.Call | grpc.aio.AioRpcError

DOMAIN: Final = "cstp"
"""The domain of the contract's reasons in ErrorInfo; other domains may have reasons of the same names."""
STATUS_KEY: Final = "grpc-status-details-bin"
"""The trailing metadata in which gRPC carries a google.rpc.Status."""
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
"""The trailing metadata in which gRPC clients look for how long to wait before a retry, or that they must not retry."""
REQUEST_ID_KEY: Final = "x-request-id"
"""The metadata in which a request and its answer carry the request id."""

MAX_DELAY_SECONDS: Final = 1e9
"""Longest accepted retry delay, some 30 years. Chosen: below what sleep functions take."""

# gRPC core answers RESOURCE_EXHAUSTED to messages beyond its limits; only its text distinguishes that from a server
# that is busy, after which a retry makes sense.
SIZE_LIMIT_REASONS: Final[Mapping[str, str]] = {
    "Received message larger": errors.InvalidArgument.reason,
    "Sent message larger": errors.InternalError.reason,
}

HANDSHAKE: Final = re.compile(r"OPENSSL_internal:([A-Z_]+(: self signed certificate)?)")
"""The cause in gRPC's text about a failed handshake; what follows it is no part of the cause."""


@dataclass(frozen=True, slots=True)
class RpcErrorDetails:
    """What a failed call says in a google.rpc.Status whose ErrorInfo is of the contract's domain."""

    reason: str
    """A value of ErrorReason without its prefix; unknown here if the server has a later contract."""
    message: str
    metadata: Mapping[str, str]
    """The metadata of ErrorInfo, with the request id."""
    violations: tuple[FieldViolation, ...] = ()
    blocks: tuple[BlockingGuardrail, ...] = ()
    retry_after: float | None = None
    """Seconds to wait before a retry; None if the server does not say."""


def error_from_rpc(error: grpc.RpcError, target: str) -> CstpError:
    """Return the exception for a failed gRPC call to `target`."""
    call = cast("grpc.Call", error)  # every error of a channel's call is the call too
    details = read_error_details(call)
    found = error_from_status(call, target) if details is None else error_from_details(details)
    if (pushback := trailing_value(call, PUSHBACK_KEY)) is not None:
        delay = parse_pushback(pushback)
        # The pushback of gRPC's retry design (gRFC A6): anything but a number forbids a retry.
        found.final = delay is None
        if found.retry_after is None and delay is not None:
            found.retry_after = delay / 1000
    return found


def error_from_details(details: RpcErrorDetails) -> CstpError:
    """Return the exception that the details of a failed call describe."""
    return error_for_reason(
        details.reason,
        details.message,
        metadata=details.metadata,
        violations=details.violations,
        retry_after=details.retry_after,
        blocks=details.blocks,
    )


def error_from_status(call: FailedCall, target: str) -> CstpError:
    """Return the exception for a failed call that gives no reason: gRPC itself answered, or something between."""
    text = call.details() or ""
    reason = reason_for_status(call)
    if call.code() is grpc.StatusCode.UNAVAILABLE:
        return errors.ServerUnreachable(f"No server answers at {target}: {connection_failure(text)}")
    if reason == errors.DeadlineExceeded.reason:
        return errors.DeadlineExceeded(f"{target} did not answer in time")
    return error_for_reason(reason, f"{target} answered {call.code().name}: {text}")


def reason_for_status(call: FailedCall) -> str:
    """Return the reason that the gRPC status of a failed call means if its details give none."""
    code = call.code()
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        text = call.details() or ""
        if reason := next((reason for mark, reason in SIZE_LIMIT_REASONS.items() if mark in text), None):
            return reason
    return reason_for_grpc_code(code.name)


def read_error_details(call: FailedCall) -> RpcErrorDetails | None:
    """Return what the google.rpc.Status of a failed call says; None if it has none with a reason of the contract."""
    from google.rpc import error_details_pb2  # not at the top: the first call of a short command needs it seldom

    status = read_rich_status(call)
    info = error_details_pb2.ErrorInfo()
    if status is None or not unpack_detail(status, info) or info.domain != DOMAIN or not info.reason:
        return None
    bad_request, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    precondition = error_details_pb2.PreconditionFailure()
    unpack_detail(status, bad_request)
    unpack_detail(status, precondition)
    has_delay = unpack_detail(status, retry) and retry.HasField("retry_delay")
    return RpcErrorDetails(
        info.reason,
        status.message,
        metadata=dict(info.metadata),
        violations=tuple(FieldViolation(v.field, v.description) for v in bad_request.field_violations),
        blocks=tuple(BlockingGuardrail(v.type, v.subject, v.description) for v in precondition.violations),
        retry_after=retry_delay_seconds(retry.retry_delay) if has_delay else None,
    )


def read_rich_status(call: FailedCall) -> status_pb2.Status | None:
    """Return the google.rpc.Status of a failed call; None if there is none that can be read."""
    content = trailing_value(call, STATUS_KEY)
    if not isinstance(content, bytes):
        return None
    from google.rpc import status_pb2

    try:
        return status_pb2.Status.FromString(content)
    except DecodeError:
        return None


def unpack_detail(status: status_pb2.Status, detail: Message) -> bool:
    """Fill `detail` from a status and return whether the status has such a detail that can be read."""
    try:
        return any(envelope.Unpack(detail) for envelope in status.details if envelope.Is(detail.DESCRIPTOR))
    except DecodeError:
        return False


def trailing_value(call: FailedCall, key: str) -> str | bytes | None:
    """Return the first value of a key in the trailing metadata of a call, or None."""
    return next((value for name, value in call.trailing_metadata() or () if name == key), None)


def parse_pushback(pushback: str | bytes) -> int | None:
    """Return the milliseconds to wait before a retry; None for anything but a number, which forbids retries."""
    text = pushback if isinstance(pushback, str) else ""
    return int(text) if text.isascii() and text.isdecimal() else None


def retry_delay_seconds(delay: Duration) -> float | None:
    """Return the seconds of a delay; None if it is negative or makes no sense."""
    # Divided once, so that 2.829 s does not become 2.8289999999999997.
    seconds = (delay.seconds * 1_000_000_000 + delay.nanos) / 1_000_000_000
    return seconds if 0 <= seconds <= MAX_DELAY_SECONDS else None


def connection_failure(text: str) -> str:
    """Return why a server cannot be reached: the end of the chain of causes that gRPC's text lists."""
    handshake = HANDSHAKE.search(text)
    return f"the TLS handshake failed, {handshake[1]}" if handshake else text.rpartition(": ")[2]
