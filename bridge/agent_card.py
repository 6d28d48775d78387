"""The agent card: who answers here, where, and which methods."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Final

from aiohttp import web

from cstp_grpc.client.contract import Method
from cstp_grpc.config import AgentSettings

PROTOCOL_VERSION: Final = "1.0"
SERVICE: Final = "cstp.v1.CstpService"
MAX_AGE: Final = 300
"""Seconds for which a card may be kept."""


class AgentCard:
    """Answers with the card of the CSTP design, section 3.2."""

    def __init__(self, agent: AgentSettings, version: str, methods: Iterable[Method]) -> None:
        self._agent = agent
        self._version = version
        self._methods = [method.name for method in methods if method.service == SERVICE]

    def describe(self, url: str) -> dict[str, Any]:
        """Return the card of an agent that is reached by `url`."""
        card: dict[str, Any] = {
            "name": self._agent.name,
            "description": self._agent.description,
            "version": self._version,
            "url": url,
            "capabilities": {"cstp": {"version": PROTOCOL_VERSION, "methods": self._methods}},
            "authentication": {"schemes": ["bearer"]},
        }
        if self._agent.contact is not None:
            card["contact"] = self._agent.contact
        return card

    def respond(self, request: web.Request, url: str) -> web.Response:
        """Answer a request for the card, with 304 where the caller has it already."""
        body = json.dumps(self.describe(url), ensure_ascii=False, indent=2).encode("utf-8")
        tag = hashlib.sha256(body).hexdigest()[:32]
        headers = {"ETag": f'"{tag}"', "Cache-Control": f"public, max-age={MAX_AGE}"}
        if any(known.value in (tag, "*") for known in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type="application/json", headers=headers)
