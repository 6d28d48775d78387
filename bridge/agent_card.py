"""The pages with the agent cards: who answers here, where, and what for."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import hdrs, web

from bridge.a2a.cards import MAX_AGE, SIGNATURES, Cards
from bridge.a2a.context import V0_3, V1_0, VERSION, VERSION_FORM
from bridge.a2a.old_generation import load_old_generation
from bridge.forwarded import PublicAddress

PUBLIC: Final = f"public, max-age={MAX_AGE}"
PRIVATE: Final = f"private, max-age={MAX_AGE}"
"""For a card that names the address by which one caller asked for it: no cache may show it to another."""
GZIP: Final = frozenset({"gzip", "x-gzip"})
QUALITY: Final = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)
PAGES_KEPT: Final = 32
"""Of how many addresses the pages are kept, the last used ones; strangers name addresses too."""


@dataclass(frozen=True, slots=True)
class Page:
    """A card as it is sent."""

    body: bytes
    tag: str
    """The opaque part of its ETag, which is weak: the page may be compressed or not."""


class CardPages:
    """Answers requests for the cards, which need no token."""

    def __init__(self, cards: Cards, address: PublicAddress) -> None:
        keep = functools.lru_cache(maxsize=PAGES_KEPT)
        self._address = address
        self._v0_3: Callable[[str], Page] = keep(lambda url: page(cards.v0_3(url), cards.signed_by))
        v1_0: Callable[[str], Page] = keep(lambda url: page(cards.v1_0(url), cards.signed_by))
        self._by_version: Mapping[str, Callable[[str], Page]] = {V1_0: v1_0, V0_3: self._v0_3}
        self._merged: Callable[[str], Page] = keep(lambda url: page(cards.merged(url), cards.signed_by))

    async def agent_card(self, request: web.Request) -> web.Response:
        """Answer with the card of the version that the caller names, or with one that clients of both can read."""
        version = requested_version(request)
        if version != V1_0:
            await load_old_generation()
        build = self._by_version.get(version, self._merged)
        return self._respond(request, build, VERSION, hdrs.ACCEPT_ENCODING)

    async def agent_json(self, request: web.Request) -> web.Response:
        """Answer with the card of the CSTP design, which is that of A2A 0.3 too."""
        await load_old_generation()
        return self._respond(request, self._v0_3, hdrs.ACCEPT_ENCODING)

    def _respond(self, request: web.Request, build: Callable[[str], Page], *vary: str) -> web.Response:
        """Answer with a page, or with 304 if the caller has it already."""
        found = build(self._address.of(request))
        headers = {
            hdrs.ETAG: f'W/"{found.tag}"',
            hdrs.CACHE_CONTROL: PUBLIC if self._address.is_configured else PRIVATE,
            hdrs.VARY: ", ".join(vary),
        }
        if any(known.value in (found.tag, "*") for known in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        response = web.Response(body=found.body, content_type="application/json", headers=headers)
        if accepts_gzip(request.headers.getall(hdrs.ACCEPT_ENCODING, [])):
            response.enable_compression(web.ContentCoding.gzip)
        return response


def accepts_gzip(values: Iterable[str]) -> bool:
    """Return whether the values of the header Accept-Encoding allow gzip."""
    weights = {}
    for element in ",".join(values).split(","):
        coding, _, parameter = element.partition(";")
        weights[coding.strip().lower()] = weight_of(parameter.strip())
    named = [weight for coding, weight in weights.items() if coding in GZIP]
    return max(named, default=weights.get("*", 0.0)) > 0


def weight_of(parameter: str) -> float:
    """Return the weight that a parameter such as `q=0.5` gives to a coding; 0 if it cannot be read."""
    if not parameter:
        return 1.0
    match = QUALITY.fullmatch(parameter)
    return float(match[1]) if match else 0.0


def requested_version(request: web.Request) -> str:
    """Return the version of A2A that a request names, without its patch number; empty if it names none."""
    match = VERSION_FORM.fullmatch(request.headers.get(VERSION, "").strip())
    return match[1] if match else ""


def page(card: Mapping[str, Any], signed_by: str) -> Page:
    """Return a card as it is sent; `signed_by` identifies the key of its signatures."""
    # All copies of the bridge must give the same tag, and signatures of the same content by the same key differ.
    unsigned = to_bytes({name: value for name, value in card.items() if name != SIGNATURES})
    tag = hashlib.sha256(unsigned + signed_by.encode()).hexdigest()[:32]
    return Page(to_bytes(card), tag)


def to_bytes(card: Mapping[str, Any]) -> bytes:
    """Return a card as JSON whose members have an order, which maps of protobuf have not."""
    return json.dumps(card, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode("utf-8")
