"""Where the bridge listens."""

from __future__ import annotations

from typing import Final

WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to call a server that listens everywhere


class CannotListen(Exception):
    """The bridge cannot listen where it was told to."""

    def __init__(self, address: str, setting: str) -> None:
        super().__init__(f"cannot listen on {address}: is the port taken? Set {setting} to another")


def join(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(host: str) -> str:
    """Return the address at which a server on this machine is called that listens on `host`."""
    return WILDCARDS.get(host, host)
