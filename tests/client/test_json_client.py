"""Calls whose params and results are JSON, over HTTP and over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from cstp_grpc.client import RetryPolicy
from cstp_grpc.client.json_client import FREE_FORM_FIELDS, open_json_client
from cstp_grpc.contract import errors
from cstp_grpc.contract.enums import Stakes
from cstp_grpc.contract.json_codec import from_json, to_json
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from tests.client.scripted import HttpReply, http_server, scripted_server
from tests.modules.federation.client.servers import SOON

QUICKLY = RetryPolicy(attempts=2, base=0.001)
ANNOUNCEMENT: dict[str, Any] = {
    "intent": "Move the sessions",
    "stakes": Stakes.HIGH,
    "confidence": None,
    "paths": ("a", "b"),
    "correlation_id": "c",
    "metadata": {"snake_case": 1, "nothing": None, "nested": {"camelCase": [1.5]}},
    "agent": {"id": "x", "url": None},
}


def answer_to(method: str, fields: dict[str, Any], reply: HttpReply) -> tuple[Any, dict[str, Any]]:
    """Return the result of a call over HTTP, and the params that were sent."""
    with http_server(reply) as server, open_json_client(server.url, "t", timeout=SOON, retries=QUICKLY) as client:
        found = client.call(method, fields)
    return found, server.requests[0][2]["params"]


def result(content: Any) -> HttpReply:
    return HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": content})


def test_a_request_is_the_same_over_both_protocols() -> None:
    expected = cstp_pb2.AnnounceIntentResponse(received=True, responding_agent="cstp")
    with scripted_server(expected) as server:
        target = f"grpc://{server.target}"
        with open_json_client(target, "t", timeout=SOON, retries=QUICKLY) as client:
            over_grpc = client.call("cstp.announceIntent", ANNOUNCEMENT)
    over_http, sent = answer_to("cstp.announceIntent", ANNOUNCEMENT, result(to_json(expected)))
    assert over_http == over_grpc == to_json(expected)
    assert from_json(sent, cstp_pb2.AnnounceIntentRequest) == server.requests[0]
    assert sent["metadata"] == ANNOUNCEMENT["metadata"]


def test_times_and_nested_fields_are_sent_as_the_contract_has_them() -> None:
    when = datetime(2026, 1, 31, 8, tzinfo=UTC)
    fields = {"query": "q", "filters": {"date_after": when, "min_confidence": 0.5, "agent": None}}
    _, sent = answer_to("cstp.queryDecisions", fields, result({}))
    request = from_json(sent, cstp_pb2.QueryDecisionsRequest)
    assert request.filters.date_after.ToDatetime(UTC) == when
    assert request.filters.min_confidence == 0.5
    assert not request.filters.HasField("agent")


@pytest.mark.parametrize(
    ("method", "fields", "calls"),
    [
        ("cstp.queryDecisions", {"query": "q"}, 2),
        ("cstp.announceIntent", ANNOUNCEMENT, 2),
        ("intentLayer.initNode", {}, 1),
    ],
)
def test_what_is_safe_to_repeat_is_repeated(method: str, fields: dict[str, Any], calls: int) -> None:
    failure = {"code": -32003, "message": "busy", "data": {"reason": "UNAVAILABLE"}}
    reply = HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "error": failure})
    with (
        http_server(reply) as server,
        open_json_client(server.url, "t", timeout=SOON, retries=QUICKLY) as client,
        pytest.raises(errors.Unavailable),
    ):
        client.call(method, fields)
    assert len(server.requests) == calls


def test_what_does_not_fit_the_contract_is_refused_before_it_is_sent_over_grpc() -> None:
    with (
        open_json_client("grpc://127.0.0.1:1", "t", timeout=SOON, retries=QUICKLY) as client,
        pytest.raises(errors.InvalidArgument) as caught,
    ):
        client.call("cstp.announceIntent", {**ANNOUNCEMENT, "metadata": {"rows": 2**53 + 1}})
    assert [each.field for each in caught.value.violations] == ["metadata.rows"]


def free_form_fields(message: Any, seen: set[str]) -> Iterator[FieldDescriptor]:
    if message.full_name in seen or message.full_name.startswith("google."):
        return
    seen.add(message.full_name)
    for field in message.fields:
        if field.message_type and field.message_type.full_name == "google.protobuf.Struct":
            yield field
        elif field.message_type:
            yield from free_form_fields(field.message_type, seen)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_cannot_express_is_named_before_it_is_sent(number: float) -> None:
    context = {"rows": 1.5, "sizes": [1, {"largest": number}]}
    with http_server(result({})) as server, open_json_client(server.url, "t", timeout=SOON, retries=QUICKLY) as client:
        with pytest.raises(errors.InvalidArgument, match=r"action\.context\.sizes\.1\.largest"):
            client.call("cstp.checkGuardrails", {"action": {"description": "deploy", "context": context}})
        assert server.requests == []


def test_objects_of_callers_keep_the_names_of_their_members() -> None:
    seen: set[str] = set()
    found = [
        field.name
        for method in contract_methods().values()
        for field in free_form_fields(method.request.DESCRIPTOR, seen)
    ]
    assert set(found) == FREE_FORM_FIELDS
