"""What is peculiar to A2A 0.3 over JSON-RPC: its shapes, its params, and how its clients hear of errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from a2a.compat.v0_3 import types

from tests.bridge.a2a.raw import A2A_DOMAIN, URI, Raw, call, events_of, fields_of, info_of, saying_in_0_3
from tests.bridge.support import JSON
from tests.named_case import named_case

MESSAGE = saying_in_0_3("Deploy the payment service")["message"]
NOWHERE = {"id": "8f0e7f3c-5b1d-4b52-9f0a-3d1c6a1f0b11"}
FILE = {"kind": "file", "file": {"uri": "https://example.com/a"}}


def asked(raw: Raw, method: str, params: Any, **told: Any) -> Any:
    return raw.call(method, params, **{"version": None, **told})


def refused(raw: Raw, method: str, params: Any) -> Any:
    """Return the error that a call is answered with; a stream that never begins has it as its event."""
    answer = raw.post(call(method, params), version=None)
    assert answer.status == 200
    found = answer.json if answer.headers.get_content_type() == JSON else events_of(answer)[0]
    return found["error"]


def parts(*found: Any) -> dict[str, Any]:
    """Return params with a message of the parts."""
    return {"message": {**MESSAGE, "parts": list(found)}}


# Results


def test_a_message_is_answered_with_a_task(raw: Raw) -> None:
    for version in [None, "", "0.3", "0.3.0"]:
        for path in ["/a2a", "/a2a/", "/"]:
            with named_case(version, path):
                result = asked(raw, "message/send", {"message": MESSAGE}, path=path, version=version)["result"]
                task = types.Task.model_validate(result)
                assert task.kind == "task"
                assert task.status.state is types.TaskState.completed
                assert task.history is not None
                assert task.history[0].role is types.Role.user
                assert result["artifacts"][0]["parts"][0]["kind"] == "data"


def test_the_shapes_have_no_members_of_1_0_and_no_nulls(raw: Raw) -> None:
    answer = raw.post(call("message/send", {"message": MESSAGE}), version=None)
    for strange in (b"TASK_STATE", b"ROLE_", b"null", b"_id", b'"task":'):
        assert strange not in answer.body


def test_a_stream_ends_with_its_last_status(raw: Raw) -> None:
    found = events_of(raw.post(call("message/stream", saying_in_0_3("Deploy")), version=None))
    assert [types.SendStreamingMessageSuccessResponse.model_validate(event).id for event in found] == [1, 1, 1]
    assert [event["result"]["kind"] for event in found] == ["task", "artifact-update", "status-update"]
    last = found[-1]["result"]
    assert (last["status"]["state"], last["final"]) == ("completed", True)


def test_the_extended_card_has_the_shape_of_0_3(raw: Raw) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "agent/getAuthenticatedExtendedCard"}
    card = types.AgentCard.model_validate(raw.post(body, version=None).json["result"])
    assert card.protocol_version is not None
    assert card.protocol_version.startswith("0.3")
    assert card.url.endswith("/a2a/")


def test_the_old_header_activates_the_extension(raw: Raw) -> None:
    answer = raw.post(call("cstp.getAccess"), version=None, headers={"X-A2A-Extensions": URI})
    assert answer.headers["X-A2A-Extensions"] == URI
    assert answer.json["result"]["requestingAgent"] == "alice"


# Errors


@pytest.mark.parametrize(
    ("method", "params", "code", "reason"),
    [
        # A configuration need not be named, but it has to exist.
        ("tasks/pushNotificationConfig/get", {"id": "a"}, -32001, "TASK_NOT_FOUND"),
        ("tasks/list", {}, -32601, "METHOD_NOT_FOUND"),
        ("message/nope", {}, -32601, "METHOD_NOT_FOUND"),
        ("SendMessage", {}, -32009, "VERSION_NOT_SUPPORTED"),
    ],
)
def test_errors_have_the_codes_of_a2a(raw: Raw, method: str, params: Any, code: int, reason: str) -> None:
    error = refused(raw, method, params)
    assert (error["code"], info_of(error["data"]["details"])) == (code, (A2A_DOMAIN, reason))


def test_the_data_of_errors_is_an_object_in_0_3_and_an_array_in_1_0(raw: Raw) -> None:
    for version in [None, "0.3", "0.3.0", "1.0", "2.0"]:
        for body in [call("tasks/nope", {}), [call("tasks/nope", {})], "{", call("tasks/resubscribe", {})]:
            with named_case(version, body):
                answer = raw.post(body.encode() if isinstance(body, str) else body, version=version)
                streams = answer.headers.get_content_type() != JSON
                found = events_of(answer)[0] if streams else answer.json
                data = (found[0] if isinstance(found, list) else found)["error"]["data"]
                details = data["details"] if version in {None, "0.3", "0.3.0"} else data
                assert info_of(details)[0] == A2A_DOMAIN


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


@pytest.mark.parametrize(("method", "code"), [("SubscribeToTask", -32001), ("tasks/resubscribe", -32009)])
def test_1_0_hears_plainly_of_a_stream_that_never_begins(raw: Raw, method: str, code: int) -> None:
    answer = raw.post(call(method, NOWHERE), version="1.0")
    assert (answer.status, answer.json["error"]["code"]) == (200, code)


def test_strangers_who_ask_for_a_stream_are_refused_by_http(raw: Raw) -> None:
    answer = raw.post(call("tasks/resubscribe", NOWHERE), version="0.3", who=None)
    assert (answer.status, answer.headers.get_content_type()) == (401, JSON)


# Params


def test_wrong_params_are_named(raw: Raw) -> None:
    for method in ["message/send", "message/stream"]:
        for params, fields in [
            ([], [""]),
            ({}, ["message"]),
            ({"message": 5}, ["message"]),
            ({"message": {**MESSAGE, "role": "ROLE_USER"}}, ["message.role"]),
            ({"message": {"role": "user", "parts": []}}, ["message.messageId"]),
            ({"message": {**MESSAGE, "parts": "x"}}, ["message.parts"]),
            ({"message": {**MESSAGE, "parts": []}}, ["message.parts"]),
            ({"message": {**MESSAGE, "metadata": []}}, ["message.metadata"]),
            ({"message": {**MESSAGE, "kind": "task"}}, ["message.kind"]),
            (parts({"kind": "text", "text": 5}), ["message.parts[0].text"]),
            (parts({"kind": "text"}, {"kind": "data"}), ["message.parts[0].text", "message.parts[1].data"]),
            (parts({"kind": "data", "data": [1]}), ["message.parts[0].data"]),
            (parts({"kind": "picture"}), ["message.parts[0].kind"]),
            (parts({"kind": "file", "file": {}}), ["message.parts[0].file.bytes", "message.parts[0].file.uri"]),
            (parts(7), ["message.parts[0]"]),
            ({"message": MESSAGE, "configuration": {"historyLength": 1.5}}, ["configuration.historyLength"]),
            ({"message": MESSAGE, "configuration": {"blocking": "perhaps"}}, ["configuration.blocking"]),
        ]:
            with named_case(method, params, fields):
                error = refused(raw, method, params)
                assert (error["code"], info_of(error["data"]["details"])) == (-32602, (A2A_DOMAIN, "INVALID_PARAMS"))
                assert fields_of(error["data"]["details"]) == fields


@pytest.mark.parametrize(
    ("method", "params", "fields"),
    [
        ("tasks/get", {}, ["id"]),
        ("tasks/get", {"id": 5, "historyLength": "x"}, ["historyLength", "id"]),
        ("tasks/cancel", {"id": None}, ["id"]),
        ("tasks/resubscribe", {}, ["id"]),
        ("tasks/pushNotificationConfig/set", {"taskId": "a"}, ["pushNotificationConfig"]),
        ("tasks/pushNotificationConfig/get", {}, ["id"]),
        ("tasks/pushNotificationConfig/delete", {"id": "a"}, ["pushNotificationConfigId"]),
    ],
)
def test_wrong_params_about_tasks_are_named(raw: Raw, method: str, params: Any, fields: list[str]) -> None:
    error = refused(raw, method, params)
    assert error["code"] == -32602
    assert fields_of(error["data"]["details"]) == fields


@pytest.mark.parametrize(
    "params",
    [
        parts({"kind": "data", "data": {}, "metadata": {"data_part_compat": True}}),
        parts({"kind": "file", "file": {"bytes": "x"}}),
        {"message": MESSAGE, "configuration": {"historyLength": 2**40}},
    ],
)
def test_values_that_1_0_cannot_hold_are_wrong_params(raw: Raw, params: Any) -> None:
    assert asked(raw, "message/send", params)["error"]["code"] == -32602


@pytest.mark.parametrize("value", ["1e999", '"\\ud800"', "[" * 40 + "]" * 40, "9" * 500, str(2**53 + 1)])
def test_values_that_no_message_can_hold_are_refused_by_name(raw: Raw, value: str) -> None:
    body = json.dumps(call("message/send", {"message": {**MESSAGE, "metadata": {"x": "here"}}}))
    error = raw.post(body.replace('"here"', value), version=None).json["error"]
    assert error["code"] == -32602
    (found,) = fields_of(error["data"]["details"])
    assert found.startswith("message.metadata.x")


@pytest.mark.parametrize("depth", [24, 25])
def test_data_may_be_as_deep_as_in_1_0(raw: Raw, depth: int) -> None:
    data: Any = {}
    for _ in range(depth - 1):
        data = {"a": data}
    old = asked(raw, "message/send", parts({"kind": "text", "text": "x"}, {"kind": "data", "data": data}))
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}, {"data": data}]}
    new = raw.call("SendMessage", {"message": message})
    assert ("error" in old, "error" in new) == (depth > 24, depth > 24)


@pytest.mark.parametrize("name", ["parts", "extensions", "referenceTaskIds"])
def test_lists_have_their_bound(raw: Raw, name: str) -> None:
    error = refused(raw, "message/send", {"message": {**MESSAGE, name: [7] * 1001}})
    assert fields_of(error["data"]["details"]) == [f"message.{name}"]
    error = refused(raw, "message/send", {"message": {**MESSAGE, name: [7] * 1000}})
    assert len(fields_of(error["data"]["details"])) == 100
    data = {"kind": "data", "data": {"of any": [0] * 5000}}
    assert "result" in asked(raw, "message/send", parts({"kind": "text", "text": "x"}, data))


def test_parts_must_say_what_they_are(raw: Raw) -> None:
    params = saying_in_0_3("Deploy")
    params["message"]["parts"].append({"type": "text", "text": "today"})
    error = raw.call("message/send", params, version="0.3")["error"]
    assert error["code"] == -32602
    assert error["data"]["details"][1]["fieldViolations"] == [
        {"field": "message.parts[1].kind", "description": "must be 'text', 'file' or 'data'"}
    ]
