"""What refusals look like over every binding: the codes that A2A and CSTP have for them."""

from __future__ import annotations

from typing import NamedTuple

from tests.bridge.a2a.bindings import Binding, HttpJson, JsonRpc, Refusal, Reply
from tests.bridge.a2a.raw import A2A_DOMAIN

CSTP_DOMAIN = "cstp"


class Codes(NamedTuple):
    """The codes of one reason."""

    domain: str
    json_rpc: int
    http: int
    grpc: str


CODES = {
    "TASK_NOT_FOUND": Codes(A2A_DOMAIN, -32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": Codes(A2A_DOMAIN, -32002, 400, "FAILED_PRECONDITION"),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": Codes(A2A_DOMAIN, -32003, 400, "FAILED_PRECONDITION"),
    "UNSUPPORTED_OPERATION": Codes(A2A_DOMAIN, -32004, 400, "FAILED_PRECONDITION"),
    "CONTENT_TYPE_NOT_SUPPORTED": Codes(A2A_DOMAIN, -32005, 400, "INVALID_ARGUMENT"),
    "EXTENSION_SUPPORT_REQUIRED": Codes(A2A_DOMAIN, -32008, 400, "FAILED_PRECONDITION"),
    "VERSION_NOT_SUPPORTED": Codes(A2A_DOMAIN, -32009, 400, "FAILED_PRECONDITION"),
    "INVALID_PARAMS": Codes(A2A_DOMAIN, -32602, 400, "INVALID_ARGUMENT"),
    "INTERNAL_ERROR": Codes(A2A_DOMAIN, -32603, 500, "INTERNAL"),
    "AUTHENTICATION_REQUIRED": Codes(CSTP_DOMAIN, -31001, 401, "UNAUTHENTICATED"),
    "RATE_LIMITED": Codes(CSTP_DOMAIN, -31002, 429, "RESOURCE_EXHAUSTED"),
    "PERMISSION_DENIED": Codes(CSTP_DOMAIN, -31010, 403, "PERMISSION_DENIED"),
    "UNAVAILABLE": Codes(CSTP_DOMAIN, -31013, 503, "UNAVAILABLE"),
    "DEADLINE_EXCEEDED": Codes(CSTP_DOMAIN, -31013, 504, "DEADLINE_EXCEEDED"),
    "INTERNAL": Codes(CSTP_DOMAIN, -32603, 500, "INTERNAL"),
}


def assert_refused(binding: Binding, reply: Reply, reason: str) -> Refusal:
    """Return the refusal of a call, which must be for a reason and have the codes that it has over the binding."""
    found = reply.refusal
    assert found is not None, f"not refused: {reply}"
    assert (found.domain, found.reason) == (CODES[reason].domain, reason), found.message
    assert found.code == code_of(binding, reason)
    assert found.message
    assert found.metadata["requestId"] == reply.headers["x-request-id"]
    return found


def code_of(binding: Binding, reason: str) -> int | str:
    """Return the code of a reason over a binding."""
    if isinstance(binding, JsonRpc):
        return CODES[reason].json_rpc
    return CODES[reason].http if isinstance(binding, HttpJson) else CODES[reason].grpc
