"""Connecting to hosts that others name, and to none within the own network."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable
from typing import Any, Final

NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
OTHERS: Final = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "3fff::/20", "fec0::/10"),
    )
)
"""Networks that are not of the internet, which not every version of Python knows: those of protocols (a cloud has its
metadata there), of relays for 6to4, another cloud's address for its own machines, of documentation, and of sites."""
LEAST_SECONDS: Final = 0.001

Resolve = Callable[..., list[tuple[Any, ...]]]
"""Finds the addresses of a host as `socket.getaddrinfo` does."""


class AddressRefused(OSError):
    """A host has an address that nobody is let connect to."""


def is_public(address: str) -> bool:
    """Whether an IP address is one of the internet, where it is no network's own, and not for many."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    inner = embedded(found)
    return is_public(str(inner)) if inner is not None else is_plainly_public(found)


def is_plainly_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address in which no other is embedded is one of the internet."""
    special = (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or any(address in network for network in OTHERS)
    )
    return address.is_global and not special


def embedded(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 one leads to, by mapping, 6to4 or NAT64; None where it leads to none."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


class Dialler:
    """Connects to hosts all of whose addresses are permitted.

    The name is resolved once, and what is connected to is what was judged.
    """

    def __init__(self, permitted: Callable[[str], bool] = is_public, resolve: Resolve = socket.getaddrinfo) -> None:
        self._permitted = permitted
        self._resolve = resolve

    def __call__(self, address: tuple[str, int], seconds: float) -> socket.socket:
        """Return a connection within `seconds`, not counting the resolving. Raises AddressRefused, OSError."""
        host, port = address
        found = self._resolve(host, port, type=socket.SOCK_STREAM)
        for *_, place in found:
            if not self._permitted(place[0]):
                raise AddressRefused(f"{host} is at {place[0]}, where nothing is sent")
        deadline = time.monotonic() + seconds
        problem = OSError(f"{host} has no address")
        for family, kind, protocol, _, place in found:
            try:
                return opened(family, kind, protocol, place, deadline - time.monotonic())
            except OSError as error:
                problem = error
        raise problem


def opened(family: int, kind: int, protocol: int, place: Any, seconds: float) -> socket.socket:
    """Return a connection to an address. Raises OSError."""
    connection = socket.socket(family, kind, protocol)
    try:
        connection.settimeout(max(seconds, LEAST_SECONDS))
        connection.connect(place)
    except BaseException:
        connection.close()
        raise
    return connection
