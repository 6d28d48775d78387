"""The errors of A2A: from an A2AError to the answer of each transport, and from failures of push configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from a2a.utils import errors as a2a_errors
from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2

from bridge import call_errors
from bridge.call_observation import BODY_REASONS, CallFailure, describe_failure, is_from_server
from cstp_grpc.contract.errors import REQUEST_ID, CstpError, FieldViolation
from cstp_grpc.contract.json_codec import json_path
from cstp_grpc.contract.rpc_errors import INTERNAL, REASON_CODES, make_error_details, pack_any

A2A_DOMAIN: Final = "a2a-protocol.org"
INTERNAL_MAPPING: Final = a2a_errors.ErrorMapping(500, "INTERNAL", "INTERNAL_ERROR")
MAPPINGS: Final[Mapping[type[a2a_errors.A2AError], a2a_errors.ErrorMapping]] = {
    **a2a_errors.A2A_ERROR_MAPPING,
    # The SDK has none for it.
    a2a_errors.JSONParseError: a2a_errors.ErrorMapping(400, "INVALID_ARGUMENT", "JSON_PARSE"),
}


class UpstreamError(a2a_errors.A2AError):
    """A failed call for which A2A has no error of its own, such as an unknown token."""

    def __init__(self, failure: CstpError) -> None:
        super().__init__(failure.message)
        self.failure = failure


def invalid_params(message: str, *violations: FieldViolation) -> a2a_errors.InvalidParamsError:
    errors = [{"field": each.field, "message": each.description} for each in violations]
    return a2a_errors.InvalidParamsError(message, {"errors": errors} if errors else None)


def violations_error(found: Sequence[FieldViolation]) -> a2a_errors.InvalidParamsError:
    """Return the error for invalid fields, whose message names them all."""
    return invalid_params(call_errors.violation_text(found), *found)


def with_json_names(error: a2a_errors.InvalidParamsError, kind: type[Message]) -> a2a_errors.InvalidParamsError:
    fields = [each._replace(field=json_path(kind, each.field)) for each in read_violations(error)]
    # The SDK's own text says only that something is wrong.
    return violations_error(fields) if fields else error


def read_violations(error: a2a_errors.A2AError) -> list[FieldViolation]:
    return [FieldViolation(item["field"], item["message"]) for item in (error.data or {}).get("errors", ())]


def unexpected_error() -> a2a_errors.A2AError:
    """Return the error for an unexpected exception, whose cause is logged only."""
    return a2a_errors.InternalError(call_errors.UNEXPECTED_FAILURE)


def jsonrpc_error(error: a2a_errors.A2AError, request_id: str, *, v0_3: bool) -> dict[str, Any]:
    """Return the `error` member of a JSON-RPC response, for a caller of A2A 1.0 or 0.3."""
    details = [call_errors.to_any_json(detail) for detail in error_details(error, request_id)]
    known = a2a_errors.JSON_RPC_ERROR_CODE_MAP.get(type(error), REASON_CODES[INTERNAL].a2a_code)
    return {
        "code": call_errors.error_codes(error.failure).a2a_code if isinstance(error, UpstreamError) else known,
        "message": error.message,
        # Clients of 0.3, such as a2a-go, decode an object only; 1.0 requires an array.
        "data": {"details": details} if v0_3 else details,
    }


def jsonrpc_failure(error: a2a_errors.A2AError) -> CstpError | None:
    """Return the failure that sets HTTP status, challenge and retry time of a JSON-RPC response, or None for 200."""
    return error.failure if isinstance(error, UpstreamError) else None


def rest_error(error: a2a_errors.A2AError, request_id: str) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body of an HTTP+JSON response, a google.rpc.Status."""
    mapping = error_mapping(error)
    details = error_details(error, request_id)
    return mapping.http_code, call_errors.status_json(mapping.http_code, mapping.grpc_status, error.message, details)


def grpc_error(error: a2a_errors.A2AError, request_id: str) -> status_pb2.Status:
    found = status_pb2.Status(code=code_pb2.Code.Value(error_mapping(error).grpc_status), message=error.message)
    found.details.extend(map(pack_any, error_details(error, request_id)))
    return found


def error_mapping(error: a2a_errors.A2AError) -> a2a_errors.ErrorMapping:
    if not isinstance(error, UpstreamError):
        return MAPPINGS.get(type(error), INTERNAL_MAPPING)
    codes = call_errors.error_codes(error.failure)
    return a2a_errors.ErrorMapping(codes.a2a_http_status, codes.grpc_code, error.failure.reason)


def describe_error(error: a2a_errors.A2AError, http_status: int | None = None) -> CallFailure:
    """Describe an error for metrics; `http_status` is the one of the response, if it is a more specific one."""
    if isinstance(error, UpstreamError):
        return describe_failure(error.failure)
    mapping = error_mapping(error)
    status = http_status or mapping.http_code
    return CallFailure(BODY_REASONS.get(status, mapping.reason), status, not is_from_server(error))


def error_details(error: a2a_errors.A2AError, request_id: str) -> list[Message]:
    """Return the details of an error: ErrorInfo, then invalid fields, blocking guardrails and the retry delay."""
    if isinstance(error, UpstreamError):
        return call_errors.failure_details(error.failure, request_id)
    return make_error_details(
        error_mapping(error).reason, {REQUEST_ID: request_id}, domain=A2A_DOMAIN, violations=read_violations(error)
    )


INLINE_CONFIG_PATH: Final = "configuration.taskPushNotificationConfig"
"""Where a message holds a configuration."""
SERVER_CONFIG_FIELD: Final = "pushConfig"
MOVED_CONFIG_FIELDS: Final[Mapping[str, str]] = {
    "scheme": "authentication.scheme",
    "credentials": "authentication.credentials",
}
"""Fields of a configuration that A2A has elsewhere than the server does."""


def push_error(failure: CstpError, place: str = "") -> a2a_errors.A2AError:
    """Return the A2A error for a failure about a push configuration, which the request holds at `place`."""
    # The server answers so if `a2a.push.enabled` is off there, even if this bridge is configured otherwise.
    if failure.reason == "METHOD_NOT_FOUND":
        return a2a_errors.PushNotificationNotSupportedError()
    if failure.reason == "NOT_FOUND":
        return a2a_errors.TaskNotFoundError()
    if failure.reason != "INVALID_ARGUMENT" or not failure.violations:
        return UpstreamError(failure)
    if any(each.field == "taskId" for each in failure.violations):
        # An id that cannot be one is the id of no task.
        return a2a_errors.TaskNotFoundError()
    return violations_error([each._replace(field=push_config_path(each.field, place)) for each in failure.violations])


def push_config_path(field: str, place: str) -> str:
    """Return the path in an A2A request for a field of the server's request."""
    outer, _, inner = field.partition(".")
    if outer != SERVER_CONFIG_FIELD:
        return field
    return ".".join(part for part in (place, MOVED_CONFIG_FIELDS.get(inner, inner)) if part) or "params"
