"""JSON-RPC 2.0: parse bodies into calls, execute them alone or as a batch, and encode results and failures.

Numbers keep their spelling, because an id must be returned exactly. Bodies are parsed strictly: no NaN or Infinity, no
repeated member, no invalid UTF-8.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from bridge import call_observation, http_request
from bridge.call_errors import DETAIL, error_codes, error_data, unexpected_failure
from bridge.http_request import APPLICATION_JSON, REQUEST_ID_HEADER, AccessCheck, BodyReader
from bridge.http_response import challenge_headers
from bridge.upstream import Forwarder, Metadata
from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.errors import CstpError, InvalidJsonRpcRequest, JsonParseError
from cstp_grpc.contract.rate_limit_headers import scarcest_headers

logger = logging.getLogger(__name__)

MAX_DIGITS: Final = 400
"""Digits above which an integer keeps its text. The largest double has 309, and int() takes quadratic time and refuses
more than 4300."""


class SpelledNumber(float):
    """A number that keeps its original spelling, because JSON-RPC 2.0, section 5, wants an id returned as it was
    sent."""

    text: str

    @classmethod
    def parse(cls, text: str) -> SpelledNumber:
        """Return the number with its spelling; infinite if it is beyond a double."""
        number = cls(text)
        number.text = text
        return number


@dataclass(frozen=True, slots=True)
class JsonRpcRequest:
    """A request to call a method."""

    id: str | None
    """Its id as JSON text; None makes it a notification."""
    method: str
    params: dict[str, object] | list[object]


@dataclass(frozen=True, slots=True)
class MalformedJsonRpcRequest:
    """An element of a body that is not a valid request."""

    id: str
    """The id as JSON text, `null` if it cannot be read."""
    failure: CstpError


@dataclass(frozen=True, slots=True)
class JsonRpcBody:
    """The calls of one body in their order; a body that is not a batch has exactly one."""

    calls: Sequence[JsonRpcRequest | MalformedJsonRpcRequest]
    is_batch: bool


def parse_body(content: bytes, max_batch: int) -> JsonRpcBody:
    """Parse the calls of a body. Raises CstpError if it is not JSON, or the batch is empty or too large."""
    document = parse_json(content)
    if not isinstance(document, list):
        return JsonRpcBody([parse_request(document)], is_batch=False)
    if not document:
        raise invalid_request("a batch must hold at least one call")
    if len(document) > max_batch:
        raise invalid_request(f"a batch must hold at most {max_batch} calls; this one holds {len(document)}")
    return JsonRpcBody([parse_request(item) for item in document], is_batch=True)


def parse_json(content: bytes) -> object:
    """Parse the JSON value of a body. Raises CstpError."""
    try:
        return DECODER.decode(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise parse_failure(f"the body is not valid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise parse_failure(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise parse_failure("the body is nested too deeply") from None


def parse_request(document: object) -> JsonRpcRequest | MalformedJsonRpcRequest:
    if not isinstance(document, dict):
        return MalformedJsonRpcRequest("null", invalid_request("a call must be an object"))
    call_id = document.get("id")
    # To Python a bool is an int, so it must be named here.
    if isinstance(call_id, (bool, dict, list)):
        # JSON-RPC 2.0, section 5: the id of an error is null where that of the request cannot be determined.
        return MalformedJsonRpcRequest("null", invalid_request("id must be a string, a number or null"))
    text = call_id.text if isinstance(call_id, SpelledNumber) else json.dumps(call_id)
    if document.get("jsonrpc") != "2.0":
        return MalformedJsonRpcRequest(text, invalid_request('jsonrpc must be "2.0"'))
    method = document.get("method")
    if not isinstance(method, str):
        return MalformedJsonRpcRequest(text, invalid_request("method must be a string"))
    params = document.get("params", {})
    if not isinstance(params, (dict, list)):
        return MalformedJsonRpcRequest(text, invalid_request("params must be an object where it is present"))
    # The member decides and not its value: `"id": null` is a call, and only without an id is it a notification (section
    # 4.1).
    return JsonRpcRequest(text if "id" in document else None, method, params)


def encode_result(call_id: str, value: object) -> str:
    """Encode the response to a call that succeeded. Raises ValueError for a number that JSON cannot express."""
    return f'{{"jsonrpc":"2.0","id":{call_id},"result":{ENCODER.encode(value)}}}'


def encode_failure(
    call_id: str, failure: CstpError, request_id: str, intent_type: str = "", target_pillar: str | None = None
) -> str:
    """Encode the response to a call that failed; `request_id` is used if the failure has no id of its own.

    With an intent type, its data also holds the fields of the intents' own error contract, whose details name the
    reason and the target pillar of the call.
    """
    data = error_data(failure, request_id)
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
    return encode_error(call_id, {"code": error_codes(failure).json_rpc_code, "message": failure.message, "data": data})


def encode_error(call_id: str, content: Mapping[str, Any]) -> str:
    """Encode the response to a call that failed, from its `error` member."""
    return f'{{"jsonrpc":"2.0","id":{call_id},"error":{ENCODER.encode(content)}}}'


def encode_utf8(text: str) -> bytes:
    """Encode a response as UTF-8; a lone surrogate, which has no UTF-8, stays a JSON escape."""
    return text.encode("utf-8", "backslashreplace")


def parse_failure(detail: str) -> CstpError:
    return JsonParseError("Parse error", metadata={DETAIL: detail})


def invalid_request(detail: str) -> CstpError:
    return InvalidJsonRpcRequest("Invalid Request", metadata={DETAIL: detail})


def parse_integer(text: str) -> int | SpelledNumber:
    """Parse an integer exactly; one whose spelling an int would lose keeps its text."""
    return SpelledNumber.parse(text) if text == "-0" or len(text) > MAX_DIGITS else int(text)


def build_object(members: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object. Raises CstpError for a repeated member, because which one counts would be a guess."""
    found = dict(members)
    if len(found) != len(members):
        raise invalid_request("an object must not hold the same member twice")
    return found


def reject_constant(text: str) -> object:
    """Raise CstpError for NaN and Infinity, which Python parses although JSON does not have them."""
    raise parse_failure(f"{text} is not JSON")


# Bodies are decoded on the event loop; BodyReader has bounded their bytes and values before.
DECODER: Final = json.JSONDecoder(
    parse_int=parse_integer,
    parse_float=SpelledNumber.parse,
    parse_constant=reject_constant,
    object_pairs_hook=build_object,
)
ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


BATCH_CONCURRENCY: Final = 4
"""Calls of one batch in progress at once. Chosen: half of the eight threads of the server's largest pools, so that one
batch does not fill them."""


@dataclass(frozen=True, slots=True)
class JsonRpcOutcome:
    """The outcome of one call: its response, None for a notification, and its failure."""

    response: str | None
    failure: CstpError | None = None
    limits: Mapping[str, str] = field(default_factory=dict)
    """The headers of its rate limit."""
    counted: call_observation.CallFailure | None = None
    """The failure as metrics count it."""


JsonRpcEntry = JsonRpcRequest | MalformedJsonRpcRequest
CallHandler = Callable[[JsonRpcEntry], Awaitable[JsonRpcOutcome]]


async def respond_to_body(
    body: JsonRpcBody, answer: CallHandler, request_id: str, extra_headers: Mapping[str, str] | None = None
) -> web.Response:
    """Execute the calls of a body with `answer` and return the HTTP response with `extra_headers`."""
    outcomes = await answer_batch(body.calls, answer) if body.is_batch else [await answer(body.calls[0])]
    response = respond_with_outcomes(outcomes, body.is_batch, request_id, extra_headers)
    call_observation.attach_failures(response, *(outcome.counted for outcome in outcomes))
    return response


def respond_with_outcomes(
    outcomes: Sequence[JsonRpcOutcome], is_batch: bool, request_id: str, extra_headers: Mapping[str, str] | None
) -> web.Response:
    """Return the HTTP response with the outcomes of the calls of a body."""
    if is_batch:
        # JSON-RPC 2.0, section 6: notifications have no place in the answer to a batch, and an empty array is never
        # sent.
        headers = {**scarcest_headers(outcome.limits for outcome in outcomes), **(extra_headers or {})}
        responses = [outcome.response for outcome in outcomes if outcome.response is not None]
        if responses:
            # The failures of calls stay within their responses: one HTTP status cannot stand for several outcomes.
            return json_response(encode_utf8(f"[{','.join(responses)}]"), request_id, extra_headers=headers)
        return respond_without_body(outcomes, request_id, headers)
    (outcome,) = outcomes
    headers = {**outcome.limits, **(extra_headers or {})}
    if outcome.response is None:
        return respond_without_body([outcome], request_id, headers)
    return json_response(encode_utf8(outcome.response), request_id, outcome.failure, headers)


async def answer_batch(calls: Sequence[JsonRpcEntry], answer: CallHandler) -> list[JsonRpcOutcome]:
    """Execute the calls of a batch concurrently and return their outcomes in order."""
    places = asyncio.Semaphore(BATCH_CONCURRENCY)

    async def answer_in_turn(call: JsonRpcEntry) -> JsonRpcOutcome:
        async with places:
            return await answer(call)

    return await asyncio.gather(*map(answer_in_turn, calls))


def respond_without_body(
    outcomes: Sequence[JsonRpcOutcome], request_id: str, extra_headers: Mapping[str, str] | None
) -> web.Response:
    """Respond to notifications without a body, with HTTP 401 if the server does not know the caller."""
    # A notification may not be answered (section 4.1), so that the HTTP status is all that tells a caller of its token.
    strangers = [found.failure for found in outcomes if found.failure and error_codes(found.failure).http_status == 401]
    return json_response(None, request_id, strangers[0] if strangers else None, extra_headers)


def json_response(
    content: bytes | None,
    request_id: str,
    failure: CstpError | None = None,
    extra_headers: Mapping[str, str] | None = None,
) -> web.Response:
    """Return a response; `failure` sets its HTTP status, and content None leaves the body out.

    `extra_headers` are further headers.
    """
    status = error_codes(failure).http_status if failure else 200
    headers = {REQUEST_ID_HEADER: request_id, **(extra_headers or {})}
    # Accept-Post (W3C Linked Data Platform 1.0, section 7.1) names the media types that a POST may have.
    if status == 415:
        headers["Accept-Post"] = APPLICATION_JSON
    elif failure:
        headers |= challenge_headers(status, failure)
    if content is None:
        return web.Response(status=204 if status == 200 else status, headers=headers)
    return web.Response(body=content, status=status, headers=headers, content_type=APPLICATION_JSON)


TARGET_PILLAR: Final = "target_pillar"
MAX_PILLAR_LENGTH: Final = 63
"""Characters of the longest name that a pillar can be configured with."""


class JsonRpcEndpoint:
    """Answers the JSON-RPC bodies of HTTP requests."""

    def __init__(self, forwarder: Forwarder, access: AccessCheck, bodies: BodyReader, max_batch: int) -> None:
        self._forwarder = forwarder
        self._access = access
        self._bodies = bodies
        self._max_batch = max_batch

    async def respond(self, request: web.Request) -> web.Response:
        request_id = http_request.read_request_id(request)
        metadata = http_request.request_metadata(request, request_id)
        try:
            body = parse_body(await self._bodies.read(request, metadata), self._max_batch)
            request[call_observation.METHOD] = method_of_body(body, self._forwarder.names)
        except CstpError as failure:
            return body_error_response(failure, request_id)
        # The caller is not known here yet: each call is authenticated by the server, also within a batch.
        return await respond_to_body(body, functools.partial(self._answer, metadata, request_id), request_id)

    async def _answer(self, metadata: Metadata, request_id: str, call: JsonRpcEntry) -> JsonRpcOutcome:
        if isinstance(call, MalformedJsonRpcRequest):
            encoded = encode_failure(call.id, call.failure, request_id)
            return JsonRpcOutcome(encoded, call.failure, counted=call_observation.describe_failure(call.failure))
        limits: dict[str, str] = {}
        try:
            value = await self._forwarder.call(call.method, call.params, metadata, limits)
            # A notification's result is never encoded: nobody gets it, and JSON may not be able to express it.
            return JsonRpcOutcome(None if call.id is None else encode_result(call.id, value), limits=limits)
        except CstpError as caught:
            # Errors that the bridge found itself, such as an unknown method, would tell strangers what exists here.
            failure = await self._access.visible_failure(caught, metadata)
        except Exception:
            logger.exception("%s %s failed in the bridge", request_id, call.method)
            failure = unexpected_failure()
        counted = call_observation.describe_failure(failure)
        if call.id is None:
            return JsonRpcOutcome(None, failure, limits, counted)
        intent_type = self._forwarder.intent_type(call.method)
        target_pillar = read_target_pillar(call.params)
        encoded = encode_failure(call.id, failure, request_id, intent_type, target_pillar)
        return JsonRpcOutcome(encoded, failure, limits, counted)


def body_error_response(failure: CstpError, request_id: str) -> web.Response:
    response = json_response(encode_utf8(encode_failure("null", failure, request_id)), request_id, failure)
    call_observation.attach_failures(response, call_observation.describe_failure(failure))
    return response


def method_of_body(body: JsonRpcBody, known: Collection[str]) -> str:
    if body.is_batch:
        return call_observation.BATCH
    (call,) = body.calls
    if isinstance(call, JsonRpcRequest) and call.method in known:
        return call.method
    return call_observation.UNKNOWN_METHOD


def read_target_pillar(params: dict[str, object] | list[object]) -> str | None:
    """Return the pillar that a call names, or None if it names none that could be one."""
    pillar = params.get(TARGET_PILLAR) if isinstance(params, dict) else None
    # It is echoed in the error, so that its length is bounded here: the server has refused the call and checked
    # nothing.
    return pillar if isinstance(pillar, str) and len(pillar) <= MAX_PILLAR_LENGTH else None
