"""Large bodies cost nothing: those of strangers are not read, and those of many values not converted."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.http_request import has_more_values
from cstp_grpc.platform.config import ServerSettings
from tests.bridge.support import JSON, TIMEOUT, Answer, Client, Scripted, bridging, fail

PATHS = ["/cstp", "/a2a", "/a2a/v1/message:send"]
MOST = 2000
NO_JSON = b"x" * 70_000
STRANGE = fail(grpc.StatusCode.UNAUTHENTICATED, "AUTHENTICATION_REQUIRED", "Who are you?")


@pytest.fixture(scope="module")
def bounded(shared: tuple[Scripted, str]) -> Iterator[Client]:
    with bridging(
        shared[1], ServerSettings(max_values=MOST, max_body_bytes=100_000, timeout_seconds=TIMEOUT)
    ) as client:
        yield client


@pytest.fixture
def stranger(server: Scripted) -> None:
    """Whoever calls, the server knows nobody."""
    server.plays = dict.fromkeys(server.plays, STRANGE)


def send(bridge: Client, path: str, body: bytes) -> Answer:
    headers = {"Content-Type": JSON, "Authorization": "Bearer a", "A2A-Version": "1.0"}
    return bridge.request("POST", path, body, headers)


def values(count: int) -> bytes:
    """Return a list that is no call and holds so many values, itself included."""
    return b"[" + b",".join([b"0"] * (count - 1)) + b"]"


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [NO_JSON, values(1500) + b"}"], ids=["bytes", "values"])
def test_what_a_stranger_sends_is_not_converted(bounded: Client, server: Scripted, path: str, body: bytes) -> None:
    answer = send(bounded, path, body)
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"]
    assert {seen.method for seen in server.seen} == {"cstp.getAccess"}


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize("path", PATHS)
def test_a_stranger_is_refused_before_a_large_body_arrives(bounded: Client, path: str) -> None:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nA2A-Version: 1.0\r\nContent-Length: 90000\r\n\r\n"
    )
    with socket.create_connection((bounded.host, bounded.port), TIMEOUT / 2) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "words"), [(NO_JSON, b"Expecting value"), (values(1500) + b"}", b"Extra data")], ids=["bytes", "values"]
)
def test_what_a_known_caller_sends_is_converted(
    bounded: Client, server: Scripted, path: str, body: bytes, words: bytes
) -> None:
    assert words in send(bounded, path, body).body


@pytest.mark.parametrize("path", PATHS)
def test_a_body_of_too_many_values_is_413_and_not_converted(bounded: Client, server: Scripted, path: str) -> None:
    assert b"Extra data" in send(bounded, path, values(MOST) + b"}").body
    answer = send(bounded, path, values(MOST + 1) + b"}")
    assert answer.status == 413
    assert f"more than {MOST} values".encode() in answer.body
    assert not [seen for seen in server.seen if seen.method != "cstp.getAccess"]


@pytest.mark.parametrize("path", PATHS)
def test_a_length_beyond_the_limit_is_413_before_the_body_arrives(bounded: Client, path: str) -> None:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nA2A-Version: 1.0\r\nContent-Length: 100001\r\n\r\n"
    )
    with socket.create_connection((bounded.host, bounded.port), TIMEOUT / 2) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_commas_and_brackets_in_texts_are_no_values(bounded: Client) -> None:
    text = json.dumps('[,{,\\",' * 3000)
    body = f'{{"jsonrpc":"2.0","id":1,"method":"cstp.queryDecisions","params":{{"query":{text}}}}}'
    assert bounded.post(body).json["result"]["query"] == json.loads(text)


def count(value: Any) -> int:
    """Return how many values a JSON value holds, itself included."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(count, children))


TEXTS = st.text(st.sampled_from('a\\"[]{},: \n\u00e9\U0001f680'), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=40,
)


@given(value=VALUES, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans())
def test_values_are_counted_exactly(value: Any, indent: int | None, ascii_only: bool) -> None:
    content = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    there = count(value)
    assert not has_more_values(content, there)
    assert has_more_values(content, there - 1)


@pytest.mark.parametrize(
    "content", [b"[1,2,3", b'[1,2,"a', b'["a","b",c"', b"[[[[", b'{"a":1,"b":2,,', b'[1,2,3]]"', b'[1,2,3]\\"']
)
def test_what_breaks_off_is_counted_up_to_there(content: bytes) -> None:
    assert has_more_values(content, 2)
