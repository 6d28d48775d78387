"""The pages with the agent cards: who answers here, where, and what for."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from a2a.types.a2a_pb2 import AgentCard
from aiohttp import hdrs, web
from google.protobuf import json_format

from bridge.a2a.cards import Cards
from bridge.a2a.context import V0_3, VERSION, VERSION_FORM
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
        self._v1_0: Callable[[str], Page] = keep(lambda url: page(card_json(cards.public(url))))
        self._v0_3: Callable[[str], Page] = keep(lambda url: page(cards.v0_3(url)))

    async def agent_card(self, request: web.Request) -> web.Response:
        """Answer with the card of A2A 1.0, or with that of 0.3 where the caller asks for that version."""
        url = self._address.of(request)
        found = self._v0_3(url) if asks_for_v0_3(request) else self._v1_0(url)
        return respond(request, found, {hdrs.VARY: VERSION})

    async def agent_json(self, request: web.Request) -> web.Response:
        """Answer with the card of the CSTP design, which is that of A2A 0.3 too."""
        return respond(request, self._v0_3(self._address.of(request)), {})


def asks_for_v0_3(request: web.Request) -> bool:
    """Whether the caller names 0.3; nobody needs to name a version here, so without one the card is that of 1.0."""
    match = VERSION_FORM.fullmatch(request.headers.get(VERSION, "").strip())
    return match is not None and match[1] == V0_3


def card_json(card: AgentCard) -> dict[str, Any]:
    """Return a card as JSON, which says of each extension whether it is required, also where it is not."""
    found: dict[str, Any] = json_format.MessageToDict(card)
    for extension, said in zip(card.capabilities.extensions, found["capabilities"]["extensions"], strict=True):
        said["required"] = extension.required
    return found


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
