"""What HTTP says around the bodies: request ids, metadata, content types, challenges."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import hdrs, web

from bridge.methods import Metadata
from bridge.status import REQUEST_ID, Failure, Row

REQUEST_ID_HEADER: Final = "X-Request-Id"
REQUEST_ID_FORM: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")

FORWARDED: Final = {"authorization": 4096, "traceparent": 128, "tracestate": 1024}
"""Headers that the server gets as metadata, each with its greatest length: together they stay within the 8 KiB of
metadata that gRPC takes."""
PRINTABLE: Final = re.compile(r"[ -~]+")

JSON: Final = "application/json"


def request_id_of(request: web.Request) -> str:
    """Return the caller's request id where it is well formed, else a new one."""
    return request_id_from(request.headers.get(REQUEST_ID_HEADER, ""))


def request_id_from(given: str) -> str:
    """Return a request id where it is well formed, else a new one."""
    return given if REQUEST_ID_FORM.fullmatch(given) else uuid.uuid4().hex


def metadata_of(request: web.Request, request_id: str) -> Metadata:
    """Return what the server is told besides the message."""
    return forwarded(lambda name: request.headers.getall(name, []), request_id)


def forwarded(values_of: Callable[[str], Sequence[str]], request_id: str) -> Metadata:
    """Return the metadata for the server, from the values of each header.

    A header that gRPC cannot carry, or that is there more than once, is left out: it identifies nobody.
    """
    metadata = [(REQUEST_ID, request_id)]
    for name, longest in FORWARDED.items():
        values = values_of(name)
        if len(values) == 1 and len(values[0]) <= longest and PRINTABLE.fullmatch(values[0]):
            metadata.append((name, values[0]))
    return metadata


def require_json(request: web.Request) -> None:
    """Let plain JSON pass. Raises Failure, answered with HTTP 415, for any other content."""
    if request.content_type != JSON or (request.charset or "utf-8").lower() not in ("utf-8", "utf8"):
        raise unacceptable(415, f"the content type must be {JSON}, in UTF-8")
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise unacceptable(415, "the body must not be compressed")


def unacceptable(http_status: int, detail: str) -> Failure:
    """Return the failure of a request that HTTP itself has an answer for."""
    return Failure("INVALID_REQUEST", "Invalid Request", row=Row(-32600, http_status), details={"detail": detail})


def respond(content: bytes | None, request_id: str, failure: Failure | None = None) -> web.Response:
    """Return an answer; `failure` is what its HTTP status tells, None content is an answer without a body."""
    status = failure.row.http_status if failure else 200
    headers = {REQUEST_ID_HEADER: request_id}
    if status == 401:
        headers[hdrs.WWW_AUTHENTICATE] = 'Bearer realm="cstp"'
    elif status == 429 and failure and failure.retry_after:
        headers[hdrs.RETRY_AFTER] = str(failure.retry_after)
    elif status == 415:
        headers["Accept-Post"] = JSON
    if content is None:
        return web.Response(status=204 if status == 200 else status, headers=headers)
    return web.Response(body=content, status=status, headers=headers, content_type=JSON)
