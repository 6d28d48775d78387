from __future__ import annotations

import grpc

from cstp_grpc import errors
from cstp_grpc.gen.cstp.v1 import errors_pb2
from cstp_grpc.server.status import CODES, to_status

BRIDGE_ONLY = {"UNSPECIFIED", "PARSE_ERROR", "INVALID_REQUEST"}


def test_every_error_has_its_row() -> None:
    found = {item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, errors.CstpError)}
    assert found - {errors.CstpError} == set(CODES)


def test_a_more_special_error_is_answered_like_its_parent() -> None:
    class Gone(errors.NotFound):
        pass

    assert to_status(Gone("It is gone"), "r-1").code is grpc.StatusCode.NOT_FOUND


def test_every_reason_of_the_contract_has_an_error() -> None:
    reasons = {name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.keys()}  # noqa: SIM118
    assert {error.reason for error in CODES} == reasons - BRIDGE_ONLY


def test_no_error_is_answered_as_success() -> None:
    assert grpc.StatusCode.OK not in CODES.values()
