"""JSON-RPC 2.0: from the bytes of a body to calls, and from results and failures to bytes. Knows neither HTTP nor gRPC.

Numbers keep the spelling that they were sent with, because an id must come back exactly. Bodies are read strictly: no
NaN or Infinity, no member twice, no invalid UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bridge.status import Failure

MAX_DIGITS: Final = 400
"""An integer of more digits is beyond every double; Python refuses to convert some thousands of them."""


class Number(float):
    """A number that remembers how it was written."""

    text: str

    @classmethod
    def read(cls, text: str) -> Number:
        """Return the number with its spelling; infinite where it is beyond a double."""
        number = cls(text)
        number.text = text
        return number


@dataclass(frozen=True, slots=True)
class Call:
    """A request to call a method."""

    id: str | None
    """Its id as JSON text; None makes it a notification."""
    method: str
    params: dict[str, object] | list[object]


@dataclass(frozen=True, slots=True)
class Invalid:
    """What should have been a call and is none."""

    id: str
    """The id as JSON text, `null` where there is none to read."""
    failure: Failure


@dataclass(frozen=True, slots=True)
class Body:
    """The calls of one body in their order; a body that is no batch has exactly one."""

    calls: Sequence[Call | Invalid]
    is_batch: bool


def read(content: bytes, max_batch: int) -> Body:
    """Return the calls of a body. Raises Failure where there is nothing to read or the batch is empty or too large."""
    document = parse(content)
    if not isinstance(document, list):
        return Body([read_call(document)], is_batch=False)
    if not document:
        raise invalid("a batch must hold at least one call")
    if len(document) > max_batch:
        raise invalid(f"a batch must hold at most {max_batch} calls; this one holds {len(document)}")
    return Body([read_call(item) for item in document], is_batch=True)


def parse(content: bytes) -> object:
    """Return the JSON value that a body holds. Raises Failure."""
    try:
        return DECODER.decode(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise unreadable(f"the body is not valid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise unreadable(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise unreadable("the body is nested too deeply") from None


def read_call(document: object) -> Call | Invalid:
    """Return the call that a JSON value describes."""
    if not isinstance(document, dict):
        return Invalid("null", invalid("a call must be an object"))
    call_id = document.get("id")
    if isinstance(call_id, (bool, dict, list)):
        return Invalid("null", invalid("id must be a string, a number or null"))
    text = id_text(call_id)
    if document.get("jsonrpc") != "2.0":
        return Invalid(text, invalid('jsonrpc must be "2.0"'))
    method = document.get("method")
    if not isinstance(method, str):
        return Invalid(text, invalid("method must be a string"))
    params = document.get("params", {})
    if not isinstance(params, (dict, list)):
        return Invalid(text, invalid("params must be an object where it is present"))
    return Call(text if "id" in document else None, method, params)


def id_text(value: object) -> str:
    """Return an id as the JSON text that it was sent as."""
    return value.text if isinstance(value, Number) else json.dumps(value)


def result(call_id: str, value: object) -> str:
    """Return the response to a call that succeeded. Raises ValueError for a number that JSON cannot express."""
    return f'{{"jsonrpc":"2.0","id":{call_id},"result":{ENCODER.encode(value)}}}'


def error(
    call_id: str, failure: Failure, request_id: str, intent_type: str = "", target_pillar: str | None = None
) -> str:
    """Return the response to a call that failed; `request_id` is used where the failure does not bring its own.

    With the type of an intent, its data also says what failed in the words of the intents' own contract, whose details
    name the reason, and the pillar that the call is about.
    """
    data: dict[str, Any] = {"reason": failure.reason, "requestId": request_id, **failure.details}
    if intent_type:
        data |= {
            "error": failure.message,
            "error_code": failure.reason,
            "execution_id": data["requestId"],
            "intent_type": intent_type,
            "details": {
                **({} if target_pillar is None else {"target_pillar": target_pillar}),
                "reason": failure.message,
                **data.get("metadata", {}),
            },
        }
    return refusal(call_id, {"code": failure.codes.json_rpc_code, "message": failure.message, "data": data})


def refusal(call_id: str, content: Mapping[str, Any]) -> str:
    """Return the response to a call that failed; `content` is its `error` member."""
    return f'{{"jsonrpc":"2.0","id":{call_id},"error":{ENCODER.encode(content)}}}'


def to_bytes(text: str) -> bytes:
    """Return a response as UTF-8; a lone surrogate, which has no UTF-8, stays the JSON escape that it came as."""
    return text.encode("utf-8", "backslashreplace")


def unreadable(detail: str) -> Failure:
    """Return the failure of a body that is no JSON."""
    return Failure("PARSE_ERROR", "Parse error", details={"detail": detail})


def invalid(detail: str) -> Failure:
    """Return the failure of JSON that is no call."""
    return Failure("INVALID_REQUEST", "Invalid Request", details={"detail": detail})


def read_integer(text: str) -> int | Number:
    """Return an integer exactly; those that an int cannot spell as they came keep their text."""
    return Number.read(text) if text == "-0" or len(text) > MAX_DIGITS else int(text)


def read_object(members: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object. Raises Failure for a member that is there twice: which one counts would be a guess."""
    found = dict(members)
    if len(found) != len(members):
        raise invalid("an object must not hold the same member twice")
    return found


def refuse_constant(text: str) -> object:
    """Raise Failure for NaN and Infinity, which Python reads and JSON does not have."""
    raise unreadable(f"{text} is not JSON")


DECODER: Final = json.JSONDecoder(
    parse_int=read_integer,
    parse_float=Number.read,
    parse_constant=refuse_constant,
    object_pairs_hook=read_object,
)
ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
