from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2
from cstp_grpc.platform.config import ServerSettings
from tests.bridge.support import TIMEOUT, Client, Scripted, bridging, call, fail, serving
from tests.named_case import named_case
from tests.waiting import wait_until

UNARY = [name for name, method in contract_methods().items() if method.public and not method.streaming]
STREAMING = [name for name, method in contract_methods().items() if method.public and method.streaming]
INTERNAL = [name for name, method in contract_methods().items() if not method.public]


def empty_answer(name: str, request: Message, context: grpc.ServicerContext) -> Message:
    """Return the answer of a method without any field."""
    return contract_methods()[name].response()


def test_every_unary_method_of_the_contract_is_served(bridge: Client, server: Scripted) -> None:
    for name in UNARY:
        with named_case(name):
            server.plays[name] = partial(empty_answer, name)
            assert "result" in bridge.post(call(name)).json
            assert server.seen[-1].method == name


@pytest.mark.parametrize("name", INTERNAL)
def test_methods_for_our_own_processes_are_not_served(bridge: Client, server: Scripted, name: str) -> None:
    assert bridge.post(call(name)).json["error"]["data"]["reason"] == "METHOD_NOT_FOUND"
    assert [seen.method for seen in server.seen] == ["cstp.getAccess"]


@pytest.mark.parametrize("name", STREAMING)
def test_streams_are_not_served(bridge: Client, name: str) -> None:
    error = bridge.post(call(name)).json["error"]
    assert (error["code"], error["data"]["reason"]) == (-32601, "METHOD_NOT_FOUND")
    assert "over gRPC" in error["data"]["detail"]


@pytest.mark.parametrize(
    "name", ["cstp.nope", "", "rpc.discover", "cstp.AnnounceIntent", "/cstp.v1.CstpService/QueryDecisions"]
)
def test_other_names_are_not_found(bridge: Client, server: Scripted, name: str) -> None:
    assert bridge.post(call(name)).json["error"]["code"] == -32601
    assert [seen.method for seen in server.seen] == ["cstp.getAccess"]


def test_requests_and_answers_are_translated(bridge: Client, server: Scripted) -> None:
    violation = types_pb2.Violation(guardrail_id="g", name="G", message="No", severity=types_pb2.SEVERITY_BLOCK)
    server.plays["cstp.checkGuardrails"] = lambda request, context: cstp_pb2.CheckGuardrailsResponse(
        violations=[violation], evaluated=1, agent="cstp"
    )
    action = {"description": "deploy", "stakes": "high", "context": {"affectsProduction": True, "rolloutPercent": 5}}
    answer = bridge.post(call("cstp.checkGuardrails", {"action": action, "agent": None}))
    assert answer.json["result"] == {
        "allowed": False,
        "violations": [{"guardrailId": "g", "name": "G", "message": "No", "severity": "block", "missingInputs": []}],
        "warnings": [],
        "evaluated": 1,
        "agent": "cstp",
        "responses": [],
        "dryrunViolations": [],
        "approvalRequired": False,
        "ruleSetVersion": "",
        "checkId": "",
        "assumed": [],
        "ignoredContext": [],
    }
    expected = cstp_pb2.CheckGuardrailsRequest(
        action=cstp_pb2.Action(description="deploy", stakes=types_pb2.STAKES_HIGH)
    )
    expected.action.context.update({"affectsProduction": True, "rolloutPercent": 5})
    assert server.seen[0].request == expected


def test_params_that_do_not_fit_are_named_by_their_paths(bridge: Client, server: Scripted) -> None:
    error = bridge.post(call("cstp.queryDecisions", {"query": "x", "filters": {"minConfidence": "1"}, "lim": 1})).json[
        "error"
    ]
    assert error["code"] == -32602
    assert error["message"] == "filters.minConfidence: must be a number; lim: is not a known field"
    assert error["data"]["reason"] == "INVALID_ARGUMENT"
    assert error["data"]["violations"] == [
        {"field": "filters.minConfidence", "description": "must be a number"},
        {"field": "lim", "description": "is not a known field"},
    ]
    assert [seen.method for seen in server.seen] == ["cstp.queryDecisions"]


def test_absent_params_are_empty(bridge: Client, server: Scripted) -> None:
    bridge.post('{"jsonrpc": "2.0", "id": 1, "method": "cstp.queryDecisions"}')
    assert server.seen[0].request == cstp_pb2.QueryDecisionsRequest()


def test_the_deadline_reaches_the_server(bridge: Client, server: Scripted) -> None:
    bridge.post(call("cstp.queryDecisions", {"query": "x"}))
    assert 0 < server.seen[0].time_remaining < 20


def test_a_server_that_does_not_answer_in_time_is_given_up(server: Scripted, target: str) -> None:
    given_up = threading.Event()

    def hang(request: Any, context: grpc.ServicerContext) -> Message:
        context.add_callback(given_up.set)
        given_up.wait(TIMEOUT)
        return cstp_pb2.QueryDecisionsResponse()

    server.plays["cstp.queryDecisions"] = hang
    with bridging(target, ServerSettings(timeout_seconds=0.2)) as bridge:
        error = bridge.post(call("cstp.queryDecisions", {"query": "x"})).json["error"]
    assert (error["code"], error["data"]["reason"]) == (-32013, "DEADLINE_EXCEEDED")
    assert given_up.wait(TIMEOUT), "the server was not told"


def test_a_server_that_comes_back_is_found_again() -> None:
    scripted = Scripted()
    scripted.reset()
    query = call("cstp.queryDecisions", {"query": "x"})
    with serving(scripted) as target:
        port = int(target.rpartition(":")[2])
        with bridging(target, ServerSettings()) as bridge:
            assert "result" in bridge.post(query).json
    with bridging(f"127.0.0.1:{port}", ServerSettings()) as bridge:
        error = bridge.post(query).json["error"]
        assert (error["code"], error["data"]["reason"]) == (-32013, "UNAVAILABLE")
        assert bridge.get("/health").status == 503
        with serving(scripted, port):
            wait_until(lambda: "result" in bridge.post(query).json, "the bridge finds the server again")
            assert bridge.get("/health").status == 200


def test_a_server_that_is_slow_to_take_a_connection_is_waited_for() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        bridging(f"127.0.0.1:{listener.getsockname()[1]}", ServerSettings()) as bridge,
        ThreadPoolExecutor(1) as threads,
    ):
        answer = threads.submit(bridge.post, call("cstp.queryDecisions", {"query": "x"}))
        connection, _ = listener.accept()
        with connection:
            assert not is_given_up(connection, 1)
        assert answer.result(TIMEOUT).json["error"]["data"]["reason"] == "UNAVAILABLE"


def is_given_up(connection: socket.socket, seconds: float) -> bool:
    """Return whether a client closes a connection within a time, in which it is told nothing."""
    connection.settimeout(seconds)
    try:
        while connection.recv(1000):
            # What a client of HTTP/2 says before it waits for the server.
            continue
    except TimeoutError:
        return False
    return True


def test_a_batch_runs_at_once_and_is_answered_in_order(bridge: Client, server: Scripted) -> None:
    together = threading.Barrier(4)

    def meet(request: Any, context: grpc.ServicerContext) -> Message:
        together.wait(TIMEOUT)
        return cstp_pb2.QueryDecisionsResponse(query=request.query)

    server.plays["cstp.queryDecisions"] = meet
    answer = bridge.post([call("cstp.queryDecisions", {"query": str(number)}, id=number) for number in range(4)])
    assert answer.status == 200
    assert [(item["id"], item["result"]["query"]) for item in answer.json] == [(n, str(n)) for n in range(4)]


def test_a_batch_cannot_occupy_the_server(server: Scripted, target: str) -> None:
    lock = threading.Lock()
    together = threading.Barrier(4)
    in_progress = [0]
    most = [0]

    def count(request: Any, context: grpc.ServicerContext) -> Message:
        with lock:
            in_progress[0] += 1
            most[0] = max(most[0], in_progress[0])
        together.wait(TIMEOUT)
        with lock:
            in_progress[0] -= 1
        return cstp_pb2.QueryDecisionsResponse()

    server.plays["cstp.queryDecisions"] = count
    with bridging(target, ServerSettings(max_batch=50)) as bridge:
        answer = bridge.post([call("cstp.queryDecisions")] * 24)
    assert all("result" in item for item in answer.json)
    assert most[0] == 4


def test_a_batch_is_answered_with_200_and_every_item_with_its_own_error(bridge: Client, server: Scripted) -> None:
    server.plays["cstp.checkGuardrails"] = fail(grpc.StatusCode.UNAUTHENTICATED, "AUTHENTICATION_REQUIRED")
    answer = bridge.post([call("cstp.checkGuardrails"), call("cstp.queryDecisions", id=2), call("cstp.nope", id=None)])
    assert answer.status == 200
    assert "WWW-Authenticate" not in answer.headers
    first, second, third = answer.json
    assert first["error"]["code"] == -32001
    assert "result" in second
    assert (third["id"], third["error"]["code"]) == (None, -32601)


def test_a_batch_beyond_the_limit_is_one_error(bridge: Client, server: Scripted) -> None:
    answer = bridge.post([call("cstp.queryDecisions")] * 6)
    assert answer.json["error"]["code"] == -32600
    assert answer.json["id"] is None
    assert not server.seen


def notification(method: str, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}}


@pytest.mark.parametrize("batch", [False, True])
def test_notifications_are_carried_out_and_not_answered(bridge: Client, server: Scripted, batch: bool) -> None:
    sent = notification("cstp.queryDecisions", {"query": "x"})
    answer = bridge.post([sent, sent] if batch else sent)
    assert (answer.status, answer.body) == (204, b"")
    assert [seen.method for seen in server.seen] == ["cstp.queryDecisions"] * (2 if batch else 1)


@pytest.mark.parametrize(
    "sent",
    [
        notification("cstp.nope"),
        notification("cstp.queryDecisions", {"query": 1}),
        notification("cstp.queryDecisions", ["x"]),
        notification("cstp.checkGuardrails"),
    ],
)
def test_notifications_that_fail_are_not_answered_either(bridge: Client, server: Scripted, sent: Any) -> None:
    server.plays["cstp.checkGuardrails"] = fail(grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    assert (bridge.post(sent).status, bridge.post([sent]).body) == (204, b"")


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("cstp.nope", {}),
        ("cstp.importDecisions", {}),
        ("cstp.queryDecisions", ["x"]),
        ("cstp.queryDecisions", {"a": 1}),
    ],
)
def test_strangers_learn_neither_which_methods_there_are_nor_what_they_take(
    bridge: Client, server: Scripted, method: str, params: Any
) -> None:
    server.plays["cstp.getAccess"] = fail(grpc.StatusCode.UNAUTHENTICATED, "AUTHENTICATION_REQUIRED")
    answer = bridge.post(call(method, params))
    assert (answer.status, answer.json["error"]["code"]) == (401, -32001)
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="cstp"'
    assert [item["error"]["code"] for item in bridge.post([call(method, params)]).json] == [-32001]
    assert bridge.post(notification(method, params)).status == 401


@pytest.mark.parametrize("batch", [False, True])
def test_notifications_of_strangers_are_refused(bridge: Client, server: Scripted, batch: bool) -> None:
    server.plays["cstp.checkGuardrails"] = fail(grpc.StatusCode.UNAUTHENTICATED, "AUTHENTICATION_REQUIRED")
    sent = notification("cstp.checkGuardrails")
    answer = bridge.post([sent] if batch else sent)
    assert (answer.status, answer.body) == (401, b"")
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="cstp"'
