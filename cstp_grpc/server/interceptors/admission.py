"""Admission of inbound calls before their message is read: deadlines, bearer tokens, permissions."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import grpc

from cstp_grpc.caller import ANONYMOUS, RELAYED_READER, Caller, current_caller
from cstp_grpc.config import TokenSettings
from cstp_grpc.contract.call_scope import HOP_METADATA_KEY
from cstp_grpc.contract.methods import RpcMethod, missing_permission_error, required_permissions
from cstp_grpc.enums import DEFAULT_TENANT, Permission
from cstp_grpc.errors import AuthenticationRequired, DeadlineExceeded

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


# No spaces, quotes or control characters: request ids are written to logs and metadata as they are.
REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def choose_request_id(sent: str | bytes | None) -> str:
    """Return the caller's `x-request-id` if it is valid, else 32 random hexadecimal digits."""
    return sent if isinstance(sent, str) and REQUEST_ID_PATTERN.fullmatch(sent) else os.urandom(16).hex()


def refuse_expired(call: InboundCall) -> None:
    """Refuse a call whose deadline has passed. Raises DeadlineExceeded."""
    remaining: float | None = call.context.time_remaining()
    if remaining is not None and remaining <= 0:
        raise DeadlineExceeded("The deadline passed before the call was begun")


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
        self._required = required_permissions(methods)
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
            # Security: a proxy may check one of the values and the server use another, so none is used.
            raise AuthenticationRequired(f"`authorization` was sent more than once; {TOKEN_HINT}, once")
        agent = self._identify(call.metadata.get(AUTHORIZATION_HEADER))
        call.agent = agent.name
        needed = self._required[call.method.name]
        if needed is not None and needed not in agent.permissions:
            raise missing_permission_error(call.method.name, needed, agent.name)
        reader = RELAYED_READER if HOP_METADATA_KEY in call.metadata else agent.name
        # For the rest of this task: gRPC runs each call in a task of its own, so that calls cannot see each other's.
        current_caller.set(Caller(agent.name, reader, agent.permissions, call.request_id, agent.tenant))

    def _identify(self, header: str | bytes | None) -> TokenIdentity:
        if self._agents is None:
            return ANONYMOUS_IDENTITY
        if not isinstance(header, str):
            raise AuthenticationRequired(f"No bearer token was sent; {TOKEN_HINT}")
        scheme, _, token = header.partition(" ")
        # A look-up by digest takes the same path for every wrong token; its timing depends on the digest only, from
        # which nothing about a valid token can be learned.
        known = self._agents.get(token_digest(token.strip())) if scheme.lower() == "bearer" else None
        if known is None:
            raise AuthenticationRequired(f"The bearer token is not accepted; {TOKEN_HINT}")
        return known


def token_digest(token: str) -> bytes:
    """Return the SHA-256 digest of a token."""
    # No slow password hash: tokens are long and random, and every call is authenticated.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
