"""A pool of clients of one server: one client for each token, so that each caller acts as itself."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from cachetools import TTLCache
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthenticationError

from cstp_grpc.agents.mcp_server.clients import ContractClient, call_by_name
from cstp_grpc.contract.errors import AuthenticationRequired, CstpError, InvalidArgument

logger = logging.getLogger(__name__)

MAX_CLIENTS: Final = 256
"""Number of clients that are kept open. Chosen: more agents than share one such server at a time."""
MAX_KNOWN_TOKENS: Final = 1024
TOKEN_SECONDS: Final = 0.4
"""Seconds for which a verified token is accepted without asking again. Chosen: servers learn about a revocation within
half a second, so it applies within a second, also to requests that do not reach the server, such as the list of tools.
"""


class ClosableClient(ContractClient, Protocol):
    """A client whose connection can be closed."""

    async def close(self) -> None: ...


@dataclass
class PooledClient:
    """A client, and the number of requests that use it now."""

    client: ClosableClient
    users: int = 0


class ClientPool:
    """The clients of the latest callers, by token; for one event loop."""

    def __init__(self, open_client: Callable[[str], ClosableClient], most: int = MAX_CLIENTS) -> None:
        self._open_client = open_client
        self._most = most
        # The least recently used client first.
        self._clients: OrderedDict[str, PooledClient] = OrderedDict()

    @asynccontextmanager
    async def lease_client(self) -> AsyncIterator[ContractClient]:
        """Yield the client of the current request's caller. Raises AuthenticationRequired."""
        token = get_access_token()
        if token is None:
            # Fail closed: without the authentication middleware, no request is accepted.
            raise AuthenticationRequired("The request has no bearer token.")
        async with self.lease_by_token(token.token) as client:
            yield client

    @asynccontextmanager
    async def lease_by_token(self, token: str) -> AsyncIterator[ContractClient]:
        pooled = self._clients.get(token)
        if pooled is None:
            pooled = self._clients[token] = PooledClient(self._open_client(token))
        self._clients.move_to_end(token)
        pooled.users += 1
        try:
            yield pooled.client
        finally:
            pooled.users -= 1
            await self._close_surplus()

    async def close(self) -> None:
        while self._clients:
            _, pooled = self._clients.popitem()
            await pooled.client.close()

    async def _close_surplus(self) -> None:
        """Close unused clients above the limit, the least recently used first."""
        idle = [token for token, pooled in self._clients.items() if not pooled.users]
        for token in idle[: max(0, len(self._clients) - self._most)]:
            # Removed before the first await, so that no request leases a client that is being closed.
            await self._clients.pop(token).client.close()


class ServerUnavailableError(AuthenticationError):
    """The server that verifies the tokens cannot be reached."""


class CallerVerifier:
    """Asks the server which agent a bearer token identifies."""

    def __init__(self, pool: ClientPool) -> None:
        self._pool = pool
        # By digests: the time of their comparison reveals nothing about a token.
        self._known: TTLCache[bytes, AccessToken] = TTLCache(MAX_KNOWN_TOKENS, TOKEN_SECONDS)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the caller of a token, or None if the server does not know it. Raises ServerUnavailableError."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        if (known := self._known.get(digest)) is not None:
            return known
        try:
            async with self._pool.lease_by_token(token) as client:
                access = await call_by_name(client, "cstp.getAccess", {})
        except (AuthenticationRequired, InvalidArgument):
            # Values that do not fit into a header, such as non-ASCII letters, are not tokens either.
            return None
        except CstpError as error:
            # An unauthenticated caller must not learn the server's address.
            logger.warning("The server cannot be asked for a token: %s: %s", error.reason, error.message)
            raise ServerUnavailableError(f"{error.reason}: the CSTP server cannot be asked now") from error
        # A session belongs to the agent and tenant that opened it; the SDK compares `subject`, too.
        found = AccessToken(
            token=token, client_id=access["requestingAgent"], subject=access["tenant"], scopes=access["permissions"]
        )
        self._known[digest] = found
        return found
