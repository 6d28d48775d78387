"""The pages with the agent cards: who answers here, where, and what for."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import hdrs, web

from bridge.a2a.cards import Cards
from bridge.a2a.context import V0_3, V1_0, VERSION, VERSION_FORM
from bridge.forwarded import PublicAddress

MAX_AGE: Final = 300
"""Seconds for which a card may be kept."""
PAGES_KEPT: Final = 32
"""Of how many addresses the pages are kept, the last used ones; strangers name addresses too."""


@dataclass(frozen=True, slots=True)
class Page:
    """A card as it is sent."""

    body: bytes
    tag: str


class CardPages:
    """Answers requests for the cards, which need no token."""

    def __init__(self, cards: Cards, address: PublicAddress) -> None:
        keep = functools.lru_cache(maxsize=PAGES_KEPT)
        self._address = address
        self._v0_3: Callable[[str], Page] = keep(lambda url: page(cards.v0_3(url)))
        v1_0: Callable[[str], Page] = keep(lambda url: page(cards.v1_0(url)))
        self._by_version: Mapping[str, Callable[[str], Page]] = {V1_0: v1_0, V0_3: self._v0_3}
        self._merged: Callable[[str], Page] = keep(lambda url: page(cards.merged(url)))

    async def agent_card(self, request: web.Request) -> web.Response:
        """Answer with the card of the version that the caller names, or with one that clients of both can read."""
        build = self._by_version.get(requested_version(request), self._merged)
        return respond(request, build(self._address.of(request)), {hdrs.VARY: VERSION})

    async def agent_json(self, request: web.Request) -> web.Response:
        """Answer with the card of the CSTP design, which is that of A2A 0.3 too."""
        return respond(request, self._v0_3(self._address.of(request)), {})


def requested_version(request: web.Request) -> str:
    """Return the version of A2A that a request names, without its patch number; empty if it names none."""
    match = VERSION_FORM.fullmatch(request.headers.get(VERSION, "").strip())
    return match[1] if match else ""


def page(card: Mapping[str, Any]) -> Page:
    """Return a card as it is sent."""
    # Maps of protobuf have another order in every process, and all copies of the bridge must give the same tag.
    body = json.dumps(card, ensure_ascii=False, indent=2, sort_keys=True).encode("utf-8")
    return Page(body, hashlib.sha256(body).hexdigest()[:32])


def respond(request: web.Request, found: Page, extra: Mapping[str, str]) -> web.Response:
    """Answer with a page, or with 304 where the caller has it already."""
    headers = {hdrs.ETAG: f'"{found.tag}"', hdrs.CACHE_CONTROL: f"public, max-age={MAX_AGE}", **extra}
    if any(known.value in (found.tag, "*") for known in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    return web.Response(body=found.body, content_type="application/json", headers=headers)
