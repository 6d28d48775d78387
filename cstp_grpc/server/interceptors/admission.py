"""Admission of inbound calls before their message is read: bearer tokens, permissions, rate limits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import grpc
from limits import RateLimitItem, parse

from cstp_grpc.caller import ANONYMOUS, Caller, current_caller
from cstp_grpc.config import ConfigError, RateLimitSettings, TokenSettings
from cstp_grpc.contract.hop_limit import HOP_METADATA_KEY
from cstp_grpc.contract.methods import RequiredPermissions, RpcMethod, is_contract_method
from cstp_grpc.enums import DEFAULT_TENANT, Permission
from cstp_grpc.errors import AuthenticationRequired, RateLimited
from cstp_grpc.server.interceptors.moving_windows import MovingWindows, window_value_count

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(slots=True)
class InboundCall:
    """An inbound call with its metadata; `agent` is set after authentication."""

    method: RpcMethod
    context: Context
    request_id: str
    metadata: Mapping[str, str | bytes]
    repeated_keys: frozenset[str] = frozenset()
    """The keys that were sent more than once; `metadata` has the last value of each."""
    agent: str | None = None


class AdmissionStep(Protocol):
    """Checks a call by its metadata, before its message is read."""

    def __call__(self, call: InboundCall) -> None:
        """Return if the call is admitted. Raises CstpError."""


def find_repeated_keys(metadata: Sequence[tuple[str, str | bytes]]) -> frozenset[str]:
    """Return the keys that occur more than once."""
    keys = [key for key, _ in metadata]
    if len(set(keys)) == len(keys):
        return frozenset()
    return frozenset(key for key in keys if keys.count(key) > 1)


AUTHORIZATION_HEADER = "authorization"
TOKEN_HINT = "send `authorization: Bearer TOKEN` with a token from the server's configuration"  # noqa: S105


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """The agent that a token identifies, with its permissions and tenant."""

    name: str
    permissions: frozenset[Permission]
    tenant: str


ANONYMOUS_IDENTITY = TokenIdentity(ANONYMOUS, frozenset(Permission), DEFAULT_TENANT)
"""The identity of all callers if authentication is disabled."""


class Authenticator:
    """Identifies callers by their bearer tokens and checks their permissions.

    Tokens are stored and compared as SHA-256 digests, so that neither memory nor timing discloses them. `tokens` None
    admits everyone. Raises ValueError for a method without a permission in the contract.
    """

    def __init__(self, tokens: Iterable[TokenSettings] | None, methods: Iterable[RpcMethod]) -> None:
        self._permissions = RequiredPermissions(methods)
        self._agents = (
            None
            if tokens is None
            else {
                token_digest(token.token.get_secret_value()): TokenIdentity(token.name, token.permissions, token.tenant)
                for token in tokens
            }
        )

    def __call__(self, call: InboundCall) -> None:
        """Set the current caller for the rest of the call's task.

        Raises AuthenticationRequired, also for a repeated header even if none is needed, and PermissionDenied.
        """
        if AUTHORIZATION_HEADER in call.repeated_keys:
            # Which of them counts would be a guess, and proxies guess differently.
            raise AuthenticationRequired(f"`authorization` was sent more than once; {TOKEN_HINT}, once")
        agent = self._identify(call.metadata.get(AUTHORIZATION_HEADER))
        call.agent = agent.name
        self._permissions.require(call.method.name, agent.name, agent.permissions)
        relayed = HOP_METADATA_KEY in call.metadata
        current_caller.set(Caller(agent.name, agent.permissions, call.request_id, agent.tenant, relayed))

    def _identify(self, header: str | bytes | None) -> TokenIdentity:
        if self._agents is None:
            return ANONYMOUS_IDENTITY
        if not isinstance(header, str):
            raise AuthenticationRequired(f"No bearer token was sent; {TOKEN_HINT}")
        scheme, _, token = header.partition(" ")
        known = self._agents.get(token_digest(token.strip())) if scheme.lower() == "bearer" else None
        if known is None:
            raise AuthenticationRequired(f"The bearer token is not accepted; {TOKEN_HINT}")
        return known


def token_digest(token: str) -> bytes:
    """Return the SHA-256 digest of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


MIN_WAIT = 0.001
"""Minimum retry delay in seconds, for a limit that is free again by the time it is reported."""


@dataclass(frozen=True, slots=True)
class Window:
    """A limit and the offset of its window; `start` is relative to the agent's windows if each agent has its own."""

    limit: RateLimitItem
    start: int


class RateLimiter:
    """Limits calls for each agent and method, and in total, in moving windows.

    `methods` are the served methods, `agents` all callers; `memory` is a descriptor of `create_shared_memory` if
    several processes with the same settings share the limits. Raises ConfigError for a limit on an unknown method.
    """

    def __init__(
        self, settings: RateLimitSettings, methods: Collection[str], agents: Iterable[str], memory: int | None = None
    ) -> None:
        if unknown := [name for name in settings.methods if name not in methods and not is_contract_method(name)]:
            raise ConfigError(f"rate_limits.methods: there is no method {', '.join(unknown)}")
        limits = {name: parse(settings.methods.get(name, settings.per_agent)) for name in sorted(methods)}
        self._methods: dict[str, Window] = {}
        size = 0
        for name, limit in limits.items():
            self._methods[name] = Window(limit, size)
            size += window_value_count(limit.amount)
        self._agents = {agent: number * size for number, agent in enumerate(sorted(set(agents)))}
        size *= len(self._agents)
        self._overall: Window | None = None
        if settings.overall:
            self._overall = Window(parse(settings.overall), size)
            size += window_value_count(self._overall.limit.amount)
        self._windows = MovingWindows(size, memory)

    def __call__(self, call: InboundCall) -> None:
        """Count the call. Raises RateLimited with the seconds to wait."""
        method, agent = call.method.name, call.agent
        assert agent is not None, "authentication comes before"
        self._take(self._methods[method], self._agents[agent], f"calls of {method}")
        if self._overall is not None:
            self._take(self._overall, 0, "calls of all agents")

    def _take(self, window: Window, start: int, what: str) -> None:
        limit = window.limit
        free_at = self._windows.take(start + window.start, limit.amount, limit.get_expiry())
        if free_at is None:
            return
        wait = max(free_at - time.time(), MIN_WAIT)
        raise RateLimited(f"Too many {what}: {limit} is the limit; try again in {wait:.1f} s", retry_after=wait)
