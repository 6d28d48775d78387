"""The exchanges of the JSON-RPC 2.0 specification, section 7, with our methods in place of its examples.

`cstp.queryDecisions` stands for methods that exist, `cstp.subtract` for those that do not. Ours take their parameters
by name only, so that the specification's positional ones are refused with -32602.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.bridge.support import Client

QUERY = '"method": "cstp.queryDecisions"'


def success(call_id: Any, query: str) -> dict[str, Any]:
    result = {"decisions": [], "total": 0, "query": query, "queryTimeMs": 0, "agent": ""}
    return {"jsonrpc": "2.0", "id": call_id, "result": result}


def failure(call_id: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "error": {"code": code, "message": message}}


BY_NAME = "params must be an object: the methods take their parameters by name"
PARSE_ERROR = failure(None, -32700, "Parse error")
INVALID = failure(None, -32600, "Invalid Request")

EXCHANGES = {
    "call with positional parameters": (
        f'{{"jsonrpc": "2.0", {QUERY}, "params": ["x", 23], "id": 1}}',
        failure(1, -32602, BY_NAME),
    ),
    "call with named parameters": (
        f'{{"jsonrpc": "2.0", {QUERY}, "params": {{"query": "x", "limit": 23}}, "id": 3}}',
        success(3, "x"),
    ),
    "call with named parameters in another order": (
        f'{{"jsonrpc": "2.0", {QUERY}, "params": {{"limit": 23, "query": "x"}}, "id": 4}}',
        success(4, "x"),
    ),
    "notification": (f'{{"jsonrpc": "2.0", {QUERY}, "params": {{"query": "x"}}}}', None),
    "notification with positional parameters": (f'{{"jsonrpc": "2.0", {QUERY}, "params": [1, 2, 3, 4, 5]}}', None),
    "notification of a method that does not exist": ('{"jsonrpc": "2.0", "method": "cstp.subtract"}', None),
    "call of a method that does not exist": (
        '{"jsonrpc": "2.0", "method": "cstp.subtract", "id": "1"}',
        failure("1", -32601, "Method not found"),
    ),
    "call with invalid JSON": (f'{{"jsonrpc": "2.0", {QUERY}, "params": "bar", "baz]', PARSE_ERROR),
    "call that is no request": ('{"jsonrpc": "2.0", "method": 1, "params": "bar"}', INVALID),
    "batch with invalid JSON": (
        f'[{{"jsonrpc": "2.0", {QUERY}, "params": {{"query": "x"}}, "id": "1"}},{{"jsonrpc": "2.0", "method"]',
        PARSE_ERROR,
    ),
    "empty batch": ("[]", INVALID),
    "batch of one that is no request": ("[1]", [INVALID]),
    "batch of three that are no requests": ("[1,2,3]", [INVALID, INVALID, INVALID]),
    "batch of all kinds": (
        f"""[
            {{"jsonrpc": "2.0", {QUERY}, "params": {{"query": "x"}}, "id": "1"}},
            {{"jsonrpc": "2.0", {QUERY}, "params": {{"query": "y"}}}},
            {{"foo": "boo"}},
            {{"jsonrpc": "2.0", "method": "cstp.subtract", "params": {{"name": "myself"}}, "id": "5"}},
            {{"jsonrpc": "2.0", {QUERY}, "params": {{"query": "z"}}, "id": "9"}}
        ]""",
        [success("1", "x"), INVALID, failure("5", -32601, "Method not found"), success("9", "z")],
    ),
    "batch of notifications": (
        f"""[
            {{"jsonrpc": "2.0", {QUERY}, "params": {{"query": "x"}}}},
            {{"jsonrpc": "2.0", {QUERY}, "params": {{"query": "y"}}}}
        ]""",
        None,
    ),
}


def without_data(response: Any) -> Any:
    """Return a response without `error.data`, which the specification leaves to the server."""
    if isinstance(response, list):
        return [without_data(item) for item in response]
    if "error" in response:
        data = response["error"].pop("data")
        assert data["reason"]
        assert data["requestId"]
    return response


@pytest.mark.parametrize("name", EXCHANGES)
def test_exchange(name: str, bridge: Client) -> None:
    sent, expected = EXCHANGES[name]
    answer = bridge.post(sent)
    if expected is None:
        assert (answer.status, answer.body) == (204, b"")
    else:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/json"
        assert without_data(json.loads(answer.body)) == expected
