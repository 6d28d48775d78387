"""HTTP+JSON answers in the media type that its caller asks for."""

from __future__ import annotations

import pytest

from tests.bridge.a2a.raw import Raw, saying
from tests.named_case import named_case

A2A_JSON = "application/a2a+json"
JSON = "application/json"
BASE = "/a2a/v1"

ASKED = [
    (None, A2A_JSON),
    ("", A2A_JSON),
    ("*/*", A2A_JSON),
    ("application/*", A2A_JSON),
    ("text/event-stream", JSON),
    (f"text/event-stream, {A2A_JSON}", A2A_JSON),
    ("image/png", A2A_JSON),
    (A2A_JSON, A2A_JSON),
    (JSON, JSON),
    ("Application/JSON", JSON),
    (f"{JSON}; charset=utf-8", JSON),
    (f"{JSON}, text/plain, */*", JSON),
    (f"{JSON}, {A2A_JSON}", A2A_JSON),
    (f"{A2A_JSON};q=0.5, {JSON}", JSON),
    (f"{A2A_JSON}, {JSON};q=0.9", A2A_JSON),
    (f"{A2A_JSON};q=0, */*", JSON),
    (f"{JSON};q=0, */*", A2A_JSON),
    (f"text/event-stream, {JSON}", JSON),
    (f"{JSON};q=nonsense", JSON),
    (f"{JSON};q=nan, {A2A_JSON};q=0.1", JSON),
    (";;;,,q=1", A2A_JSON),
]


@pytest.mark.parametrize(("accept", "expected"), ASKED)
def test_results_and_errors_have_the_type_that_is_asked_for(raw: Raw, accept: str | None, expected: str) -> None:
    headers = {} if accept is None else {"Accept": accept}
    for path, status in (("/tasks", 200), ("/tasks/none", 404)):
        answer = raw.send("GET", BASE + path, headers=headers)
        assert (answer.status, answer.headers["Content-Type"]) == (status, expected)
        assert "Accept" in answer.headers["Vary"]


def test_everything_has_the_type_that_is_asked_for(raw: Raw) -> None:
    for accept in [JSON, A2A_JSON]:
        for method, path, body, status in [
            ("POST", "/message:send", saying("Deploy"), 200),
            ("GET", "/nowhere", None, 404),
            ("PUT", "/tasks", None, 405),
            ("POST", "/message:stream", {}, 400),
            ("POST", "/tasks/none:subscribe", None, 404),
            ("POST", "/message:send", b"{", 400),
        ]:
            with named_case(accept, method, path):
                answer = raw.send(method, BASE + path, body, headers={"Accept": accept})
                assert (answer.status, answer.headers["Content-Type"]) == (status, accept)
                assert "Accept" in answer.headers["Vary"]


@pytest.mark.parametrize("accept", [JSON, A2A_JSON])
def test_a_stranger_is_refused_in_the_type_that_is_asked_for(raw: Raw, accept: str) -> None:
    answer = raw.send("GET", f"{BASE}/tasks", who=None, headers={"Accept": accept})
    assert (answer.status, answer.headers["Content-Type"]) == (401, accept)


@pytest.mark.parametrize("accept", [JSON, A2A_JSON, "text/event-stream"])
def test_a_stream_is_a_stream_whatever_is_asked_for(raw: Raw, accept: str) -> None:
    answer = raw.send("POST", f"{BASE}/message:stream", saying("Deploy"), headers={"Accept": accept})
    assert (answer.status, answer.headers.get_content_type()) == (200, "text/event-stream")
