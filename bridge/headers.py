"""What HTTP says around the bodies: request ids, metadata, content types, sizes, challenges."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from aiohttp import hdrs, web

from bridge.methods import Metadata
from bridge.status import Failure
from cstp_grpc.client.federation.hops import MAX_CHARACTERS, METADATA_KEY
from cstp_grpc.contract.error_reasons import REASON_CODES
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY

REQUEST_ID_HEADER: Final = "X-Request-Id"
REQUEST_ID_FORM: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")

UNREADABLE: Final = "unreadable"
AUTHORIZATION: Final = "authorization"
FORWARDED: Final = {AUTHORIZATION: 4096, "traceparent": 128, "tracestate": 1024, METADATA_KEY: MAX_CHARACTERS}
"""Headers that the server gets as metadata, each with its greatest length: together they stay within the 8 KiB of
metadata that gRPC takes."""
PRINTABLE: Final = re.compile(r"[ -~]+")

JSON: Final = "application/json"


def request_id_of(request: web.Request) -> str:
    """Return the caller's request id where it is well formed, else a new one."""
    return request_id_from(request.headers.get(REQUEST_ID_HEADER, ""))


def request_id_from(given: str) -> str:
    """Return a request id where it is well formed, else a new one."""
    # It tells requests apart and is no secret, so the system need not be asked for every one.
    return given if REQUEST_ID_FORM.fullmatch(given) else f"{random.getrandbits(128):032x}"


def metadata_of(request: web.Request, request_id: str) -> Metadata:
    """Return what the server is told besides the message."""
    return forwarded(lambda name: request.headers.getall(name, []), request_id)


def forwarded(values_of: Callable[[str], Sequence[str]], request_id: str) -> Metadata:
    """Return the metadata for the server, from the values of each header.

    A header that gRPC cannot carry, or that is there more than once, is left out. Credentials that are there more than
    once stay so, without their values, for the server to refuse. The header of a journey between agents becomes one
    that is not understood, which ends it.
    """
    metadata = [(REQUEST_ID_KEY, request_id)]
    for name, longest in FORWARDED.items():
        values = values_of(name)
        if len(values) == 1 and len(values[0]) <= longest and PRINTABLE.fullmatch(values[0]):
            metadata.append((name, values[0]))
        elif len(values) > 1 and name == AUTHORIZATION:
            metadata += [(name, UNREADABLE), (name, UNREADABLE)]
        elif values and name == METADATA_KEY:
            # Left out, it would let a call go on that should stop.
            metadata.append((name, UNREADABLE))
    return metadata


async def read_body(request: web.Request, timeout: float) -> bytes:
    """Return the body of a request, which has `timeout` seconds to arrive.

    Raises Failure where HTTP itself has an answer for it: 400, 408 or 413.
    """
    try:
        if request.content.is_eof():
            # It came with the headers, so nothing is waited for.
            return await request.read()
        async with asyncio.timeout(timeout):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise too_large() from error
    except TimeoutError as error:
        raise unacceptable(408, "the body did not arrive in time") from error
    except (web.RequestPayloadError, ConnectionResetError) as error:
        raise unacceptable(400, "the body broke off") from error


def require_json(request: web.Request, accepted: Collection[str]) -> None:
    """Let plain JSON pass. Raises Failure, answered with HTTP 415, for any other content."""
    if request.content_type not in accepted or (request.charset or "utf-8").lower() not in ("utf-8", "utf8"):
        raise unacceptable(415, f"the content type must be {' or '.join(accepted)}, in UTF-8")
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise unacceptable(415, "the body must not be compressed")


def too_large() -> Failure:
    """Return the failure of a body with too many bytes."""
    return unacceptable(413, "the body is larger than the bridge takes")


def unacceptable(http_status: int, detail: str) -> Failure:
    """Return the failure of a request that HTTP itself has an answer for."""
    codes = replace(REASON_CODES["INVALID_REQUEST"], http_status=http_status)
    return Failure("INVALID_REQUEST", "Invalid Request", codes=codes, details={"detail": detail})


def respond(
    content: bytes | None, request_id: str, failure: Failure | None = None, marks: Mapping[str, str] | None = None
) -> web.Response:
    """Return an answer; `failure` is what its HTTP status tells, None content is an answer without a body.

    `marks` are further headers.
    """
    status = failure.codes.http_status if failure else 200
    headers = {REQUEST_ID_HEADER: request_id, **(marks or {})}
    if status == 415:
        headers["Accept-Post"] = JSON
    elif failure:
        headers |= challenges(status, failure)
    if content is None:
        return web.Response(status=204 if status == 200 else status, headers=headers)
    return web.Response(body=content, status=status, headers=headers, content_type=JSON)


def challenges(status: int, failure: Failure) -> dict[str, str]:
    """Return the headers that tell a refused caller what is needed: a token, or time."""
    if status == 401:
        return {hdrs.WWW_AUTHENTICATE: 'Bearer realm="cstp"'}
    if status in (429, 503) and failure.retry_after:
        return {hdrs.RETRY_AFTER: str(failure.retry_after)}
    return {}
