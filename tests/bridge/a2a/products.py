"""A server with two bridges before it, which the tests of a package share."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cstp_grpc.platform.config import Settings
from tests.bridge.a2a.bindings import Binding
from tests.bridge.a2a.raw import Raw, raw_client
from tests.harness import GrpcCaller, Peers, peering, running, settings

MAX_BATCH = 8
MAX_BODY_BYTES = 50_000


@dataclass(frozen=True)
class Product:
    """A server, and two bridges before it that know nothing of each other."""

    settings: Settings
    core: GrpcCaller
    bridges: tuple[Peers, Peers]
    opened: ExitStack
    _bindings: dict[tuple[type[Binding], int], Binding] = field(default_factory=dict)

    @property
    def raw(self) -> Raw:
        """The first bridge, for single requests over HTTP."""
        return raw_client(self.bridges[0])

    def binding(self, kind: type[Binding], bridge: int = 0) -> Binding:
        """Return a binding of one of the bridges, which is opened once."""
        found = self._bindings.get((kind, bridge))
        if found is None:
            found = self._bindings[kind, bridge] = kind(self.bridges[bridge])
            self.opened.callback(found.close)
        return found

    def intents(self, text: str) -> list[Any]:
        """Return the announced intents of a text."""
        page = self.core.call("cstp.listIntents", {"pageSize": 100}).result
        assert page is not None
        return [intent for intent in page["intents"] if intent["intent"] == text]

    def decision_titles(self) -> list[str]:
        """Return the titles of all decisions."""
        titles: list[str] = []
        token = ""
        while True:
            page = self.core.call("cstp.listDecisions", {"pageSize": 100, "pageToken": token}).result
            assert page is not None
            titles += [decision["title"] for decision in page["decisions"]]
            token = page.get("nextPageToken", "")
            if not token:
                return titles


@contextmanager
def serving(folder: Path, **overrides: Any) -> Iterator[Product]:
    """Run a product for the length of a block."""
    wanted = settings(folder, **overrides)
    with ExitStack() as opened:
        app = opened.enter_context(running(wanted))
        first, second = (opened.enter_context(peering(with_grpc_on_cards(wanted), app.target)) for _ in range(2))
        core = GrpcCaller(app.target)
        opened.callback(core.close)
        yield Product(wanted, core, (first, second), opened)


def with_grpc_on_cards(wanted: Settings) -> Settings:
    """Return settings of a bridge whose cards name its A2A over gRPC, on a port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    on_cards = {"grpc_port": port, "public_grpc_target": f"127.0.0.1:{port}"}
    return wanted.model_copy(update={"a2a": wanted.a2a.model_copy(update=on_cards)})
