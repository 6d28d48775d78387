"""JSON requests to a Chroma server.

Chroma's own client is not used for three reasons: its requests have no time limit, so that a server which hangs would
hang every search; it sends loopback requests to the proxy of the environment; and it takes half a second and 46 MB to
import.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from cstp_grpc.decisions.index import IndexBroken, IndexUnavailable

logger = logging.getLogger(__name__)

API = "/api/v2"
HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}
NOT_FOUND = 404
OVERLOADED = frozenset({429, 502, 503, 504})
"""Statuses that say nothing of the state of the index."""

SHOWN = 500
"""How many bytes of an error's text go to the log."""


class ChromaHttp:
    """Connections to a Chroma server, kept open for the next request. Safe for many threads."""

    def __init__(self, url: str) -> None:
        """Prepare for `http://HOST:PORT` or `https://…`, with a path where a gateway wants one."""
        parts = urlsplit(url)
        self.url = url
        self._type = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port
        self._prefix = parts.path.rstrip("/") + API
        self._idle: deque[HTTPConnection] = deque()
        self._closed = False

    def heartbeat(self, timeout: float) -> None:
        """Return when the server has answered. Raises IndexUnavailable."""
        answer = self.call("GET", "/heartbeat", None, timeout)
        if not isinstance(answer, dict) or "nanosecond heartbeat" not in answer:
            raise IndexUnavailable("what answers is not a Chroma server")

    def call(self, method: str, path: str, body: object, timeout: float) -> Any:
        """Return the JSON that a request is answered with; None where there is nothing by that path.

        `timeout` is in seconds, for each wait. Raises IndexUnavailable, and IndexBroken where the answer is an error.
        """
        payload = None if body is None else json.dumps(body).encode()
        try:
            status, content = self._exchange(method, self._prefix + path, payload, timeout)
        except (OSError, HTTPException) as error:
            logger.debug("%s %s at %s: %r", method, path, self.url, error)
            raise IndexUnavailable("the Chroma server does not answer") from error
        if status == NOT_FOUND:
            return None
        if status in OVERLOADED:
            raise IndexUnavailable(f"the Chroma server answers with status {status}")
        if status >= 300:
            logger.warning("%s %s at %s: status %d, %r", method, path, self.url, status, content[:SHOWN])
            raise IndexBroken(f"the Chroma server answers with status {status}")
        try:
            return json.loads(content)
        except ValueError as error:
            raise IndexBroken("the Chroma server answers with something other than JSON") from error

    def close(self) -> None:
        """Close all connections; those in use close when they are done."""
        self._closed = True
        while (connection := self._take()) is not None:
            connection.close()

    def _exchange(self, method: str, path: str, payload: bytes | None, timeout: float) -> tuple[int, bytes]:
        while (connection := self._take()) is not None:
            try:
                return self._send(connection, method, path, payload, timeout)
            except ConnectionError:
                # The server may have closed it since it was last used; all requests can be repeated.
                continue
        return self._send(self._type(self._host, self._port), method, path, payload, timeout)

    def _send(
        self, connection: HTTPConnection, method: str, path: str, payload: bytes | None, timeout: float
    ) -> tuple[int, bytes]:
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        try:
            connection.request(method, path, payload, HEADERS)
            response = connection.getresponse()
            content = response.read()
        except BaseException:
            connection.close()
            raise
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)
        return response.status, content

    def _take(self) -> HTTPConnection | None:
        # The one used last comes first, so that those beyond what is needed grow old together.
        try:
            return self._idle.pop()
        except IndexError:
            return None
