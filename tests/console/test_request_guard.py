"""What a browser may send, and what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from console.request_guard import WEBSOCKET_PATH, Origins, RequestGuard
from console.sign_in import local_path
from cstp_grpc.server.app import App
from tests.console.support import FORM, ORIGINS, ConsoleKit, console_kit
from tests.harness import TOKENS, running, settings


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with running(settings(tmp_path_factory.mktemp("guard"))) as app:
        yield app


def in_console(app: App, act: Callable[[ConsoleKit], Awaitable[None]]) -> None:
    async def run() -> None:
        async with console_kit(app.target) as kit:
            await act(kit)

    asyncio.run(run())


def test_a_person_signs_in_and_out(app: App) -> None:
    async def act(kit: ConsoleKit) -> None:
        browser = kit.browser()
        form = await browser.get("/decisions?query=x", follow_redirects=True)
        assert form.url.path == "/sign-in"
        assert "next=%2Fdecisions%3Fquery%3Dx" in str(form.url)
        refused = await browser.post("/sign-in", data={"token": "wrong"}, headers=FORM)
        assert refused.status_code == 401
        assert 'role="alert"' in refused.text
        entered = await browser.post("/sign-in", data={"token": TOKENS["alice"], "next": "/live"}, headers=FORM)
        assert "url=/live" in entered.text
        cookie = entered.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKENS["alice"] not in cookie
        page = await browser.get("/live")
        assert page.status_code == 200
        assert TOKENS["alice"] not in page.text
        kept = dict(browser.cookies)
        assert (await browser.post("/sign-out", headers=FORM)).headers["location"] == "/sign-in"
        browser.cookies.update(kept)
        assert (await browser.get("/live")).status_code == 303

    in_console(app, act)


def test_responses_have_strict_headers(app: App) -> None:
    async def act(kit: ConsoleKit) -> None:
        user = await kit.sign_in("alice")
        page = await user.http_client.get("/live")
        policy = page.headers["content-security-policy"]
        nonce = policy.partition("'nonce-")[2].partition("'")[0]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-inline" not in policy.partition("style-src")[0]
        assert page.text.count("<script") == page.text.count(f'<script nonce="{nonce}"')
        other = (await user.http_client.get("/live")).headers["content-security-policy"]
        assert nonce not in other
        for path in ("/live", "/sign-in", "/console.css", "/nowhere"):
            headers = (await user.http_client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "referrer-policy" in headers

    in_console(app, act)


FORGED: dict[str, tuple[str, str, dict[str, str], int]] = {
    "form of another origin": ("POST", "/sign-out", {"Origin": "https://evil.example"}, 403),
    "form without an origin": ("POST", "/sign-out", {}, 403),
    "form of a page without origin": ("POST", "/sign-in", {"Origin": "null"}, 403),
    "another name of this machine": ("GET", "/live", {"Host": "evil.example:8200"}, 421),
    "another method": ("DELETE", "/live", FORM, 405),
    "a page that is not there": ("GET", "/decisions/a/b", {}, 404),
    "documents of the framework": ("GET", "/openapi.json", {}, 404),
    "polling instead of a WebSocket": ("GET", "/_nicegui_ws/socket.io/?transport=polling&EIO=4", {}, 400),
    "a link from another site": ("GET", "/enter?link=x", {"Sec-Fetch-Site": "cross-site"}, 403),
}


@pytest.mark.parametrize("case", sorted(FORGED))
def test_forged_requests_are_refused(app: App, case: str) -> None:
    method, path, headers, status = FORGED[case]

    async def act(kit: ConsoleKit) -> None:
        user = await kit.sign_in("alice")
        response = await user.http_client.request(method, path, headers=headers)
        assert response.status_code == status
        assert (await user.http_client.get("/live")).status_code == 200

    in_console(app, act)


def test_long_forms_are_refused_before_they_are_read(app: App) -> None:
    async def act(kit: ConsoleKit) -> None:
        answer = await kit.browser().post("/sign-in", data={"token": "x" * 70_000}, headers=FORM)
        assert answer.status_code == 413

    in_console(app, act)


@pytest.mark.parametrize(
    ("origin", "owner", "opens"),
    [
        ("http://localhost:8200", True, True),
        ("https://evil.example", True, False),
        (None, True, False),
        ("http://localhost:8200", False, False),
    ],
)
def test_a_websocket_belongs_to_the_page_of_its_session(app: App, origin: str | None, owner: bool, opens: bool) -> None:
    async def act(kit: ConsoleKit) -> None:
        alice, bob = await kit.sign_in("alice"), await kit.sign_in("bob")
        page = await alice.open("/live")
        cookies = (alice if owner else bob).http_client.cookies
        cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
        headers = [(b"host", b"localhost:8200"), (b"cookie", cookie.encode())]
        headers += [(b"origin", origin.encode())] if origin else []
        query = f"EIO=4&transport=websocket&client_id={page.id}".encode()
        sent = await open_websocket(kit, headers, query)
        assert (sent["type"] == "websocket.accept") == opens

    in_console(app, act)


async def open_websocket(kit: ConsoleKit, headers: list[tuple[bytes, bytes]], query: bytes) -> Any:
    """Return the first answer to a WebSocket, from the application behind the guard or from the guard."""

    async def accept(_: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})

    async def connect() -> Message:
        return {"type": "websocket.connect"}

    sent: list[Message] = []

    async def note(message: Message) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": WEBSOCKET_PATH, "query_string": query, "headers": headers}
    await RequestGuard(accept, kit.sessions, ORIGINS, ())(scope, connect, note)
    return sent[0]


@pytest.mark.parametrize(
    ("target", "safe"),
    [
        ("/decisions?query=a%20b", "/decisions?query=a%20b"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/sign-in?next=/", "/"),
        ("/live\nSet-Cookie: x", "/"),
    ],
)
def test_signing_in_leads_to_pages_of_the_console_only(target: str, safe: str) -> None:
    assert local_path(target) == safe


def test_tls_makes_cookies_and_transport_strict() -> None:
    plain = Origins.build("127.0.0.1", 8200, None, tls=False)
    proxied = Origins.build("0.0.0.0", 8200, "https://console.example.com", tls=False)
    secure = Origins.build("0.0.0.0", 8200, None, tls=True)
    assert [each.secure for each in (plain, proxied, secure)] == [False, True, True]
    assert not plain.cookie.startswith("__Host-")
    assert secure.cookie.startswith("__Host-")
    assert proxied.accept_host("console.example.com")
    assert not proxied.accept_host("evil.example")
    assert proxied.accept_origin("https://console.example.com", "console.example.com")
    assert not plain.accept_origin("https://localhost:8200", "localhost:8200")
