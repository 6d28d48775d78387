"""The bodies of requests, read within bounds: what costs more than a call usually does is for known callers only."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from aiohttp import web

from bridge import headers
from bridge.a2a.gate import LARGE, Gate
from bridge.methods import Metadata
from cstp_grpc.config import ServerSettings

MANY_VALUES: Final = 1000
"""JSON values; to convert more of them takes some milliseconds, in which nobody else is answered."""
WHITESPACE: Final = b" \t\r\n"


class BodyReader:
    """Reads JSON bodies.

    One beyond LARGE bytes or MANY_VALUES values is read only for a caller that the server knows, and one that tells
    its length is judged before it arrives. Nobody's may have more than `server.max_body_bytes` or `server.max_values`.
    """

    def __init__(self, gate: Gate, settings: ServerSettings) -> None:
        self._gate = gate
        self._max_values = settings.max_values
        self._timeout = settings.timeout_seconds

    async def read(
        self, request: web.Request, metadata: Metadata, accepted: Collection[str] = (headers.JSON,)
    ) -> bytes:
        """Return the body of a request, of an accepted media type, before anything of it is converted.

        Raises Failure where HTTP itself has an answer for it: 400, 408, 413 or 415. Raises Refused.
        """
        headers.require_json(request, accepted)
        length = request.content_length or 0
        if length > request.client_max_size:
            raise headers.too_large()
        if length > LARGE:
            await self._gate.admit(metadata)
        content = await headers.read_body(request, self._timeout)
        if length <= LARGE and (len(content) > LARGE or has_more_values(content, MANY_VALUES)):
            await self._gate.admit(metadata)
        if has_more_values(content, self._max_values):
            raise headers.unacceptable(413, f"the body holds more than {self._max_values} values")
        return content


def has_more_values(content: bytes, limit: int) -> bool:
    """Whether JSON text holds more values than a limit, without converting any.

    Of text that is no JSON at least the values before the first mistake count, which is all that a parser converts.
    """
    # A value takes a byte at the least, and a comma or bracket another one.
    if len(content) < 2 * limit or count_places(content) <= limit:
        return False
    # Some of the commas and brackets may be in texts. Without pairs of backslashes, one before a quote escapes it.
    content = content.replace(rb"\\", b"").replace(rb"\"", b"")
    if content.count(b'"') > 4 * limit:
        # Each text is a value, or the key of one.
        return True
    outside = b'"'.join(content.split(b'"')[::2]).translate(None, WHITESPACE)
    return count_places(outside) - outside.count(b"[]") - outside.count(b"{}") > limit


def count_places(content: bytes) -> int:
    """Return the greatest number of values for which commas and brackets leave room."""
    return 1 + content.count(b",") + content.count(b"[") + content.count(b"{")
