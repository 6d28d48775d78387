"""Lets pages of other origins call the bridge, where it is configured to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Last-Event-ID, X-Request-Id, traceparent, tracestate, A2A-Version, A2A-Extensions, "
    "X-A2A-Extensions"
)
EXPOSED_HEADERS: Final = "A2A-Extensions, ETag, Retry-After, WWW-Authenticate, X-A2A-Extensions, X-Request-Id"
MAX_AGE: Final = "600"
"""Seconds for which a browser may remember the answer to its preflight request."""


class Cors:
    """Answers preflight requests and marks answers for the given origins; `*` is any. Never with credentials."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)
        self._any = "*" in self._origins

    def install(self, app: web.Application, paths: Mapping[str, Iterable[str]]) -> None:
        """Add preflight handlers for the paths and their methods, and mark every answer of the application."""
        app.on_response_prepare.append(self._mark)
        for path, methods in paths.items():
            app.router.add_options(path, self._preflight(", ".join(methods)))

    def _preflight(self, methods: str) -> Handler:
        async def answer(_: web.Request) -> web.Response:
            headers = {
                "Access-Control-Allow-Methods": methods,
                "Access-Control-Allow-Headers": ALLOWED_HEADERS,
                "Access-Control-Max-Age": MAX_AGE,
            }
            return web.Response(status=204, headers=headers)

        return answer

    async def _mark(self, request: web.Request, response: web.StreamResponse) -> None:
        if not self._any:
            response.headers.add("Vary", "Origin")
        origin = request.headers.get("Origin")
        if origin is not None and (self._any or origin in self._origins):
            response.headers["Access-Control-Allow-Origin"] = "*" if self._any else origin
            response.headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS
