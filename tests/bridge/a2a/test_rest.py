"""What is peculiar to HTTP+JSON: paths, methods, params in URLs, statuses, and what browsers need."""

from __future__ import annotations

import gzip
import json
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.bridge.a2a.products import MAX_BODY_BYTES
from tests.bridge.a2a.raw import A2A_DOMAIN, EXTENSION, URI, Core, Raw, fields_of, info_of, saying
from tests.bridge.support import Answer, fail
from tests.example_counts import examples
from tests.named_case import named_case

BASE = "/a2a/v1"
A2A_JSON = "application/a2a+json"
CONFIG = "/tasks/a/pushNotificationConfigs"


def asked(raw: Raw, method: str, path: str, body: Any = None, **told: Any) -> Answer:
    answer = raw.send(method, BASE + path, body, **told)
    assert answer.headers["X-Request-Id"]
    return answer


def refusal(answer: Answer) -> tuple[int, str, tuple[str, str]]:
    """Return the status, its name, and domain and reason of an error."""
    assert answer.headers["Content-Type"] == A2A_JSON
    error = answer.json["error"]
    assert error["message"]
    assert error["code"] == answer.status
    return answer.status, error["status"], info_of(error["details"])


@pytest.mark.parametrize("content_type", [A2A_JSON, "application/json", "application/a2a+json; charset=utf-8"])
def test_a_message_is_answered_with_a_task(raw: Raw, content_type: str) -> None:
    answer = asked(raw, "POST", "/message:send", saying("Deploy"), headers={"Content-Type": content_type})
    assert (answer.status, answer.headers["Content-Type"]) == (200, A2A_JSON)
    assert answer.json["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_task_is_subscribed_to_by_either_method(raw: Raw, method: str) -> None:
    task = asked(raw, "POST", "/message:send", saying("Deploy")).json["task"]
    answer = asked(raw, method, f"/tasks/{task['id']}:subscribe")
    assert refusal(answer) == (400, "FAILED_PRECONDITION", (A2A_DOMAIN, "UNSUPPORTED_OPERATION"))


@pytest.mark.parametrize("body", [None, {}, {"metadata": {"why": "x"}}, {"id": "another"}])
def test_the_path_says_which_task_is_canceled(raw: Raw, body: Any) -> None:
    task = asked(raw, "POST", "/message:send", saying("Deploy")).json["task"]
    answer = asked(raw, "POST", f"/tasks/{task['id']}:cancel", body)
    assert refusal(answer) == (400, "FAILED_PRECONDITION", (A2A_DOMAIN, "TASK_NOT_CANCELABLE"))
    assert task["id"] in answer.json["error"]["message"]


def test_tasks_are_listed_as_the_url_asks(raw: Raw) -> None:
    context = "asked for by a url"
    task = asked(raw, "POST", "/message:send", saying("Deploy", contextId=context)).json["task"]
    without = {name: value for name, value in task.items() if name != "artifacts"}
    page = {"tasks": [without], "nextPageToken": "", "pageSize": 50, "totalSize": 1}
    wanted: dict[str, Any] = {
        "": page,
        "&unknown=x&A2A-Version=1.0": page,
        "&status=TASK_STATE_WORKING": {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0},
        f"&statusTimestampAfter={quote(task['status']['timestamp'])}": page,
        "&pageSize=1": page | {"pageSize": 1},
        "&includeArtifacts=true": page | {"tasks": [task]},
        "&includeArtifacts=false": page,
    }
    for query, expected in wanted.items():
        assert asked(raw, "GET", f"/tasks?contextId={quote(context)}{query}").json == expected, query


def test_wrong_parameters_are_named(raw: Raw) -> None:
    for query, fields in [
        ("pageSize=x&status=done", ["status", "pageSize"]),
        ("pageSize=", ["pageSize"]),
        ("pageSize=1.5", ["pageSize"]),
        ("historyLength=99999999999", ["historyLength"]),
        ("includeArtifacts=1", ["includeArtifacts"]),
        ("statusTimestampAfter=now", ["statusTimestampAfter"]),
        ("pageToken=nope", ["pageToken"]),
        ("contextId=a&contextId=b&status=x", ["contextId"]),
    ]:
        with named_case(query, fields):
            answer = asked(raw, "GET", f"/tasks?{query}")
            assert refusal(answer) == (400, "INVALID_ARGUMENT", (A2A_DOMAIN, "INVALID_PARAMS"))
            assert fields_of(answer.json["error"]["details"]) == fields


def test_wrong_members_are_named(raw: Raw) -> None:
    cases: list[tuple[Any, list[str]]] = [
        (None, ["message"]),
        ({}, ["message"]),
        ({"message": {"parts": [{"text": 5}]}}, ["message.parts[0].text"]),
        ({"message": {"messageId": "m", "parts": [{"text": "x"}]}}, ["message.role"]),
        ([], []),
        ("7", []),
    ]
    for path in ["/message:send", "/message:stream"]:
        for body, fields in cases:
            with named_case(path, body, fields):
                answer = asked(raw, "POST", path, body)
                assert refusal(answer) == (400, "INVALID_ARGUMENT", (A2A_DOMAIN, "INVALID_PARAMS"))
                assert fields_of(answer.json["error"]["details"]) == fields


@pytest.mark.parametrize(
    ("body", "reason"), [("{", "JSON_PARSE"), ('{"message": NaN}', "JSON_PARSE"), ('{"a":1,"a":2}', "INVALID_REQUEST")]
)
def test_what_is_no_json_is_refused(raw: Raw, body: str, reason: str) -> None:
    assert refusal(asked(raw, "POST", "/message:send", body)) == (400, "INVALID_ARGUMENT", (A2A_DOMAIN, reason))


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/tasks/a%2Fb", None, (404, "NOT_FOUND", "TASK_NOT_FOUND")),
        ("GET", "/tasks/nope:cancel", None, (404, "NOT_FOUND", "TASK_NOT_FOUND")),
        ("GET", "", None, (404, "NOT_FOUND", "METHOD_NOT_FOUND")),
        ("GET", "/", None, (404, "NOT_FOUND", "METHOD_NOT_FOUND")),
        ("GET", "/nope", None, (404, "NOT_FOUND", "METHOD_NOT_FOUND")),
        ("GET", "/tasks/a/b/c", None, (404, "NOT_FOUND", "METHOD_NOT_FOUND")),
        ("POST", "/alice/bob/message:send", {}, (404, "NOT_FOUND", "METHOD_NOT_FOUND")),
    ],
)
def test_what_is_not_there_is_404(raw: Raw, method: str, path: str, body: Any, expected: tuple[int, str, str]) -> None:
    status, name, reason = expected
    assert refusal(asked(raw, method, path, body)) == (status, name, (A2A_DOMAIN, reason))


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/message:send", {"POST"}),
        ("PUT", "/tasks", {"GET"}),
        ("HEAD", "/tasks", {"GET"}),
        ("OPTIONS", "/tasks", {"GET"}),
        ("POST", "/tasks/a", {"GET"}),
        ("DELETE", CONFIG, {"GET", "POST"}),
        ("POST", f"{CONFIG}/b", {"GET", "DELETE"}),
    ],
)
def test_other_methods_are_405(raw: Raw, method: str, path: str, allowed: set[str]) -> None:
    answer = asked(raw, method, path)
    assert answer.status == 405
    assert set(answer.headers["Allow"].split(",")) == allowed
    if method != "HEAD":
        assert refusal(answer)[2] == (A2A_DOMAIN, "UNSUPPORTED_OPERATION")


def test_1_0_alone_is_spoken(raw: Raw) -> None:
    for version in [None, "", "0.3", "2.0", "x"]:
        for method, path in [("GET", "/tasks"), ("POST", "/message:stream"), ("GET", "/tasks/x")]:
            with named_case(version, method, path):
                body = saying("Deploy") if method == "POST" else None
                answer = asked(raw, method, path, body, version=version)
                assert refusal(answer) == (400, "FAILED_PRECONDITION", (A2A_DOMAIN, "VERSION_NOT_SUPPORTED"))
                assert "A2A-Version" in answer.json["error"]["message"]
                assert "1.0" in answer.json["error"]["message"]


def test_the_version_may_be_in_the_url(raw: Raw) -> None:
    assert asked(raw, "GET", "/tasks?A2A-Version=1.0", version=None).status == 200
    assert asked(raw, "POST", "/message:send?A2A-Version=1.0.2", saying("Deploy"), version=None).status == 200


def test_strangers_learn_that_they_are_strangers(raw: Raw) -> None:
    for method, path, body in [
        ("POST", "/message:send", "{"),
        ("GET", "/tasks?pageSize=x", None),
        ("GET", "/tasks/x:subscribe", None),
        ("GET", "/nope", None),
        ("PUT", "/tasks", None),
    ]:
        for version in ["1.0", "2.0"]:
            for who in [None, "a-token-of-nobody"]:
                with named_case(method, path, body):
                    answer = asked(raw, method, path, body, version=version, who=who)
                    assert refusal(answer) == (401, "UNAUTHENTICATED", ("cstp", "AUTHENTICATION_REQUIRED"))
                    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="cstp"'
                    assert len(answer.json["error"]["details"]) == 1


def test_the_extended_card_is_for_the_cache_of_its_caller_alone(raw: Raw) -> None:
    answer = asked(raw, "GET", "/extendedAgentCard")
    assert answer.headers["Cache-Control"] == "private, max-age=300"
    assert "Authorization" in answer.headers["Vary"]
    assert "Cache-Control" not in asked(raw, "GET", "/tasks").headers


def test_the_activated_extension_is_echoed_where_there_is_nothing(raw: Raw) -> None:
    assert asked(raw, "POST", "/nope", {}, headers=EXTENSION).headers["A2A-Extensions"] == URI
    assert "A2A-Extensions" not in asked(raw, "POST", "/nope", {}).headers


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (gzip.compress(b"{}", mtime=0), {"Content-Encoding": "gzip"}, 415),
        (b" " * (MAX_BODY_BYTES + 1), {}, 413),
    ],
)
def test_http_refuses_what_it_can_judge_itself(raw: Raw, body: bytes, headers: dict[str, str], status: int) -> None:
    answer = asked(raw, "POST", "/message:send", body, headers=headers)
    assert refusal(answer)[0] == status
    assert ("Accept-Post" in answer.headers) == (status == 415)
    assert asked(raw, "POST", "/message:send", body, headers=headers, who=None).status == 401


def test_the_limits_of_the_server_are_told_by_http_too(scripted_raw: Raw, script: Core) -> None:
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    limited = fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED", "Too many calls", retry)
    script.server.plays["cstp.getTask"] = limited
    answer = asked(scripted_raw, "GET", "/tasks/x")
    assert refusal(answer) == (429, "RESOURCE_EXHAUSTED", ("cstp", "RATE_LIMITED"))
    assert answer.headers["Retry-After"] == "2"


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        (f"{BASE}/message:send", "POST"),
        (f"{BASE}/tasks/x:subscribe", "POST, GET"),
        (f"{BASE}/tasks/x", "GET"),
        (f"{BASE}{CONFIG}/b", "GET, DELETE"),
        ("/a2a", "POST"),
        ("/", "POST"),
    ],
)
def test_pages_of_listed_origins_may_call(scripted_raw: Raw, path: str, methods: str) -> None:
    origin = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    preflight = scripted_raw.client.request("OPTIONS", path, headers=origin)
    assert preflight.status == 204
    assert preflight.headers["Access-Control-Allow-Methods"] == methods
    allowed = preflight.headers["Access-Control-Allow-Headers"].lower().split(", ")
    assert {"a2a-version", "a2a-extensions", "x-a2a-extensions", "authorization"} <= set(allowed)


def test_pages_see_which_extension_is_activated(scripted_raw: Raw) -> None:
    answer = asked(scripted_raw, "GET", "/nope", headers={"Origin": "https://page.example"})
    assert answer.headers["Access-Control-Allow-Origin"] == "https://page.example"
    assert "A2A-Extensions" in answer.headers["Access-Control-Expose-Headers"].split(", ")


paths = st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=20)


@given(
    method=st.sampled_from(["GET", "POST", "DELETE"]),
    path=paths.map(lambda text: f"/{text}") | paths.map(lambda text: f"/tasks/{text}") | paths.map("/tasks?{}".format),
    body=st.none() | st.binary(max_size=50) | st.dictionaries(st.text(max_size=5), st.text(max_size=5)),
)
@hypothesis_settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_request_is_answered(raw: Raw, method: str, path: str, body: Any) -> None:
    answer = raw.send(method, BASE + path, body)
    assert 200 <= answer.status < 500
    assert json.loads(answer.body)
