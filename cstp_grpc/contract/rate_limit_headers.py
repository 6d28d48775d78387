"""The state of a caller's rate limit: metadata of gRPC and headers of HTTP under the same names.

Names and values are those of draft-ietf-httpapi-ratelimit-headers-06, which most clients that read such headers know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

LIMIT_KEY: Final = "ratelimit-limit"
REMAINING_KEY: Final = "ratelimit-remaining"
RESET_KEY: Final = "ratelimit-reset"
POLICY_KEY: Final = "ratelimit-policy"
HEADER_NAMES: Final = {
    LIMIT_KEY: "RateLimit-Limit",
    REMAINING_KEY: "RateLimit-Remaining",
    RESET_KEY: "RateLimit-Reset",
    POLICY_KEY: "RateLimit-Policy",
}
"""The headers by the key of metadata that has their value."""


def rate_limit_headers(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """Return the headers for a call that was answered with such metadata; empty without limits."""
    return {HEADER_NAMES[key]: value for key, value in metadata if key in HEADER_NAMES and isinstance(value, str)}


def scarcest_headers(answers: Iterable[Mapping[str, str]]) -> Mapping[str, str]:
    """Return the headers with the fewest remaining calls among those of several calls; empty without headers."""
    name = HEADER_NAMES[REMAINING_KEY]
    return min((headers for headers in answers if name in headers), key=lambda headers: int(headers[name]), default={})
