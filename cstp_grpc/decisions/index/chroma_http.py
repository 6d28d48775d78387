"""JSON requests to a Chroma server.

Chroma's own client is not used, for the reasons that docs/adr/0004 gives: its requests have no time limit, so that a
server which hangs would hang every search.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from cstp_grpc.decisions.index import IndexBroken, IndexUnavailable

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

API = "/api/v2"
COLLECTIONS = "/tenants/default_tenant/databases/default_database/collections"
NOT_FOUND = 404
OVERLOADED = frozenset({429, 502, 503, 504})
"""Statuses that say nothing of the state of the index."""

SHOWN = 500
"""How many characters of an error's text go to the log."""


class ChromaHttp:
    """Connections to a Chroma server, kept open for the next request. Safe for many threads."""

    def __init__(self, url: str) -> None:
        """Prepare for `http://HOST:PORT` or `https://…`, with a path where a gateway wants one."""
        # Not loaded before it is needed: a server without an index does without, and others listen first.
        import httpx

        self.url = url
        # The environment may name a proxy, which has no business between us and a server on loopback.
        self._client = httpx.Client(base_url=url.rstrip("/") + API, trust_env=False)

    def heartbeat(self, timeout: float) -> None:
        """Return when the server has answered. Raises IndexUnavailable."""
        answer = self.call("GET", "/heartbeat", None, timeout)
        if not isinstance(answer, dict) or "nanosecond heartbeat" not in answer:
            raise IndexUnavailable("what answers is not a Chroma server")

    def call(self, method: str, path: str, body: object, timeout: float) -> Any:
        """Return the JSON that a request is answered with; None where there is nothing by that path.

        `timeout` is in seconds, for each wait. Raises IndexUnavailable, and IndexBroken where the answer is an error.
        """
        import httpx

        try:
            response = self._send(method, path, body, timeout)
        # A closed client raises RuntimeError: the supervisor gave the server up while a search was under way.
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:
            logger.debug("%s %s at %s: %r", method, path, self.url, error)
            raise IndexUnavailable("the Chroma server does not answer") from error
        status = response.status_code
        if status == NOT_FOUND:
            return None
        if status in OVERLOADED:
            raise IndexUnavailable(f"the Chroma server answers with status {status}")
        if not response.is_success:
            logger.warning("%s %s at %s: status %d, %r", method, path, self.url, status, response.text[:SHOWN])
            raise IndexBroken(f"the Chroma server answers with status {status}")
        try:
            return response.json()
        except ValueError as error:
            raise IndexBroken("the Chroma server answers with something other than JSON") from error

    def _send(self, method: str, path: str, body: object, timeout: float) -> httpx.Response:
        import httpx

        try:
            return self._client.request(method, path, json=body, timeout=timeout)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            # The server may have closed the connection since it was last used; all requests can be repeated.
            return self._client.request(method, path, json=body, timeout=timeout)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
