"""Addresses that agents are notified at: parsed and compared part by part, never as text."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

MAX_LENGTH: Final = 2048
PLAIN: Final = re.compile(r"[A-Za-z0-9._~:/?\[\]!$&'()*+,;=%-]+")
"""What a URL may consist of, save for what begins a fragment and what ends a user's name."""
HOST: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""The last part of hosts that systems take for IPv4 addresses, in notations that are not always the same."""
PORT: Final = re.compile(r"[0-9]{1,5}")
ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
MISREAD: Final = re.compile(r"[\x00-\x20\x7f/\\%]")
"""What a segment may not hold once it is decoded, since those that receive it may read it in another way."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to send something by HTTP; `host` is in lower case, without brackets.

    `segments` are those of the path, decoded; the last is empty where the path ends with a slash. `target` is the path
    as it was written, with the query.
    """

    scheme: str
    host: str
    port: int
    segments: tuple[str, ...]
    target: str

    @property
    def origin(self) -> str:
        """The address without what may be a secret: `https://host:443`."""
        return f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """The host and the port, as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def begins_with(self, prefix: Address) -> bool:
        """Whether it is the same as another address, or below it."""
        if (self.scheme, self.host, self.port) != (prefix.scheme, prefix.host, prefix.port):
            return False
        folder = prefix.segments[:-1] if prefix.segments[-1] == "" else prefix.segments
        # What stands below `/a/` is not `/a`.
        return self.segments[: len(folder)] == folder and len(self.segments) >= len(prefix.segments)


class AllowList:
    """The addresses that notifications are sent to: those that begin with one of some prefixes."""

    def __init__(self, prefixes: Iterable[Address]) -> None:
        self._prefixes = tuple(prefixes)

    def address(self, url: str) -> Address | None:
        """Return the address at a URL; None where nothing is sent to it, whatever is wrong with it."""
        found = address_of(url)
        return found if found is not None and self.includes(found) else None

    def includes(self, address: Address) -> bool:
        """Whether an address begins with one of the prefixes."""
        return any(address.begins_with(prefix) for prefix in self._prefixes)


def address_of(url: str) -> Address | None:
    """Return the address that a URL names; None where there could be two opinions on it."""
    if len(url) > MAX_LENGTH or not PLAIN.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    host, port, segments = host_of(parts.netloc), port_of(parts), segments_of(parts.path)
    if parts.scheme not in DEFAULT_PORTS or host is None or port is None or segments is None:
        return None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address(parts.scheme, host, port, segments, target)


def host_of(netloc: str) -> str | None:
    """Return the host in `host:port`; None where it is none."""
    if netloc.startswith("["):
        inside, closed, rest = netloc[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")) or "%" in inside:
            return None
        try:
            return str(ipaddress.IPv6Address(inside))
        except ValueError:
            return None
    host = netloc.partition(":")[0].lower()
    if not HOST.fullmatch(host) or (NUMBER.fullmatch(host.rpartition(".")[2]) and not is_ip_address(host)):
        return None
    return host


def is_ip_address(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def port_of(parts: SplitResult) -> int | None:
    """Return the port of a URL, also where it is that of the scheme; None where it is none."""
    _, colon, text = parts.netloc.rpartition("]")[2].partition(":")
    if not colon:
        return DEFAULT_PORTS.get(parts.scheme)
    if not PORT.fullmatch(text) or not 0 < int(text) < 65536:
        return None
    return int(text)


def segments_of(path: str) -> tuple[str, ...] | None:
    """Return the decoded segments of a path; None where somebody might take one for another, or for a way up."""
    segments = []
    written = (path or "/").split("/")[1:]
    for number, text in enumerate(written, 1):
        segment = decoded(text)
        if segment is None or (segment == "" and number < len(written)):
            return None
        segments.append(segment)
    return tuple(segments)


def decoded(text: str) -> str | None:
    """Return a segment without percent signs; None where it is not plainly one."""
    if "%" in ENCODED.sub("", text):
        return None
    try:
        segment = unquote(text, errors="strict")
    except UnicodeDecodeError:
        return None
    # Some servers drop what comes after a semicolon.
    is_way = segment.partition(";")[0] in {".", ".."}
    return None if is_way or MISREAD.search(segment) else segment
