from __future__ import annotations

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from cstp_grpc.contract import errors
from cstp_grpc.contract.rpc_errors import REASON_CODES
from cstp_grpc.server.interceptors.error_status import to_status
from tests.error_classes import SERVER_ERRORS
from tests.named_case import named_case


def test_every_error_has_the_status_of_the_contract() -> None:
    for kind in SERVER_ERRORS:
        with named_case(kind):
            assert to_status(kind("No"), "r-1").code.name == REASON_CODES[kind.reason].grpc_code


def test_a_more_special_error_is_answered_like_its_parent() -> None:
    class Gone(errors.NotFound):
        pass

    assert to_status(Gone("It is gone"), "r-1").code is grpc.StatusCode.NOT_FOUND


def details_of(error: errors.CstpError, detail: Message) -> bool:
    """Fill a detail from the status of an error and return whether the status has it."""
    trailing = dict(to_status(error, "r-1").trailing_metadata)
    content = trailing["grpc-status-details-bin"]
    assert isinstance(content, bytes)
    status = status_pb2.Status.FromString(content)
    return any(packed.Unpack(detail) for packed in status.details if packed.Is(detail.DESCRIPTOR))


def test_guardrails_that_block_are_named() -> None:
    block = errors.BlockingGuardrail("no-weekend", "No hand-over at the weekend", "Wait for Monday")
    found = error_details_pb2.PreconditionFailure()
    assert details_of(errors.PermissionDenied("Blocked", blocks=[block]), found)
    assert [(v.type, v.subject, v.description) for v in found.violations] == [
        ("no-weekend", "No hand-over at the weekend", "Wait for Monday")
    ]


def test_what_nothing_blocks_names_no_guardrails() -> None:
    assert not details_of(errors.PermissionDenied("No"), error_details_pb2.PreconditionFailure())
