"""The delivery of queued notifications to webhooks, with retries, and the allow list of their URLs.

URLs are parsed and compared part by part, never as text.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, Generic, Protocol, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.core.audit.model import AuditEntry, AuditSink
from cstp_grpc.platform.storage.delivery import DeliveryAttempt
from cstp_grpc.platform.storage.delivery_queue import DeliveryFailed, DeliveryRejected, QueuedItem, SqlDeliveryQueue
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

logger = logging.getLogger(__name__)

MAX_LENGTH: Final = 2048
"""Maximum characters of a URL. Chosen: the limit of common servers and proxies."""
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
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def begins_with(self, prefix: WebhookUrl) -> bool:
        """Return True if it equals another URL or is below it."""
        if (self.scheme, self.host, self.port) != (prefix.scheme, prefix.host, prefix.port):
            return False
        folder = prefix.segments[:-1] if prefix.segments[-1] == "" else prefix.segments
        # `/a/` allows `/a/` and paths below it, but not `/a`.
        return self.segments[: len(folder)] == folder and len(self.segments) >= len(prefix.segments)


class UrlAllowList:
    """The URLs that notifications may be sent to: those below one of the given prefixes."""

    def __init__(self, prefixes: Iterable[WebhookUrl]) -> None:
        self._prefixes = tuple(prefixes)

    def address(self, url: str) -> WebhookUrl | None:
        address = parse_webhook_url(url)
        return address if address is not None and self.includes(address) else None

    def includes(self, address: WebhookUrl) -> bool:
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


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """One POST; its URL, headers and body may contain secrets.

    `body` renders the document outside any transaction, since a large one takes time. It raises DeliveryRejected.
    """

    address: WebhookUrl = field(repr=False)
    body: Callable[[], bytes] = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers in addition to the usual ones; names in lower case."""


class WebhookClient(Protocol):
    """Posts notifications."""

    def post(self, request: WebhookRequest) -> None:
        """Post a JSON document and return once it was accepted, within bounded time.

        Raises DeliveryFailed and DeliveryRejected.
        """


class PendingNotification(QueuedItem, Protocol):
    """A queued notification."""

    @property
    def id(self) -> str:
        """The id, which is the same in every attempt."""

    @property
    def agent(self) -> str:
        """The agent that it is for."""


NotificationT = TypeVar("NotificationT", bound=PendingNotification)
BuiltT = TypeVar("BuiltT", bound=PendingNotification, contravariant=True)


class NotificationBuilder(Protocol[BuiltT]):
    """Builds the requests and audit entries of notifications of one kind."""

    def build_request(self, unit_of_work: UnitOfWork, item: BuiltT) -> WebhookRequest | None:
        """Return the request for a notification with its current content.

        None if nothing is sent now, which was stored: the notification was withdrawn or postponed. Raises
        DeliveryRejected.
        """

    def audit_entry(self, item: BuiltT, at: datetime, error: str | None) -> AuditEntry:
        """Return the audit entry for a notification that was delivered, or abandoned with an error."""

    def recipient_of(self, item: BuiltT) -> str:
        """Return the recipient whose threads send a notification; the number of recipients must be bounded."""


class WebhookDelivery(Generic[NotificationT]):
    """Delivers queued notifications of any kind to webhooks, for a `DeliveryDispatcher`.

    Nothing is sent for an agent that `is_known_agent` rejects.
    """

    def __init__(
        self,
        queue: SqlDeliveryQueue[NotificationT],
        builder: NotificationBuilder[NotificationT],
        client: WebhookClient,
        audit: AuditSink,
        clock: Callable[[], datetime],
        is_known_agent: Callable[[str], bool],
    ) -> None:
        self._queue = queue
        self._builder = builder
        self._client = client
        self._audit = audit
        self._clock = clock
        self._is_known_agent = is_known_agent

    def prepare(self, unit_of_work: UnitOfWork, item: NotificationT) -> DeliveryAttempt | None:
        """Return the delivery attempt of a notification; None if nothing is sent now, which was recorded.

        Raises DeliveryRejected.
        """
        if not self._is_known_agent(item.agent):
            raise DeliveryRejected("the agent is not known any more")
        request = self._builder.build_request(unit_of_work, item)
        # The transaction ends before the attempt runs: sending may take seconds, and the writer has one transaction.
        return None if request is None else lambda: self._send(item, request)

    def record_failure(self, unit_of_work: UnitOfWork, item: NotificationT, reason: str) -> None:
        # str(item) contains no URL, which may be a secret.
        logger.warning("%s is given up: %s", item, reason)
        self._settle(unit_of_work, item, Unavailable.reason)

    def recipient_of(self, item: NotificationT) -> str:
        return self._builder.recipient_of(item)

    def _send(self, item: NotificationT, request: WebhookRequest) -> Callable[[UnitOfWork], None]:
        try:
            self._client.post(request)
        except DeliveryFailed as error:
            logger.info("%s did not arrive: %s", item, error)
            raise
        return lambda unit_of_work: self._settle(unit_of_work, item, None)

    def _settle(self, unit_of_work: UnitOfWork, item: NotificationT, error: str | None) -> None:
        """Remove a notification and audit its delivery or failure, unless that was done already."""
        # It is gone if its lease expired during the attempt and another server delivered it too: one audit entry.
        if self._queue.remove(unit_of_work, item):
            self._audit.append(unit_of_work, self._builder.audit_entry(item, self._clock(), error))
