from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from cstp_grpc.contract.call_scope import HopContext
from cstp_grpc.platform.config import ServerSettings
from tests.bridge.support import JSON, TIMEOUT, TOKEN, Client, Scripted, bridging, call
from tests.named_case import named_case
from tests.waiting import wait_until

QUERY = json.dumps(call("cstp.queryDecisions", {"query": "x"})).encode()


@pytest.mark.parametrize("content_type", [JSON, "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"])
def test_json_is_accepted(bridge: Client, content_type: str) -> None:
    assert "result" in bridge.post(QUERY, {"Content-Type": content_type}).json


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
def test_other_content_is_415(bridge: Client, server: Scripted, headers: dict[str, str]) -> None:
    answer = bridge.post(QUERY, headers)
    assert answer.status == 415
    assert answer.headers["Accept-Post"] == JSON
    assert answer.json["id"] is None
    assert answer.json["error"]["code"] == -32600
    assert not server.seen


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods_are_405(bridge: Client, method: str) -> None:
    answer = bridge.request(method, "/cstp", headers={"Content-Type": JSON})
    assert answer.status == 405
    assert answer.headers["Allow"] == "POST"


def test_other_paths_are_404(bridge: Client) -> None:
    assert bridge.request("POST", "/cstp/", QUERY, {"Content-Type": JSON}).status == 404
    assert bridge.get("/nowhere").status == 404


@pytest.mark.parametrize("end", [b"\x01\r\n\r\n", b"\r\n: x\r\n\r\n", b"a" * 10_000 + b"\r\n\r\n"])
def test_nothing_of_a_malformed_request_is_logged(bridge: Client, caplog: pytest.LogCaptureFixture, end: bytes) -> None:
    with caplog.at_level("DEBUG"), socket.create_connection((bridge.host, bridge.port), TIMEOUT) as connection:
        connection.sendall(b"POST /cstp HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + TOKEN.encode() + end)
        answer = b"".join(iter(lambda: connection.recv(1000), b""))
        assert answer.startswith(b"HTTP/1.0 400")
        assert answer.endswith(b"400: Bad Request\n")
        assert b"\r\nServer: cstp\r\n" in answer
        wait_until(lambda: "is not HTTP" in caplog.text, "it is logged that there was one")
    assert TOKEN not in caplog.text
    assert "Traceback" not in caplog.text


def test_an_expectation_that_there_is_none_of_is_417_and_not_repeated(
    bridge: Client, caplog: pytest.LogCaptureFixture
) -> None:
    for given in ["\xff", "gold", "100-continue, gold"]:
        for target in ["POST /cstp", "GET /health", "GET /nowhere", "PUT /cstp"]:
            with named_case(given, target):
                answer = send_raw(bridge, f"{target} HTTP/1.1\r\nHost: x\r\nExpect: {given}\r\n\r\n".encode("latin-1"))
                assert answer.startswith(b"HTTP/1.1 417 ")
                assert b"\r\nServer: cstp\r\n" in answer
                assert b"gold" not in answer
                assert not caplog.records


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/cstp"), ("GET", "/health"), ("GET", "/nowhere"), ("PUT", "/cstp"), ("POST", "/a2a")]
)
def test_no_answer_tells_the_versions_of_the_server(bridge: Client, method: str, path: str) -> None:
    answer = bridge.request(method, path, b"{" if method == "POST" else None, {"Content-Type": JSON})
    assert answer.headers.get_all("Server") == ["cstp"]


def test_a_body_beyond_the_limit_is_413(bridge: Client, server: Scripted) -> None:
    fitting = QUERY.ljust(20_000)
    assert bridge.post(fitting).status == 200
    server.seen.clear()
    answer = bridge.post(fitting + b" ")
    assert answer.status == 413
    assert answer.json["error"]["code"] == -32600
    assert answer.json["error"]["data"]["reason"] == "INVALID_REQUEST"
    assert not server.seen


def test_a_body_of_unknown_length_is_bounded_too(bridge: Client) -> None:
    head = f"POST /cstp HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunk = b"3e8\r\n" + b" " * 1000 + b"\r\n"
    assert send_raw(bridge, head + 30 * chunk + b"0\r\n\r\n").startswith(b"HTTP/1.1 413 ")


def test_a_body_that_does_not_arrive_is_408(target: str) -> None:
    head = f"POST /cstp HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: 100\r\n\r\n"
    with bridging(target, ServerSettings(timeout_seconds=0.2)) as bridge:
        assert send_raw(bridge, head.encode() + b"{").startswith(b"HTTP/1.1 408 ")


def test_a_caller_that_goes_away_leaves_no_trace(
    bridge: Client, server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    head = f"POST /cstp HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: 100\r\n"
    with socket.create_connection((bridge.host, bridge.port), TIMEOUT) as connection:
        connection.sendall(f"{head}Expect: 100-continue\r\n\r\n{{".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
    assert "result" in bridge.post(QUERY).json
    assert not caplog.records


def send_raw(bridge: Client, content: bytes) -> bytes:
    """Return the beginning of the answer to bytes that an HTTP library would not send."""
    with socket.create_connection((bridge.host, bridge.port), TIMEOUT) as connection:
        connection.sendall(content)
        return connection.recv(1000)


def test_every_answer_names_its_request(bridge: Client) -> None:
    first, second = bridge.post(QUERY), bridge.post(QUERY)
    assert len(first.headers["X-Request-Id"]) == 32
    assert first.headers["X-Request-Id"] != second.headers["X-Request-Id"]


@pytest.mark.parametrize("body", [QUERY, b"[" + QUERY + b"]", b"{", b'{"jsonrpc": "2.0", "method": "x"}'])
def test_the_callers_request_id_is_kept(bridge: Client, server: Scripted, body: bytes) -> None:
    answer = bridge.post(body, {"Content-Type": JSON, "X-Request-Id": "trace-1:a.b_c"})
    assert answer.headers["X-Request-Id"] == "trace-1:a.b_c"
    assert all(seen.metadata["x-request-id"] == "trace-1:a.b_c" for seen in server.seen)


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "é", "a\tb"])
def test_a_request_id_that_is_none_is_replaced(bridge: Client, server: Scripted, given: str) -> None:
    answer = bridge.post(QUERY, {"Content-Type": JSON, "X-Request-Id": given})
    (seen,) = server.seen
    assert len(answer.headers["X-Request-Id"]) == 32
    assert seen.metadata["x-request-id"] == answer.headers["X-Request-Id"]


def test_credentials_and_traces_reach_the_server(bridge: Client, server: Scripted) -> None:
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1,b=2"}
    bridge.post(QUERY, {"Content-Type": JSON, "Authorization": f"Bearer {TOKEN}", "Cookie": "a=b", **trace})
    (seen,) = server.seen
    assert seen.metadata["authorization"] == f"Bearer {TOKEN}"
    assert {name: seen.metadata[name] for name in trace} == trace
    assert "cookie" not in seen.metadata


def test_how_far_a_call_between_agents_has_come_reaches_the_server(bridge: Client, server: Scripted) -> None:
    journey = "id=intent-1;hops=2;path=alice,bob"
    bridge.post(QUERY, {"Content-Type": JSON, "X-CSTP-Federation": journey})
    (seen,) = server.seen
    assert seen.metadata["x-cstp-federation"] == journey


@pytest.mark.parametrize("given", ["x" * 1600, "id=é;hops=1;path=", ""])
def test_a_journey_that_grpc_cannot_carry_ends(bridge: Client, server: Scripted, given: str) -> None:
    bridge.post(QUERY, {"Content-Type": JSON, "X-CSTP-Federation": given})
    (seen,) = server.seen
    told = seen.metadata["x-cstp-federation"]
    assert isinstance(told, str)
    assert HopContext.decode(told) == HopContext("", 0)


def test_all_that_is_passed_on_fits_what_grpc_takes_together(bridge: Client, server: Scripted) -> None:
    longest = {"Authorization": 4096, "traceparent": 128, "tracestate": 1024, "X-CSTP-Federation": 1536}
    told = {name: "x" * length for name, length in longest.items()}
    answer = bridge.post(QUERY, {"Content-Type": JSON, "X-Request-Id": "r" * 128, **told})
    assert "result" in answer.json
    (seen,) = server.seen
    assert {name: len(seen.metadata[name.lower()]) for name in told} == longest


@pytest.mark.parametrize("given", ["Bearer é", "Bearer " + "x" * 5000, "Bearer a\tb", ""])
def test_credentials_that_grpc_cannot_carry_are_refused_by_the_server(
    bridge: Client, server: Scripted, given: str
) -> None:
    answer = bridge.post(QUERY, {"Content-Type": JSON, "Authorization": given})
    assert answer.status == 200
    (seen,) = server.seen
    assert seen.metadata["authorization"] == "unreadable"


def test_the_values_of_repeated_credentials_stay_here(bridge: Client, server: Scripted) -> None:
    head = f"POST /cstp HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: {len(QUERY)}\r\n"
    head += "".join(f"Authorization: Bearer {'x' * 4000}\r\n" for _ in range(5))
    assert send_raw(bridge, f"{head}\r\n".encode() + QUERY).startswith(b"HTTP/1.1 200 ")
    (seen,) = server.seen
    assert seen.metadata["authorization"] == "unreadable"


@pytest.mark.parametrize("value", ["é𝄞", "a\\u0000b", "\\ud834\\udd1e"])
def test_text_travels_as_utf_8(bridge: Client, server: Scripted, value: str) -> None:
    answer = bridge.post(f'{{"jsonrpc":"2.0","id":1,"method":"cstp.queryDecisions","params":{{"query":"{value}"}}}}')
    expected: Any = json.loads(f'"{value}"')
    assert answer.json["result"]["query"] == expected
    (seen,) = server.seen
    assert seen.request.query == expected
