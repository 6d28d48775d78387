"""Requests to the bridge: ids, forwarded metadata, origins, size limits of bodies, public URLs, and access checks."""

from __future__ import annotations

import asyncio
import base64
import random
import re
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

import grpc
from aiohttp import hdrs, web

from bridge.call_errors import DETAIL, ErrorWithOwnCodes
from bridge.upstream import Forwarder, Metadata
from cstp_grpc.contract import call_origin
from cstp_grpc.contract.call_scope import HOP_METADATA_KEY, MAX_HOP_METADATA_CHARACTERS
from cstp_grpc.contract.errors import CstpError, InvalidJsonRpcRequest, drop_tracebacks
from cstp_grpc.contract.rpc_errors import REASON_CODES, REQUEST_ID_KEY
from cstp_grpc.platform.config import ConfigError, ServerSettings, Settings
from cstp_grpc.platform.config.trusted_networks import PORT_SUFFIX, TrustedNetworks, parse_forwarded_node

ACCESS_METHOD: Final = "cstp.getAccess"
LARGE_REQUEST_BYTES: Final = 65_536
"""Size above which a request is read only for callers that the server knows. Chosen: reading a larger one takes
milliseconds of the event loop, which are not spent on strangers."""


class AccessCheck:
    """Hides errors and card details of the bridge from callers that the gRPC server does not know."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    async def visible_failure(self, failure: CstpError, metadata: Metadata) -> CstpError:
        """Return the failure to answer with: the server's own if it refuses the caller altogether."""
        drop_tracebacks(failure)
        # An error of the server itself: it has authenticated the caller already.
        if isinstance(failure.__cause__, grpc.aio.AioRpcError):
            return failure
        try:
            await self.fetch_access(metadata)
        except CstpError as refused:
            return refused
        return failure

    async def fetch_access(self, metadata: Metadata) -> dict[str, Any]:
        """Return the server's description of a caller. Raises CstpError, also for an unknown caller."""
        return await self._forwarder.call(ACCESS_METHOD, {}, metadata)


FORWARDED_FOR_HEADER: Final = "X-Forwarded-For"
UNKNOWN_ADDRESS: Final = "unknown"
"""The value for an unknown address, such as that of a caller that has already disconnected (RFC 7239)."""
MAX_CERTIFICATE_CHARACTERS: Final = 5500
"""The longest certificate that is passed on, encoded: 4 KiB, of the 8 KiB of metadata that gRPC takes by default."""


class CallOriginReporter:
    """Returns the metadata with a caller's address, as reported by trusted proxies, for the server.

    It is sent with the bridge's key; without a key the server trusts only the networks in its own settings. Raises
    ConfigError.
    """

    def __init__(self, settings: Settings, key: str | None) -> None:
        self._trusted = TrustedNetworks.parse(settings.server.trusted_proxies, "server.trusted_proxies")
        tls = settings.server.tls
        # Without the key the server would not look at it.
        self._passes_certificates = key is not None and tls is not None and tls.client_ca is not None
        self._key = [] if key is None else [(call_origin.BRIDGE_KEY_METADATA_KEY, key)]

    def metadata_of_request(self, request: web.Request) -> Sequence[tuple[str, str]]:
        shown = self._certificate_of_request(request)
        if not self._trusted.contains(request.remote):
            return [*self._metadata(request.remote or ""), *shown]
        sent = ",".join(request.headers.getall(FORWARDED_FOR_HEADER, []))
        forwarded = (
            sent.split(",") if sent else [parse_forwarded_node(each.get("for", "")) for each in request.forwarded]
        )
        return [*self._metadata(self._trusted.find_client(request.remote or "", forwarded)), *shown]

    def metadata_of_call(self, peer: str, forwarded: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Return the metadata of a gRPC call; `forwarded` are the values of its header of that name."""
        place = peer.partition(":")[2] if peer.startswith(("ipv4:", "ipv6:")) else ""
        address = PORT_SUFFIX.sub("", unquote(place)).strip("[]")
        nodes = ",".join(forwarded).split(",") if forwarded else []
        return self._metadata(self._trusted.find_client(address, nodes))

    def certificate_of_call(self, context: grpc.aio.ServicerContext[Any, Any]) -> Sequence[tuple[str, str]]:
        """Return the metadata of the certificate that the caller of a gRPC call showed, if it sends no token."""
        if not self._passes_certificates:
            return ()
        shown = next(iter(context.auth_context().get("x509_pem_cert", ())), None)
        return () if shown is None else self._certificate(ssl.PEM_cert_to_DER_cert(shown.decode("ascii")))

    def _certificate_of_request(self, request: web.Request) -> Sequence[tuple[str, str]]:
        # With a token it would not be looked at.
        if not self._passes_certificates or hdrs.AUTHORIZATION in request.headers or request.transport is None:
            return ()
        connection: ssl.SSLObject | None = request.transport.get_extra_info("ssl_object")
        shown = None if connection is None else connection.getpeercert(binary_form=True)
        return () if shown is None else self._certificate(shown)

    def _certificate(self, shown: bytes) -> Sequence[tuple[str, str]]:
        # A longer one, with much else in the metadata, is beyond what gRPC takes: the call is then one without it.
        encoded = base64.urlsafe_b64encode(shown).decode()
        return [(call_origin.CERTIFICATE_METADATA_KEY, encoded)] if len(encoded) <= MAX_CERTIFICATE_CHARACTERS else ()

    def _metadata(self, address: str) -> Sequence[tuple[str, str]]:
        # Security: never without an address, by which the server sees that the bridge's own certificate is not that of
        # the caller.
        return [*self._key, (call_origin.FORWARDED_FOR_METADATA_KEY, address or UNKNOWN_ADDRESS)]


CALL_ORIGINS: Final = web.AppKey("call_origins", CallOriginReporter)
"""Where an application has its reporter."""


REQUEST_ID_HEADER: Final = "X-Request-Id"
REQUEST_ID_FORM: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")

UNREADABLE_VALUE: Final = "unreadable"
AUTHORIZATION: Final = "authorization"
FORWARDED_HEADERS: Final = {
    AUTHORIZATION: 4096,
    "traceparent": 128,
    "tracestate": 1024,
    HOP_METADATA_KEY: MAX_HOP_METADATA_CHARACTERS,
}
"""Headers forwarded to the server as metadata, each with its maximum length. Chosen: together they stay within the 8
KiB of metadata that gRPC accepts by default."""
PRINTABLE: Final = re.compile(r"[ -~]+")

APPLICATION_JSON: Final = "application/json"


def read_request_id(request: web.Request) -> str:
    return request_id_or_new(request.headers.get(REQUEST_ID_HEADER, ""))


def request_id_or_new(sent: str) -> str:
    # A pseudo-random number is enough: the id distinguishes requests and is no secret. It costs no system call.
    return sent if REQUEST_ID_FORM.fullmatch(sent) else f"{random.getrandbits(128):032x}"


def request_metadata(request: web.Request, request_id: str) -> Metadata:
    forwarded = forwarded_metadata(lambda name: request.headers.getall(name, []), request_id)
    return [*forwarded, *request.app[CALL_ORIGINS].metadata_of_request(request)]


def forwarded_metadata(values_of: Callable[[str], Sequence[str]], request_id: str) -> Metadata:
    """Build the gRPC metadata from the values of each header.

    A header that gRPC cannot carry, or that occurs more than once, is left out. Credentials are sent without their
    values then, as often as they came, so that the server refuses them. A malformed hop header is sent as an unreadable
    one, which ends the fan-out.
    """
    metadata = [(REQUEST_ID_KEY, request_id)]
    for name, longest in FORWARDED_HEADERS.items():
        values = values_of(name)
        if len(values) == 1 and len(values[0]) <= longest and PRINTABLE.fullmatch(values[0]):
            metadata.append((name, values[0]))
        elif len(values) > 1 and name == AUTHORIZATION:
            # Twice, so that the server refuses them as repeated; the bridge itself does not decide which one would
            # count.
            metadata += [(name, UNREADABLE_VALUE), (name, UNREADABLE_VALUE)]
        elif values and name in (AUTHORIZATION, HOP_METADATA_KEY):
            # Fail closed: without the header, the call would have all hops left, or be one of a caller without a token.
            metadata.append((name, UNREADABLE_VALUE))
    return metadata


async def read_body(request: web.Request, timeout: float) -> bytes:
    """Return the body of a request, which must arrive within `timeout` seconds.

    Raises CstpError with the HTTP status 400, 408 or 413.
    """
    try:
        if request.content.is_eof():
            # Fast path: the body came with the headers, so no timer is needed.
            return await request.read()
        async with asyncio.timeout(timeout):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise body_too_large() from error
    except TimeoutError as error:
        raise http_failure(408, "the body did not arrive in time") from error
    except (web.RequestPayloadError, ConnectionResetError) as error:
        raise http_failure(400, "the body broke off") from error


def require_json(request: web.Request, accepted: Collection[str]) -> None:
    """Raise CstpError, answered with HTTP 415, unless the content is plain JSON in UTF-8."""
    if request.content_type not in accepted or (request.charset or "utf-8").lower() not in ("utf-8", "utf8"):
        raise http_failure(415, f"the content type must be {' or '.join(accepted)}, in UTF-8")
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise http_failure(415, "the body must not be compressed")


def body_too_large() -> CstpError:
    return http_failure(413, "the body is larger than the bridge takes")


def http_failure(http_status: int, detail: str) -> CstpError:
    reason = InvalidJsonRpcRequest.reason
    codes = replace(REASON_CODES[reason], http_status=http_status)
    return ErrorWithOwnCodes(reason, "Invalid Request", codes, metadata={DETAIL: detail})


MANY_VALUES: Final = 1000
"""JSON values above which a body is converted only for known callers. Chosen: converting more takes milliseconds,
during which the event loop is blocked."""
WHITESPACE: Final = b" \t\r\n"


CallerCheck: TypeAlias = Callable[[Metadata], Awaitable[object]]
"""Returns if the gRPC server knows a caller, and raises if not."""


class BodyReader:
    """Reads JSON bodies within limits.

    A body beyond LARGE_REQUEST_BYTES or MANY_VALUES values is read only for a caller that the server knows; if its
    length is declared, the caller is checked before the body arrives. No body may exceed `server.max_body_bytes` or
    `server.max_values`.
    """

    def __init__(self, require_known: CallerCheck, settings: ServerSettings) -> None:
        self._require_known = require_known
        self._max_values = settings.max_values
        self._timeout = settings.timeout_seconds

    async def read(
        self, request: web.Request, metadata: Metadata, accepted: Collection[str] = (APPLICATION_JSON,)
    ) -> bytes:
        """Return the body of a request of an accepted media type, before anything in it is converted.

        Raises CstpError with the HTTP status 400, 408, 413 or 415, and the errors of the caller's check.
        """
        require_json(request, accepted)
        length = request.content_length or 0
        if length > request.client_max_size:
            raise body_too_large()
        # An unknown caller that states the length is refused before the body arrives, otherwise once it has arrived.
        if length > LARGE_REQUEST_BYTES:
            await self._require_known(metadata)
        content = await read_body(request, self._timeout)
        if length <= LARGE_REQUEST_BYTES and (
            len(content) > LARGE_REQUEST_BYTES or has_more_values(content, MANY_VALUES)
        ):
            await self._require_known(metadata)
        if has_more_values(content, self._max_values):
            raise http_failure(413, f"the body contains more than {self._max_values} values")
        return content


def has_more_values(content: bytes, limit: int) -> bool:
    """Return whether JSON text holds more values than a limit, without converting any.

    Of text that is not JSON, at least the values before the first error count, which is all that a parser converts.
    """
    # Cheap bounds first, which settle almost all bodies: a value takes at least a byte, and a comma or bracket another.
    if len(content) < 2 * limit or max_value_count(content) <= limit:
        return False
    # Commas and brackets within strings do not count, so strings are removed. Pairs of backslashes go first; then a
    # backslash before a quote always escapes it. All of it is bytes methods, many times as fast as a parser.
    content = content.replace(rb"\\", b"").replace(rb"\"", b"")
    if content.count(b'"') > 4 * limit:
        # Each text is a value, or the key of one.
        return True
    outside = b'"'.join(content.split(b'"')[::2]).translate(None, WHITESPACE)
    return max_value_count(outside) - outside.count(b"[]") - outside.count(b"{}") > limit


def max_value_count(content: bytes) -> int:
    """Return an upper bound of the number of values, from the commas and brackets."""
    return 1 + content.count(b",") + content.count(b"[") + content.count(b"{")


# A host name, or an IPv6 address in brackets, with a port. Security: the host becomes part of URLs in agent cards.
HOST_FORM: Final = re.compile(
    r"(?:[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9_])?\.?|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?"
)
URL_SCHEMES: Final = frozenset({"http", "https"})


class PublicUrlResolver:
    """Resolves the bridge's own URL: the configured one, or else the one that the caller used.

    `Forwarded` and `X-Forwarded-*` headers are trusted from trusted proxies only. Raises ConfigError for settings that
    are not valid addresses.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._configured = validate_public_url(settings.public_url) if settings.public_url else None
        self._trusted = TrustedNetworks.parse(settings.trusted_proxies, "server.trusted_proxies")

    @property
    def is_configured(self) -> bool:
        """Whether the URL is configured and therefore the same for all callers."""
        return self._configured is not None

    def resolve(self, request: web.Request) -> str:
        """Return the URL as `https://agent.example.com`. Raises HTTPBadRequest if the request names no valid host."""
        if self._configured is not None:
            return self._configured
        scheme, host = request.scheme, request.headers.get("Host", "")
        if self._trusted.contains(request.remote):
            forwarded = self._read_forwarded_headers(request)
            scheme, host = forwarded.get("proto", scheme).lower(), forwarded.get("host", host)
        if scheme not in URL_SCHEMES or not HOST_FORM.fullmatch(host):
            raise web.HTTPBadRequest(text="The request does not name the host that it is for.\n")
        return f"{scheme}://{host}"

    def _read_forwarded_headers(self, request: web.Request) -> Mapping[str, str]:
        """Return `proto` and `host` as the outermost trusted proxy received them."""
        forwarded = {}
        for key, name in (("proto", "X-Forwarded-Proto"), ("host", "X-Forwarded-Host")):
            # Security: the last value was added by our own proxy; the caller may have invented those before it.
            if values := ",".join(request.headers.getall(name, [])):
                forwarded[key] = values.rpartition(",")[2].strip()
        for element in reversed(request.forwarded):
            forwarded |= {key: element[key] for key in ("proto", "host") if key in element}
            if not self._trusted.contains(parse_forwarded_node(element.get("for", ""))):
                break
        return forwarded


def validate_public_url(url: str) -> str:
    """Return a configured URL without its trailing slash. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in URL_SCHEMES or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"server.public_url: {url} must begin with http:// or https:// and name a host")
    return url.rstrip("/")
