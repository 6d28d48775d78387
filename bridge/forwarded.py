"""By which address others reach the bridge."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from cstp_grpc.config import ConfigError, ServerSettings

HOST: Final = re.compile(
    r"(?:[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9_])?\.?|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?"
)
SCHEMES: Final = frozenset({"http", "https"})
PORT: Final = re.compile(r":\d+$")


class PublicAddress:
    """Tells the bridge's own address: the configured one, else the one that the caller used.

    What `Forwarded` and `X-Forwarded-*` headers say is believed of trusted proxies only. Raises ConfigError for
    settings that are no addresses.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._configured = checked_url(settings.public_url) if settings.public_url else None
        self._trusted = []
        for text in settings.trusted_proxies:
            try:
                self._trusted.append(ipaddress.ip_network(text, strict=False))
            except ValueError as error:
                raise ConfigError(f"server.trusted_proxies: {text} is neither an address nor a network") from error

    @property
    def is_configured(self) -> bool:
        """Whether the address is the same for all callers, whatever their requests say."""
        return self._configured is not None

    def of(self, request: web.Request) -> str:
        """Return the address as `https://agent.example.com`. Raises HTTPBadRequest where the request has none."""
        if self._configured is not None:
            return self._configured
        scheme, host = request.scheme, request.headers.get("Host", "")
        if self._trusts(request.remote):
            said = self._said_by_proxies(request)
            scheme, host = said.get("proto", scheme).lower(), said.get("host", host)
        if scheme not in SCHEMES or not HOST.fullmatch(host):
            raise web.HTTPBadRequest(text="The request does not name the host that it is for.\n")
        return f"{scheme}://{host}"

    def _said_by_proxies(self, request: web.Request) -> Mapping[str, str]:
        """Return `proto` and `host` as the outermost trusted proxy saw them."""
        said = {}
        for key, name in (("proto", "X-Forwarded-Proto"), ("host", "X-Forwarded-Host")):
            # The last value is the one that our own proxy added; those before it may be the caller's inventions.
            if values := ",".join(request.headers.getall(name, [])):
                said[key] = values.rpartition(",")[2].strip()
        for element in reversed(request.forwarded):
            said |= {key: element[key] for key in ("proto", "host") if key in element}
            if not self._trusts(node_address(element.get("for", ""))):
                break
        return said

    def _trusts(self, address: str | None) -> bool:
        """Whether an address is that of a trusted proxy."""
        if not address or not self._trusted:
            return False
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._trusted)


def node_address(node: str) -> str:
    """Return the address in the `for` of a Forwarded element: `[2001:db8::1]:4711`, `192.0.2.1:80`, `192.0.2.1`."""
    if node.startswith("["):
        return node[1:].partition("]")[0]
    return PORT.sub("", node)


def checked_url(url: str) -> str:
    """Return a configured address without a slash at its end. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"server.public_url: {url} must begin with http:// or https:// and name a host")
    return url.rstrip("/")
