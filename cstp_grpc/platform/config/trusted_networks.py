"""Networks of proxies that are believed, and the address of a caller behind them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import ConfigError

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
WIDEST_PUBLIC_PREFIX: Final = {4: 8, 6: 16}
"""The shortest prefixes of public networks, by IP version. Chosen: registries give an organisation no wider ones."""
PORT_SUFFIX = re.compile(r":\d+$")


def parse_ip(text: str) -> IpAddress | None:
    try:
        parsed = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return parsed.ipv4_mapped or parsed if isinstance(parsed, ipaddress.IPv6Address) else parsed


def parse_forwarded_node(node: str) -> str:
    """Return the address in the `for` of a Forwarded element: `[2001:db8::1]:4711`, `192.0.2.1:80`, `192.0.2.1`."""
    if node.startswith("["):
        return node[1:].partition("]")[0]
    return PORT_SUFFIX.sub("", node) if node.count(":") == 1 else node


@dataclass(frozen=True, slots=True)
class TrustedNetworks:
    """The networks of proxies that are trusted to name the client of a call."""

    networks: tuple[IpNetwork, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str], setting: str) -> TrustedNetworks:
        """Parse addresses and networks; `setting` names them in the error.

        Raises ConfigError, also for networks that together hold much of the internet.
        """
        networks = []
        for text in texts:
            try:
                networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError as error:
                raise ConfigError(f"{setting}: {text} is neither an address nor a network") from error
        if (wide := find_wide_network(networks)) is not None:
            raise ConfigError(
                f"{setting}: {wide} would believe anyone on the internet; write the addresses of the proxies, or their "
                "network, such as 10.0.0.0/8"
            )
        return cls(tuple(networks))

    def contains(self, address: str | None) -> bool:
        """Return whether an address belongs to a trusted proxy."""
        if not address or not self.networks:
            return False
        parsed = parse_ip(address)
        return parsed is not None and any(parsed in network for network in self.networks)

    def find_client(self, peer: str, forwarded_for: Sequence[str]) -> str:
        """Return the address of the outermost caller that trusted proxies vouch for; `peer` is who connected.

        `forwarded_for` are the addresses that proxies have added, the nearest one last.
        """
        client = peer
        for node in reversed(forwarded_for):
            # Security: whoever is not trusted may have made up everything before its own address.
            if not self.contains(client):
                break
            address = parse_ip(parse_forwarded_node(node.strip()))
            if address is None:
                break
            client = str(address)
        return client


def find_wide_network(networks: Iterable[IpNetwork]) -> IpNetwork | None:
    """Return the first network, joined with adjacent ones, that contains too many public addresses, or None."""
    listed = list(networks)
    joined: list[IpNetwork] = [
        *ipaddress.collapse_addresses(each for each in listed if isinstance(each, ipaddress.IPv4Network)),
        *ipaddress.collapse_addresses(each for each in listed if isinstance(each, ipaddress.IPv6Network)),
    ]
    # A private network may be as wide as there is one: fc00::/7.
    too_wide = (each for each in joined if each.prefixlen < WIDEST_PUBLIC_PREFIX[each.version] and not each.is_private)
    return next(too_wide, None)
