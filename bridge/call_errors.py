"""The errors of failed calls as the bridge answers them: their messages, codes and `error.data`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from cstp_grpc.contract import errors, rpc_errors
from cstp_grpc.contract.json_codec import json_path

STATUS_MESSAGES: Final[Mapping[grpc.StatusCode, str]] = {
    grpc.StatusCode.UNIMPLEMENTED: "The server does not have this method",
    grpc.StatusCode.INVALID_ARGUMENT: "The server refused the request as malformed",
    grpc.StatusCode.OUT_OF_RANGE: "The server refused the request as out of range",
    grpc.StatusCode.UNAUTHENTICATED: "A valid bearer token is needed",
    grpc.StatusCode.PERMISSION_DENIED: "The call is not permitted",
    grpc.StatusCode.NOT_FOUND: "There is nothing of that name",
    grpc.StatusCode.ALREADY_EXISTS: "It exists already with another content",
    grpc.StatusCode.ABORTED: "Another call changed the same thing",
    grpc.StatusCode.DEADLINE_EXCEEDED: "The server did not answer in time",
    grpc.StatusCode.UNAVAILABLE: "The server cannot be reached; try again later",
    grpc.StatusCode.CANCELLED: "The server broke the call off; try again later",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "The server has no room for the call; try again later",
}
"""Messages for statuses without details. Security: the status's own text may come from a driver or proxy."""

UNEXPECTED_FAILURE: Final = "Something unforeseen happened; the server's log tells more under the request id"
SIZE_LIMIT_MESSAGES: Final = {
    "INVALID_ARGUMENT": "The request is larger than the server takes",
    "INTERNAL": "The answer is larger than the server sends; ask for less",
}
"""Messages for requests and responses beyond the limits of gRPC, by the reason of the failure."""
DETAIL: Final = "detail"
"""The key of an error's metadata that describes how a request is malformed; `error.data` shows it as a member."""


class ErrorWithOwnCodes(errors.CstpError):
    """An error whose codes are not those of its reason.

    HTTP itself has a status for it, or its reason is one of a later contract.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        codes: rpc_errors.ReasonCodes,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[errors.FieldViolation] = (),
        retry_after: float | None = None,
        blocks: Sequence[errors.BlockingGuardrail] = (),
    ) -> None:
        super().__init__(message, metadata=metadata, violations=violations, retry_after=retry_after, blocks=blocks)
        self.reason = reason
        self.codes = codes


def visible_rpc_error(error: grpc.aio.AioRpcError, request: type[Message]) -> errors.CstpError:
    """Return a failed gRPC call as its caller sees it; `request` is the class of the sent message."""
    reason = rpc_errors.reason_for_status(error)
    request_id = read_server_request_id(error)
    details = rpc_errors.read_error_details(error)
    if details is None:
        return rpc_errors.error_for_reason(reason, message_for_status(error.code(), reason), metadata=request_id)
    violations = [
        errors.FieldViolation(json_path(request, each.field), each.description) for each in details.violations
    ]
    # The server's own message names fields as the proto does.
    renamed = violations != list(details.violations)
    details = replace(
        details,
        message=violation_text(violations) if renamed else details.message,
        metadata={**request_id, **details.metadata},
        violations=tuple(violations),
    )
    if details.reason in rpc_errors.REASON_CODES:
        return rpc_errors.error_from_details(details)
    # A server of a later contract gives reasons unknown here: they keep their name and get the codes of the status.
    return ErrorWithOwnCodes(
        details.reason,
        details.message,
        rpc_errors.REASON_CODES[reason],
        metadata=details.metadata,
        violations=details.violations,
        retry_after=details.retry_after,
        blocks=details.blocks,
    )


def error_codes(error: errors.CstpError) -> rpc_errors.ReasonCodes:
    return error.codes if isinstance(error, ErrorWithOwnCodes) else rpc_errors.codes_for_error(error)


def error_data(error: errors.CstpError, request_id: str) -> dict[str, Any]:
    """Return the `data` member of a JSON-RPC error; `request_id` is used if the error has no id of its own."""
    data: dict[str, Any] = {"reason": error.reason, errors.REQUEST_ID: error.request_id or request_id}
    if metadata := server_metadata(error):
        data["metadata"] = metadata
    blocks = [{"guardrailId": each.guardrail_id, "name": each.name, "message": each.message} for each in error.blocks]
    if error.violations or blocks:
        fields = [{"field": each.field, "description": each.description} for each in error.violations]
        data["violations"] = [*fields, *blocks]
    if (wait := retry_milliseconds(error)) is not None:
        data["retryAfterMs"] = wait
    if detail := error.metadata.get(DETAIL):
        data[DETAIL] = detail
    return data


def server_metadata(error: errors.CstpError) -> dict[str, str]:
    """Return the metadata that the server gave an error, without what is shown on its own."""
    return {key: value for key, value in error.metadata.items() if key not in (errors.REQUEST_ID, DETAIL)}


def retry_milliseconds(error: errors.CstpError) -> int | None:
    """Return the whole milliseconds to wait before a retry, or None if unknown."""
    # Rounded before, so that 2829.0000000000005 ms are not 2830.
    return None if error.retry_after is None else math.ceil(round(error.retry_after * 1000, 6))


def retry_seconds(error: errors.CstpError) -> int | None:
    """Return the whole seconds to wait before a retry, at least one, or None if unknown."""
    wait = retry_milliseconds(error)
    return None if wait is None else max(1, math.ceil(wait / 1000))


def missing_permission(error: errors.CstpError) -> str:
    """Return the permission that the caller lacks; empty if the call failed for any other reason."""
    return error.metadata.get("permission", "") if error.reason == errors.PermissionDenied.reason else ""


def unexpected_failure() -> errors.InternalError:
    """Return the error for an unexpected exception, whose cause is logged only."""
    return errors.InternalError(UNEXPECTED_FAILURE)


def violation_text(violations: Iterable[errors.FieldViolation]) -> str:
    return "; ".join(f"{each.field}: {each.description}" if each.field else each.description for each in violations)


def message_for_status(code: grpc.StatusCode, reason: str) -> str:
    """Return the message for a status without details; `reason` is the error reason that the status means."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and reason in SIZE_LIMIT_MESSAGES:
        return SIZE_LIMIT_MESSAGES[reason]
    return STATUS_MESSAGES.get(code, UNEXPECTED_FAILURE)


def read_server_request_id(error: grpc.aio.AioRpcError) -> dict[str, str]:
    """Return the request id that the server answered with, as an error's metadata; empty if it sent none."""
    for metadata in (error.trailing_metadata(), error.initial_metadata()):
        for key, value in metadata or ():
            if key == rpc_errors.REQUEST_ID_KEY and isinstance(value, str):
                return {errors.REQUEST_ID: value}
    return {}


def failure_status(failure: errors.CstpError, request_id: str) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body of an HTTP+JSON response to a failed call, a google.rpc.Status."""
    codes = error_codes(failure)
    details = failure_details(failure, request_id)
    return codes.a2a_http_status, status_json(codes.a2a_http_status, codes.grpc_code, failure.message, details)


def status_json(http_code: int, grpc_code: str, message: str, details: Iterable[Message]) -> dict[str, Any]:
    status = {
        "code": http_code,
        "status": grpc_code,
        "message": message,
        "details": [to_any_json(detail) for detail in details],
    }
    return {"error": status}


def failure_details(failure: errors.CstpError, request_id: str) -> list[Message]:
    """Return the details of a failed call; `request_id` is used if the failure has no id of its own."""
    return rpc_errors.make_error_details(
        failure.reason,
        {**server_metadata(failure), errors.REQUEST_ID: failure.request_id or request_id},
        violations=failure.violations,
        blocks=failure.blocks,
        retry_after_ms=retry_milliseconds(failure),
    )


def to_any_json(detail: Message) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(rpc_errors.pack_any(detail))
    return found
