from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge import jsonrpc
from bridge.call_errors import DETAIL, error_codes
from cstp_grpc.contract.errors import CstpError, NotFound
from tests.named_case import named_case

MAX_BATCH = 5
LIMIT_OF_PYTHON = "9" * 5000


def read(text: str) -> jsonrpc.JsonRpcBody:
    return jsonrpc.parse_body(text.encode("utf-8", "surrogatepass"), MAX_BATCH)


def read_one(text: str) -> jsonrpc.JsonRpcRequest | jsonrpc.MalformedJsonRpcRequest:
    (found,) = read(text).calls
    return found


def refused(content: bytes) -> CstpError:
    with pytest.raises(CstpError) as caught:
        jsonrpc.parse_body(content, MAX_BATCH)
    return caught.value


def test_ids_come_back_as_they_were_sent() -> None:
    for call_id in [
        "null",
        "0",
        "-0",
        "1",
        "1.0",
        "1.50",
        "-0.0",
        "1e2",
        "1E+2",
        "0.1",
        "1e999",
        "18446744073709551617",
        "12345678901234567890.12345678901234567890",
        LIMIT_OF_PYTHON,
        '""',
        '"1"',
        '"\\u0000"',
        '"\\ud800"',
        '"\\ud834\\udd1e"',
    ]:
        with named_case(call_id):
            call = read_one(f'{{"jsonrpc": "2.0", "method": "m", "id": {call_id}}}')
            assert isinstance(call, jsonrpc.JsonRpcRequest)
            assert call.id == call_id
            content = jsonrpc.encode_utf8(jsonrpc.encode_result(call.id, {"x": "y"}))
            assert content == f'{{"jsonrpc":"2.0","id":{call_id},"result":{{"x":"y"}}}}'.encode()


@pytest.mark.parametrize("call_id", ["true", "false", "[]", "{}", "[1]"])
def test_ids_of_other_types_are_refused_and_not_echoed(call_id: str) -> None:
    found = read_one(f'{{"jsonrpc": "2.0", "method": "m", "id": {call_id}}}')
    assert isinstance(found, jsonrpc.MalformedJsonRpcRequest)
    assert (found.id, error_codes(found.failure).json_rpc_code) == ("null", -32600)


def test_a_call_without_an_id_is_a_notification_and_one_with_null_is_none() -> None:
    notification = read_one('{"jsonrpc": "2.0", "method": "m"}')
    assert isinstance(notification, jsonrpc.JsonRpcRequest)
    assert notification.id is None
    assert notification.params == {}
    call = read_one('{"jsonrpc": "2.0", "method": "m", "id": null}')
    assert isinstance(call, jsonrpc.JsonRpcRequest)
    assert call.id == "null"


def test_what_is_no_call_is_refused_under_the_id_that_it_has() -> None:
    for members in [
        '"method": "m"',
        '"jsonrpc": "1.0", "method": "m"',
        '"jsonrpc": 2.0, "method": "m"',
        '"jsonrpc": "2.0"',
        '"jsonrpc": "2.0", "method": null',
        '"jsonrpc": "2.0", "method": ["m"]',
        '"jsonrpc": "2.0", "method": "m", "params": null',
        '"jsonrpc": "2.0", "method": "m", "params": "x"',
        '"jsonrpc": "2.0", "method": "m", "params": 1',
    ]:
        with named_case(members):
            found = read_one(f'{{{members}, "id": 1.0}}')
            assert isinstance(found, jsonrpc.MalformedJsonRpcRequest)
            assert (found.id, error_codes(found.failure).json_rpc_code) == ("1.0", -32600)
            without = read_one(f"{{{members}}}")
            assert isinstance(without, jsonrpc.MalformedJsonRpcRequest)
            assert without.id == "null"


def test_members_that_the_specification_does_not_know_are_ignored() -> None:
    found = read_one('{"jsonrpc": "2.0", "method": "m", "id": 1, "trace": {}}')
    assert isinstance(found, jsonrpc.JsonRpcRequest)


def test_what_is_no_json_is_a_parse_error() -> None:
    for content in [
        b"",
        b" ",
        b"{",
        b"nope",
        b'{"a": 1,}',
        b"[1] 2",
        b'{"a": NaN}',
        b"[Infinity]",
        b"[-Infinity]",
        b'{"a": 01}',
        b'"\x01"',
        b"\xff",
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        '{"a": "é"}'.encode("latin-1"),
        "{}".encode("utf-16"),
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ]:
        with named_case(content):
            failure = refused(content)
            assert (error_codes(failure).json_rpc_code, failure.reason, failure.message) == (
                -32700,
                "PARSE_ERROR",
                "Parse error",
            )
            assert failure.metadata[DETAIL]


@pytest.mark.parametrize("text", ['{"id": 1, "id": 2}', '{"params": {"a": {"b": 1, "b": 1}}}', '[{"x": 1, "x": 1}]'])
def test_a_member_that_is_there_twice_is_refused(text: str) -> None:
    failure = refused(text.encode())
    assert error_codes(failure).json_rpc_code == -32600
    assert "twice" in failure.metadata[DETAIL]


def test_batches_are_bounded() -> None:
    assert len(read("[1, 2, 3, 4, 5]").calls) == 5
    assert "at most 5" in refused(b"[1, 2, 3, 4, 5, 6]").metadata[DETAIL]


def test_numbers_of_params_are_numbers() -> None:
    call = read_one('{"jsonrpc": "2.0", "method": "m", "params": {"a": 1.5, "b": 2, "c": -0, "d": 1e999}}')
    assert isinstance(call, jsonrpc.JsonRpcRequest)
    assert call.params == {"a": 1.5, "b": 2, "c": 0, "d": float("inf")}


def test_an_error_names_the_reason_and_the_request() -> None:
    failure = NotFound("é", metadata={"a": "b"})
    answer = json.loads(jsonrpc.encode_utf8(jsonrpc.encode_failure("1", failure, "r-1")))
    assert answer == {
        "jsonrpc": "2.0",
        "id": 1,
        "error": {
            "code": -32011,
            "message": "é",
            "data": {"reason": "NOT_FOUND", "requestId": "r-1", "metadata": {"a": "b"}},
        },
    }


def test_a_request_id_of_the_servers_own_wins() -> None:
    failure = NotFound("x", metadata={"requestId": "of-the-server"})
    assert json.loads(jsonrpc.encode_failure("1", failure, "r-1"))["error"]["data"]["requestId"] == "of-the-server"


def test_a_result_that_json_cannot_express_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        jsonrpc.encode_result("1", {"x": float("nan")})


def test_a_lone_surrogate_stays_one() -> None:
    answer = jsonrpc.encode_utf8(jsonrpc.encode_result("1", "größer \ud800"))
    assert json.loads(answer)["result"] == "größer \ud800"


def test_few_calls_of_a_batch_are_in_progress_at_once_and_all_are_answered_in_order() -> None:
    body = jsonrpc.parse_body(
        json.dumps([{"jsonrpc": "2.0", "method": f"m{n}", "id": n} for n in range(20)]).encode(), 20
    )
    in_progress: list[int] = [0]

    async def answer(call: jsonrpc.JsonRpcEntry) -> jsonrpc.JsonRpcOutcome:
        in_progress.append(in_progress[-1] + 1)
        # The later ones end sooner.
        for _ in range(40 - 2 * int(call.id or 0)):
            await asyncio.sleep(0)
        in_progress.append(in_progress[-1] - 1)
        return jsonrpc.JsonRpcOutcome(call.id)

    outcomes = asyncio.run(jsonrpc.answer_batch(body.calls, answer))
    assert [outcome.response for outcome in outcomes] == [str(n) for n in range(20)]
    assert max(in_progress) == jsonrpc.BATCH_CONCURRENCY < 8


json_documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["2.0", "m"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["jsonrpc", "method", "params", "id", "x"]), inner)
    ),
    max_leaves=8,
)


@given(st.binary() | json_documents.map(lambda value: json.dumps(value).encode()))
@example(b"[[]]")
def test_any_body_is_read_or_refused(content: bytes) -> None:
    try:
        body = jsonrpc.parse_body(content, MAX_BATCH)
    except CstpError:
        return
    for found in body.calls:
        answer: Any = json.loads(jsonrpc.encode_utf8(jsonrpc.encode_result(found.id or "null", {})))
        assert answer["result"] == {}


@given(st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_any_id_survives(call_id: Any) -> None:
    found = read_one(json.dumps({"jsonrpc": "2.0", "method": "m", "id": call_id}))
    assert isinstance(found, jsonrpc.JsonRpcRequest)
    assert json.loads(jsonrpc.encode_utf8(jsonrpc.encode_result(found.id or "", {})))["id"] == call_id
