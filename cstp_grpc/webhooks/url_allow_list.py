"""Webhook URLs, parsed and compared part by part, never as text, and the allow list of prefixes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

MAX_LENGTH: Final = 2048
"""Maximum characters of a URL. Chosen: what common servers and proxies accept."""
URL_CHARACTERS: Final = re.compile(r"[A-Za-z0-9._~:/?\[\]!$&'()*+,;=%-]+")
"""The characters of RFC 3986, section 2, without `#` and `@`: fragments are not sent, user names disguise the host."""
HOST: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
NUMERIC_LABEL: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""The last label of hosts that inet_aton(3) takes for IPv4 addresses, such as 127.1, 0x7f.1 and 2130706433."""
PORT: Final = re.compile(r"[0-9]{1,5}")
ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
AMBIGUOUS_CHARACTERS: Final = re.compile(r"[\x00-\x20\x7f/\\%]")
"""Characters that no decoded segment may contain, because a proxy or receiver may decode or split the path again."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class WebhookUrl:
    """A URL of a webhook; `host` is in lower case, without brackets.

    `segments` are those of the path, decoded; the last is empty if the path ends with a slash. `target` is the path as
    written, with the query.
    """

    scheme: str
    host: str
    port: int
    segments: tuple[str, ...]
    target: str

    @property
    def origin(self) -> str:
        """The URL without path and query, which may be secret: `https://host:443`."""
        return f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """The host and the port, as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def begins_with(self, prefix: WebhookUrl) -> bool:
        """Return True if it equals another URL or is below it."""
        if (self.scheme, self.host, self.port) != (prefix.scheme, prefix.host, prefix.port):
            return False
        folder = prefix.segments[:-1] if prefix.segments[-1] == "" else prefix.segments
        # `/a/` allows `/a/` and what is below it, but not `/a`.
        return self.segments[: len(folder)] == folder and len(self.segments) >= len(prefix.segments)


class UrlAllowList:
    """The URLs that notifications may be sent to: those below one of the given prefixes."""

    def __init__(self, prefixes: Iterable[WebhookUrl]) -> None:
        self._prefixes = tuple(prefixes)

    def address(self, url: str) -> WebhookUrl | None:
        """Parse a URL; return None if it is invalid or not allowed."""
        address = parse_webhook_url(url)
        return address if address is not None and self.includes(address) else None

    def includes(self, address: WebhookUrl) -> bool:
        """Return True if a URL begins with one of the prefixes."""
        return any(address.begins_with(prefix) for prefix in self._prefixes)


def parse_webhook_url(url: str) -> WebhookUrl | None:
    """Parse a URL; return None if it is invalid or parsers could disagree on it."""
    if len(url) > MAX_LENGTH or not URL_CHARACTERS.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    host, port, segments = parse_host(parts.netloc), parse_port(parts), parse_path_segments(parts.path)
    if parts.scheme not in DEFAULT_PORTS or host is None or port is None or segments is None:
        return None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookUrl(parts.scheme, host, port, segments, target)


def parse_host(netloc: str) -> str | None:
    """Return the host in `host:port`; None if it is invalid."""
    if netloc.startswith("["):
        inside, closed, rest = netloc[1:].partition("]")
        # A percent sign begins a zone (RFC 4007), which names an interface of one machine.
        if not closed or (rest and not rest.startswith(":")) or "%" in inside:
            return None
        try:
            # In its canonical form (RFC 5952), so that two notations of one address compare equal.
            return str(ipaddress.IPv6Address(inside))
        except ValueError:
            return None
    host = netloc.partition(":")[0].lower()
    if not HOST.fullmatch(host) or (NUMERIC_LABEL.fullmatch(host.rpartition(".")[2]) and not is_ip_address(host)):
        return None
    return host


def is_ip_address(host: str) -> bool:
    """Return True if a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parse_port(parts: SplitResult) -> int | None:
    """Return the port of a URL, by default that of its scheme; None if it is invalid."""
    # After the bracket, since an IPv6 address has colons of its own.
    _, colon, text = parts.netloc.rpartition("]")[2].partition(":")
    if not colon:
        return DEFAULT_PORTS.get(parts.scheme)
    if not PORT.fullmatch(text) or not 0 < int(text) < 65536:
        return None
    return int(text)


def parse_path_segments(path: str) -> tuple[str, ...] | None:
    """Return the decoded segments of a path; None if one is ambiguous or leads upwards."""
    segments = []
    encoded = (path or "/").split("/")[1:]
    for number, text in enumerate(encoded, 1):
        segment = decode_segment(text)
        # An empty segment, as in `a//b`, is kept by some servers and dropped by others.
        if segment is None or (segment == "" and number < len(encoded)):
            return None
        segments.append(segment)
    return tuple(segments)


def decode_segment(text: str) -> str | None:
    """Return a percent-decoded segment; None if it is ambiguous."""
    # A percent sign without two hex digits: decoders disagree on it.
    if "%" in ENCODED.sub("", text):
        return None
    try:
        segment = unquote(text, errors="strict")
    except UnicodeDecodeError:
        return None
    # Some servers drop path parameters, after a semicolon, before they resolve dot segments.
    is_dot_segment = segment.partition(";")[0] in {".", ".."}
    return None if is_dot_segment or AMBIGUOUS_CHARACTERS.search(segment) else segment
