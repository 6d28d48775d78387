"""Failed calls as the bridge shows them to callers: reason, message, codes and `error.data`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import grpc
from google.protobuf.message import Message

from cstp_grpc.contract.error_reasons import REASON_CODES, ReasonCodes
from cstp_grpc.contract.json_codec import json_path
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY, read_error_details, reason_for_status
from cstp_grpc.errors import REQUEST_ID

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
"""What callers are told of a status without details, whose own text may be that of a driver."""

UNEXPECTED_FAILURE: Final = (
    "INTERNAL",
    "Something unforeseen happened; the server's log tells more under the request id",
)
SIZE_LIMIT_MESSAGES: Final = {
    "INVALID_ARGUMENT": "The request is larger than the server takes",
    "INTERNAL": "The answer is larger than the server sends; ask for less",
}
"""What callers are told of messages beyond the limits of gRPC, by the reason of such a failure."""


class CallFailure(Exception):
    """A failed call as the caller sees it; `reason` is an ErrorReason without its prefix."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        codes: ReasonCodes | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.codes = codes or REASON_CODES[reason]
        self.details = dict(details or {})
        """What error.data holds besides the reason."""

    @property
    def retry_after(self) -> int | None:
        """Whole seconds to wait before a retry, or None if unknown."""
        wait = self.details.get("retryAfterMs")
        return max(1, math.ceil(wait / 1000)) if isinstance(wait, int) else None

    @property
    def wrong_fields(self) -> list[tuple[str, str]]:
        """The invalid fields, each with a description."""
        return [(item["field"], item["description"]) for item in self._violations if "field" in item]

    @property
    def blocks(self) -> list[tuple[str, str, str]]:
        """The guardrails that block the call: the identifier, the name and the message of each."""
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


def failure_from_rpc(error: grpc.aio.AioRpcError, request: type[Message]) -> CallFailure:
    """Return the failure for a gRPC error; `request` is the class of the sent message."""
    details = read_error_details(error)
    reason = reason_for_status(error)
    if details is None:
        return CallFailure(reason, message_for_status(error.code(), reason), details=server_request_id(error))
    # A server of a later contract may give reasons unknown here: they keep their name and get the codes of the status.
    codes = REASON_CODES.get(details.reason) or REASON_CODES[reason]
    data: dict[str, object] = server_request_id(error)
    metadata = dict(details.metadata)
    if request_id := metadata.pop(REQUEST_ID, None):
        data[REQUEST_ID] = request_id
    if metadata:
        data["metadata"] = metadata
    fields = [(json_path(request, item.field), item.description) for item in details.violations]
    # The server's own message names fields as the proto does.
    renamed = [path for path, _ in fields] != [item.field for item in details.violations]
    blocks = [{"guardrailId": item.guardrail_id, "name": item.name, "message": item.message} for item in details.blocks]
    if fields or blocks:
        data["violations"] = [*violation_list(fields), *blocks]
    if details.retry_after is not None:
        # Rounded before, so that 2829.0000000000005 ms are not 2830.
        data["retryAfterMs"] = math.ceil(round(details.retry_after * 1000, 6))
    return CallFailure(
        details.reason, violation_text(fields) if renamed else details.message, codes=codes, details=data
    )


def violation_list(found: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Return invalid fields and their descriptions as `error.data` shows them."""
    return [{"field": field, "description": description} for field, description in found]


def violation_text(found: Iterable[tuple[str, str]]) -> str:
    """Return invalid fields and their descriptions as one sentence."""
    return "; ".join(f"{field}: {description}" if field else description for field, description in found)


def message_for_status(code: grpc.StatusCode, reason: str) -> str:
    """Return what a caller is told of a status without details; `reason` is what the status was found to mean."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and reason in SIZE_LIMIT_MESSAGES:
        return SIZE_LIMIT_MESSAGES[reason]
    return STATUS_MESSAGES.get(code, UNEXPECTED_FAILURE[1])


def server_request_id(error: grpc.aio.AioRpcError) -> dict[str, object]:
    """Return the request id that the server answered with, as error.data shows it; empty if it sent none."""
    for metadata in (error.trailing_metadata(), error.initial_metadata()):
        for key, value in metadata or ():
            if key == REQUEST_ID_KEY and isinstance(value, str):
                return {REQUEST_ID: value}
    return {}
