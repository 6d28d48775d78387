"""JSON-RPC 2.0 over HTTP: params and results are JSON, so that a call loads neither gRPC nor Protobuf."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult

from cstp_grpc.client.http_client import HttpClient, HttpResponse, ResponseTooLarge
from cstp_grpc.client.http_exchange import HttpProtocolError
from cstp_grpc.client.targets import MAX_RESPONSE_BYTES, bearer_header, parse_target, require_tls
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.common.spans import outgoing_trace
from cstp_grpc.contract import errors

if TYPE_CHECKING:
    from cstp_grpc.contract import rpc_errors
else:
    # Only failures need it.
    rpc_errors = LazyModule("cstp_grpc.contract.rpc_errors")

ENDPOINT_PATH = "/cstp"
GUARDRAIL_ID_KEY = "guardrailId"
"""The member that distinguishes a guardrail violation from a field violation."""
MAX_WAIT_MILLISECONDS = 365 * 86_400_000
"""The longest accepted retry delay, a year. Chosen: sleep functions take it, and longer ones make no sense."""


class JsonRpcConnection:
    """Posts each call to a bridge on its own connection. Thread-safe."""

    def __init__(
        self,
        target: str,
        token: str | None,
        *,
        root_certificates: bytes | None = None,
        client_certificate: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self._url = jsonrpc_url(target)
        self._headers = {"content-type": "application/json", "accept": "application/json"} | dict(bearer_header(token))
        require_tls(self._url.scheme, client_certificate)
        tls = None
        # Checked for http, too.
        if self._url.scheme == "https" or root_certificates is not None:
            from cstp_grpc.client.tls import tls_context

            tls = tls_context(root_certificates, self._url.scheme, client_certificate)
        self._http = HttpClient(tls, max_bytes=max_bytes, clock=clock)
        # Shared by threads: next() of a count is atomic.
        self._ids = itertools.count(1)

    def call(self, method: str, params: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Return the result of a method within `timeout` seconds. Raises CstpError."""
        call_id = next(self._ids)
        headers = self._headers | dict(outgoing_trace.get())
        body = encode_call(method, params, call_id)
        answer = send_http_request(self._http, "POST", self._url, headers, body, timeout)
        return read_result(answer, call_id, self._url.geturl())


def encode_call(method: str, params: Mapping[str, Any], call_id: int) -> bytes:
    """Return the body of a request. Raises InvalidArgument for a number that JSON cannot express."""
    call = {"jsonrpc": "2.0", "id": call_id, "method": method, "params": params}
    try:
        return json.dumps(call, allow_nan=False).encode()
    except ValueError as error:
        path = next(find_infinite_numbers(params), "params")
        raise errors.InvalidArgument.field(path, "is a number that is not finite") from error


def find_infinite_numbers(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of numbers that are not finite in a JSON value."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    listed = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, member in listed:
        yield from find_infinite_numbers(member, f"{path}.{name}" if path else str(name))


def parse_finite(text: str) -> float:
    """Return a number of an answer. Raises ValueError for NaN and infinite ones, which JSON cannot express."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def jsonrpc_url(target: str) -> SplitResult:
    """Return the URL to post to: the target's with /cstp appended. Raises InvalidArgument."""
    url, _ = parse_target(target)
    if not url.hostname or url.query or url.fragment:
        raise errors.InvalidArgument.field("target", f"{target!r} is not of the form http://HOST:PORT")
    path = url.path.rstrip("/")
    return url._replace(path=path if path.endswith(ENDPOINT_PATH) else path + ENDPOINT_PATH)


def send_http_request(
    client: HttpClient, method: str, url: SplitResult, headers: Mapping[str, str], body: bytes | None, timeout: float
) -> HttpResponse:
    """Send one HTTP request and return the whole response within `timeout` seconds.

    Raises DeadlineExceeded, ServerUnreachable, and InternalError if the response is too large.
    """
    try:
        return client.fetch(method, url, headers, body, timeout)
    except TimeoutError as error:
        raise errors.DeadlineExceeded(f"{url.geturl()} did not answer within {timeout:g} s") from error
    except ResponseTooLarge as error:
        raise errors.InternalError(f"The server's answer is larger than {client.max_bytes} bytes") from error
    except (OSError, HttpProtocolError) as error:
        reason = str(error) or type(error).__name__
        raise errors.ServerUnreachable(f"No server answers at {url.geturl()}: {reason}") from error


def read_result(answer: HttpResponse, call_id: int, where: str) -> dict[str, Any]:
    """Return the result of a JSON-RPC response. Raises the error in it."""
    try:
        content = json.loads(answer.body, parse_float=parse_finite, parse_constant=parse_finite)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("jsonrpc") != "2.0":
        raise error_from_http(answer, where)
    # Before the id is compared: the id of an error is null where the server could not read that of the request
    # (JSON-RPC 2.0, section 5).
    if isinstance(content.get("error"), dict):
        raise error_from_jsonrpc(content["error"], parse_retry_after(answer))
    result = content.get("result")
    # A response with another id would be one that a proxy mixed up.
    if content.get("id") != call_id or not isinstance(result, dict):
        raise errors.InternalError(f"{where} sent an answer that belongs to no call")
    return result


def error_from_http(answer: HttpResponse, where: str) -> errors.CstpError:
    if 300 <= answer.status < 400:
        place = answer.headers.get("location", "elsewhere")
        return errors.InternalError(f"{where} redirects to {place}; call that address if you trust it")
    error_class = rpc_errors.error_class_for_http_status(answer.status) or errors.InternalError
    message = f"{where} answered HTTP {answer.status} instead of JSON-RPC"
    error = error_class(message, retry_after=parse_retry_after(answer))
    error.inferred = True
    return error


def parse_retry_after(answer: HttpResponse) -> float | None:
    """Return the seconds of the Retry-After header, or None if it is missing or not a number."""
    seconds = answer.headers.get("retry-after", "")
    # The other form of the header, a date (RFC 9110, section 10.2.3), is ignored: the clocks may differ.
    return retry_wait_seconds(float(seconds) * 1000) if seconds.isdecimal() else None


def error_from_jsonrpc(error: Mapping[str, Any], retry_after: float | None = None) -> errors.CstpError:
    """Return the exception for a JSON-RPC error object; `retry_after` is used if the object has no delay."""
    data = error.get("data")
    details: Mapping[str, Any] = data if isinstance(data, dict) else {}
    waits, listed = details.get("retryAfterMs"), details.get("violations")
    wait = retry_wait_seconds(waits) if isinstance(waits, int | float) else None
    found = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    stated = details.get("reason")
    failure = rpc_errors.error_for_reason(
        str(stated or rpc_errors.reason_for_json_rpc_code(error.get("code"))),
        str(error.get("message", "")),
        metadata=error_metadata(details),
        violations=[
            errors.FieldViolation(str(item.get("field", "")), str(item.get("description", "")))
            for item in found
            if GUARDRAIL_ID_KEY not in item
        ],
        retry_after=retry_after if wait is None else wait,
        blocks=[
            errors.BlockingGuardrail(
                str(item[GUARDRAIL_ID_KEY]), str(item.get("name", "")), str(item.get("message", ""))
            )
            for item in found
            if GUARDRAIL_ID_KEY in item
        ],
    )
    failure.inferred = not stated
    return failure


def retry_wait_seconds(milliseconds: float) -> float | None:
    return milliseconds / 1000 if 0 <= milliseconds <= MAX_WAIT_MILLISECONDS else None


def error_metadata(details: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata of an error's data, including the request id."""
    named = details.get("metadata")
    found = {str(key): str(value) for key, value in named.items()} if isinstance(named, dict) else {}
    if request_id := details.get(errors.REQUEST_ID):
        found[errors.REQUEST_ID] = str(request_id)
    return found
