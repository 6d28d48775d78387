"""The one table from errors to gRPC statuses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from cstp_grpc import errors
from cstp_grpc.client.errors import DETAILS, DOMAIN, PUSHBACK

REQUEST_ID = "x-request-id"
NEVER = "-1"
"""The pushback of what is not to be repeated."""
BLOCKS_BYTES = 4_096
"""The room for guardrails that block, of which the first is always named: many clients refuse more than 8 KiB of
trailing metadata, in which errors travel."""

CODES: Mapping[type[errors.CstpError], grpc.StatusCode] = {
    errors.MethodNotFound: grpc.StatusCode.UNIMPLEMENTED,
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InternalError: grpc.StatusCode.INTERNAL,
    errors.AuthenticationRequired: grpc.StatusCode.UNAUTHENTICATED,
    errors.RateLimited: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.QueryFailed: grpc.StatusCode.UNAVAILABLE,
    errors.GuardrailEvalFailed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Conflict: grpc.StatusCode.ALREADY_EXISTS,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.ContextSharingFailed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SessionUpdateFailed: grpc.StatusCode.ABORTED,
    errors.LiaisonAgentUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.SessionWithAnotherAgent: grpc.StatusCode.FAILED_PRECONDITION,
}

FINAL = (errors.QueryFailed, errors.LiaisonAgentUnavailable)
"""What has the status of a passing failure and is not to be repeated: others decide when there is sense in it."""


@dataclass(frozen=True)
class RichStatus(grpc.Status):
    """A gRPC status with details, as `ServicerContext.abort_with_status` takes it."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def to_status(error: errors.CstpError, request_id: str, remaining: float | None = None) -> RichStatus:
    """Return the status of an error, with ErrorInfo, and BadRequest, PreconditionFailure and RetryInfo where needed.

    `remaining` is the seconds until the caller's deadline; None where it has none.
    """
    code = next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
    details = [packed(detail) for detail in error_details(error, request_id)]
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=error.message, details=details)
    trailing = ((DETAILS, status.SerializeToString()), (REQUEST_ID, request_id), *pushback(error, remaining))
    return RichStatus(code, error.message, trailing)


def pushback(error: errors.CstpError, remaining: float | None) -> tuple[tuple[str, str], ...]:
    """Return what tells a client that repeats calls by itself when to do so; nothing leaves it to the client."""
    wait = error.retry_after
    if wait is None and not isinstance(error, (errors.RateLimited, *FINAL)):
        return ()
    if wait is None or isinstance(error, FINAL) or (remaining is not None and wait >= remaining):
        return ((PUSHBACK, NEVER),)
    return ((PUSHBACK, str(math.ceil(wait * 1000))),)


def error_details(error: errors.CstpError, request_id: str) -> list[Message]:
    """Return the google.rpc details of an error."""
    metadata = {**error.metadata, "requestId": request_id}
    found: list[Message] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)]
    if error.violations:
        fields = [
            error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
            for v in error.violations
        ]
        found.append(error_details_pb2.BadRequest(field_violations=fields))
    if error.blocks:
        guardrails = [
            error_details_pb2.PreconditionFailure.Violation(type=b.guardrail_id, subject=b.name, description=b.message)
            for b in fitting(error.blocks)
        ]
        found.append(error_details_pb2.PreconditionFailure(violations=guardrails))
    if error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after * 1000))
        found.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return found


def fitting(blocks: Sequence[errors.Block]) -> Iterator[errors.Block]:
    """Yield the blocks that there is room for."""
    taken = 0
    for block in blocks:
        taken += len(f"{block.guardrail_id}{block.name}{block.message}".encode())
        if taken > BLOCKS_BYTES and block is not blocks[0]:
            return
        yield block


def packed(detail: Message) -> any_pb2.Any:
    """Return a detail in its envelope."""
    envelope = any_pb2.Any()
    envelope.Pack(detail)
    return envelope
