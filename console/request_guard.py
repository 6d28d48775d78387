"""The checks before each request and WebSocket message of a browser, and the headers of each response.

They stand in front of NiceGUI, so that none of its routes can be reached around them.
"""

from __future__ import annotations

import asyncio
import http.cookies
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

from nicegui import Client
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from console.sessions import ConsoleSession, SessionStore

SIGN_IN_PATH: Final = "/sign-in"
LINK_PATH: Final = "/enter"
WEBSOCKET_PATH: Final = "/_nicegui_ws/"
ASSET_PREFIXES: Final = ("/_nicegui/", "/favicon.ico", "/console.css")
"""Paths that anyone may read: scripts, styles and fonts, which contain no data."""
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
MAX_BODY_BYTES: Final = 65_536
"""Chosen: a token, or a certificate with its issuers and its key."""
EVENT_FRAME: Final = re.compile(r'42\["event",')
"""The start of a WebSocket message that reports input of the person; others are heartbeats and confirmations."""
SCRIPT_TAG: Final = re.compile(rb"<script(?=[ >])")
FORWARDED_PREFIX: Final = b"x-forwarded-prefix"


@dataclass(frozen=True, slots=True)
class Origins:
    """The names by which browsers may reach the console."""

    secure: bool
    """Whether browsers use https."""
    hosts: frozenset[str] | None
    """Accepted values of the header Host; None for any, where a certificate proves the name."""
    public: str | None
    """The origin of the public URL."""

    @classmethod
    def build(cls, host: str, port: int, public_url: str | None, *, tls: bool) -> Origins:
        """Return the origins of a console that listens on a host and a port."""
        public = urlsplit(public_url) if public_url else None
        secure = tls or (public is not None and public.scheme == "https")
        names = {f"{name}:{port}" for name in (*LOOPBACK_NAMES, f"[{host}]" if ":" in host else host)}
        names |= {public.netloc} if public else set()
        return cls(secure, None if tls else frozenset(names), public_url.rstrip("/") if public_url else None)

    def accept_host(self, host: str) -> bool:
        return bool(host) and (self.hosts is None or host.lower() in self.hosts)

    def accept_origin(self, origin: str | None, host: str) -> bool:
        return origin is not None and origin in {f"{'https' if self.secure else 'http'}://{host}", self.public}

    @property
    def cookie(self) -> str:
        # The prefix has browsers refuse the cookie from other hosts and without TLS.
        return "__Host-cstp-console" if self.secure else "cstp-console"


class RequestGuard:
    """ASGI middleware: host, origin and session of each request, and strict headers of each response."""

    def __init__(self, app: ASGIApp, sessions: SessionStore, origins: Origins, pages: Iterable[str]) -> None:
        self._app = app
        self._sessions = sessions
        self._origins = origins
        # Parameters of paths, such as `{id}`, are one segment.
        self._pages = re.compile("|".join(re.sub(r"\{\w+\}", "[^/]+", page) for page in pages))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        # NiceGUI would write a prefix that the browser names into pages.
        scope["headers"] = [each for each in scope["headers"] if each[0] != FORWARDED_PREFIX]
        headers = Headers(scope=scope)
        session = self._sessions.find_session(read_cookie(headers, self._origins.cookie))
        scope.setdefault("state", {}).update(session=session, origins=self._origins)
        if scope["type"] == "websocket":
            await self._guard_websocket(scope, receive, send, session)
            return
        nonce = secrets.token_urlsafe(16)
        send = with_headers(send, nonce, secure=self._origins.secure)
        answer = self._refuse_request(scope, headers, session)
        if answer is not None:
            await answer(scope, receive, send)
            return
        if session is not None and not scope["path"].startswith(ASSET_PREFIXES):
            self._sessions.touch_session(session)
        await self._app(scope, receive, with_nonces(send, nonce))

    def _refuse_request(self, scope: Scope, headers: Headers, session: ConsoleSession | None) -> ASGIApp | None:
        """Return the response to a request that goes no further; None lets it through."""
        path, method = scope["path"], scope["method"]
        if not self._origins.accept_host(headers.get("host", "")):
            return PlainTextResponse("The console is not known by this name; see console.public_url.", 421)
        if path.startswith(WEBSOCKET_PATH):
            return PlainTextResponse("This needs a WebSocket.", 400)
        if method not in {"GET", "HEAD", "POST"}:
            return PlainTextResponse("This method is not allowed.", 405)
        if method == "POST" and not self._origins.accept_origin(headers.get("origin"), headers["host"]):
            return PlainTextResponse("A page of another origin sent this.", 403)
        if method == "POST" and not 0 <= content_length(headers) <= MAX_BODY_BYTES:
            return PlainTextResponse("The form is too long.", 413)
        if path.startswith(ASSET_PREFIXES) or path in {SIGN_IN_PATH, LINK_PATH}:
            return None
        if session is None:
            return RedirectResponse(sign_in_url(scope), 303)
        return None if self._pages.fullmatch(path) else PlainTextResponse("There is no such page.", 404)

    async def _guard_websocket(
        self, scope: Scope, receive: Receive, send: Send, session: ConsoleSession | None
    ) -> None:
        """Pass messages on while the session of the page lasts."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        accepted = self._origins.accept_host(host) and self._origins.accept_origin(headers.get("origin"), host)
        if not accepted or session is None or not owns_page(session, scope):
            await send({"type": "websocket.close", "code": 1008})
            return
        ended = asyncio.ensure_future(session.ended.wait())

        async def receive_while_signed_in() -> Message:
            waiting = asyncio.ensure_future(receive())
            await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                waiting.cancel()
                return {"type": "websocket.disconnect", "code": 1008}
            message = await waiting
            if EVENT_FRAME.match(message.get("text") or ""):
                self._sessions.touch_session(session)
            return message

        try:
            await self._app(scope, receive_while_signed_in, send)
        finally:
            ended.cancel()


def read_cookie(headers: Headers, name: str) -> str | None:
    try:
        found = http.cookies.SimpleCookie(headers.get("cookie", "")).get(name)
    except http.cookies.CookieError:
        return None
    return found.value if found else None


def content_length(headers: Headers) -> int:
    """Return the length of a body; -1 if it is not stated."""
    text = headers.get("content-length", "")
    return int(text) if text.isdecimal() and text.isascii() else -1


def sign_in_url(scope: Scope) -> str:
    """Return the path of the sign-in, which leads back to the requested page."""
    query = scope["query_string"].decode("latin-1")
    return f"{SIGN_IN_PATH}?next={quote(scope['path'] + (f'?{query}' if query else ''), safe='')}"


def owns_page(session: ConsoleSession, scope: Scope) -> bool:
    """Return whether the page that opens a WebSocket was built for this session."""
    names = parse_qs(scope["query_string"].decode("latin-1")).get("client_id", [])
    page = Client.instances.get(names[0]) if len(names) == 1 else None
    return page is not None and page.request.scope["state"].get("session") is session


def response_headers(nonce: str, *, secure: bool) -> Sequence[tuple[str, str]]:
    """Return the headers that restrict what a page may do."""
    policy = {
        "default-src": "'none'",
        # NiceGUI evaluates code that this process sends, and Vue compiles templates. Scripts in a page need the nonce,
        # so that no text of an agent can become one.
        "script-src": f"'self' 'nonce-{nonce}' 'unsafe-eval'",
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data:",
        "font-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    headers = [
        ("Content-Security-Policy", "; ".join(f"{name} {value}" for name, value in policy.items())),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        # Not `no-referrer`, with which browsers hide the origin of forms, too.
        ("Referrer-Policy", "same-origin"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ]
    if secure:
        headers.append(("Strict-Transport-Security", "max-age=31536000"))
    return headers


def with_headers(send: Send, nonce: str, *, secure: bool) -> Send:
    """Return a `send` that adds the strict headers, and keeps pages out of caches."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in response_headers(nonce, secure=secure):
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return send_with_headers


def with_nonces(send: Send, nonce: str) -> Send:
    """Return a `send` that gives each script of a page the nonce.

    Texts in a page cannot contain `<script`: NiceGUI writes them with `<` escaped.
    """
    start: Message | None = None
    parts: list[bytes] = []

    async def send_with_nonces(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            if not Headers(raw=message["headers"]).get("content-type", "").startswith("text/html"):
                await send(message)
                return
            start = message
        elif start is None:
            await send(message)
        else:
            parts.append(message.get("body", b""))
            if message.get("more_body"):
                return
            body = SCRIPT_TAG.sub(f'<script nonce="{nonce}"'.encode(), b"".join(parts))
            MutableHeaders(scope=start)["content-length"] = str(len(body))
            await send(start)
            await send({"type": "http.response.body", "body": body})

    return send_with_nonces
