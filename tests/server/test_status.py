from __future__ import annotations

import grpc

from cstp_grpc import errors
from cstp_grpc.gen.cstp.v1 import errors_pb2
from cstp_grpc.server.status import CODES

BRIDGE_ONLY = {"UNSPECIFIED", "PARSE_ERROR", "INVALID_REQUEST"}


def children(parent: type[errors.CstpError]) -> set[type[errors.CstpError]]:
    direct = set(parent.__subclasses__())
    return direct.union(*(children(child) for child in direct))


def test_every_error_has_its_row() -> None:
    assert children(errors.CstpError) == set(CODES)


def test_every_reason_of_the_contract_has_an_error() -> None:
    reasons = {name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.keys()}  # noqa: SIM118
    assert {error.reason for error in CODES} == reasons - BRIDGE_ONLY


def test_no_error_is_answered_as_success() -> None:
    assert grpc.StatusCode.OK not in CODES.values()
