"""What clients of A2A 0.3 rely on over JSON-RPC, where 0.3 is stricter than 1.0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.bridge.a2a.raw import Raw, call, events_of, saying_in_0_3, talking
from tests.bridge.support import JSON

NOWHERE = {"id": "8f0e7f3c-5b1d-4b52-9f0a-3d1c6a1f0b11"}
FILE = {"kind": "file", "file": {"uri": "https://example.com/a"}}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raw]:
    with talking(tmp_path_factory.mktemp("a2a-v0-3")) as found:
        yield found


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tasks/resubscribe", NOWHERE, -32001),
        ("message/stream", {"message": {}}, -32602),
        ("message/stream", {"message": saying_in_0_3()["message"] | {"parts": [FILE]}}, -32005),
    ],
)
def test_a_stream_that_never_begins_has_the_error_as_its_event(raw: Raw, method: str, params: Any, code: int) -> None:
    answer = raw.post(call(method, params), version="0.3")
    (event,) = events_of(answer)
    assert (answer.status, event["id"], event["error"]["code"]) == (200, 1, code)


def test_strangers_who_ask_for_a_stream_are_refused_by_http(raw: Raw) -> None:
    answer = raw.post(call("tasks/resubscribe", NOWHERE), version="0.3", who=None)
    assert (answer.status, answer.headers.get_content_type()) == (401, JSON)


@pytest.mark.parametrize(("method", "code"), [("SubscribeToTask", -32001), ("tasks/resubscribe", -32009)])
def test_1_0_hears_plainly_of_a_stream_that_never_begins(raw: Raw, method: str, code: int) -> None:
    answer = raw.post(call(method, NOWHERE), version="1.0")
    assert (answer.status, answer.json["error"]["code"]) == (200, code)


def test_parts_must_say_what_they_are(raw: Raw) -> None:
    params = saying_in_0_3("Deploy")
    params["message"]["parts"].append({"type": "text", "text": "today"})
    error = raw.call("message/send", params, version="0.3")["error"]
    assert error["code"] == -32602
    assert error["data"][1]["fieldViolations"] == [
        {"field": "message.parts[1].kind", "description": "must be 'text', 'file' or 'data'"}
    ]
