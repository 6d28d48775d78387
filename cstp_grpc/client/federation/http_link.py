"""Asking peers that are reached through a bridge."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from cstp_grpc.client import codec
from cstp_grpc.client.contract import Method
from cstp_grpc.client.federation import results
from cstp_grpc.client.federation.results import MAX_ANSWER_BYTES, Metadata, Result
from cstp_grpc.client.fetching import HttpAnswer, TooLarge, fetch
from cstp_grpc.client.jsonrpc import (
    answered_error,
    call_body,
    endpoint,
    known_part,
    tls_context,
)
from cstp_grpc.client.transport import authorization
from cstp_grpc.contract.error_reasons import error_class_for_http_status

JSON: Final = "application/json"


class HttpLink:
    """Calls by JSON-RPC, each on a connection of its own. Safe for many threads. Raises InvalidArgument."""

    def __init__(
        self,
        target: str,
        token: str | None,
        root_certificates: bytes | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = endpoint(target)
        self._headers = {"content-type": JSON, "accept": JSON} | dict(authorization(token))
        self._tls = tls_context(root_certificates)
        self._clock = clock
        self._ids = itertools.count(1)

    def call(self, method: Method, request: Message, seconds: float, metadata: Metadata) -> Result:
        """Return what came of a call, within `seconds`."""
        call_id = next(self._ids)
        body, headers = call_body(method, request, call_id), self._headers | dict(metadata)
        try:
            answer = fetch("POST", self._url, headers, body, seconds, self._tls, MAX_ANSWER_BYTES, self._clock)
        except TimeoutError:
            return results.TIMED_OUT
        except OSError as error:
            return results.not_there(str(error))
        except TooLarge as error:
            return results.not_understood(str(error))
        except HTTPException as error:
            return results.not_understood("no HTTP", repr(error))
        return read(answer, call_id, method)

    def close(self) -> None:
        """Do nothing: no connection outlives its call."""


def read(answer: HttpAnswer, call_id: int, method: Method) -> Result:
    """Return what an HTTP answer to a call says."""
    content = json_of(answer)
    if not isinstance(content, dict) or content.get("jsonrpc") != "2.0":
        return of_status(answer.status)
    if isinstance(content.get("error"), dict):
        return results.of_error(answered_error(content["error"]))
    result = content.get("result")
    if content.get("id") != call_id or not isinstance(result, dict):
        return results.not_understood("it belongs to no call")
    try:
        known = known_part(result, cast(Descriptor, method.response.DESCRIPTOR))
        return results.answered(codec.from_json(known, method.response))
    except codec.CodecError as error:
        return results.not_understood("it does not fit the contract", str(error))


def json_of(answer: HttpAnswer) -> Any:
    """Return the JSON value that an answer holds; None where it holds none."""
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:
        return None
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return None


def of_status(status: int) -> Result:
    """Return the result of a peer that answered no JSON-RPC."""
    words = f"HTTP {status} without JSON-RPC"
    if error_class := error_class_for_http_status(status):
        return results.of_error(error_class(words))
    return results.unreachable(words) if status >= 500 else results.not_understood(words)
