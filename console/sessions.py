"""The people who are signed in. Their credentials stay in the memory of this process."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cstp_grpc.client.async_client import AsyncCstpClient
from cstp_grpc.client.retry import RetryPolicy
from cstp_grpc.common.unicode_text import replace_invisible
from cstp_grpc.contract.errors import InvalidArgument, RateLimited
from cstp_grpc.contract.json_codec import to_json

SECRET_BYTES: Final = 32
CALL_SECONDS: Final = 20.0
"""Timeout of a call, retries included. Chosen: a person who waits longer reloads the page."""
MAX_SESSIONS: Final = 500
"""Chosen: each has a connection to the server; more people sign in elsewhere."""
MAX_SESSIONS_OF_AGENT: Final = 20
"""The oldest one ends, so that no agent takes the sessions of others. Chosen: more than a person's browsers."""
LINK_SECONDS: Final = 3600.0
"""Seconds for which a link signs in. Chosen: time to open it after the start."""
MAX_FAILURES: Final = 10
"""Failed attempts of one address, or of all together times ten, within a minute. Chosen: far above typing mistakes."""
FAILURE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """The server that the console calls, and how."""

    target: str
    """`grpc://host:port`, or `grpcs://host:port` with TLS."""
    authorities: bytes | None = None
    """The certificates of the authorities to trust, PEM; None for those of the system."""
    own_certificate: Path | None = None
    """A PEM file with the certificate of the console and its key, for a server that requires one with tokens, too."""

    @property
    def accepts_certificates(self) -> bool:
        return self.target.startswith("grpcs://")

    def open_client(self, token: str | None, certificate: bytes | None = None) -> AsyncCstpClient:
        """Return a client that calls with a token or a client certificate with its key. Raises InvalidArgument."""
        if certificate is None:
            if token is None and self.own_certificate is not None:
                # Security: the server would take the person for the console.
                raise InvalidArgument.field("token", "is missing")
            return self._build_client(token, self.own_certificate)
        # The library reads files. This one is readable by its owner only, and gone when the client is made.
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:
            file.write(certificate)
            file.flush()
            return self._build_client(None, Path(file.name))

    def _build_client(self, token: str | None, certificate: Path | None) -> AsyncCstpClient:
        return AsyncCstpClient(
            self.target,
            token,
            timeout=CALL_SECONDS,
            # A page that waits for a stopped server says so soon, and tries again by itself.
            retries=RetryPolicy(attempts=2),
            root_certificates=self.authorities,
            client_certificate=certificate,
        )


@dataclass(eq=False)
class ConsoleSession:
    """A person who is signed in."""

    client: AsyncCstpClient
    access: Mapping[str, Any]
    """The response of GetAccess."""
    started: float
    used: float
    dark: bool | None = None
    """Whether pages are dark; None to follow the browser."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    closing: asyncio.Task[None] | None = None

    @property
    def agent(self) -> str:
        return replace_invisible(str(self.access["requestingAgent"]))

    @property
    def permissions(self) -> frozenset[str]:
        return frozenset(self.access.get("permissions", ()))


class SessionStore:
    """The sessions by the hash of their secret. It belongs to one event loop."""

    def __init__(
        self,
        server: ServerTarget,
        idle_seconds: float,
        total_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server = server
        self._idle = idle_seconds
        self._total = total_seconds
        self._clock = clock
        self._sessions: dict[bytes, ConsoleSession] = {}
        self._links: dict[bytes, tuple[float, str | None]] = {}
        self._failures: list[tuple[float, str]] = []

    async def sign_in(self, token: str | None, certificate: bytes | None, address: str) -> str:
        """Return the secret of a new session. Raises CstpError if the server does not accept the credential."""
        now = self._clock()
        self._failures = [each for each in self._failures if each[0] > now - FAILURE_SECONDS]
        ours = sum(origin == address for _, origin in self._failures)
        if ours >= MAX_FAILURES or len(self._failures) >= 10 * MAX_FAILURES or len(self._sessions) >= MAX_SESSIONS:
            raise RateLimited("Too many attempts to sign in; wait a minute")
        # Counted before the answer, so that attempts at the same time count, too.
        attempt = (now, address)
        self._failures.append(attempt)
        client = self.server.open_client(token, certificate)
        try:
            access = to_json(await client.get_access())
        except BaseException:
            await client.close()
            raise
        if attempt in self._failures:
            self._failures.remove(attempt)
        secret = secrets.token_urlsafe(SECRET_BYTES)
        session = ConsoleSession(client, access, now, now)
        same = [each for each in self._sessions.values() if each.agent == session.agent]
        for oldest in same[: max(0, len(same) + 1 - MAX_SESSIONS_OF_AGENT)]:
            self.end_session(oldest)
        self._sessions[hash_secret(secret)] = session
        return secret

    def create_link(self, token: str | None) -> str:
        """Return the secret of a link that signs in once with a token."""
        secret = secrets.token_urlsafe(SECRET_BYTES)
        self._links[hash_secret(secret)] = (self._clock() + LINK_SECONDS, token)
        return secret

    async def follow_link(self, secret: str, address: str) -> str:
        """Return the secret of a new session, once for each link. Raises CstpError."""
        until, token = self._links.pop(hash_secret(secret), (0.0, None))
        if self._clock() >= until:
            raise InvalidArgument("The link was used before, or is too old")
        return await self.sign_in(token, None, address)

    def find_session(self, secret: str | None) -> ConsoleSession | None:
        """Return a session that has not ended."""
        session = self._sessions.get(hash_secret(secret)) if secret else None
        if session is None or session.ended.is_set():
            return None
        if self._has_expired(session):
            self.end_session(session)
            return None
        return session

    def touch_session(self, session: ConsoleSession) -> None:
        """Note that the person did something."""
        session.used = self._clock()

    def end_expired(self) -> None:
        for session in list(self._sessions.values()):
            if self._has_expired(session):
                self.end_session(session)

    def end_session(self, session: ConsoleSession) -> None:
        """Forget the credential, and close the connection that used it."""
        for key in [key for key, found in self._sessions.items() if found is session]:
            del self._sessions[key]
        if not session.ended.is_set():
            session.ended.set()
            session.closing = asyncio.create_task(session.client.close())

    async def close(self) -> None:
        """End all sessions."""
        sessions = list(self._sessions.values())
        for session in sessions:
            self.end_session(session)
        await asyncio.gather(*(session.closing for session in sessions if session.closing))

    def _has_expired(self, session: ConsoleSession) -> bool:
        now = self._clock()
        return now >= session.used + self._idle or now >= session.started + self._total


def hash_secret(secret: str) -> bytes:
    # Looked up by its hash, so that comparing takes no time that depends on the secret.
    return hashlib.sha256(secret.encode()).digest()
