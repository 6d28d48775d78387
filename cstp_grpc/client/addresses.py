"""Connect to hosts that callers name, except hosts in private networks."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable
from typing import Any, Final

NAT64_NETWORK: Final = ipaddress.IPv6Network("64:ff9b::/96")
SPECIAL_NETWORKS: Final = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "3fff::/20", "fec0::/10"),
    )
)
"""Networks that are not part of the public internet and that some Python versions do not know: protocol assignments (a
cloud serves its metadata there), 6to4 relays, a cloud's internal address, documentation, and site-local addresses.
"""
MIN_CONNECT_SECONDS: Final = 0.001

ResolveHost = Callable[..., list[tuple[Any, ...]]]
"""Resolves a host as `socket.getaddrinfo` does."""


class AddressNotAllowed(OSError):
    """A host resolves to an address to which connections are not allowed."""


def is_public(address: str) -> bool:
    """Whether an IP address is a public unicast address of the internet."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    # Judged by the address that the packets finally reach: `::ffff:127.0.0.1` is loopback.
    inner = embedded_ipv4(found)
    return is_public(str(inner)) if inner is not None else is_globally_routable(found)


def is_globally_routable(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address that embeds no IPv4 address is public."""
    special = (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or any(address in network for network in SPECIAL_NETWORKS)
    )
    return address.is_global and not special


def embedded_ipv4(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address embeds (mapped, 6to4 or NAT64), or None."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64_NETWORK:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


class PinnedAddressDialer:
    """Connects to hosts whose addresses are all permitted.

    The name is resolved once, and the connection goes to an address that was checked, so a second DNS answer cannot
    differ.
    """

    def __init__(self, permitted: Callable[[str], bool] = is_public, resolve: ResolveHost = socket.getaddrinfo) -> None:
        self._permitted = permitted
        self._resolve = resolve

    def __call__(self, address: tuple[str, int], seconds: float) -> socket.socket:
        """Return a connection within `seconds`, excluding name resolution. Raises AddressNotAllowed and OSError."""
        host, port = address
        # getaddrinfo has no timeout of its own; the resolver's configuration bounds it.
        found = self._resolve(host, port, type=socket.SOCK_STREAM)
        for *_, place in found:
            # All addresses must be permitted, not just the one that is dialled: a name with one internal address is not
            # trusted at all.
            if not self._permitted(place[0]):
                raise AddressNotAllowed(f"{host} is at {place[0]}, where nothing is sent")
        deadline = time.monotonic() + seconds
        problem = OSError(f"{host} has no address")
        for family, kind, protocol, _, place in found:
            try:
                return connect_socket(family, kind, protocol, place, deadline - time.monotonic())
            except OSError as error:
                problem = error
        raise problem


def connect_socket(family: int, kind: int, protocol: int, place: Any, seconds: float) -> socket.socket:
    """Connect a socket to an address. Raises OSError."""
    connection = socket.socket(family, kind, protocol)
    try:
        # Zero would make the socket non-blocking, and a negative value raises ValueError.
        connection.settimeout(max(seconds, MIN_CONNECT_SECONDS))
        connection.connect(place)
    except BaseException:
        connection.close()
        raise
    return connection
