"""Targets of calls: the addresses of servers, and data folders that are used in this process without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from cstp_grpc.contract.errors import InvalidArgument

TRANSPORTS: Final = "cstp_grpc.transports"
"""The group of entry points with the transports that the client does not import."""
FOLDER_SCHEME: Final = "local:"
"""The beginning of a target that is a folder; its path follows."""
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Maximum size of a response. Chosen: 16 times gRPC's default, which long listings exceed."""


def is_folder_target(target: str) -> bool:
    """Return whether a target names a data folder; a number after `local:` is the port of a host with that name."""
    return target.startswith(FOLDER_SCHEME) and not target.removeprefix(FOLDER_SCHEME).isdigit()


def folder_of_target(target: str) -> Path | None:
    """Return the folder that a target names; None for `local:` alone, which means the configured one."""
    path = target.removeprefix(FOLDER_SCHEME)
    return Path(path).expanduser() if path else None


def load_folder_transport(kind: str) -> Any:
    """Return the function that opens a transport for a data folder: an entry point of the group `cstp_grpc.transports`.

    `kind` is `local` or `local-async`. The client does not import the server, which such a transport runs in this
    process. Raises MissingExtra.
    """
    # Imported here: it takes as long as a small command.
    from importlib.metadata import distribution

    from cstp_grpc.common.extras import DISTRIBUTION, require_extra

    require_extra("local")
    return distribution(DISTRIBUTION).entry_points.select(group=TRANSPORTS, name=kind)[kind].load()


def check_identity(target: str, token: str | None, agent: str | None) -> None:
    """Raise InvalidArgument for a token where no server checks it, and for an agent where the token says who calls."""
    if is_folder_target(target):
        if token is not None:
            raise InvalidArgument.field("token", "is for a server; a data folder is used under the name of an agent")
    elif agent is not None:
        raise InvalidArgument.field("agent", "is for a data folder (local:PATH); to a server the token says who calls")


def require_tls(scheme: str, client_certificate: Path | None) -> None:
    """Raise InvalidArgument for a certificate where no TLS would show it."""
    if client_certificate is not None and scheme not in {"grpcs", "https"}:
        raise InvalidArgument.field("client_certificate", "is for servers that speak TLS: grpcs:// and https://")


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


def grpc_address(target: str) -> str:
    """Return `host:port` of a gRPC target. Raises InvalidArgument."""
    url, port = parse_target(target if "://" in target else f"grpc://{target}")
    if not url.hostname or port is None or url.path.strip("/") or url.query or url.fragment:
        raise InvalidArgument.field("target", f"{target!r} is not of the form grpc://HOST:PORT")
    return f"[{url.hostname}]:{port}" if ":" in url.hostname else f"{url.hostname}:{port}"


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
