"""The measured console: a process of its own, whose pages list the calls that they made and how long each took."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextvars import ContextVar
from unittest import mock

from nicegui import Client
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from console import app as console_app
from console.sessions import ServerTarget
from cstp_grpc.client.async_client import AsyncCstpClient
from cstp_grpc.common.garbage_collection import freeze_loaded_objects
from cstp_grpc.platform.config import ConsoleSettings

CALLS: ContextVar[list[str]] = ContextVar("calls")
"""The calls of the page that is being built."""


class TimedCalls:
    """ASGI middleware: adds the calls of a page to its response, in the header Server-Timing of browsers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        calls: list[str] = []
        CALLS.set(calls)
        pages: list[Client] = []

        async def send_with_calls(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Server-Timing"] = ", ".join(calls)
                pages.extend(Client.instances.values())
            await send(message)

        await self._app(scope, receive, send_with_calls)
        # As when a browser has left the page; NiceGUI would keep one that no browser connects to for a minute.
        for page in pages:
            page.delete()


async def serve(target: str) -> None:
    """Serve until a stop signal."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    call, guard_app = AsyncCstpClient.call, console_app.guard_app

    async def timed_call(client: AsyncCstpClient, method: object, *arguments: object) -> object:
        begun = time.perf_counter()
        try:
            return await call(client, method, *arguments)  # type: ignore[arg-type]
        finally:
            if (calls := CALLS.get(None)) is not None:
                calls.append(f"{method.name};dur={(time.perf_counter() - begun) * 1_000:.3f}")  # type: ignore[attr-defined]

    with (
        mock.patch.object(AsyncCstpClient, "call", timed_call),
        mock.patch.object(console_app, "guard_app", lambda *given: TimedCalls(guard_app(*given))),
    ):
        async with console_app.run_console(ConsoleSettings(port=0), ServerTarget(target)) as (url, _):
            print(json.dumps({"url": url}), flush=True)
            freeze_loaded_objects()
            await stop.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
