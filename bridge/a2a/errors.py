"""The errors of the A2A peer: from an A2AError to what each transport answers, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from a2a.utils.errors import (
    A2A_ERROR_MAPPING,
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    ErrorMapping,
    InternalError,
    InvalidParamsError,
    JSONParseError,
)
from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2

from bridge import status
from bridge.status import Failure
from cstp_grpc.contract.error_details import make_error_details, pack_any
from cstp_grpc.contract.error_reasons import REASON_CODES
from cstp_grpc.errors import REQUEST_ID, Block, FieldViolation

A2A_DOMAIN: Final = "a2a-protocol.org"
INTERNAL: Final = ErrorMapping(500, "INTERNAL", "INTERNAL_ERROR")
MAPPINGS: Final[Mapping[type[A2AError], ErrorMapping]] = {
    **A2A_ERROR_MAPPING,
    # The SDK has none for it.
    JSONParseError: ErrorMapping(400, "INVALID_ARGUMENT", "JSON_PARSE"),
}


class Refused(A2AError):
    """A failure of the gRPC server's that A2A has no error for, such as a token that it does not know."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def invalid_params(message: str, *violations: tuple[str, str]) -> InvalidParamsError:
    """Return the error of params that cannot be used; `violations` are fields and what is wrong with each."""
    errors = [{"field": field, "message": description} for field, description in violations]
    return InvalidParamsError(message, {"errors": errors} if errors else None)


def unforeseen() -> A2AError:
    """Return the error of what nobody foresaw; its cause belongs into the log."""
    return InternalError(status.UNFORESEEN[1])


def jsonrpc_error(error: A2AError, request_id: str) -> dict[str, Any]:
    """Return the `error` member of a JSON-RPC response."""
    return {
        "code": code_of(error),
        "message": error.message,
        "data": [to_any_json(detail) for detail in details(error, request_id)],
    }


def code_of(error: A2AError) -> int:
    """Return the JSON-RPC code of an error."""
    if isinstance(error, Refused):
        return error.failure.codes.a2a_code
    return JSON_RPC_ERROR_CODE_MAP.get(type(error), REASON_CODES[status.UNFORESEEN[0]].a2a_code)


def jsonrpc_failure(error: A2AError) -> Failure | None:
    """Return the failure whose HTTP status, challenge and waiting time a JSON-RPC answer shows; None for plain 200."""
    return error.failure if isinstance(error, Refused) else None


def rest_error(error: A2AError, request_id: str) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body of an HTTP+JSON answer, a google.rpc.Status."""
    mapping = mapping_of(error)
    body = {
        "code": mapping.http_code,
        "status": mapping.grpc_status,
        "message": error.message,
        "details": [to_any_json(detail) for detail in details(error, request_id)],
    }
    return mapping.http_code, {"error": body}


def grpc_error(error: A2AError, request_id: str) -> status_pb2.Status:
    """Return the status of a gRPC answer, with its details."""
    found = status_pb2.Status(code=code_pb2.Code.Value(mapping_of(error).grpc_status), message=error.message)
    found.details.extend(map(pack_any, details(error, request_id)))
    return found


def mapping_of(error: A2AError) -> ErrorMapping:
    """Return the HTTP status, the gRPC status and the reason of an error."""
    if not isinstance(error, Refused):
        return MAPPINGS.get(type(error), INTERNAL)
    codes = error.failure.codes
    return ErrorMapping(codes.a2a_http_status, codes.grpc_code, error.failure.reason)


def details(error: A2AError, request_id: str) -> list[Message]:
    """Return what an error says besides its text: ErrorInfo first, then wrong fields, what blocks, the time to wait."""
    if isinstance(error, Refused):
        return failure_details(error.failure, request_id)
    fields = [FieldViolation(item["field"], item["message"]) for item in (error.data or {}).get("errors", ())]
    return make_error_details(mapping_of(error).reason, {REQUEST_ID: request_id}, domain=A2A_DOMAIN, violations=fields)


def failure_details(failure: Failure, request_id: str) -> list[Message]:
    """Return the details of a failure of the gRPC server's; `request_id` is used if the failure has none."""
    extra, wait = failure.details.get("metadata"), failure.details.get("retryAfterMs")
    metadata = {str(key): str(value) for key, value in extra.items()} if isinstance(extra, Mapping) else {}
    metadata[REQUEST_ID] = str(failure.details.get(REQUEST_ID, request_id))
    return make_error_details(
        failure.reason,
        metadata,
        violations=[FieldViolation(*pair) for pair in failure.wrong_fields],
        blocks=[Block(*named) for named in failure.blocks],
        retry_after_ms=wait if isinstance(wait, int) else None,
    )


def to_any_json(detail: Message) -> dict[str, Any]:
    """Return a detail as ProtoJSON writes an Any."""
    found: dict[str, Any] = json_format.MessageToDict(pack_any(detail))
    return found
