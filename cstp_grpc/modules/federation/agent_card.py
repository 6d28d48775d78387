"""Fetch and parse agent cards, which name the addresses where an agent speaks CSTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

from cstp_grpc.client.http_client import HttpClient, HttpResponse, ResponseTooLarge
from cstp_grpc.client.http_exchange import HttpProtocolError
from cstp_grpc.client.json_rpc import jsonrpc_url
from cstp_grpc.client.targets import bearer_header, grpc_address, target_scheme
from cstp_grpc.client.tls import tls_context
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import to_single_line
from cstp_grpc.contract.errors import DeadlineExceeded, InternalError, InvalidArgument, ServerUnreachable
from cstp_grpc.contract.rpc_errors import MAX_REASON_CHARACTERS, error_class_for_http_status
from cstp_grpc.modules.federation.response_validation import MAX_PEER_RESPONSE_BYTES

if TYPE_CHECKING:
    from cstp_grpc.contract.card_keys import PublicKey

EXTENSION_URI: Final = "urn:cstp:extension:v1"
CARD_SUFFIX: Final = ".json"
SECURE_SCHEMES: Final = frozenset({"grpcs", "https"})


class InvalidAgentCard(InternalError):
    """The document at the URL is not an agent card, or not that of a CSTP agent."""


class UntrustedCard(InvalidAgentCard):
    """An agent card is not signed by any of the required keys."""


@dataclass(frozen=True, slots=True)
class PeerCard:
    """An agent card. Texts are one line each, and empty if missing.

    The addresses are those on the card's own host that are at least as secure as the way the card was fetched; None
    without such an address.
    """

    name: str
    version: str
    grpc_target: str | None
    """The gRPC target, as `grpc://host:port` or `grpcs://host:port`."""
    jsonrpc_url: str | None
    """The JSON-RPC endpoint, as `https://host/cstp`."""
    description: str
    skills: int = 0
    """The number of skills listed."""


def read_card(
    url: str,
    token: str | None,
    root_certificates: bytes | None,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    card_keys: Sequence[PublicKey] = (),
) -> PeerCard:
    """Fetch and parse the card at a URL that ends with `.json`; A2A 1.0, A2A 0.3 or CSTP's own format.

    With `card_keys`, one of them must have signed it, only the signed members count, and the token is not sent, since
    it is meant for the holder of the key. Raises the errors of `fetch_card`, and UntrustedCard.
    """
    address = parse_card_url(url)
    if not card_keys:
        return parse_card(fetch_card(address, token, root_certificates, seconds, clock), address)
    content = fetch_card(address, None, root_certificates, seconds, clock)
    return parse_card(require_signature(content, card_keys), address)


def fetch_card(
    address: SplitResult,
    token: str | None,
    root_certificates: bytes | None,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Mapping[str, Any]:
    """Fetch the members of the card at an address; redirects are not followed.

    Raises InvalidArgument for the url, the token or the roots, DeadlineExceeded, ServerUnreachable,
    AuthenticationRequired, PermissionDenied, RateLimited, Unavailable, and InvalidAgentCard.
    """
    headers = {"accept": "application/json"} | dict(bearer_header(token))
    client = HttpClient(tls_context(root_certificates, address.scheme), max_bytes=MAX_PEER_RESPONSE_BYTES, clock=clock)
    try:
        answer = client.fetch("GET", address, headers, None, seconds)
    except TimeoutError as error:
        raise DeadlineExceeded("the agent card did not come in time") from error
    except OSError as error:
        raise ServerUnreachable("no server answers at the address of the agent card") from error
    except ResponseTooLarge as error:
        raise InvalidAgentCard(f"the agent card is too large: {error}") from error
    except HttpProtocolError as error:
        raise InvalidAgentCard("no HTTP where the agent card is") from error
    return read_card_content(answer)


def require_signature(content: Mapping[str, Any], card_keys: Sequence[PublicKey]) -> Mapping[str, Any]:
    """Return the members of a card that one of the keys signed. Raises UntrustedCard."""
    # It takes long to load, and most cards are not verified.
    from cstp_grpc.contract.card_signatures import SIGNATURES_KEY, verify_card

    found = verify_card(content, card_keys)
    if found is None:
        raise UntrustedCard(
            "its agent card is signed by none of the keys that it must be signed by"
            if content.get(SIGNATURES_KEY)
            else "its agent card is not signed, and must be"
        )
    return found[0]


def parse_card_url(url: str) -> SplitResult:
    """Parse the URL of an agent card. Raises InvalidArgument."""
    address = urlsplit(url)
    if "@" in address.netloc:
        # Not shown: it may hold a password.
        raise InvalidArgument.field("target", "must not name a user: a token says who calls")
    if not is_callable_url(address) or not address.path.endswith(CARD_SUFFIX) or address.fragment:
        raise InvalidArgument.field("target", f"{url!r} is not of the form https://HOST/CARD.json")
    return address


def is_callable_url(address: SplitResult) -> bool:
    """Whether a URL has a supported scheme, a host and a valid port."""
    try:
        address.port  # noqa: B018 - reading it checks it
    except ValueError:
        return False
    return address.scheme in {"http", "https"} and bool(address.hostname)


def read_card_content(answer: HttpResponse) -> Mapping[str, Any]:
    """Return the JSON object in a response. Raises the error for its HTTP status, and InvalidAgentCard."""
    # Redirects too: followed, they could lead the token to another host.
    if answer.status != 200:
        error_class = error_class_for_http_status(answer.status) or InvalidAgentCard
        raise error_class(f"HTTP {answer.status} instead of an agent card")
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InvalidAgentCard("no JSON object where the agent card is")
    return content


def parse_card(content: Mapping[str, Any], address: SplitResult) -> PeerCard:
    """Parse a card. Raises InvalidAgentCard if it names no usable CSTP address."""
    capabilities = content.get("capabilities")
    stated = capabilities if isinstance(capabilities, dict) else {}
    params = extension_params(stated)
    grpc_target, jsonrpc_url = params.get("grpcTarget"), params.get("endpoint")
    # The card of the CSTP design: `url` is the address, and `capabilities.cstp` its protocol.
    if not params and isinstance(stated.get("cstp"), dict):
        jsonrpc_url = content.get("url")
    skills = content.get("skills")
    usable_target, usable_url = allowed_grpc_target(grpc_target, address), allowed_jsonrpc_url(jsonrpc_url, address)
    if usable_target is None and usable_url is None:
        named = grpc_target is not None or jsonrpc_url is not None
        where = "only on other hosts than its own, or less securely" if named else "nowhere"
        raise InvalidAgentCard(f"its agent card says that it speaks CSTP {where}")
    return PeerCard(
        single_line_text(content.get("name")),
        single_line_text(content.get("version")),
        usable_target,
        usable_url,
        single_line_text(content.get("description")),
        len(skills) if isinstance(skills, list) else 0,
    )


def extension_params(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the params of the CSTP extension, or an empty mapping."""
    extensions = capabilities.get("extensions")
    for extension in extensions if isinstance(extensions, list) else []:
        if isinstance(extension, dict) and extension.get("uri") == EXTENSION_URI:
            params = extension.get("params")
            return params if isinstance(params, dict) else {}
    return {}


def allowed_grpc_target(target: object, card: SplitResult) -> str | None:
    """Return a gRPC target with its scheme, or None if the card must not name it."""
    if not isinstance(target, str):
        return None
    try:
        scheme, address = target_scheme(target), grpc_address(target)
    except (InvalidArgument, ValueError):
        return None
    own = scheme in {"grpc", "grpcs"} and is_allowed_address(urlsplit(f"{scheme}://{address}"), card)
    return f"{scheme}://{address}" if own else None


def allowed_jsonrpc_url(url: object, card: SplitResult) -> str | None:
    """Return the URL of a JSON-RPC endpoint, or None if the card must not name it."""
    if not isinstance(url, str):
        return None
    try:
        address = jsonrpc_url(url)
    except (InvalidArgument, ValueError):
        return None
    return address.geturl() if is_callable_url(address) and is_allowed_address(address, card) else None


def is_allowed_address(address: SplitResult, card: SplitResult) -> bool:
    """Whether a card may name an address: same host, and not less secure. The token is sent there."""
    return address.hostname == card.hostname and (address.scheme in SECURE_SCHEMES or card.scheme not in SECURE_SCHEMES)


def single_line_text(value: object) -> str:
    return to_single_line(value[: 2 * MAX_REASON_CHARACTERS])[:MAX_REASON_CHARACTERS] if isinstance(value, str) else ""
