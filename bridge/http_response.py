"""HTTP responses: the media type that a caller accepts, challenges, and CORS headers."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import hdrs, web

from bridge.call_errors import retry_seconds
from cstp_grpc.errors import CstpError


def challenge_headers(status: int, failure: CstpError) -> dict[str, str]:
    """Return the headers that tell a refused caller to authenticate or to wait."""
    if status == 401:
        return {hdrs.WWW_AUTHENTICATE: 'Bearer realm="cstp"'}
    # RFC 9110, section 10.2.3, defines Retry-After for 503, and RFC 6585, section 4, for 429.
    if status in (429, 503) and (wait := retry_seconds(failure)):
        return {hdrs.RETRY_AFTER: str(wait)}
    return {}


@dataclass(frozen=True, slots=True)
class AcceptHeader:
    """The media ranges of an `Accept` header in lower case, each with its quality from 0 to 1."""

    ranges: Sequence[tuple[str, float]]

    @classmethod
    def parse(cls, values: Iterable[str]) -> AcceptHeader:
        """Parse the values of the header; a quality that is not a number counts as 1."""
        return cls([parse_media_range(item) for value in values for item in value.split(",")])

    def prefer(self, offered: Sequence[str]) -> str | None:
        """Return the preferred media type among those offered, or None if none is acceptable.

        A type that is named explicitly precedes one that only a range such as `*/*` allows; ties go to the first
        offered.
        """
        best = max(offered, key=self._rate)
        return best if self._rate(best)[0] > 0 else None

    def _rate(self, media_type: str) -> tuple[float, int]:
        """Return the quality of the most specific range that covers a media type, and the rank of that range."""
        # In rising order of precedence (RFC 9110, section 12.5.1): the most specific range decides, even if it has the
        # lower weight.
        covering = ("*/*", f"{media_type.partition('/')[0]}/*", media_type)
        found = [(covering.index(name), quality) for name, quality in self.ranges if name in covering]
        specific, quality = max(found, default=(0, 0.0))
        return quality, specific


def parse_media_range(text: str) -> tuple[str, float]:
    """Parse a media range into its name without parameters and its quality."""
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    given = [parameter.removeprefix("q=") for parameter in parameters if parameter.startswith("q=")]
    try:
        quality = float(given[0]) if given else 1.0
    except ValueError:
        quality = 1.0
    return name, min(max(quality, 0.0), 1.0) if math.isfinite(quality) else 1.0


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Last-Event-ID, X-Request-Id, traceparent, tracestate, A2A-Version, A2A-Extensions, "
    "X-A2A-Extensions"
)
EXPOSED_HEADERS: Final = "A2A-Extensions, ETag, Retry-After, WWW-Authenticate, X-A2A-Extensions, X-Request-Id"
MAX_AGE: Final = "600"
"""Seconds for which a browser may cache a preflight response. Chosen: Chromium caps it at two hours; a change of the
settings should take effect sooner."""


class Cors:
    """Answer preflight requests and add CORS headers for the given origins; `*` is any. Never with credentials."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)
        self._any = "*" in self._origins

    def install(self, app: web.Application, paths: Mapping[str, Iterable[str]]) -> None:
        """Add preflight handlers for the paths and their methods, and CORS headers to every response."""
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
        # The answer then depends on the Origin header, also for requests without one: a shared cache must not mix them
        # up.
        if not self._any:
            response.headers.add("Vary", "Origin")
        origin = request.headers.get("Origin")
        if origin is not None and (self._any or origin in self._origins):
            response.headers["Access-Control-Allow-Origin"] = "*" if self._any else origin
            response.headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS
