"""What a server's failure becomes for its caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from cstp_grpc.client import CstpClient, RetryPolicy
from cstp_grpc.contract import errors
from cstp_grpc.contract.errors import BlockingGuardrail, CstpError, FieldViolation, ServerUnreachable
from cstp_grpc.contract.rpc_errors import STATUS_KEY, error_for_reason, pack_any
from tests.client.both import BOTH, Time
from tests.client.scripted import scripted_server
from tests.error_classes import SERVER_ERRORS
from tests.http_servers import HttpHandler, serving_http
from tests.named_case import named_case

ONCE = RetryPolicy(attempts=1)


def failure_of(answer: CstpError | grpc.StatusCode, details: bytes | None = None) -> CstpError:
    def sent_along(request: Any, context: grpc.ServicerContext) -> None:
        if details is not None:
            context.set_trailing_metadata(((STATUS_KEY, details),))

    with (
        scripted_server(answer, before=sent_along) as server,
        CstpClient(server.target, retries=ONCE) as client,
        pytest.raises(CstpError) as caught,
    ):
        client.get_decision("dec-1")
    return caught.value


class BadRequest(HttpHandler):
    """Answers what is not HTTP/1 with a status line, as servers do, unlike Python's own."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self.wfile.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")


@pytest.mark.parametrize("use", BOTH, ids=lambda use: use.__name__)
def test_a_grpc_client_that_reaches_an_http_server_is_told_so(use: Callable[..., None]) -> None:
    async def call(client: Any) -> None:
        with pytest.raises(ServerUnreachable, match=rf"{target}: it speaks HTTP and not gRPC; .* http://"):
            await client.get_decision("dec-1")

    with serving_http(BadRequest) as url:
        target = url.replace("http://", "grpc://")
        use(target, call, Time(), retries=ONCE)


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_an_http_client_that_reaches_a_grpc_server_is_told_so(size: int) -> None:
    with scripted_server(errors.NotFound("none")) as server:
        url = f"http://{server.target}"
        with (
            CstpClient(url, retries=ONCE) as client,
            pytest.raises(ServerUnreachable, match=rf"{url}/cstp: it speaks gRPC and not HTTP; .* grpc://"),
        ):
            client.query_decisions("x" * size)


def test_every_error_of_the_server_arrives_as_its_exception() -> None:
    for kind in SERVER_ERRORS:
        with named_case(kind):
            failure = failure_of(kind("No such thing", metadata={"permission": "query"}))
            assert type(failure) is kind
            assert failure.message == "No such thing"
            assert failure.metadata == {"permission": "query", "requestId": "req-1"}
            assert failure.request_id == "req-1"
            assert failure.violations == ()
            assert failure.retry_after is None
            assert failure.blocks == ()


def test_violations_arrive_field_by_field() -> None:
    violations = [FieldViolation("id", "must not be empty"), FieldViolation("notes", "is too long")]
    assert failure_of(errors.InvalidArgument("Wrong", violations=violations)).violations == tuple(violations)


def test_guardrails_that_block_arrive_one_by_one() -> None:
    blocks = [
        BlockingGuardrail("no-weekend", "No hand-over at the weekend", "Wait for Monday"),
        BlockingGuardrail("quiet", "", ""),
    ]
    failure = failure_of(errors.PermissionDenied("Blocked", blocks=blocks))
    assert failure.blocks == tuple(blocks)
    assert failure.violations == ()


@pytest.mark.parametrize("size", [400, 6000])
def test_many_guardrails_that_block_do_not_hide_the_failure(size: int) -> None:
    blocks = [BlockingGuardrail(f"rule-{number}", "No hand-over", "x" * size) for number in range(200)]
    failure = failure_of(errors.PermissionDenied("y" * size, blocks=blocks))
    assert type(failure) is errors.PermissionDenied
    assert failure.blocks
    assert failure.blocks == tuple(blocks[: len(failure.blocks)])


def test_the_time_to_wait_arrives() -> None:
    assert failure_of(errors.RateLimited("Slower", retry_after=1.25)).retry_after == 1.25


def test_a_reason_of_a_later_contract_is_internal_and_keeps_its_name() -> None:
    failure = error_for_reason("TOO_CURIOUS", "Please stop")
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
    assert failure.request_id is None


def details_of(reason: str, *details: Message, domain: str = "cstp") -> bytes:
    info = error_details_pb2.ErrorInfo(reason=reason, domain=domain)
    return status_pb2.Status(
        message="In words", details=[pack_any(each) for each in (info, *details)]
    ).SerializeToString()


def broken(kind: type[Message]) -> bytes:
    envelope = any_pb2.Any(type_url=f"type.googleapis.com/{kind.DESCRIPTOR.full_name}", value=b"\xff")
    return details_of("NOT_FOUND") + status_pb2.Status(details=[envelope]).SerializeToString()


@pytest.mark.parametrize(
    "details",
    [
        b"\xff",
        status_pb2.Status(
            details=[any_pb2.Any(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\n\x01\xff")]
        ).SerializeToString(),
        b"x" * 2_000_000,
    ],
    ids=["no status", "no text", "too much"],
)
def test_details_that_cannot_be_read_are_those_of_no_server(details: bytes) -> None:
    failure = failure_of(grpc.StatusCode.NOT_FOUND, details)
    assert type(failure) in (errors.NotFound, errors.Unavailable)
    assert failure.request_id is None


@pytest.mark.parametrize(
    "kind",
    [error_details_pb2.BadRequest, error_details_pb2.PreconditionFailure, error_details_pb2.RetryInfo],
    ids=lambda kind: kind.DESCRIPTOR.name,
)
def test_a_detail_that_cannot_be_read_hides_no_other(kind: type[Message]) -> None:
    failure = failure_of(grpc.StatusCode.UNKNOWN, broken(kind))
    assert (type(failure), failure.message) == (errors.NotFound, "In words")
    assert (failure.violations, failure.blocks, failure.retry_after) == ((), (), None)


@pytest.mark.parametrize("seconds", [-5, 10**15])
def test_a_time_to_wait_that_is_none_is_not_told(seconds: int) -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=seconds))
    assert failure_of(grpc.StatusCode.UNAVAILABLE, details_of("UNAVAILABLE", retry)).retry_after is None


def test_a_reason_of_others_is_none_of_the_contract() -> None:
    failure = failure_of(grpc.StatusCode.UNAVAILABLE, details_of("RATE_LIMITED", domain="example.com"))
    assert type(failure) is ServerUnreachable


def test_a_missing_server_is_unreachable_and_named(free_port: int) -> None:
    with (
        CstpClient(f"grpc://127.0.0.1:{free_port}", retries=ONCE) as client,
        pytest.raises(ServerUnreachable, match=f"127.0.0.1:{free_port}"),
    ):
        client.get_decision("dec-1")
