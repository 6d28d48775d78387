"""An open page of a signed-in person: its calls, its parts, and its failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final

from google.protobuf.message import Message
from nicegui import Client, background_tasks, ui

from console import widgets
from console.sessions import ConsoleSession
from cstp_grpc.common.quoted_text import reveal_invisible
from cstp_grpc.contract.errors import AuthenticationRequired, CstpError, MethodNotFound, Unavailable
from cstp_grpc.contract.json_codec import to_json
from cstp_grpc.contract.methods import RpcMethod, contract_methods
from cstp_grpc.contract.proto_values import build_message

logger = logging.getLogger(__name__)

METHODS: Final = contract_methods()
RETRY_SECONDS: Final = 5.0
"""Seconds between attempts to build a part of a page, while the server does not answer."""
Answer = Mapping[str, Any]
"""An answer as JSON of the contract, without invisible characters, which could make a text look like another."""


class View:
    """A page of a session, with the arguments of its URL."""

    def __init__(self, session: ConsoleSession, path: str, arguments: Mapping[str, str]) -> None:
        self.session = session
        self.path = path
        self.arguments = arguments
        self._client: Client = ui.context.client

    def may_call(self, *methods: str) -> bool:
        """Return whether the person may call all of these methods; the server decides in any case."""
        held = self.session.permissions | {"any"}
        return all(not held.isdisjoint(find_method(method).permissions) for method in methods)

    async def call(self, method: str, **fields: Any) -> Answer:
        """Return the answer of a method. Raises CstpError."""
        rpc = find_method(method)
        try:
            return read_answer(await self.session.client.call(rpc, build_message(rpc.request, fields)))
        except AuthenticationRequired:
            logger.info("%s is signed out: the server no longer accepts the credential", self.session.agent)
            self._client.open("/sign-in?ended=1")
            raise

    async def stream(self, method: str, **fields: Any) -> AsyncIterator[Answer]:
        """Yield the answers of a streaming method. Raises CstpError."""
        rpc = find_method(method)
        async with await self.session.client.watch(rpc, build_message(rpc.request, fields)) as answers:
            async for answer in answers:
                yield read_answer(answer)

    async def show_part(self, build: Callable[[], Awaitable[None]]) -> Part:
        """Build a part of the page, and build it again if the server did not answer."""
        part = Part(build)
        await part.show()
        return part

    def show_later(self, build: Callable[[], Awaitable[None]]) -> None:
        """Build a part that takes long when the rest of the page is already shown."""
        ui.timer(0, Part(build).show, once=True)

    async def show_listing(
        self,
        method: str,
        items: str,
        columns: str,
        empty: tuple[str, str],
        request: Mapping[str, Any] = MappingProxyType({}),
        *,
        title: str = "",
        change: Callable[[Answer], Answer] = lambda row: row,
        buttons: Callable[[Answer], None] | None = None,
    ) -> Part:
        """Show a page of a listing as a table; `empty` is what it says without items, and its advice."""
        pages = "page_size" in find_method(method).request.DESCRIPTOR.fields_by_name and "page_size" not in request
        page = {"page_size": 40, "page_token": self.arguments.get("page")} if pages else {}

        async def list_items() -> None:
            answer = await self.call(method, **page, **request)
            total = f"{int(answer['total']):,} in all" if answer.get("total") else ""
            with widgets.add_card(title, hint=total):
                if answer[items]:
                    widgets.show_table(title or items, map(change, answer[items]), columns, buttons)
                else:
                    widgets.show_empty(*empty)
                if page:
                    token = answer.get("nextPageToken") or answer.get("next_page_token")
                    widgets.show_pager(self.path, self.arguments, token)

        return await self.show_part(list_items)

    async def attempt(self, action: Awaitable[Any], *, reload: bool = False) -> None:
        """Await a call that a person asked for, and report a failure."""
        try:
            await action
        except CstpError as error:
            with self._client:
                ui.notify(describe_failure(error), type="negative", timeout=8000, close_button="Close")
        else:
            if reload:
                with self._client:
                    ui.navigate.reload()

    def follow(self, method: str, show: Callable[[Answer], Awaitable[None] | None]) -> None:
        """Pass on each answer of a watch while the page is open; an interrupted watch continues where it was."""
        name = "".join(f"_{each.lower()}" if each.isupper() else each for each in method)

        async def follow_watch() -> None:
            await self._client.connected()
            with self._client:
                try:
                    async with aclosing(getattr(self.session.client, name)()) as answers:
                        async for answer in answers:
                            if (shown := show(read_answer(answer))) is not None:
                                await shown
                except CstpError as error:
                    if not self._client.is_deleted and not self.session.ended.is_set():
                        ui.notify(f"Changes are not shown any more: {describe_failure(error)}", type="warning")

        task = background_tasks.create(follow_watch(), name=f"watch of {self.session.agent}")
        self._client.on_delete(task.cancel)


class Part:
    """A part of a page that is built from answers of the server."""

    def __init__(self, build: Callable[[], Awaitable[None]]) -> None:
        self._build = build
        self._box = widgets.add_group("div", "stack")
        self._lock = asyncio.Lock()

    async def show(self) -> None:
        """Build the part, in place of its former content."""
        async with self._lock:
            self._box.clear()
            with self._box:
                try:
                    await self._build()
                except CstpError as error:
                    self._box.clear()
                    self._show_failure(error)

    def _show_failure(self, error: CstpError) -> None:
        waits = isinstance(error, Unavailable)
        with widgets.add_card("The server does not answer" if waits else "This cannot be shown", classes="failure"):
            widgets.add_text(describe_failure(error))
            if waits:
                widgets.add_text("The page tries again every few seconds.", "muted")
                # As a task of its own, since building the part again removes the timer.
                ui.timer(RETRY_SECONDS, lambda: background_tasks.create(self.show()), once=True)
            widgets.add_button("Try again", self.show)


def find_method(name: str) -> RpcMethod:
    """Return a method by its JSON-RPC name; `cstp.` may be left out."""
    return METHODS[name if "." in name else f"cstp.{name}"]


def read_answer(message: Message) -> Answer:
    answer: Answer = reveal_invisible(to_json(message))
    return answer


def describe_failure(error: CstpError) -> str:
    """Return a failure in words, with the number under which the log of the server has it."""
    if isinstance(error, MethodNotFound):
        return "This server does not offer it; its settings leave this part out."
    text = reveal_invisible(error.message)
    return f"{text} (request {error.request_id})" if error.request_id else text
