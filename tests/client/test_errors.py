"""What a server's failure becomes for its caller."""

from __future__ import annotations

import grpc
import pytest

from cstp_grpc import errors
from cstp_grpc.client import CstpClient, RetryPolicy
from cstp_grpc.client.errors import (
    BY_REASON,
    CLASSES,
    InvalidRequest,
    ParseError,
    ServerUnreachable,
    build,
    request_id,
)
from cstp_grpc.errors import Block, CstpError, FieldViolation
from cstp_grpc.gen.cstp.v1 import errors_pb2
from tests.client.scripted import scripted_server

ONCE = RetryPolicy(attempts=1)
OF_THE_SERVER = [kind for kind in CLASSES if kind not in (ParseError, InvalidRequest)]


def failure_of(answer: CstpError | grpc.StatusCode) -> CstpError:
    with (
        scripted_server(answer) as server,
        CstpClient(server.target, retries=ONCE) as client,
        pytest.raises(CstpError) as caught,
    ):
        client.get_decision("dec-1")
    return caught.value


def test_every_reason_of_the_contract_has_an_exception() -> None:
    values = errors_pb2.ErrorReason.DESCRIPTOR.values_by_name
    assert set(BY_REASON) == {name.removeprefix("ERROR_REASON_") for name in values} - {"UNSPECIFIED"}
    assert len(CLASSES) == len(BY_REASON)


@pytest.mark.parametrize("kind", OF_THE_SERVER, ids=lambda kind: kind.reason)
def test_every_error_of_the_server_arrives_as_its_exception(kind: type[CstpError]) -> None:
    failure = failure_of(kind("No such thing", metadata={"permission": "query"}))
    assert type(failure) is kind
    assert failure.message == "No such thing"
    assert failure.metadata == {"permission": "query", "requestId": "req-1"}
    assert request_id(failure) == "req-1"
    assert failure.violations == ()
    assert failure.retry_after is None
    assert failure.blocks == ()


def test_violations_arrive_field_by_field() -> None:
    violations = [FieldViolation("id", "must not be empty"), FieldViolation("notes", "is too long")]
    assert failure_of(errors.InvalidArgument("Wrong", violations=violations)).violations == tuple(violations)


def test_guardrails_that_block_arrive_one_by_one() -> None:
    blocks = [Block("no-weekend", "No hand-over at the weekend", "Wait for Monday"), Block("quiet", "", "")]
    failure = failure_of(errors.PermissionDenied("Blocked", blocks=blocks))
    assert failure.blocks == tuple(blocks)
    assert failure.violations == ()


@pytest.mark.parametrize("size", [400, 6000])
def test_many_guardrails_that_block_do_not_hide_the_failure(size: int) -> None:
    blocks = [Block(f"rule-{number}", "No hand-over", "x" * size) for number in range(200)]
    failure = failure_of(errors.PermissionDenied("y" * size, blocks=blocks))
    assert type(failure) is errors.PermissionDenied
    assert failure.blocks
    assert failure.blocks == tuple(blocks[: len(failure.blocks)])


def test_the_time_to_wait_arrives() -> None:
    assert failure_of(errors.RateLimited("Slower", retry_after=1.25)).retry_after == 1.25


def test_a_reason_of_a_later_contract_is_internal_and_keeps_its_name() -> None:
    failure = build("TOO_CURIOUS", "Please stop")
    assert type(failure) is errors.InternalError
    assert failure.message == "Please stop"
    assert failure.metadata == {"reason": "TOO_CURIOUS"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, errors.AuthenticationRequired),
        (grpc.StatusCode.UNIMPLEMENTED, errors.MethodNotFound),
        (grpc.StatusCode.UNAVAILABLE, ServerUnreachable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.UNKNOWN, errors.InternalError),
        (grpc.StatusCode.DATA_LOSS, errors.InternalError),
    ],
)
def test_a_status_without_details_is_read_by_its_code(status: grpc.StatusCode, kind: type[CstpError]) -> None:
    failure = failure_of(status)
    assert type(failure) is kind
    assert request_id(failure) is None


def test_a_missing_server_is_unreachable_and_named(free_port: int) -> None:
    with (
        CstpClient(f"grpc://127.0.0.1:{free_port}", retries=ONCE) as client,
        pytest.raises(ServerUnreachable, match=f"127.0.0.1:{free_port}"),
    ):
        client.get_decision("dec-1")
