"""Agent cards: where an agent speaks CSTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

from cstp_grpc.client.federation.results import MAX_ANSWER_BYTES
from cstp_grpc.client.fetching import HttpAnswer, TooLarge, fetch
from cstp_grpc.client.jsonrpc import endpoint, tls_context
from cstp_grpc.client.transport import authorization, grpc_address, scheme_of
from cstp_grpc.client.words import MAX_CHARACTERS, one_line
from cstp_grpc.contract.error_reasons import error_class_for_http_status
from cstp_grpc.errors import DeadlineExceeded, InternalError, InvalidArgument, ServerUnreachable

if TYPE_CHECKING:
    from cstp_grpc.card_keys import PublicKey

EXTENSION: Final = "urn:cstp:extension:v1"
SUFFIX: Final = ".json"
SECURE: Final = frozenset({"grpcs", "https"})


class NoAgentCard(InternalError):
    """What is at the address of an agent card is none, or none of an agent of CSTP."""


class UntrustedCard(NoAgentCard):
    """An agent card lacks a signature by one of the keys that its reader demands."""


@dataclass(frozen=True, slots=True)
class Card:
    """What an agent says of itself. The texts are one line each, and empty where it says nothing.

    The addresses are those on the host that the card came from which are not less secure than the way it came; None
    where there is none.
    """

    name: str
    version: str
    grpc_target: str | None
    """Where it speaks gRPC, as `grpc://host:port` or `grpcs://host:port`."""
    jsonrpc_url: str | None
    """Where it speaks JSON-RPC, as `https://host/cstp`."""
    description: str
    skills: int = 0
    """How many skills it lists."""


def read_card(
    url: str,
    token: str | None,
    root_certificates: bytes | None,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    card_keys: Sequence[PublicKey] = (),
) -> Card:
    """Return the card at a URL that ends with `.json`, of A2A 1.0 or 0.3 or of the design of CSTP.

    With `card_keys`, one of them must have signed it, only what is signed counts, and the token, which is for the one
    who has the key, is not sent. Raises what `fetch_card` raises, and UntrustedCard.
    """
    address = card_address(url)
    if not card_keys:
        return card_of(fetch_card(address, token, root_certificates, seconds, clock), address)
    content = fetch_card(address, None, root_certificates, seconds, clock)
    return card_of(require_signature(content, card_keys), address)


def fetch_card(
    address: SplitResult,
    token: str | None,
    root_certificates: bytes | None,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Mapping[str, Any]:
    """Return the members of the card at an address.

    Follows no redirects. Raises InvalidArgument for the url, the token or the roots, DeadlineExceeded,
    ServerUnreachable, AuthenticationRequired, PermissionDenied, RateLimited, Unavailable, and NoAgentCard.
    """
    headers = {"accept": "application/json"} | dict(authorization(token))
    tls = tls_context(root_certificates)
    try:
        answer = fetch("GET", address, headers, None, seconds, tls, MAX_ANSWER_BYTES, clock)
    except TimeoutError as error:
        raise DeadlineExceeded("the agent card did not come in time") from error
    except OSError as error:
        raise ServerUnreachable("nobody answers where the agent card is") from error
    except TooLarge as error:
        raise NoAgentCard(f"the agent card is too large: {error}") from error
    except HTTPException as error:
        raise NoAgentCard("no HTTP where the agent card is") from error
    return content_of(answer)


def require_signature(content: Mapping[str, Any], card_keys: Sequence[PublicKey]) -> Mapping[str, Any]:
    """Return the members of a card that are signed by one of the keys. Raises UntrustedCard."""
    # It takes long to load, and most cards are not verified.
    from cstp_grpc.client.card_signatures import SIGNATURES, verified_content

    found = verified_content(content, card_keys)
    if found is None:
        raise UntrustedCard(
            "its agent card is signed by none of the keys that it must be signed by"
            if content.get(SIGNATURES)
            else "its agent card is not signed, and must be"
        )
    return found[0]


def card_address(url: str) -> SplitResult:
    """Return where an agent card is. Raises InvalidArgument."""
    address = urlsplit(url)
    if "@" in address.netloc:
        # Not shown: it may hold a password.
        raise InvalidArgument.field("target", "must not name a user: a token says who calls")
    if not is_usable(address) or not address.path.endswith(SUFFIX) or address.fragment:
        raise InvalidArgument.field("target", f"{url!r} is not of the form https://HOST/CARD.json")
    return address


def is_usable(address: SplitResult) -> bool:
    """Whether an address can be called."""
    try:
        address.port  # noqa: B018 - reading it checks it
    except ValueError:
        return False
    return address.scheme in {"http", "https"} and bool(address.hostname)


def content_of(answer: HttpAnswer) -> Mapping[str, Any]:
    """Return the JSON object in an answer. Raises what its HTTP status means, and NoAgentCard."""
    if answer.status != 200:
        error_class = error_class_for_http_status(answer.status) or NoAgentCard
        raise error_class(f"HTTP {answer.status} instead of an agent card")
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise NoAgentCard("no JSON object where the agent card is")
    return content


def card_of(content: Mapping[str, Any], address: SplitResult) -> Card:
    """Return what a card says. Raises NoAgentCard where it names no address of CSTP that can be used."""
    capabilities = content.get("capabilities")
    stated = capabilities if isinstance(capabilities, dict) else {}
    params = extension_params(stated)
    grpc_target, jsonrpc_url = params.get("grpcTarget"), params.get("endpoint")
    if not params and isinstance(stated.get("cstp"), dict):
        jsonrpc_url = content.get("url")
    skills = content.get("skills")
    usable_target, usable_url = usable_grpc(grpc_target, address), usable_jsonrpc(jsonrpc_url, address)
    if usable_target is None and usable_url is None:
        named = grpc_target is not None or jsonrpc_url is not None
        where = "only on other hosts than its own, or less securely" if named else "nowhere"
        raise NoAgentCard(f"its agent card says that it speaks CSTP {where}")
    return Card(
        text(content.get("name")),
        text(content.get("version")),
        usable_target,
        usable_url,
        text(content.get("description")),
        len(skills) if isinstance(skills, list) else 0,
    )


def extension_params(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the params of our extension; empty where the card does not have it."""
    extensions = capabilities.get("extensions")
    for extension in extensions if isinstance(extensions, list) else []:
        if isinstance(extension, dict) and extension.get("uri") == EXTENSION:
            params = extension.get("params")
            return params if isinstance(params, dict) else {}
    return {}


def usable_grpc(target: object, card: SplitResult) -> str | None:
    """Return a gRPC target with its scheme; None where a card may not name it."""
    if not isinstance(target, str):
        return None
    try:
        scheme, address = scheme_of(target), grpc_address(target)
    except (InvalidArgument, ValueError):
        return None
    own = scheme in {"grpc", "grpcs"} and is_own(urlsplit(f"{scheme}://{address}"), card)
    return f"{scheme}://{address}" if own else None


def usable_jsonrpc(url: object, card: SplitResult) -> str | None:
    """Return the URL of a JSON-RPC endpoint; None where a card may not name it."""
    if not isinstance(url, str):
        return None
    try:
        address = endpoint(url)
    except (InvalidArgument, ValueError):
        return None
    return address.geturl() if is_usable(address) and is_own(address, card) else None


def is_own(address: SplitResult, card: SplitResult) -> bool:
    """Whether a card may name an address: who answers there gets the token."""
    return address.hostname == card.hostname and (address.scheme in SECURE or card.scheme not in SECURE)


def text(value: object) -> str:
    """Return one line of what a card says."""
    return one_line(value[: 2 * MAX_CHARACTERS])[:MAX_CHARACTERS] if isinstance(value, str) else ""
