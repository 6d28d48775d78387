"""Which addresses may be notified of changes of tasks."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final

from cstp_grpc.webhooks.addresses import Address, AllowList, address_of, is_ip_address

LOCAL_NAMES: Final = ("localhost", ".localhost")


class PushAddresses:
    """The addresses that push notifications are sent to.

    Those on `allowed` may be anywhere. Any other must be `https` at an IP address that `is_public`; where `loopback` is
    set, also this machine, over `http` too.
    """

    def __init__(self, allowed: AllowList, is_public: Callable[[str], bool], *, loopback: bool) -> None:
        self._allowed = allowed
        self._is_public = is_public
        self._loopback = loopback

    def address(self, url: str) -> Address | None:
        """Return the address at a URL; None if nothing is ever sent to it, as far as it says so itself."""
        address = address_of(url)
        if address is None or self._allowed.includes(address):
            return address
        host = address.host
        if is_ip_address(host):
            return address if self.permits(address, host) else None
        if host == LOCAL_NAMES[0] or host.endswith(LOCAL_NAMES[1]):
            return address if self._loopback else None
        return address if address.scheme == "https" or self._loopback else None

    def permits(self, address: Address, ip: str) -> bool:
        """Whether an address may be connected to at an IP address of its host."""
        if self._allowed.includes(address):
            return True
        if self._loopback and is_loopback(ip):
            return True
        return address.scheme == "https" and self._is_public(ip)


def is_loopback(ip: str) -> bool:
    """Whether an IP address is one of this machine for itself."""
    return ipaddress.ip_address(ip).is_loopback
