"""Signing in and out. The pages need no script."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.datastructures import UploadFile

from console.request_guard import LINK_PATH, MAX_BODY_BYTES, SIGN_IN_PATH, Origins
from console.sessions import SessionStore
from cstp_grpc.common.unicode_text import cut_line
from cstp_grpc.contract.errors import CstpError

SIGN_OUT_PATH: Final = "/sign-out"
STYLES: Final = Path(__file__).with_name("console.css")
PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<title>Sign in – CSTP</title>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/console.css">
</head>
<body class="auto">
<main class="sign-in">
<h1>CSTP Console</h1>
{notice}
<form class="card" method="post" action="/sign-in" enctype="multipart/form-data">
<input type="hidden" name="next" value="{next}">
<label>Token or JWT
<input type="password" name="token" autocomplete="current-password" autofocus></label>
{certificate}
<button type="submit">Sign in</button>
</form>
<p class="muted">{advice}</p>
</main>
</body>
</html>
"""
CERTIFICATE: Final = """<label>Or a client certificate with its private key (PEM)
<input type="file" name="certificate" accept=".pem,.crt"></label>"""
REDIRECT: Final = (
    '<!doctype html><html lang="en"><title>CSTP</title><meta http-equiv="refresh" content="0;url={}"></html>'
)
ADVICE: Final = (
    "Use a token of your own: what you do here is recorded under its name. It stays in this server's memory."
)


class SignInRoutes:
    """The routes by which people sign in and out; `advice` names the tokens of this machine, for developers."""

    def __init__(self, sessions: SessionStore, origins: Origins, advice: str = ADVICE) -> None:
        self._sessions = sessions
        self._origins = origins
        self._advice = advice

    def install(self, app: FastAPI) -> None:
        app.add_api_route(SIGN_IN_PATH, self.show_form, methods=["GET"], include_in_schema=False)
        app.add_api_route(SIGN_IN_PATH, self.sign_in, methods=["POST"], include_in_schema=False)
        app.add_api_route(LINK_PATH, self.follow_link, methods=["GET"], include_in_schema=False)
        app.add_api_route(SIGN_OUT_PATH, self.sign_out, methods=["POST"], include_in_schema=False)
        app.add_api_route("/console.css", self.send_styles, methods=["GET"], include_in_schema=False)

    async def show_form(self, request: Request) -> Response:
        """Return the form, or lead a person who is signed in to the page."""
        target = local_path(request.query_params.get("next", "/"))
        if request.state.session is not None and "ended" not in request.query_params:
            return RedirectResponse(target, 303)
        notice = "You were signed out. Sign in again." if "ended" in request.query_params else ""
        return self._form(target, notice, 200)

    async def sign_in(self, request: Request) -> Response:
        """Sign in with a token or a certificate, and lead to the page that was asked for."""
        async with request.form(max_files=1, max_fields=3, max_part_size=MAX_BODY_BYTES) as form:
            token, file = form.get("token"), form.get("certificate")
            target = local_path(str(form.get("next") or "/"))
            certificate = await file.read() if isinstance(file, UploadFile) else b""
        try:
            secret = await self._sessions.sign_in(
                str(token or "").strip() or None, certificate or None, client_address(request)
            )
        except CstpError as error:
            return self._form(target, cut_line(error.message, 300), 401)
        return self._enter(secret, target)

    async def follow_link(self, request: Request) -> Response:
        """Sign in by a link that this process has printed, once."""
        # Others could sign a person in as somebody else by leading the browser to a link of theirs.
        if request.headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
            return self._form("/", "Open the link from the terminal, not from a page.", 403)
        try:
            secret = await self._sessions.follow_link(request.query_params.get("link", ""), client_address(request))
        except CstpError as error:
            return self._form("/", cut_line(error.message, 300), 401)
        return self._enter(secret, "/")

    async def sign_out(self, request: Request) -> Response:
        """End the session, and with it every open page of it."""
        if request.state.session is not None:
            self._sessions.end_session(request.state.session)
        response = RedirectResponse(SIGN_IN_PATH, 303)
        response.delete_cookie(self._origins.cookie, secure=self._origins.secure, httponly=True, samesite="strict")
        return response

    async def send_styles(self) -> Response:
        return FileResponse(STYLES, media_type="text/css", headers={"Cache-Control": "no-cache"})

    def _enter(self, secret: str, target: str) -> Response:
        # Not a redirect: a browser that comes from another site would not send the strict cookie along with it.
        response = HTMLResponse(REDIRECT.format(html.escape(target)))
        response.set_cookie(
            self._origins.cookie, secret, path="/", secure=self._origins.secure, httponly=True, samesite="strict"
        )
        return response

    def _form(self, target: str, notice: str, status: int) -> Response:
        page = PAGE.format(
            next=html.escape(target),
            notice=f'<p class="alert" role="alert">{html.escape(notice)}</p>' if notice else "",
            certificate=CERTIFICATE if self._sessions.server.accepts_certificates else "",
            advice=html.escape(self._advice),
        )
        return HTMLResponse(page, status)


def local_path(target: str) -> str:
    """Return a path of this console; `/` for anything that leads elsewhere."""
    is_local = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if is_local and not target.startswith((SIGN_IN_PATH, LINK_PATH)) else "/"


def client_address(request: Request) -> str:
    return request.client.host if request.client else ""
