"""Every reason of the contract has what belongs to it; what is missing is told with the file to edit."""

from __future__ import annotations

import inspect
import re
from functools import cache
from pathlib import Path

import yaml

from cstp_grpc.contract.errors import InternalError, InvalidArgument, NotFound
from cstp_grpc.contract.rpc_errors import (
    ERROR_CLASSES,
    REASON_CODES,
    codes_for_error,
    error_class_for_http_status,
    error_for_reason,
    is_retriable,
    reason_for_grpc_code,
    reason_for_json_rpc_code,
)
from cstp_grpc.gen.cstp.v1 import errors_pb2
from tests.named_case import named_case

ROOT = Path(__file__).resolve().parents[2]

RELEASED = {
    "PARSE_ERROR": ("INVALID_ARGUMENT", -32700, 200, -32700, 400),
    "INVALID_REQUEST": ("INVALID_ARGUMENT", -32600, 200, -32600, 400),
    "METHOD_NOT_FOUND": ("UNIMPLEMENTED", -32601, 200, -32601, 404),
    "INVALID_ARGUMENT": ("INVALID_ARGUMENT", -32602, 200, -32602, 400),
    "INTERNAL": ("INTERNAL", -32603, 200, -32603, 500),
    "AUTHENTICATION_REQUIRED": ("UNAUTHENTICATED", -32001, 401, -31001, 401),
    "RATE_LIMITED": ("RESOURCE_EXHAUSTED", -32002, 429, -31002, 429),
    "QUERY_FAILED": ("UNAVAILABLE", -32003, 200, -31003, 503),
    "GUARDRAIL_EVAL_FAILED": ("FAILED_PRECONDITION", -32004, 200, -31004, 400),
    "PERMISSION_DENIED": ("PERMISSION_DENIED", -32010, 403, -31010, 403),
    "NOT_FOUND": ("NOT_FOUND", -32011, 200, -31011, 404),
    "CONFLICT": ("ALREADY_EXISTS", -32012, 200, -31012, 409),
    "DEADLINE_EXCEEDED": ("DEADLINE_EXCEEDED", -32013, 200, -31013, 504),
    "UNAVAILABLE": ("UNAVAILABLE", -32013, 200, -31013, 503),
    "MISSING_PARAMETER": ("INVALID_ARGUMENT", -32602, 200, -32602, 400),
    "INVALID_PILLAR": ("INVALID_ARGUMENT", -32602, 200, -32602, 400),
    "SESSION_NOT_FOUND": ("NOT_FOUND", -32011, 200, -31011, 404),
    "CONTEXT_SHARING_FAILED": ("FAILED_PRECONDITION", -32013, 200, -31013, 400),
    "SESSION_UPDATE_FAILED": ("ABORTED", -32012, 200, -31012, 409),
    "LIAISON_AGENT_UNAVAILABLE": ("UNAVAILABLE", -32013, 200, -31013, 503),
    "SESSION_WITH_ANOTHER_AGENT": ("FAILED_PRECONDITION", -32012, 200, -31012, 400),
}
"""The codes that callers know already and that must not change; a new reason need not be listed."""

DEFINED = Path(inspect.getfile(InvalidArgument))

WITHOUT_CASES = {"INTERNAL", "QUERY_FAILED", "GUARDRAIL_EVAL_FAILED", "DEADLINE_EXCEEDED", "UNAVAILABLE"}
"""The reasons that no server in good health gives."""


def test_released_codes_do_not_change() -> None:
    for reason in RELEASED:
        with named_case(reason):
            codes = REASON_CODES[reason]
            found = (codes.grpc_code, codes.json_rpc_code, codes.http_status, codes.a2a_code, codes.a2a_http_status)
            assert found == RELEASED[reason], "proto/cstp/v1/errors.proto: callers depend on these codes"


def test_every_reason_has_its_exception() -> None:
    for name in errors_pb2.ErrorReason.keys()[1:]:
        with named_case(name):
            reason = name.removeprefix("ERROR_REASON_")
            assert reason in REASON_CODES, "cstp_grpc/gen/error_reasons.py: run `make generate`"
            assert reason in ERROR_CLASSES, f'cstp_grpc/contract/errors.py: add a CstpError with reason = "{reason}"'


def test_every_exception_has_its_reason() -> None:
    for reason in ERROR_CLASSES:
        with named_case(reason):
            assert reason in REASON_CODES, f"proto/cstp/v1/errors.proto: add ERROR_REASON_{reason} with its error_codes"


def test_exceptions_inherit_as_the_contract_says() -> None:
    for reason in ERROR_CLASSES:
        with named_case(reason):
            found = getattr(ERROR_CLASSES[reason].__base__, "reason", None)
            expected = REASON_CODES[reason].parent
            assert found == expected, (
                f"contract/errors.py: the base class of {ERROR_CLASSES[reason].__name__} must be the class of "
                f"{expected}, or change `parent` in proto/cstp/v1/errors.proto"
            )


def test_every_reason_is_given_somewhere() -> None:
    for reason in ERROR_CLASSES:
        with named_case(reason):
            package = "bridge" if REASON_CODES[reason].bridge_only else "cstp_grpc"
            sign = rf"\b{ERROR_CLASSES[reason].__name__}\b"
            modules = [path for path in (ROOT / package).rglob("*.py") if "gen" not in path.parts and path != DEFINED]
            assert any(re.search(sign, path.read_text()) for path in modules), f"{package}: nothing raises {reason}"


@cache
def reasons_of_cases() -> set[str]:
    """Return the reasons of the errors that cases expect; a comment or a description is not one."""
    found: set[str] = set()
    pending = [yaml.load(path.read_text(), yaml.CSafeLoader) for path in (ROOT / "tests" / "cases").rglob("*.yaml")]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            found |= {text for key, text in value.items() if key == "reason" and isinstance(text, str)}
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return found


def test_every_reason_has_a_case() -> None:
    for reason in sorted(REASON_CODES.keys() - WITHOUT_CASES):
        with named_case(reason):
            assert reason in reasons_of_cases(), (
                f"tests/cases: add a case that fails with {reason}, "
                f"or name it in WITHOUT_CASES of {Path(__file__).name}"
            )


def test_a_special_case_of_an_exception_has_its_codes() -> None:
    class Gone(NotFound):
        reason = "GONE_FOR_GOOD"

    assert codes_for_error(Gone("It is gone")) == REASON_CODES["NOT_FOUND"]


def test_a_reason_of_a_later_contract_is_an_internal_error_and_not_retried() -> None:
    found = error_for_reason("TOO_CURIOUS", "Please stop")
    assert (type(found), found.metadata) == (InternalError, {"reason": "TOO_CURIOUS"})
    assert not is_retriable("TOO_CURIOUS")


def test_codes_without_a_reason_have_a_meaning() -> None:
    assert (reason_for_grpc_code("ALREADY_EXISTS"), reason_for_grpc_code("ABORTED")) == ("CONFLICT", "CONFLICT")
    assert reason_for_grpc_code("DATA_LOSS") == "INTERNAL"
    assert [reason_for_json_rpc_code(code) for code in (-32013, -32099, "-32013", None)] == [
        "UNAVAILABLE",
        "INTERNAL",
        "INTERNAL",
        "INTERNAL",
    ]
    assert (error_class_for_http_status(413), error_class_for_http_status(500)) == (InvalidArgument, None)
