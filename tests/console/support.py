"""A console in this process, for people who are simulated, and for a real browser."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
from nicegui.testing.general import nicegui_reset_globals
from nicegui.testing.user import User

from console.app import build_app, guard_app, run_console
from console.request_guard import Origins
from console.sessions import ServerTarget, SessionStore
from cstp_grpc.platform.config import ConsoleSettings
from tests.event_loops import entered_in_thread
from tests.harness import TOKENS

ORIGIN = "http://localhost:8200"
FORM = {"Origin": ORIGIN}
ORIGINS = Origins.build("127.0.0.1", 8200, None, tls=False)


class ConsoleKit:
    """A console without a network, and its people."""

    def __init__(self, asgi: Any, sessions: SessionStore) -> None:
        self.sessions = sessions
        self._asgi = asgi

    def browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self._asgi), base_url=ORIGIN)

    async def sign_in(self, name: str) -> User:
        """Return a person who is signed in."""
        return await self.sign_in_with(TOKENS[name])

    async def sign_in_with(self, token: str) -> User:
        client = self.browser()
        response = await client.post("/sign-in", data={"token": token}, headers=FORM)
        assert response.status_code == 200, response.text
        return User(client)


@asynccontextmanager
async def console_kit(target: str, *, idle: float = 60.0, total: float = 600.0) -> AsyncIterator[ConsoleKit]:
    """Have a console of a server for the length of a block."""
    with nicegui_reset_globals():
        os.environ["NICEGUI_USER_SIMULATION"] = "true"
        sessions = SessionStore(ServerTarget(f"grpc://{target}"), idle, total)
        app = build_app(sessions, ORIGINS)
        try:
            async with app.router.lifespan_context(app):
                yield ConsoleKit(guard_app(app, sessions, ORIGINS), sessions)
        finally:
            await sessions.close()
            os.environ.pop("NICEGUI_USER_SIMULATION")


@contextmanager
def served_console(target: str, **settings: Any) -> Iterator[tuple[str, SessionStore]]:
    """Serve a console in a thread of its own, and yield its URL and its sessions."""
    wanted = ConsoleSettings(port=0, **settings)
    with nicegui_reset_globals():
        server = ServerTarget(target if "://" in target else f"grpc://{target}")
        with entered_in_thread(lambda: run_console(wanted, server), "console") as served:
            yield served
