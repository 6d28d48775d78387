"""Addresses that servers listen on, and how they are called from this machine."""

from __future__ import annotations

import ipaddress

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to call a server that listens everywhere


def is_loopback(host: str) -> bool:
    """Whether a server on this address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reachable(host: str) -> str:
    """Return the address at which a server on this machine is called that listens on `host`."""
    return WILDCARDS.get(host, host)


def join(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
