"""The same calls over JSON-RPC 2.0 and HTTP, for servers that are reached through a bridge."""

from __future__ import annotations

import itertools
import json
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from http.client import HTTPException
from typing import Any, cast
from urllib.parse import SplitResult

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from cstp_grpc import errors
from cstp_grpc.client import codec
from cstp_grpc.client.contract import Method
from cstp_grpc.client.fetching import HttpAnswer, TooLarge, fetch
from cstp_grpc.client.tls import trusting
from cstp_grpc.client.transport import MAX_ANSWER_BYTES, Answers, authorization, split_target
from cstp_grpc.contract.error_reasons import (
    error_class_for_http_status,
    error_for_reason,
    reason_for_json_rpc_code,
)
from cstp_grpc.errors import REQUEST_ID, Block, CstpError, FieldViolation, InvalidArgument, ServerUnreachable

ENDPOINT = "/cstp"
GUARDRAIL_ID = "guardrailId"
"""The member by which a violation of a guardrail is told from one of a field."""
LONGEST_WAIT = 365 * 86_400_000
"""The longest time that is taken for one to wait before the next call, in milliseconds."""


class JsonRpcTransport:
    """Posts each call to a bridge, on a connection of its own; follows no redirects and uses no proxies.

    Safe for many threads.
    """

    def __init__(
        self,
        target: str,
        token: str | None,
        *,
        root_certificates: bytes | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = endpoint(target)
        self._headers = {"content-type": "application/json", "accept": "application/json"} | dict(authorization(token))
        self._tls = tls_context(root_certificates)
        self._clock = clock
        self._ids = itertools.count(1)

    def call(self, method: Method, request: Message, timeout: float) -> Message:
        """Return the answer of a unary method within `timeout` seconds. Raises CstpError."""
        call_id = next(self._ids)
        body = call_body(method, request, call_id)
        answer = exchange("POST", self._url, self._headers, body, timeout, self._tls, self._clock)
        result = read_result(answer, call_id, self._url.geturl())
        try:
            return codec.from_json(known_part(result, cast(Descriptor, method.response.DESCRIPTOR)), method.response)
        except codec.CodecError as error:
            raise errors.InternalError(f"The answer to {method.name} does not fit the contract: {error}") from error

    def send(self, method: Method, requests: Iterable[Message], timeout: float) -> Message:  # noqa: ARG002
        """Raise MethodNotFound: JSON-RPC carries no streams."""
        raise errors.MethodNotFound(f"{method.name} takes a stream, which JSON-RPC cannot carry: use a grpc:// address")

    def watch(self, method: Method, request: Message, timeout: float | None) -> Answers:  # noqa: ARG002
        """Raise MethodNotFound: JSON-RPC carries no streams."""
        raise errors.MethodNotFound(
            f"{method.name} answers with a stream, which JSON-RPC cannot carry: use a grpc:// address"
        )

    def close(self) -> None:
        """Do nothing: no connection outlives its call."""


def call_body(method: Method, request: Message, call_id: int) -> bytes:
    """Return a JSON-RPC call. Raises InvalidArgument where the request holds what JSON cannot express."""
    try:
        params = codec.to_json(request)
    except ValueError as error:
        raise InvalidArgument(f"{method.name}: {error}") from error
    return json.dumps({"jsonrpc": "2.0", "id": call_id, "method": method.name, "params": params}).encode()


def known_part(value: Any, descriptor: Descriptor) -> Any:
    """Return a JSON value without the fields that a message does not have.

    Servers of a later contract may answer with more than this client knows; gRPC skips it likewise.
    """
    if not isinstance(value, dict) or descriptor.file.package == "google.protobuf":
        return value
    found = {}
    for field in descriptor.fields:
        if field.json_name not in value:
            continue
        item, inner = value[field.json_name], field.message_type
        if inner is None or inner.GetOptions().map_entry:
            found[field.json_name] = item
        elif field.is_repeated and isinstance(item, list):
            found[field.json_name] = [known_part(part, inner) for part in item]
        else:
            found[field.json_name] = known_part(item, inner)
    return found


def endpoint(target: str) -> SplitResult:
    """Return the URL to post to: the target's with /cstp at its end. Raises InvalidArgument."""
    url, _ = split_target(target)
    if not url.hostname or url.query or url.fragment:
        raise InvalidArgument.field("target", f"{target!r} is not of the form http://HOST:PORT")
    path = url.path.rstrip("/")
    return url._replace(path=path if path.endswith(ENDPOINT) else path + ENDPOINT)


def tls_context(root_certificates: bytes | None) -> ssl.SSLContext:
    """Return how https servers are verified: by the given authorities (PEM), or by the system's.

    Raises InvalidArgument.
    """
    if root_certificates is None:
        return ssl.create_default_context()
    context = trusting(root_certificates)
    # What is given is trusted, also where it is the certificate of the server itself; gRPC does likewise.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def exchange(
    verb: str,
    url: SplitResult,
    headers: Mapping[str, str],
    body: bytes | None,
    timeout: float,
    tls: ssl.SSLContext,
    clock: Callable[[], float] = time.monotonic,
) -> HttpAnswer:
    """Send one HTTP request and return its whole answer within `timeout` seconds.

    Raises DeadlineExceeded, ServerUnreachable, and InternalError where the answer is too large.
    """
    try:
        return fetch(verb, url, headers, body, timeout, tls, MAX_ANSWER_BYTES, clock)
    except TimeoutError as error:
        raise errors.DeadlineExceeded(f"{url.geturl()} did not answer within {timeout:g} s") from error
    except TooLarge as error:
        raise errors.InternalError(f"The server's answer is larger than {MAX_ANSWER_BYTES} bytes") from error
    except (OSError, HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise ServerUnreachable(f"No server answers at {url.geturl()}: {reason}") from error


def read_result(answer: HttpAnswer, call_id: int, where: str) -> dict[str, Any]:
    """Return the result in a JSON-RPC answer. Raises the error that it holds."""
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("jsonrpc") != "2.0":
        raise http_error(answer, where)
    if isinstance(content.get("error"), dict):
        raise answered_error(content["error"], retry_after_header(answer))
    result = content.get("result")
    if content.get("id") != call_id or not isinstance(result, dict):
        raise errors.InternalError(f"{where} sent an answer that belongs to no call")
    return result


def http_error(answer: HttpAnswer, where: str) -> CstpError:
    """Return the exception for an HTTP answer that is no JSON-RPC."""
    if 300 <= answer.status < 400:
        place = answer.headers.get("location", "elsewhere")
        return errors.InternalError(f"{where} redirects to {place}; call that address if you trust it")
    error_class = error_class_for_http_status(answer.status) or errors.InternalError
    message = f"{where} answered HTTP {answer.status} instead of JSON-RPC"
    return error_class(message, retry_after=retry_after_header(answer))


def retry_after_header(answer: HttpAnswer) -> float | None:
    """Return how many seconds an HTTP answer asks to wait; None if it names no number of them."""
    seconds = answer.headers.get("retry-after", "")
    return wait_of(float(seconds) * 1000) if seconds.isdecimal() else None


def answered_error(error: Mapping[str, Any], retry_after: float | None = None) -> CstpError:
    """Return the exception for a JSON-RPC error object; `retry_after` holds if the object says no time to wait."""
    data = error.get("data")
    details: Mapping[str, Any] = data if isinstance(data, dict) else {}
    waits, listed = details.get("retryAfterMs"), details.get("violations")
    wait = wait_of(waits) if isinstance(waits, int | float) else None
    found = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return error_for_reason(
        str(details.get("reason") or reason_for_json_rpc_code(error.get("code"))),
        str(error.get("message", "")),
        metadata=error_metadata(details),
        violations=[
            FieldViolation(str(item.get("field", "")), str(item.get("description", "")))
            for item in found
            if GUARDRAIL_ID not in item
        ],
        retry_after=retry_after if wait is None else wait,
        blocks=[
            Block(str(item[GUARDRAIL_ID]), str(item.get("name", "")), str(item.get("message", "")))
            for item in found
            if GUARDRAIL_ID in item
        ],
    )


def wait_of(milliseconds: float) -> float | None:
    """Return how many seconds a server asks to wait; None where it names no time that anybody waits."""
    return milliseconds / 1000 if 0 <= milliseconds <= LONGEST_WAIT else None


def error_metadata(details: Mapping[str, Any]) -> dict[str, str]:
    """Return what an error's data says by name, the request id among it."""
    named = details.get("metadata")
    found = {str(key): str(value) for key, value in named.items()} if isinstance(named, dict) else {}
    if request_id := details.get(REQUEST_ID):
        found[REQUEST_ID] = str(request_id)
    return found
