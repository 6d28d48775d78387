"""Who calls, and whether they may."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from cstp_grpc.client.contract import Method
from cstp_grpc.client.federation.hops import METADATA_KEY
from cstp_grpc.config import TokenSettings
from cstp_grpc.errors import AuthenticationRequired
from cstp_grpc.server.interceptors.call import Call
from cstp_grpc.services.caller import Caller, current_caller
from cstp_grpc.services.permissions import Permissions
from cstp_grpc.vocabulary import DEFAULT_TENANT, Permission

ANONYMOUS = "anonymous"
"""The agent that everyone is where authentication is off."""

HEADER = "authorization"
HOW = "send `authorization: Bearer TOKEN` with a token from the server's configuration"


@dataclass(frozen=True, slots=True)
class Agent:
    """Who a token identifies, and what that agent may do and see."""

    name: str
    permissions: frozenset[Permission]
    tenant: str


ANYONE = Agent(ANONYMOUS, frozenset(Permission), DEFAULT_TENANT)
"""Who everyone is where authentication is off."""


class Authentication:
    """Identifies callers by their bearer tokens and holds them to their permissions.

    Tokens are kept and compared as SHA-256 digests, so that neither memory nor timing tells them. `tokens` None lets
    everyone in. Raises ValueError for a method whose permission the contract does not state.
    """

    def __init__(self, tokens: Iterable[TokenSettings] | None, methods: Iterable[Method]) -> None:
        self._permissions = Permissions(methods)
        self._agents = (
            None
            if tokens is None
            else {
                digest(token.token.get_secret_value()): Agent(token.name, token.permissions, token.tenant)
                for token in tokens
            }
        )

    def __call__(self, call: Call) -> None:
        """Set the current caller, for the rest of the call's task.

        Raises AuthenticationRequired, also for credentials that were sent twice where none are needed, and
        PermissionDenied.
        """
        if HEADER in call.repeated_keys:
            # Which of them counts would be a guess, and proxies guess differently.
            raise AuthenticationRequired(f"`authorization` was sent more than once; {HOW}, once")
        agent = self._identify(call.metadata.get(HEADER))
        call.agent = agent.name
        self._permissions.require(call.method.name, agent.name, agent.permissions)
        relayed = METADATA_KEY in call.metadata
        current_caller.set(Caller(agent.name, agent.permissions, call.request_id, agent.tenant, relayed))

    def _identify(self, header: str | bytes | None) -> Agent:
        if self._agents is None:
            return ANYONE
        if not isinstance(header, str):
            raise AuthenticationRequired(f"No bearer token was sent; {HOW}")
        scheme, _, token = header.partition(" ")
        known = self._agents.get(digest(token.strip())) if scheme.lower() == "bearer" else None
        if known is None:
            raise AuthenticationRequired(f"The bearer token is not accepted; {HOW}")
        return known


def digest(token: str) -> bytes:
    """Return a token's SHA-256."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
