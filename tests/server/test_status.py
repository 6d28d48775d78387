from __future__ import annotations

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from cstp_grpc import errors
from cstp_grpc.gen.cstp.v1 import errors_pb2
from cstp_grpc.server.status import CODES, to_status

BRIDGE_ONLY = {"UNSPECIFIED", "PARSE_ERROR", "INVALID_REQUEST"}


ERRORS = [
    item
    for item in vars(errors).values()
    if isinstance(item, type) and issubclass(item, errors.CstpError) and item is not errors.CstpError
]
EXPECTED = {
    "METHOD_NOT_FOUND": grpc.StatusCode.UNIMPLEMENTED,
    "INVALID_ARGUMENT": grpc.StatusCode.INVALID_ARGUMENT,
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "AUTHENTICATION_REQUIRED": grpc.StatusCode.UNAUTHENTICATED,
    "RATE_LIMITED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "QUERY_FAILED": grpc.StatusCode.UNAVAILABLE,
    "GUARDRAIL_EVAL_FAILED": grpc.StatusCode.FAILED_PRECONDITION,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "CONFLICT": grpc.StatusCode.ALREADY_EXISTS,
    "DEADLINE_EXCEEDED": grpc.StatusCode.DEADLINE_EXCEEDED,
    "UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "MISSING_PARAMETER": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_PILLAR": grpc.StatusCode.INVALID_ARGUMENT,
    "SESSION_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "CONTEXT_SHARING_FAILED": grpc.StatusCode.FAILED_PRECONDITION,
    "SESSION_UPDATE_FAILED": grpc.StatusCode.ABORTED,
    "LIAISON_AGENT_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "SESSION_WITH_ANOTHER_AGENT": grpc.StatusCode.FAILED_PRECONDITION,
}


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.reason)
def test_every_error_has_its_status(kind: type[errors.CstpError]) -> None:
    assert to_status(kind("No"), "r-1").code is EXPECTED[kind.reason]


def test_a_more_special_error_is_answered_like_its_parent() -> None:
    class Gone(errors.NotFound):
        pass

    assert to_status(Gone("It is gone"), "r-1").code is grpc.StatusCode.NOT_FOUND


def test_every_reason_of_the_contract_has_an_error() -> None:
    reasons = {name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.keys()}  # noqa: SIM118
    assert {error.reason for error in ERRORS} == set(EXPECTED) == reasons - BRIDGE_ONLY


def details_of(error: errors.CstpError, detail: Message) -> bool:
    """Fill a detail from the status of an error and return whether the status has it."""
    trailing = dict(to_status(error, "r-1").trailing_metadata)
    content = trailing["grpc-status-details-bin"]
    assert isinstance(content, bytes)
    status = status_pb2.Status.FromString(content)
    return any(packed.Unpack(detail) for packed in status.details if packed.Is(detail.DESCRIPTOR))


def test_guardrails_that_block_are_named() -> None:
    block = errors.Block("no-weekend", "No hand-over at the weekend", "Wait for Monday")
    found = error_details_pb2.PreconditionFailure()
    assert details_of(errors.PermissionDenied("Blocked", blocks=[block]), found)
    assert [(v.type, v.subject, v.description) for v in found.violations] == [
        ("no-weekend", "No hand-over at the weekend", "Wait for Monday")
    ]


def test_what_nothing_blocks_names_no_guardrails() -> None:
    assert not details_of(errors.PermissionDenied("No"), error_details_pb2.PreconditionFailure())


def test_no_error_is_answered_as_success() -> None:
    assert grpc.StatusCode.OK not in CODES.values()
