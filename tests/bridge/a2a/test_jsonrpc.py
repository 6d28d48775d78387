"""What is peculiar to JSON-RPC: ids, batches, notifications, versions, the methods of CSTP, and the names of params."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import access_pb2
from cstp_grpc.platform.config import ServerSettings
from tests.bridge.a2a.products import MAX_BATCH, MAX_BODY_BYTES
from tests.bridge.a2a.raw import (
    A2A_DOMAIN,
    EXTENSION,
    URI,
    Core,
    Raw,
    call,
    events_of,
    fields_of,
    info_of,
    saying,
    saying_in_0_3,
    to_bytes,
)
from tests.bridge.support import JSON, TIMEOUT, Scripted, bare, bridging, fail
from tests.example_counts import examples
from tests.harness import TOKENS
from tests.named_case import named_case

STREAMS = [("SendStreamingMessage", saying("Deploy")), ("SubscribeToTask", {"id": "x"})]


@pytest.mark.parametrize("path", ["/a2a", "/a2a/", "/"])
def test_it_is_served_at_several_paths(raw: Raw, path: str) -> None:
    answer = raw.post(call("SendMessage", saying("Deploy")), path)
    assert (answer.status, answer.headers["Content-Type"]) == (200, JSON)
    assert answer.json["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


def test_numbers_of_results_are_written_as_the_other_endpoint_writes_them(raw: Raw) -> None:
    query: Any = {"method": "cstp.checkGuardrails", "params": {"action": {"description": "Deploy"}}}
    direct = raw.post(call(**query), "/cstp").body
    content = raw.post(call("SendMessage", saying(query))).body
    assert b'"evaluated":' in direct
    evaluated = direct.partition(b'"evaluated":')[2].split(b",")[0].rstrip(b"}")
    assert b'"evaluated":' + evaluated in content
    assert b"." not in evaluated


def test_an_empty_page_has_its_members_too(raw: Raw) -> None:
    page = raw.call("ListTasks", {"contextId": "no such"})["result"]
    assert page == {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}


def test_ids_come_back_as_they_were_sent(raw: Raw) -> None:
    for call_id in [
        "null",
        "0",
        "-0",
        "1e2",
        "1.50",
        "18446744073709551617",
        '""',
        '"\\u0000"',
        '"\\ud800"',
        '"a\\"b"',
    ]:
        for method, member in [("ListTasks", b'"result":'), ("Nope", b'"error":'), ("GetTask", b'"error":')]:
            with named_case(call_id, method, member):
                answer = raw.post(f'{{"jsonrpc":"2.0","id":{call_id},"method":"{method}"}}')
                assert answer.body.startswith(f'{{"jsonrpc":"2.0","id":{call_id},'.encode() + member)


@pytest.mark.parametrize("call_id", ["1e2", '"\\ud800"', "null"])
def test_ids_come_back_in_streams_too(raw: Raw, call_id: str) -> None:
    params = json.dumps(saying("Deploy"))
    answer = raw.post(f'{{"jsonrpc":"2.0","id":{call_id},"method":"SendStreamingMessage","params":{params}}}')
    lines = [line for line in answer.body.splitlines() if line]
    assert len(lines) == 3
    assert all(line.startswith(f'data: {{"jsonrpc":"2.0","id":{call_id},"result":'.encode()) for line in lines)


def test_a_batch_is_answered_in_its_order_and_without_its_notifications(raw: Raw) -> None:
    batch = [
        call("ListTasks", {"pageSize": 1}, id="a"),
        {"jsonrpc": "2.0", "method": "ListTasks"},
        call("Nope", id="b"),
        17,
        call("SendStreamingMessage", saying("Deploy"), id="c"),
        call("SendMessage", saying("Deploy"), id="d"),
        call("cstp.getAccess", id="e"),
    ]
    answer = raw.post(batch, headers=EXTENSION)
    assert answer.status == 200
    assert [found["id"] for found in answer.json] == ["a", "b", None, "c", "d", "e"]
    codes = [found["error"]["code"] if "error" in found else None for found in answer.json]
    assert codes == [None, -32601, -32600, -32004, None, None]


def test_a_batch_of_notifications_has_no_answer(raw: Raw) -> None:
    answer = raw.post([{"jsonrpc": "2.0", "method": "ListTasks"}] * 2)
    assert (answer.status, answer.body) == (204, b"")


@pytest.mark.parametrize(
    ("body", "code"), [([], -32600), ([1] * (MAX_BATCH + 1), -32600), ({}, -32600), ("nope", -32700)]
)
def test_what_is_no_call_is_refused_in_the_shape_of_a2a(raw: Raw, body: Any, code: int) -> None:
    answer = raw.post(body)
    assert (answer.status, answer.json["id"], answer.json["error"]["code"]) == (200, None, code)
    reason = {-32600: "INVALID_REQUEST", -32700: "JSON_PARSE"}[code]
    assert info_of(answer.json["error"]["data"]) == (A2A_DOMAIN, reason)


def test_a_notification_is_performed_and_not_answered(raw: Raw) -> None:
    context = "of-a-notification"
    body = {"jsonrpc": "2.0", "method": "SendMessage", "params": saying("Deploy", contextId=context)}
    answer = raw.post(body)
    assert (answer.status, answer.body) == (204, b"")
    assert raw.call("ListTasks", {"contextId": context})["result"]["totalSize"] == 1
    assert raw.post({"jsonrpc": "2.0", "method": "Nope"}).status == 204


@pytest.mark.parametrize(("method", "params"), STREAMS)
def test_a_stream_needs_an_id(raw: Raw, method: str, params: Any) -> None:
    answer = raw.post({"jsonrpc": "2.0", "method": method, "params": params})
    assert (answer.status, answer.json["id"], answer.json["error"]["code"]) == (200, None, -32600)
    assert "needs an id" in answer.json["error"]["message"]


@pytest.mark.parametrize("version", ["1.0", "1.0.3", " 1.0 "])
def test_the_current_version_is_known_by_header_and_url(raw: Raw, version: str) -> None:
    assert "result" in raw.call("ListTasks", version=version)
    path = f"/a2a?A2A-Version={version.strip()}"
    assert "result" in raw.call("ListTasks", path=path, version=None)
    # An empty header says nothing.
    assert "result" in raw.call("ListTasks", path=path, version="")
    assert raw.call("ListTasks", path=path, version="0.3")["error"]["code"] == -32009


def test_other_versions_are_not_supported(raw: Raw) -> None:
    for method, version, wanted in [
        ("ListTasks", None, "1.0"),
        ("ListTasks", "", "1.0"),
        ("SendStreamingMessage", "0.3", "1.0"),
        ("SubscribeToTask", "0.3.0", "1.0"),
        ("message/send", "1.0", "0.3"),
        ("message/stream", "1.0", "0.3"),
        ("ListTasks", "2.0", "1.0"),
        ("ListTasks", "1", "1.0"),
        ("ListTasks", "x" * 300, "1.0"),
        ("Nope", "99.0", "1.0"),
        ("cstp.getAccess", "99.0", "1.0"),
    ]:
        with named_case(method, version, wanted):
            error = raw.call(method, saying("Deploy"), version=version, headers=EXTENSION)["error"]
            details = error["data"]["details"] if (version or "0.3").startswith("0.3") else error["data"]
            assert (error["code"], info_of(details)) == (-32009, (A2A_DOMAIN, "VERSION_NOT_SUPPORTED"))
            assert wanted in error["message"]
            assert len(error["message"]) < 200


@pytest.mark.parametrize("method", ["Nope", "", "sendMessage", "tasks/list", "cstp.nope", "rpc.discover", "__init__"])
def test_unknown_methods_are_not_found(raw: Raw, method: str) -> None:
    error = raw.call(method)["error"]
    assert (error["code"], info_of(error["data"])) == (-32601, (A2A_DOMAIN, "METHOD_NOT_FOUND"))


def test_wrong_params_are_named(raw: Raw) -> None:
    for method, params, fields in [
        ("SendMessage", [], [""]),
        ("SendMessage", {}, ["message"]),
        ("SendMessage", {"message": 5}, ["message"]),
        ("SendMessage", {"message": {"parts": "x"}}, ["message.parts"]),
        ("SendMessage", {"message": {"parts": [{"text": 5}, 7]}}, ["message.parts[0].text", "message.parts[1]"]),
        ("SendMessage", {"message": {"parts": [{"text": "a", "data": 1}]}}, ["message.parts[0].data"]),
        ("SendMessage", {"message": {"parts": [{"raw": "§"}]}}, ["message.parts[0].raw"]),
        ("SendMessage", {"message": {"role": "user"}}, ["message.role"]),
        ("SendMessage", {"message": {"role": 17}}, ["message.role"]),
        ("SendMessage", {"message": {"role": True}}, ["message.role"]),
        ("SendMessage", {"message": {"metadata": []}}, ["message.metadata"]),
        ("SendMessage", {"message": {"extensions": ["a", None]}}, ["message.extensions[1]"]),
        ("SendMessage", {"message": {"parts": [{"text": "a"}]}}, ["message.messageId", "message.role"]),
        ("SendStreamingMessage", {"message": {"parts": [{"text": "a"}]}}, ["message.messageId", "message.role"]),
        ("SendStreamingMessage", {"message": 5}, ["message"]),
        (
            "SendMessage",
            {"configuration": {"returnImmediately": "yes", "historyLength": 2**31}},
            ["configuration.historyLength", "configuration.returnImmediately"],
        ),
        ("SendMessage", {"message": {"messageId": "a", "message_id": "b"}}, ["message.message_id"]),
        ("GetTask", {}, ["id"]),
        ("GetTask", {"id": 5}, ["id"]),
        ("GetTask", {"id": "x", "history_length": "many"}, ["historyLength"]),
        ("GetTask", {"id": "x", "historyLength": 1.5}, ["historyLength"]),
        ("ListTasks", {"status": "working"}, ["status"]),
        ("ListTasks", {"statusTimestampAfter": "yesterday"}, ["statusTimestampAfter"]),
        ("ListTasks", {"pageToken": "nope"}, ["pageToken"]),
        ("SubscribeToTask", {}, ["id"]),
    ]:
        with named_case(method, params, fields):
            answer = raw.post(call(method, params))
            error = answer.json["error"]
            assert (answer.status, error["code"], info_of(error["data"])) == (
                200,
                -32602,
                (A2A_DOMAIN, "INVALID_PARAMS"),
            )
            assert fields_of(error["data"]) == fields


@pytest.mark.parametrize("size", [0, -1, 101])
def test_a_page_holds_1_to_100_tasks(raw: Raw, size: int) -> None:
    assert raw.call("ListTasks", {"pageSize": size})["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("value", "field"),
    [("1e999", "message.metadata.x"), ('"\\ud800"', "message.metadata.x"), ("[" * 40 + "]" * 40, "message.metadata.x")],
)
def test_values_that_no_message_can_hold_are_refused_by_name(raw: Raw, value: str, field: str) -> None:
    body = json.dumps(call("SendMessage", saying("a", metadata={"x": "here"}))).replace('"here"', value)
    error = raw.post(body).json["error"]
    assert error["code"] == -32602
    (found,) = fields_of(error["data"])
    assert found.startswith(field)


@pytest.mark.parametrize("name", ["parts", "extensions", "referenceTaskIds"])
def test_lists_have_their_bound(raw: Raw, name: str) -> None:
    error = raw.call("SendMessage", {"message": {name: [7] * 1001}})["error"]
    assert fields_of(error["data"]) == [f"message.{name}"]
    error = raw.call("SendMessage", {"message": {name: [7] * 1000}})["error"]
    assert len(fields_of(error["data"])) == 100
    assert "result" in raw.call("SendMessage", saying("x", {"of any": [0] * 5000}))


def test_unknown_members_and_both_spellings_are_taken(raw: Raw) -> None:
    params = {
        "message": {"message_id": "m", "role": 1, "parts": [{"text": "Deploy", "new": 1}], "taskId": None},
        "configuration": {"history_length": "0", "acceptedOutputModes": None},
        "future": {},
    }
    task = raw.call("SendMessage", params)["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "history" not in task


STRANGE: list[Any] = [
    call("SendMessage", {"message": 5}),
    call("Nope"),
    call("message/send", saying_in_0_3("x")),
    call("cstp.queryDecisions", {"query": "x"}),
    call("cstp.queryDecisions", {"nope": 1}),
    call("cstp.nope"),
    {},
    [],
    "{",
]


def test_strangers_learn_that_they_are_strangers(raw: Raw) -> None:
    for body in STRANGE:
        for who in [None, "a-token-of-nobody"]:
            for headers in [{}, EXTENSION]:
                with named_case(body, who, headers):
                    answer = raw.post(body, who=who, headers=headers)
                    assert (answer.status, answer.headers["Content-Type"]) == (401, JSON)
                    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="cstp"'
                    error = answer.json["error"]
                    assert (error["code"], info_of(error["data"])) == (-31001, ("cstp", "AUTHENTICATION_REQUIRED"))
                    assert len(error["data"]) == 1


def test_strangers_notify_in_vain(raw: Raw) -> None:
    answer = raw.post({"jsonrpc": "2.0", "method": "SendMessage", "params": saying("x")}, who=None)
    assert (answer.status, answer.body) == (401, b"")


def test_strangers_in_a_batch_learn_no_more(raw: Raw) -> None:
    answer = raw.post([call("Nope"), call("ListTasks"), 17], who=None)
    assert answer.status == 200
    assert {found["error"]["code"] for found in answer.json} == {-31001}


def test_a_method_of_cstp_can_be_called_once_activated(raw: Raw) -> None:
    query = call("cstp.queryDecisions", {"query": "payment"})
    direct = raw.post(query, "/cstp", version=None).json["result"]
    for version in ("1.0", "0.3", None):
        answer = raw.post(query, headers=EXTENSION, version=version)
        assert answer.headers["A2A-Extensions"] == URI
        assert answer.json["result"].keys() == direct.keys()
    refused = raw.call("cstp.queryDecisions", {"query": "payment"})["error"]
    assert refused["code"] == -32601
    assert URI in refused["message"]


def test_whatever_the_card_names_is_called_once_activated(raw: Raw) -> None:
    for method in sorted(method.name for method in contract_methods().values() if method.public):
        with named_case(method):
            refused = raw.call(method)["error"]
            assert info_of(refused["data"]) == (A2A_DOMAIN, "METHOD_NOT_FOUND")
            assert URI in refused["message"]
            answer = raw.call(method, headers=EXTENSION)
            assert "result" in answer or info_of(answer["error"]["data"])[0] == "cstp"


@pytest.mark.parametrize(
    ("method", "params", "who", "status", "code", "reason"),
    [
        ("cstp.recordDecision", {}, "reader", 403, -31010, "PERMISSION_DENIED"),
        ("cstp.getDecision", {"id": "nope"}, "alice", 200, -31011, "NOT_FOUND"),
        ("cstp.getDecision", {"nope": 1}, "alice", 200, -32602, "INVALID_ARGUMENT"),
        ("cstp.nope", {}, "alice", 200, -32601, "METHOD_NOT_FOUND"),
        ("cstp.importDecisions", {}, "alice", 200, -32601, "METHOD_NOT_FOUND"),
        ("cstp.saveTask", {}, "alice", 200, -32601, "METHOD_NOT_FOUND"),
    ],
)
def test_errors_of_cstp_stay_out_of_the_codes_of_a2a(
    raw: Raw, method: str, params: Any, who: str, status: int, code: int, reason: str
) -> None:
    answer = raw.post(call(method, params), who=who, headers=EXTENSION)
    error = answer.json["error"]
    assert (answer.status, error["code"], info_of(error["data"])) == (status, code, ("cstp", reason))


def test_wrong_params_of_cstp_are_named_too(raw: Raw) -> None:
    error = raw.call("cstp.getDecision", {"nope": 1}, headers=EXTENSION)["error"]
    assert fields_of(error["data"]) == ["nope"]


@pytest.mark.parametrize("body", [call("Nope"), "{", [call("ListTasks")]])
def test_whatever_is_asked_the_answer_names_its_request_and_the_extension(raw: Raw, body: Any) -> None:
    answer = raw.post(body, headers={"X-Request-Id": "trace-1:a.b_c", **EXTENSION})
    assert (answer.headers["X-Request-Id"], answer.headers["A2A-Extensions"]) == ("trace-1:a.b_c", URI)
    if "error" in answer.json:
        assert answer.json["error"]["data"][0]["metadata"]["requestId"] == "trace-1:a.b_c"
    plain = raw.post(body, headers={"X-Request-Id": "a b"})
    assert len(plain.headers["X-Request-Id"]) == 32
    assert "A2A-Extensions" not in plain.headers


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{}", {"Content-Type": "text/plain"}, 415, -32005),
        (b"{}", {"Content-Type": "application/a2a+json"}, 415, -32005),
        (gzip.compress(b"{}", mtime=0), {"Content-Encoding": "gzip"}, 415, -32005),
        (b" " * (MAX_BODY_BYTES + 1), {}, 413, -32600),
    ],
)
def test_http_refuses_what_it_can_judge_itself(
    raw: Raw, body: bytes, headers: dict[str, str], status: int, code: int
) -> None:
    answer = raw.post(body, headers=headers)
    assert (answer.status, answer.json["id"], answer.json["error"]["code"]) == (status, None, code)
    assert ("Accept-Post" in answer.headers) == (status == 415)
    stranger = raw.post(body, headers=headers, who=None)
    assert (stranger.status, stranger.json["error"]["code"]) == (401, -31001)


def test_other_methods_of_http_are_405(raw: Raw) -> None:
    for path in ["/a2a", "/a2a/", "/"]:
        for method in ["GET", "PUT", "DELETE", "OPTIONS"]:
            with named_case(path, method):
                answer = raw.send(method, path)
                assert (answer.status, answer.headers["Allow"]) == (405, "POST")
                assert info_of(answer.json["error"]["details"]) == (A2A_DOMAIN, "UNSUPPORTED_OPERATION")
                assert raw.send(method, path, who=None).status == 401


@pytest.mark.parametrize("path", ["/a2a/v2", "/a2a//", "/a2a/nothing"])
def test_other_paths_are_404(raw: Raw, path: str) -> None:
    answer = raw.post(call("ListTasks"), path)
    assert (answer.status, info_of(answer.json["error"]["details"])) == (404, (A2A_DOMAIN, "METHOD_NOT_FOUND"))
    assert raw.post(call("ListTasks"), path, who=None).status == 401


def test_a_request_without_a_usable_host_is_refused(raw: Raw) -> None:
    answer = raw.post(call("ListTasks"), headers={"Host": "a b"})
    assert (answer.status, answer.json["error"]["code"]) == (200, -32600)
    assert raw.post(call("ListTasks"), headers={"Host": "a b"}, who=None).status == 401


@pytest.mark.parametrize(
    ("code", "expected"), [(grpc.StatusCode.INTERNAL, -32603), (grpc.StatusCode.UNAVAILABLE, -31013)]
)
def test_what_fails_inside_a_method_of_cstp_stays_inside(
    scripted_raw: Raw, script: Core, code: grpc.StatusCode, expected: int
) -> None:
    script.server.plays["cstp.queryDecisions"] = bare(code)
    answer = scripted_raw.post(call("cstp.queryDecisions", {"query": "x"}), headers=EXTENSION)
    assert (answer.status, answer.json["error"]["code"]) == (200, expected)
    assert b"secret" not in answer.body


@pytest.mark.parametrize("method", ["GetTask", "cstp.queryDecisions"])
def test_the_limits_of_the_server_are_told_by_http_too(scripted_raw: Raw, script: Core, method: str) -> None:
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    limited = fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED", "Too many calls", retry)
    script.server.plays |= {"cstp.getTask": limited, "cstp.queryDecisions": limited}
    params = {"id": "x"} if method == "GetTask" else {"query": "x"}
    answer = scripted_raw.post(call(method, params), headers=EXTENSION)
    assert (answer.status, answer.headers["Retry-After"]) == (429, "2")
    error = answer.json["error"]
    assert (error["code"], info_of(error["data"])) == (-31002, ("cstp", "RATE_LIMITED"))
    assert error["data"][-1] == {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.500s"}


def test_failures_of_intents_keep_the_form_of_a2a(scripted_raw: Raw, script: Core) -> None:
    violation = error_details_pb2.PreconditionFailure.Violation(type="g", subject="G", description="No")
    script.server.plays["liaison.routeToLiaisonAgent"] = fail(
        grpc.StatusCode.PERMISSION_DENIED,
        "PERMISSION_DENIED",
        "Blocked",
        error_details_pb2.PreconditionFailure(violations=[violation]),
        requestId="r-1",
        target_pillar="content",
    )
    answer = scripted_raw.post(call("liaison.routeToLiaisonAgent", {"target_pillar": "content"}), headers=EXTENSION)
    assert answer.status == 403
    error = answer.json["error"]
    assert (error["code"], error["message"]) == (-31010, "Blocked")
    assert error["data"] == [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "PERMISSION_DENIED",
            "domain": "cstp",
            "metadata": {"requestId": "r-1", "target_pillar": "content"},
        },
        {
            "@type": "type.googleapis.com/google.rpc.PreconditionFailure",
            "violations": [{"type": "g", "subject": "G", "description": "No"}],
        },
    ]


@pytest.mark.parametrize("path", ["/a2a", "/a2a/v1/message:send"])
def test_a_body_that_does_not_arrive_is_408(shared: tuple[Scripted, str], server: Scripted, path: str) -> None:
    server.plays["cstp.getAccess"] = lambda request, context: access_pb2.GetAccessResponse()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: 100\r\n\r\n"
    with (
        bridging(shared[1], ServerSettings(timeout_seconds=0.5)) as bridge,
        socket.create_connection((bridge.host, bridge.port), TIMEOUT) as connection,
    ):
        connection.sendall(head.encode() + b"{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


NAMES = ["message", "parts", "text", "data", "raw", "role", "messageId", "metadata", "id", "taskId", "status", "kind"]
NAMES += ["configuration", "historyLength", "pageSize", "file", "bytes", "statusTimestampAfter", "mimeType", URI]
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["ROLE_USER", "2020-01-01"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
        )
    ),
    max_leaves=12,
)
METHODS = ["SendMessage", "SendStreamingMessage", "GetTask", "ListTasks", "CancelTask", "SubscribeToTask"]
OLD_METHODS = ["message/send", "message/stream", "tasks/get", "tasks/pushNotificationConfig/set", "tasks/resubscribe"]


@given(method=st.sampled_from([*METHODS, *OLD_METHODS, "cstp.announceIntent"]), params=documents)
@example(
    method="message/send",
    params=saying_in_0_3() | {"message": saying_in_0_3()["message"] | {"parts": [{"kind": "data", "data": {}}]}},
)
@hypothesis_settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_params_are_answered(raw: Raw, method: str, params: Any) -> None:
    answer = raw.post(call(method, params), version="0.3" if "/" in method else "1.0", headers=EXTENSION)
    assert answer.status == 200
    for found in [answer.json] if answer.headers.get_content_type() == JSON else events_of(answer):
        assert found.get("error", {}).get("code") != -32603


@given(content=st.binary(max_size=200) | documents.map(to_bytes))
@hypothesis_settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_body_is_answered(raw: Raw, content: bytes) -> None:
    answer = raw.post(content)
    assert answer.status in (200, 204)
    assert answer.status == 204 or answer.json


def test_tokens_are_nowhere_in_answers(raw: Raw) -> None:
    answer = raw.post(call("GetExtendedAgentCard"))
    assert not any(token.encode() in answer.body for token in TOKENS.values())
