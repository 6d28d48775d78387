"""Targets of calls: their schemes and parts, the header with the token, and the limit of responses."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from cstp_grpc.contract.errors import InvalidArgument

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Maximum size of a response. Chosen: 16 times gRPC's default, which long listings exceed."""


def bearer_header(token: str | None) -> list[tuple[str, str]]:
    """Return the header with a bearer token, if there is one. Raises InvalidArgument if it cannot be sent."""
    if token is None:
        return []
    if not token or not all("!" <= character <= "~" for character in token):
        raise InvalidArgument.field("token", "must be visible ASCII characters without spaces")
    return [("authorization", f"Bearer {token}")]


def target_scheme(target: str) -> str:
    """Return `grpc`, `grpcs`, `http` or `https`; a bare `host:port` is gRPC. Raises InvalidArgument."""
    scheme = target.partition("://")[0].lower() if "://" in target else "grpc"
    if scheme not in {"grpc", "grpcs", "http", "https"}:
        # Security: the target is not shown, since it may contain a password.
        raise InvalidArgument.field("target", "must begin with grpc://, grpcs://, http:// or https://")
    return scheme


def parse_target(target: str) -> tuple[SplitResult, int | None]:
    """Parse a target as a URL and return it with its port, if any. Raises InvalidArgument."""
    try:
        url = urlsplit(target)
        port = url.port
    except ValueError as error:
        # Security: the target is not shown, since it may contain a password.
        raise InvalidArgument.field("target", "has no usable host or port") from error
    if "@" in url.netloc:
        raise InvalidArgument.field("target", "must not name a user: a token says who calls")
    return url, port
