"""The origin of a call: its peer, or the caller that a trusted bridge or proxy names."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import unquote

from cstp_grpc.contract.call_origin import BRIDGE_KEY_METADATA_KEY, FORWARDED_FOR_METADATA_KEY
from cstp_grpc.platform.config.trusted_networks import PORT_SUFFIX, TrustedNetworks, parse_ip
from cstp_grpc.server.interceptors.admission import InboundCall

UNKNOWN_ADDRESS = "unknown"
"""The address of callers for which gRPC reports none."""
IPV6_PREFIX = 64
"""The bits of an IPv6 address that distinguish callers: one customer commonly has a whole /64 (RFC 6177)."""


class CallOrigins:
    """Finds the origin of calls. A bridge with the key is trusted, and so are proxies in trusted networks."""

    def __init__(self, bridge_key: str | None, trusted: TrustedNetworks) -> None:
        self._bridge_key = None if bridge_key is None else bridge_key.encode()
        self._trusted = trusted

    def is_from_bridge(self, call: InboundCall) -> bool:
        """Return whether a call comes from a bridge with the key of this server."""
        sent = call.metadata.get(BRIDGE_KEY_METADATA_KEY)
        if self._bridge_key is None or not isinstance(sent, str) or BRIDGE_KEY_METADATA_KEY in call.repeated_keys:
            return False
        return hmac.compare_digest(sent.encode(), self._bridge_key)

    def find_address(self, call: InboundCall) -> str:
        """Return the address for which wrong tokens of a call count; for IPv6 its /64."""
        peer = parse_peer(call.context.peer())
        sent = call.metadata.get(FORWARDED_FOR_METADATA_KEY)
        # Of a repeated header, only the last value is here, which the nearest proxy has added.
        forwarded = sent.split(",") if isinstance(sent, str) else []
        if self.is_from_bridge(call):
            # The bridge has chosen the caller's address by its own settings.
            found = parse_ip(forwarded[-1].strip()) if forwarded else None
            client = str(found) if found is not None else peer
        else:
            client = self._trusted.find_client(peer, forwarded)
        return group_address(client)


def parse_peer(peer: str) -> str:
    """Return the address in gRPC's name of a peer: `ipv4:192.0.2.1:4711`, `ipv6:%5B2001:db8::1%5D:4711`."""
    kind, _, place = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return UNKNOWN_ADDRESS
    found = parse_ip(PORT_SUFFIX.sub("", unquote(place)).strip("[]"))
    return UNKNOWN_ADDRESS if found is None else str(found)


def group_address(address: str) -> str:
    """Return the group of an address: itself, or the /64 of an IPv6 address."""
    found = parse_ip(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, IPV6_PREFIX), strict=False))
    return address
