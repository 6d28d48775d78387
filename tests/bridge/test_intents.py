"""What failures of methods with an intent type say besides what all failures say."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.contract.rpc_errors import REASON_CODES
from cstp_grpc.gen.liaison.v1 import liaison_pb2
from tests.bridge.support import Client, Scripted, call, fail
from tests.named_case import named_case

ROUTE = "liaison.routeToLiaisonAgent"
INTENTS = {name: method.intent_type for name, method in contract_methods().items() if method.intent_type}
UNARY = [name for name in INTENTS if not contract_methods()[name].streaming]


def error_of(bridge: Client, server: Scripted, method: str, params: Any, play: Any = None) -> dict[str, Any]:
    if play:
        server.plays[method] = play
    found: dict[str, Any] = bridge.post(call(method, params)).json["error"]
    return found


def worded(error: dict[str, Any], intent_type: str, details: dict[str, str]) -> dict[str, Any]:
    """Return the fields that the data of an error must also have."""
    return {
        "error": error["message"],
        "error_code": error["data"]["reason"],
        "execution_id": error["data"]["requestId"],
        "intent_type": intent_type,
        "details": {"reason": error["message"], **details},
    }


def test_a_failure_is_also_told_as_the_intents_contract_words_it(bridge: Client, server: Scripted) -> None:
    for reason in REASON_CODES:
        with named_case(reason):
            details = {"target_pillar": "content", "reason": "The agent refused it"}
            play = fail(grpc.StatusCode.INTERNAL, reason, "In plain words", requestId="of-the-server", **details)
            error = error_of(bridge, server, ROUTE, {"target_pillar": "content"}, play)
            assert error["data"] == {
                "reason": reason,
                "requestId": "of-the-server",
                "metadata": details,
                "error": "In plain words",
                "error_code": reason,
                "execution_id": "of-the-server",
                "intent_type": "route_to_liaison_agent",
                "details": details,
            }


def test_every_intent_is_named_by_its_failures(bridge: Client, server: Scripted) -> None:
    for name in UNARY:
        with named_case(name):
            error = error_of(
                bridge, server, name, {}, fail(grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND", "No such session")
            )
            assert error["code"] == -32011
            assert error["data"].items() >= worded(error, INTENTS[name], {}).items()


@pytest.mark.parametrize(
    "params",
    [
        ["content"],
        {"target_piller": "content"},
        {"target_pillar": 1},
        {"target_pillar": "c" * 64, "a field": 1},
        {"target_pillar": "content", "a_field": 1},
    ],
)
def test_failures_of_the_bridges_own_are_told_likewise(bridge: Client, server: Scripted, params: Any) -> None:
    error = error_of(bridge, server, ROUTE, params)
    assert (error["code"], error["data"]["reason"]) == (-32602, "INVALID_ARGUMENT")
    named = {"target_pillar": "content"} if "a_field" in params else {}
    assert error["data"].items() >= worded(error, "route_to_liaison_agent", named).items()
    assert [seen.method for seen in server.seen] == ["liaison.routeToLiaisonAgent"]


@pytest.mark.parametrize("params", [{}, ["content"]])
def test_strangers_are_told_likewise(bridge: Client, server: Scripted, params: Any) -> None:
    stranger = fail(grpc.StatusCode.UNAUTHENTICATED, "AUTHENTICATION_REQUIRED", "Who are you?")
    server.plays["cstp.getAccess"] = stranger
    error = error_of(bridge, server, ROUTE, params, stranger)
    assert error["code"] == -32001
    assert error["data"].items() >= worded(error, "route_to_liaison_agent", {}).items()


def test_what_nobody_foresaw_is_told_likewise(bridge: Client, server: Scripted) -> None:
    answer = liaison_pb2.GetSessionResponse()
    answer.chat_session.context["weight"] = float("nan")
    error = error_of(bridge, server, "liaison.getSession", {}, lambda request, context: answer)
    assert error["code"] == -32603
    assert error["data"].items() >= worded(error, "get_session", {}).items()


def test_an_intent_that_streams_is_called_over_grpc(bridge: Client, server: Scripted) -> None:
    error = error_of(bridge, server, "liaison.watchEvents", {})
    assert (error["code"], error["message"]) == (-32601, "Method not found")
    assert "over gRPC" in error["data"]["detail"]
    assert error["data"].items() >= worded(error, "watch_events", {}).items()


def test_each_call_of_a_batch_names_its_own_intent(bridge: Client, server: Scripted) -> None:
    sent = [call(ROUTE, ["x"]), call("cstp.queryDecisions", ["x"], id=2), call("liaison.getSession", ["x"], id=3)]
    routing, query, session = [item["error"]["data"] for item in bridge.post(sent).json]
    assert (routing["intent_type"], session["intent_type"]) == ("route_to_liaison_agent", "get_session")
    assert not {"error", "error_code", "execution_id", "intent_type", "details"} & query.keys()


def test_what_blocks_and_how_long_to_wait_stay_beside_it(bridge: Client, server: Scripted) -> None:
    wait = duration_pb2.Duration(seconds=2)
    violation = error_details_pb2.PreconditionFailure.Violation(type="g", subject="G", description="No")
    details = (
        error_details_pb2.RetryInfo(retry_delay=wait),
        error_details_pb2.PreconditionFailure(violations=[violation]),
    )
    play = fail(grpc.StatusCode.UNAVAILABLE, "LIAISON_AGENT_UNAVAILABLE", "Not there", *details)
    data = error_of(bridge, server, ROUTE, {"target_pillar": "content"}, play)["data"]
    assert data["retryAfterMs"] == 2000
    assert data["violations"] == [{"guardrailId": "g", "name": "G", "message": "No"}]
    assert data["error_code"] == "LIAISON_AGENT_UNAVAILABLE"
