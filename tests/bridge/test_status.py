from __future__ import annotations

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from cstp_grpc.contract.rpc_errors import REASON_CODES
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.platform.config import ServerSettings
from tests.bridge.support import Client, Scripted, bare, bridging, call, fail, serving
from tests.named_case import named_case

QUERY = call("cstp.queryDecisions", {"query": "x"})


def test_a_reason_becomes_its_code_and_http_status(bridge: Client, server: Scripted) -> None:
    for reason in REASON_CODES:
        with named_case(reason):
            server.plays["cstp.queryDecisions"] = fail(
                grpc.StatusCode.INTERNAL, reason, "In plain words", requestId="of-the-server", permission="announce"
            )
            answer = bridge.post(QUERY)
            error = answer.json["error"]
            assert (error["code"], answer.status) == (
                REASON_CODES[reason].json_rpc_code,
                REASON_CODES[reason].http_status,
            )
            assert error["message"] == "In plain words"
            assert error["data"] == {
                "reason": reason,
                "requestId": "of-the-server",
                "metadata": {"permission": "announce"},
            }


def test_who_is_not_known_is_challenged(bridge: Client, server: Scripted) -> None:
    server.plays["cstp.queryDecisions"] = fail(grpc.StatusCode.UNAUTHENTICATED, "AUTHENTICATION_REQUIRED")
    assert bridge.post(QUERY).headers["WWW-Authenticate"] == 'Bearer realm="cstp"'


@pytest.mark.parametrize(("delay", "milliseconds", "seconds"), [(1_500_000_000, 1500, "2"), (1, 1, "1"), (0, 0, "1")])
def test_who_calls_too_often_is_told_when_to_try_again(
    bridge: Client, server: Scripted, delay: int, milliseconds: int, seconds: str
) -> None:
    wait = duration_pb2.Duration()
    wait.FromNanoseconds(delay)
    server.plays["cstp.queryDecisions"] = fail(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED", "Slow down", error_details_pb2.RetryInfo(retry_delay=wait)
    )
    answer = bridge.post(QUERY)
    assert answer.status == 429
    assert answer.headers["Retry-After"] == seconds
    assert answer.json["error"]["data"]["retryAfterMs"] == milliseconds


def test_fields_are_named_as_json_names_them(bridge: Client, server: Scripted) -> None:
    violation = error_details_pb2.BadRequest.FieldViolation
    server.plays["cstp.queryDecisions"] = fail(
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_ARGUMENT",
        "filters.min_confidence: too low; query: too short",
        error_details_pb2.BadRequest(
            field_violations=[
                violation(field="filters.min_confidence", description="too low"),
                violation(field="query", description="too short"),
            ]
        ),
    )
    error = bridge.post(QUERY).json["error"]
    assert error["message"] == "filters.minConfidence: too low; query: too short"
    assert error["data"]["violations"] == [
        {"field": "filters.minConfidence", "description": "too low"},
        {"field": "query", "description": "too short"},
    ]


def test_the_servers_words_are_kept_where_json_names_fields_alike(bridge: Client, server: Scripted) -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="target_pillar", description="is required")
    server.plays["liaison.routeToLiaisonAgent"] = fail(
        grpc.StatusCode.INVALID_ARGUMENT,
        "MISSING_PARAMETER",
        "target_pillar is required",
        error_details_pb2.BadRequest(field_violations=[violation]),
    )
    error = bridge.post(call("liaison.routeToLiaisonAgent")).json["error"]
    assert (error["code"], error["message"]) == (-32602, "target_pillar is required")
    assert error["data"]["violations"] == [{"field": "target_pillar", "description": "is required"}]


def test_guardrails_that_block_are_named(bridge: Client, server: Scripted) -> None:
    violation = error_details_pb2.PreconditionFailure.Violation
    server.plays["cstp.queryDecisions"] = fail(
        grpc.StatusCode.PERMISSION_DENIED,
        "PERMISSION_DENIED",
        "Blocked",
        error_details_pb2.PreconditionFailure(
            violations=[violation(type="no-weekend", subject="Not at the weekend", description="Wait for Monday")]
        ),
    )
    answer = bridge.post(QUERY)
    assert (answer.status, answer.json["error"]["message"]) == (403, "Blocked")
    assert answer.json["error"]["data"]["violations"] == [
        {"guardrailId": "no-weekend", "name": "Not at the weekend", "message": "Wait for Monday"}
    ]


def test_details_of_many_fields_fit(bridge: Client, server: Scripted) -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="query", description="x" * 1000)
    server.plays["cstp.queryDecisions"] = fail(
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_ARGUMENT",
        "Many",
        error_details_pb2.BadRequest(field_violations=[violation] * 100),
    )
    assert len(bridge.post(QUERY).json["error"]["data"]["violations"]) == 100


def test_a_status_without_details_is_told_in_our_own_words(bridge: Client, server: Scripted) -> None:
    for status, reason in [
        (grpc.StatusCode.UNIMPLEMENTED, "METHOD_NOT_FOUND"),
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        (grpc.StatusCode.OUT_OF_RANGE, "INVALID_ARGUMENT"),
        (grpc.StatusCode.UNAUTHENTICATED, "AUTHENTICATION_REQUIRED"),
        (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
        (grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
        (grpc.StatusCode.ALREADY_EXISTS, "CONFLICT"),
        (grpc.StatusCode.ABORTED, "CONFLICT"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
        (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"),
        (grpc.StatusCode.CANCELLED, "UNAVAILABLE"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "UNAVAILABLE"),
        (grpc.StatusCode.FAILED_PRECONDITION, "INTERNAL"),
        (grpc.StatusCode.INTERNAL, "INTERNAL"),
        (grpc.StatusCode.UNKNOWN, "INTERNAL"),
        (grpc.StatusCode.DATA_LOSS, "INTERNAL"),
    ]:
        with named_case(status, reason):
            server.plays["cstp.queryDecisions"] = bare(status, "secret text of a driver")
            answer = bridge.post(QUERY)
            error = answer.json["error"]
            assert error["data"] == {"reason": reason, "requestId": answer.headers["X-Request-Id"]}
            assert (error["code"], answer.status) == (
                REASON_CODES[reason].json_rpc_code,
                REASON_CODES[reason].http_status,
            )
            assert "secret" not in error["message"]


def test_what_a_servicer_raises_does_not_reach_the_caller(bridge: Client, server: Scripted) -> None:
    def fall(request: object, context: grpc.ServicerContext) -> cstp_pb2.QueryDecisionsResponse:
        raise RuntimeError("secret text of a driver")

    server.plays["cstp.queryDecisions"] = fall
    error = bridge.post(QUERY).json["error"]
    assert error["code"] == -32603
    assert "secret" not in str(error)


def test_details_of_another_domain_are_not_ours(bridge: Client, server: Scripted) -> None:
    other = error_details_pb2.ErrorInfo(reason="RATE_LIMITED", domain="googleapis.com")
    server.plays["cstp.queryDecisions"] = fail(grpc.StatusCode.UNAVAILABLE, "", "x", other)
    assert bridge.post(QUERY).json["error"]["data"]["reason"] == "UNAVAILABLE"


def test_a_reason_of_a_later_contract_keeps_its_name(bridge: Client, server: Scripted) -> None:
    server.plays["cstp.queryDecisions"] = fail(grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND", "No such topic")
    error = bridge.post(QUERY).json["error"]
    assert (error["code"], error["message"], error["data"]["reason"]) == (
        -32011,
        "No such topic",
        "TOPIC_NOT_FOUND",
    )


@pytest.mark.parametrize("content", [b"\xff\xff", b"\x08\x05"])
def test_details_that_cannot_be_read_are_no_details(bridge: Client, server: Scripted, content: bytes) -> None:
    def broken(request: object, context: grpc.ServicerContext) -> cstp_pb2.QueryDecisionsResponse:
        context.set_trailing_metadata((("grpc-status-details-bin", content), ("x-request-id", "of-the-server")))
        context.abort(grpc.StatusCode.UNAVAILABLE, "secret")

    server.plays["cstp.queryDecisions"] = broken
    assert bridge.post(QUERY).json["error"]["data"] == {"reason": "UNAVAILABLE", "requestId": "of-the-server"}


def test_an_answer_that_json_cannot_express_is_an_error_of_ours(bridge: Client, server: Scripted) -> None:
    decision = cstp_pb2.DecisionSummary(distance=float("nan"))
    server.plays["cstp.queryDecisions"] = lambda request, context: cstp_pb2.QueryDecisionsResponse(decisions=[decision])
    error = bridge.post(QUERY).json["error"]
    assert (error["code"], error["data"]["reason"]) == (-32603, "INTERNAL")


def test_a_message_beyond_the_limits_of_grpc_is_no_rate_limit() -> None:
    scripted = Scripted()
    scripted.reset()
    limits = [("grpc.max_receive_message_length", 1000), ("grpc.max_send_message_length", 1000)]
    with serving(scripted, options=limits) as target, bridging(target, ServerSettings()) as bridge:
        request = bridge.post(call("cstp.queryDecisions", {"query": "x" * 2000})).json["error"]
        scripted.plays["cstp.queryDecisions"] = lambda request, context: cstp_pb2.QueryDecisionsResponse(
            query="x" * 2000
        )
        response = bridge.post(QUERY).json["error"]
    assert (request["code"], request["message"]) == (-32602, "The request is larger than the server takes")
    assert (response["code"], response["message"]) == (
        -32603,
        "The answer is larger than the server sends; ask for less",
    )
