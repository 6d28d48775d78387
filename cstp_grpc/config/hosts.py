"""Listen addresses, and how to dial them from this machine."""

from __future__ import annotations

import ipaddress

DIAL_HOST_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the host to dial for a server that listens on all addresses


def is_loopback(host: str) -> bool:
    """Return whether a server on this address is reachable from this machine only."""
    # Not resolved: what a name leads to may change after the check.
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def dial_host(host: str) -> str:
    """Return the host to dial on this machine for a server that listens on `host`."""
    return DIAL_HOST_OF_WILDCARD.get(host, host)


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
