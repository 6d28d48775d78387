"""The same calls over HTTP."""

from __future__ import annotations

import itertools
import math
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from cstp_grpc.client import CstpClient, RetryPolicy
from cstp_grpc.client.json_rpc import jsonrpc_url
from cstp_grpc.contract import errors
from cstp_grpc.contract.errors import BlockingGuardrail, CstpError, FieldViolation, InvalidArgument, ServerUnreachable
from cstp_grpc.contract.rpc_errors import ERROR_CLASSES
from cstp_grpc.gen.cstp.v1 import journal_pb2, types_pb2
from tests.client.scripted import HttpReply, http_server
from tests.modules.federation.client.servers import SOON, tcp_server
from tests.named_case import named_case

ONCE = RetryPolicy(attempts=1)


def result(content: Any) -> HttpReply:
    return HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": content})


def failure(
    code: int, message: str, data: Any = None, status: int = 200, headers: dict[str, str] | None = None
) -> HttpReply:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return HttpReply(partial(refusal, error), status, headers or {})


def refusal(error: Any, call: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call["id"], "error": error}


def failure_of(reply: HttpReply) -> CstpError:
    with (
        http_server(reply) as server,
        CstpClient(server.url, retries=ONCE) as client,
        pytest.raises(CstpError) as caught,
    ):
        client.get_decision("dec-1")
    return caught.value


def test_a_call_is_a_json_rpc_request_with_the_token() -> None:
    answer = {"allowed": False, "violations": [{"guardrailId": "g", "severity": "block"}], "evaluated": 2}
    with http_server(result(answer)) as server, CstpClient(server.url, "secret-1") as client:
        response = client.check_guardrails("deploy", stakes="high", context={"x": 1})
    assert not response.allowed
    assert response.violations[0].severity == types_pb2.SEVERITY_BLOCK
    path, headers, sent = server.requests[0]
    assert path == "/cstp"
    assert headers["authorization"] == "Bearer secret-1"
    assert headers["content-type"] == "application/json"
    assert sent["jsonrpc"] == "2.0"
    assert sent["method"] == "cstp.checkGuardrails"
    action = {"description": "deploy", "stakes": "high", "context": {"x": 1}, "reads": [], "writes": []}
    assert sent["params"]["action"] == action


def test_answers_may_know_more_than_this_client() -> None:
    content = {"decisions": [{"id": "dec-1", "mood": "good"}], "total": 1, "later": {"deep": [1]}}
    with http_server(result(content)) as server, CstpClient(server.url) as client:
        assert client.query_decisions("x").decisions[0].id == "dec-1"


def test_a_call_may_take_for_ever() -> None:
    with http_server(result({"agent": "cstp"})) as server, CstpClient(server.url) as client:
        assert client.get_access(timeout=math.inf).agent == "cstp"


def test_an_error_tells_reason_fields_and_request() -> None:
    data = {"reason": "INVALID_ARGUMENT", "requestId": "r1", "violations": [{"field": "id", "description": "empty"}]}
    error = failure_of(failure(-32602, "id: empty", data))
    assert type(error) is InvalidArgument
    assert error.message == "id: empty"
    assert error.violations == (FieldViolation("id", "empty"),)
    assert error.request_id == "r1"


def test_the_reason_decides_which_error_it_is() -> None:
    for name, kind in ERROR_CLASSES.items():
        with named_case(name):
            data = {"reason": kind.reason, "requestId": "r1", "metadata": {"target_pillar": "content"}}
            error = failure_of(failure(-32000, "no", data))
            assert type(error) is kind
            assert error.metadata == {"target_pillar": "content", "requestId": "r1"}


def test_guardrails_that_block_are_told_from_wrong_fields() -> None:
    found = [{"guardrailId": "g", "name": "G", "message": "No"}, {"field": "id", "description": "empty"}]
    error = failure_of(failure(-32010, "Blocked", {"reason": "PERMISSION_DENIED", "violations": found}, status=403))
    assert type(error) is errors.PermissionDenied
    assert error.blocks == (BlockingGuardrail("g", "G", "No"),)
    assert error.violations == (FieldViolation("id", "empty"),)


def test_a_rate_limit_says_how_long_to_wait() -> None:
    data = {"reason": "RATE_LIMITED", "requestId": "r1", "retryAfterMs": 1500}
    error = failure_of(failure(-32002, "slower", data, status=429))
    assert type(error) is errors.RateLimited
    assert error.retry_after == 1.5


def test_a_time_that_nobody_waits_is_not_told() -> None:
    for wait in [10**400, 1e308, -1, "1500", [1500], None]:
        with named_case(wait):
            error = failure_of(failure(-32002, "slower", {"retryAfterMs": wait}))
            assert (type(error), error.retry_after) == (errors.RateLimited, None)


@pytest.mark.parametrize("wait", ["9" * 400, "soon", "²"], ids=lambda wait: wait[:6])
def test_nor_is_one_that_http_says(wait: str) -> None:
    error = failure_of(HttpReply(b"", 429, {"retry-after": wait}))
    assert (type(error), error.retry_after) == (errors.RateLimited, None)


def test_http_says_how_long_to_wait_where_the_error_does_not() -> None:
    said = {"retry-after": "2"}
    for data, wait in ((None, 2), ({"retryAfterMs": 1500}, 1.5), ({"retryAfterMs": "soon"}, 2)):
        error = failure_of(failure(-32002, "slower", data, status=429, headers=said))
        assert (type(error), error.retry_after) == (errors.RateLimited, wait)


def test_a_rate_limit_of_the_protocol_alone_is_repeated() -> None:
    replies: Iterator[dict[str, Any]] = iter(
        [{"error": {"code": -32002, "message": "Too many requests"}}, {"result": {"agent": "cstp"}}]
    )

    def answer(call: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": call["id"], **next(replies)}

    with http_server(HttpReply(answer)) as server, CstpClient(server.url, retries=RetryPolicy(base=0.001)) as client:
        assert client.get_access().agent == "cstp"
    assert len(server.requests) == 2


@pytest.mark.parametrize("odd", [[], {}, [[]], True, 1.5, None, "x"])
def test_an_error_of_odd_parts_is_an_error_all_the_same(odd: Any) -> None:
    for content in ({"code": odd}, {"message": odd}, {"data": odd}, {"data": {"violations": odd, "metadata": odd}}):
        error = failure_of(HttpReply(partial(refusal, content)))
        assert type(error) is errors.InternalError
        assert error.violations == ()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-32601, errors.MethodNotFound),
        (-32001, errors.AuthenticationRequired),
        (-32003, errors.QueryFailed),
        (-32004, errors.GuardrailEvalFailed),
        (-32099, errors.InternalError),
    ],
)
def test_the_protocols_code_alone_is_enough(code: int, kind: type[CstpError]) -> None:
    assert type(failure_of(failure(code, "no"))) is kind


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (HttpReply(b"<html>", 502), errors.Unavailable),
        (HttpReply(b"", 401), errors.AuthenticationRequired),
        (HttpReply(b"", 200), errors.InternalError),
        (HttpReply(b"[]", 200), errors.InternalError),
        (HttpReply(b'{"jsonrpc": "2.0", "id": 77, "result": {}}', 200), errors.InternalError),
        (HttpReply(b'{"jsonrpc": "2.0", "id": 1, "result": 5}', 200), errors.InternalError),
        (HttpReply(b"[" * 100_000, 200), errors.InternalError),
        *(
            (HttpReply(b'{"jsonrpc": "2.0", "id": 1, "result": {"later": %b}}' % number, 200), errors.InternalError)
            for number in (b"NaN", b"-Infinity", b"1e400")
        ),
    ],
)
def test_what_is_no_answer_is_an_error_of_the_nearest_kind(reply: HttpReply, kind: type[CstpError]) -> None:
    assert type(failure_of(reply)) is kind


def test_a_result_that_does_not_fit_the_contract_is_an_error() -> None:
    error = failure_of(result({"decision": {"id": 5}}))
    assert type(error) is errors.InternalError
    assert "decision.id" in error.message


def test_redirects_are_named_and_not_followed() -> None:
    error = failure_of(HttpReply(b"", 302, {"location": "https://elsewhere.example"}))
    assert type(error) is errors.InternalError
    assert "https://elsewhere.example" in error.message


def test_what_passes_is_tried_again() -> None:
    replies: Iterator[dict[str, Any]] = iter(
        [
            {"error": {"code": -32013, "message": "starting", "data": {"reason": "UNAVAILABLE"}}},
            {"result": {"decision": {"id": "dec-1"}}},
        ]
    )
    reply = HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"]} | next(replies))
    with http_server(reply) as server, CstpClient(server.url, sleep=lambda _: None) as client:
        assert client.get_decision("dec-1").id == "dec-1"


def test_what_json_cannot_express_is_refused_before_it_is_sent() -> None:
    with http_server(result({})) as server, CstpClient(server.url) as client, pytest.raises(InvalidArgument):
        client.check_guardrails("deploy", confidence=float("nan"))
    assert server.requests == []


def test_streams_need_grpc_and_say_so() -> None:
    with CstpClient("http://localhost:1") as client, pytest.raises(errors.MethodNotFound, match="grpc://"):
        list(client.import_decisions([journal_pb2.ImportDecisionsRequest(source="a")]))


def test_a_missing_bridge_is_unreachable_and_named(free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    with CstpClient(url, retries=ONCE) as client, pytest.raises(ServerUnreachable, match=url):
        client.get_decision("dec-1")


def test_a_server_that_speaks_no_http_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)

        thread = threading.Thread(target=hang_up)
        thread.start()
        with (
            CstpClient(f"http://127.0.0.1:{listener.getsockname()[1]}", retries=ONCE) as client,
            pytest.raises(ServerUnreachable),
        ):
            client.get_decision("dec-1")
        thread.join()


def test_a_server_that_is_silent_runs_into_the_deadline() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        CstpClient(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.05) as client,
        pytest.raises(errors.DeadlineExceeded),
    ):
        client.get_decision("dec-1")


@pytest.mark.parametrize("first", [b"HTTP/1.1 200 OK\r\nx-", b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n"])
def test_an_answer_that_trickles_runs_into_the_deadline_too(first: bytes) -> None:
    def trickle(connection: socket.socket, stopping: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(first)
        for _ in itertools.takewhile(lambda _: not stopping.wait(0.01), range(300)):
            connection.sendall(b"a")

    with (
        tcp_server(trickle) as address,
        CstpClient(f"http://{address}", timeout=SOON) as client,
        pytest.raises(errors.DeadlineExceeded),
    ):
        client.query_decisions("x")


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("http://localhost:8100", "http://localhost:8100/cstp"),
        ("http://localhost:8100/", "http://localhost:8100/cstp"),
        ("https://example.com/cstp", "https://example.com/cstp"),
        ("https://example.com/agents/a", "https://example.com/agents/a/cstp"),
    ],
)
def test_a_bridge_is_found_at_its_path(target: str, url: str) -> None:
    assert jsonrpc_url(target).geturl() == url


@pytest.mark.parametrize("target", ["http://", "http://x:99999", "http://user@x", "http://x?y=1"])
def test_another_address_is_refused(target: str) -> None:
    with pytest.raises(InvalidArgument, match="target"):
        CstpClient(target)
