"""Failures as the client raises them: the classes of `cstp_grpc.errors`, one for each reason of the contract."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message

from cstp_grpc import errors
from cstp_grpc.errors import Block, CstpError, FieldViolation

if TYPE_CHECKING:
    from google.rpc import status_pb2

DOMAIN = "cstp"
"""That of the contract's reasons; those of others may have the same names."""
DETAILS = "grpc-status-details-bin"
PUSHBACK = "grpc-retry-pushback-ms"
"""The key under which gRPC clients that repeat calls look for how long to wait, or that waiting is of no use."""
REQUEST_ID = "requestId"
MAX_WAIT = 1e9
"""Seconds; a server that asks to wait longer makes no sense."""
TOO_LARGE: Mapping[str, type[CstpError]] = {
    "Received message larger": errors.InvalidArgument,
    "Sent message larger": errors.InternalError,
}
"""By what gRPC says of messages beyond its limits: only its text tells them from other exhaustion."""

HANDSHAKE = re.compile(r"OPENSSL_internal:([A-Z_]+(: self signed certificate)?)")
"""What gRPC says of a failed handshake; what comes after it is no part of the cause."""


class ParseError(errors.InvalidArgument):
    """The bridge could not read the call as JSON."""

    reason = "PARSE_ERROR"


class InvalidRequest(errors.InvalidArgument):
    """The bridge read JSON that is no JSON-RPC call."""

    reason = "INVALID_REQUEST"


class ServerUnreachable(errors.Unavailable):
    """There is no server at the address, or the network between fails."""


CLASSES: tuple[type[CstpError], ...] = (
    ParseError,
    InvalidRequest,
    errors.MethodNotFound,
    errors.InvalidArgument,
    errors.InternalError,
    errors.AuthenticationRequired,
    errors.RateLimited,
    errors.QueryFailed,
    errors.GuardrailEvalFailed,
    errors.PermissionDenied,
    errors.NotFound,
    errors.Conflict,
    errors.DeadlineExceeded,
    errors.Unavailable,
    errors.MissingParameter,
    errors.InvalidPillar,
    errors.SessionNotFound,
    errors.ContextSharingFailed,
    errors.SessionUpdateFailed,
    errors.LiaisonAgentUnavailable,
    errors.SessionWithAnotherAgent,
)

BY_REASON: Mapping[str, type[CstpError]] = {error.reason: error for error in CLASSES}

BY_STATUS: Mapping[grpc.StatusCode, type[CstpError]] = {
    grpc.StatusCode.UNAUTHENTICATED: errors.AuthenticationRequired,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
    # Without details this is gRPC's own limit on calls in progress, not the rate limit of an agent.
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Unavailable,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.UNIMPLEMENTED: errors.MethodNotFound,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidArgument,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidArgument,
    grpc.StatusCode.ALREADY_EXISTS: errors.Conflict,
    grpc.StatusCode.ABORTED: errors.Conflict,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.UNAVAILABLE: ServerUnreachable,
    # A server that stops cancels the calls that it could not finish.
    grpc.StatusCode.CANCELLED: errors.Unavailable,
}
"""What a status without details means: gRPC itself or something between answered. Others are InternalError."""


def request_id(error: CstpError) -> str | None:
    """Return the id under which the server's log tells more; None where no server answered."""
    return error.metadata.get(REQUEST_ID)


def build(
    reason: str,
    message: str,
    *,
    metadata: Mapping[str, str] | None = None,
    violations: Sequence[FieldViolation] = (),
    retry_after: float | None = None,
    blocks: Sequence[Block] = (),
) -> CstpError:
    """Return the exception for a reason; a reason of a later contract becomes an InternalError that tells it."""
    details = dict(metadata or {})
    if reason not in BY_REASON:
        details.setdefault("reason", reason)
    error = BY_REASON.get(reason, errors.InternalError)
    return error(message, metadata=details, violations=violations, retry_after=retry_after, blocks=blocks)


def from_rpc(error: grpc.RpcError, target: str) -> CstpError:
    """Return the exception for a failed gRPC call to `target`."""
    call = cast(grpc.Call, error)  # every error of a channel's call is the call too
    found = described(call, target)
    if (pushback := told(call, PUSHBACK)) is not None:
        wait = milliseconds(pushback)
        found.final = wait is None
        if found.retry_after is None and wait is not None:
            found.retry_after = wait / 1000
    return found


def described(call: grpc.Call, target: str) -> CstpError:
    """Return the exception for a failed gRPC call by what its status and details say."""
    from google.rpc import error_details_pb2

    status = rich_status(call)
    info = error_details_pb2.ErrorInfo()
    if status is None or not unpack(status, info) or info.domain != DOMAIN:
        return bare(call.code(), call.details() or "", target)
    bad_request, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    precondition = error_details_pb2.PreconditionFailure()
    unpack(status, bad_request)
    unpack(status, precondition)
    waits = unpack(status, retry)
    return build(
        info.reason,
        status.message,
        metadata=info.metadata,
        violations=[FieldViolation(v.field, v.description) for v in bad_request.field_violations],
        retry_after=seconds_of(retry.retry_delay) if waits else None,
        blocks=[Block(v.type, v.subject, v.description) for v in precondition.violations],
    )


def told(call: grpc.Call, key: str) -> str | bytes | None:
    """Return what a server sent along under a key."""
    return next((value for name, value in call.trailing_metadata() or () if name == key), None)


def milliseconds(pushback: str | bytes) -> int | None:
    """Return how long a server asks to wait; None where it asks not to repeat the call, as what is no number does."""
    text = pushback if isinstance(pushback, str) else ""
    return int(text) if text.isascii() and text.isdecimal() else None


def seconds_of(delay: Duration) -> float | None:
    """Return how long a server asks to wait; None where it makes no sense."""
    # Divided once, so that 2.829 s is no 2.8289999999999997.
    seconds = (delay.seconds * 1_000_000_000 + delay.nanos) / 1_000_000_000
    return seconds if 0 <= seconds <= MAX_WAIT else None


def rich_status(call: grpc.Call) -> status_pb2.Status | None:
    """Return the google.rpc.Status that a server sent along; None where there is none that can be read."""
    details = told(call, DETAILS)
    if not isinstance(details, bytes):
        return None
    from google.rpc import status_pb2

    try:
        return status_pb2.Status.FromString(details)
    except DecodeError:
        return None


def unpack(status: status_pb2.Status, detail: Message) -> bool:
    """Fill `detail` from the status and return whether the status has such a detail that can be read."""
    try:
        return any(envelope.Unpack(detail) for envelope in status.details if envelope.Is(detail.DESCRIPTOR))
    except DecodeError:
        return False


def bare(code: grpc.StatusCode, details: str, target: str) -> CstpError:
    """Return the exception for a status that gives no reason."""
    error = BY_STATUS.get(code, errors.InternalError)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        error = next((meaning for mark, meaning in TOO_LARGE.items() if mark in details), error)
    if error is ServerUnreachable:
        return ServerUnreachable(f"No server answers at {target}: {cause(details)}")
    if error is errors.DeadlineExceeded:
        return errors.DeadlineExceeded(f"{target} did not answer in time")
    return error(f"{target} answered {code.name}: {details}")


def cause(details: str) -> str:
    """Return why a server cannot be reached. gRPC tells the whole way to the failure; its end is what matters."""
    handshake = HANDSHAKE.search(details)
    return f"the TLS handshake failed, {handshake[1]}" if handshake else details.rpartition(": ")[2]
