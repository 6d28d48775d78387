"""The one table of errors: from the reason of a failure to its JSON-RPC code and HTTP status."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from cstp_grpc.client.codec import json_path
from cstp_grpc.client.errors import DOMAIN

REQUEST_ID: Final = "x-request-id"


@dataclass(frozen=True, slots=True)
class Row:
    """How the failures of one reason are answered."""

    code: int
    """The code of the JSON-RPC error."""
    http_status: int = 200
    """The HTTP status where the failed call came alone and not in a batch."""


REASONS: Final[Mapping[str, Row]] = {
    "PARSE_ERROR": Row(-32700),
    "INVALID_REQUEST": Row(-32600),
    "METHOD_NOT_FOUND": Row(-32601),
    "INVALID_ARGUMENT": Row(-32602),
    "INTERNAL": Row(-32603),
    "AUTHENTICATION_REQUIRED": Row(-32001, 401),
    "RATE_LIMITED": Row(-32002, 429),
    "QUERY_FAILED": Row(-32003),
    "GUARDRAIL_EVAL_FAILED": Row(-32004),
    "PERMISSION_DENIED": Row(-32010, 403),
    "NOT_FOUND": Row(-32011),
    "CONFLICT": Row(-32012),
    "DEADLINE_EXCEEDED": Row(-32013),
    "UNAVAILABLE": Row(-32013),
    "MISSING_PARAMETER": Row(-32602),
    "INVALID_PILLAR": Row(-32602),
    "SESSION_NOT_FOUND": Row(-32011),
    "CONTEXT_SHARING_FAILED": Row(-32013),
    "SESSION_UPDATE_FAILED": Row(-32012),
    "LIAISON_AGENT_UNAVAILABLE": Row(-32013),
    "SESSION_WITH_ANOTHER_AGENT": Row(-32012),
}
"""By the values of the contract's ErrorReason without their prefix."""

BARE: Final[Mapping[grpc.StatusCode, tuple[str, str]]] = {
    grpc.StatusCode.UNIMPLEMENTED: ("METHOD_NOT_FOUND", "The server does not have this method"),
    grpc.StatusCode.INVALID_ARGUMENT: ("INVALID_ARGUMENT", "The server refused the request as malformed"),
    grpc.StatusCode.OUT_OF_RANGE: ("INVALID_ARGUMENT", "The server refused the request as out of range"),
    grpc.StatusCode.UNAUTHENTICATED: ("AUTHENTICATION_REQUIRED", "A valid bearer token is needed"),
    grpc.StatusCode.PERMISSION_DENIED: ("PERMISSION_DENIED", "The call is not permitted"),
    grpc.StatusCode.NOT_FOUND: ("NOT_FOUND", "There is nothing of that name"),
    grpc.StatusCode.ALREADY_EXISTS: ("CONFLICT", "It exists already with another content"),
    grpc.StatusCode.ABORTED: ("CONFLICT", "Another call changed the same thing"),
    grpc.StatusCode.DEADLINE_EXCEEDED: ("DEADLINE_EXCEEDED", "The server did not answer in time"),
    grpc.StatusCode.UNAVAILABLE: ("UNAVAILABLE", "The server cannot be reached; try again later"),
    grpc.StatusCode.CANCELLED: ("UNAVAILABLE", "The server broke the call off; try again later"),
    # Without details this is gRPC's own limit on calls in progress, not the rate limit of an agent.
    grpc.StatusCode.RESOURCE_EXHAUSTED: ("UNAVAILABLE", "The server has no room for the call; try again later"),
}
"""What a gRPC status means that carries no details of ours; any other is INTERNAL."""

UNFORESEEN: Final = ("INTERNAL", "Something unforeseen happened; the server's log tells more under the request id")
TOO_LARGE: Final = {
    "Received message larger": ("INVALID_ARGUMENT", "The request is larger than the server takes"),
    "Sent message larger": ("INTERNAL", "The answer is larger than the server sends; ask for less"),
}
"""By what gRPC says of messages beyond its limits: nothing but the text tells them from other exhaustion."""


class Failure(Exception):
    """A call that failed, as the caller is told; `reason` is an ErrorReason without its prefix."""

    def __init__(
        self, reason: str, message: str, *, row: Row | None = None, details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.row = row or REASONS[reason]
        self.details = dict(details or {})
        """What error.data holds besides the reason."""

    @property
    def retry_after(self) -> int | None:
        """Whole seconds to wait before trying again; None where nothing was said."""
        wait = self.details.get("retryAfterMs")
        return max(1, math.ceil(wait / 1000)) if isinstance(wait, int) else None

    @property
    def wrong_fields(self) -> list[tuple[str, str]]:
        """The fields that are wrong, and what is wrong with each."""
        return [(item["field"], item["description"]) for item in self._violations if "field" in item]

    @property
    def blocks(self) -> list[tuple[str, str, str]]:
        """The guardrails that forbid the call: the identifier, the name and the message of each."""
        found = [item for item in self._violations if "guardrailId" in item]
        return [(item["guardrailId"], item["name"], item["message"]) for item in found]

    @property
    def missing_permission(self) -> str:
        """The permission that the caller lacks; empty if the call failed for any other reason."""
        found = self.details.get("metadata")
        given = found.get("permission", "") if isinstance(found, dict) else ""
        return str(given) if self.reason == "PERMISSION_DENIED" else ""

    @property
    def _violations(self) -> list[dict[str, str]]:
        found = self.details.get("violations")
        return found if isinstance(found, list) else []


def from_rpc_error(error: grpc.aio.AioRpcError, request: type[Message]) -> Failure:
    """Return the failure that a gRPC error stands for; `request` is the class of what was sent."""
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    precondition = error_details_pb2.PreconditionFailure()
    retry = error_details_pb2.RetryInfo()
    message = _unpack(error, (info, bad_request, precondition, retry))
    reason, plain = _bare(error)
    if message is None or info.domain != DOMAIN:
        return Failure(reason, plain, details=_server_id(error))
    # A server of a later contract may give reasons unknown here: they keep their name and get the code of the status.
    row = REASONS.get(info.reason) or REASONS[reason]
    details: dict[str, object] = _server_id(error)
    metadata = dict(info.metadata)
    if request_id := metadata.pop("requestId", None):
        details["requestId"] = request_id
    if metadata:
        details["metadata"] = metadata
    fields = [(json_path(request, item.field), item.description) for item in bad_request.field_violations]
    # The server's own words name fields as the proto does.
    if [path for path, _ in fields] != [item.field for item in bad_request.field_violations]:
        message = summary(fields)
    blocks = [
        {"guardrailId": item.type, "name": item.subject, "message": item.description}
        for item in precondition.violations
    ]
    if fields or blocks:
        details["violations"] = [*violations(fields), *blocks]
    if retry.HasField("retry_delay"):
        details["retryAfterMs"] = math.ceil(retry.retry_delay.ToNanoseconds() / 1e6)
    return Failure(info.reason, message, row=row, details=details)


def violations(found: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Return wrong fields and what is wrong with them as error.data shows them."""
    return [{"field": field, "description": description} for field, description in found]


def summary(found: Iterable[tuple[str, str]]) -> str:
    """Return wrong fields and what is wrong with them as one sentence."""
    return "; ".join(f"{field}: {description}" if field else description for field, description in found)


def _unpack(error: grpc.aio.AioRpcError, wanted: Sequence[Any]) -> str | None:
    """Fill the wanted messages from the error's details and return its text; None where it has no usable details."""
    try:
        status = rpc_status.from_call(error)
        if status is None:
            return None
        for detail in status.details:
            for message in wanted:
                if detail.Is(message.DESCRIPTOR):
                    detail.Unpack(message)
    except (ValueError, DecodeError):
        return None
    return str(status.message)


def _bare(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    """Return the reason and the sentence for the status alone; its own text may tell what is not the caller's."""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        for mark, meaning in TOO_LARGE.items():
            if mark in (error.details() or ""):
                return meaning
    return BARE.get(error.code(), UNFORESEEN)


def _server_id(error: grpc.aio.AioRpcError) -> dict[str, object]:
    """Return the request id that the server answered with, if it did."""
    for metadata in (error.trailing_metadata(), error.initial_metadata()):
        for key, value in metadata or ():
            if key == REQUEST_ID and isinstance(value, str):
                return {"requestId": value}
    return {}
