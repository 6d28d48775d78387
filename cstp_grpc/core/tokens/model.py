"""Tokens by which agents call, how their secrets are made and recognized, and the port of their store."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from cstp_grpc.common.unicode_text import is_storable
from cstp_grpc.contract.enums import DEFAULT_TENANT, MAX_NAME_CHARACTERS, Permission

if TYPE_CHECKING:
    from cstp_grpc.platform.storage.pagination import Page, PageRequest
    from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

SECRET_PREFIX: Final = "cstp_"  # noqa: S105 - what all secrets begin with
"""Begins each secret, so that scanners of repositories and logs recognize one."""
SECRET_BYTES: Final = 32
"""Random bytes of a secret: 256 bits, as many as its digest has."""
ID_BYTES: Final = 10


def is_name(value: object) -> bool:
    """Return whether a value can be the name of an agent or a tenant, which is shown on one line."""
    return (
        isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARACTERS and value.isprintable() and is_storable(value)
    )


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """The agent that a credential identifies, with its permissions and tenant."""

    name: str
    permissions: frozenset[Permission]
    tenant: str = DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class AgentToken:
    """A token of an agent, without its secret. Instants are aware, in UTC."""

    id: str
    identity: TokenIdentity
    created_by: str
    created_at: datetime
    expires_at: datetime
    request_id: str
    """What its creator chose, by which a repetition of the request is recognized."""
    note: str | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str | None = None
    rotated_from: str | None = None

    def is_usable(self, at: datetime) -> bool:
        """Return whether it is accepted at an instant."""
        return self.revoked_at is None and at < self.expires_at


@dataclass(frozen=True, slots=True)
class TokenFilter:
    """Conditions that tokens must all meet. None does not restrict; `usable_at` leaves out those that have ended."""

    tenant: str
    agent: str | None = None
    usable_at: datetime | None = None


def make_secret() -> str:
    return SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def make_token_id() -> str:
    return f"tok-{secrets.token_hex(ID_BYTES)}"


def token_digest(token: str) -> bytes:
    """Return the SHA-256 digest of a token's secret."""
    # No slow password hash: secrets are long and random, and every call is authenticated.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class TokenStore(Protocol):
    """Stores tokens by the digests of their secrets; no two have the same digest, or creator and request id."""

    def hold(self, unit_of_work: UnitOfWork) -> None:
        """Make the changes of other servers wait until the transaction ends; every change needs it."""

    def load(self, unit_of_work: UnitOfWork, token_id: str) -> AgentToken | None:
        """Return a token, or None if it does not exist."""

    def find_request(self, unit_of_work: UnitOfWork, created_by: str, request_id: str) -> AgentToken | None:
        """Return the token that a creator made by a request, or None."""

    def find_tenants(self, unit_of_work: UnitOfWork, agent: str) -> Collection[str]:
        """Return the tenants that tokens of an agent belong to, ended ones too."""

    def list_agents(self, unit_of_work: UnitOfWork) -> Collection[str]:
        """Return the agents that have tokens, ended ones too."""

    def count_usable(self, unit_of_work: UnitOfWork, agent: str, at: datetime) -> int:
        """Return how many tokens of an agent are accepted at an instant."""

    def add(self, unit_of_work: UnitOfWork, token: AgentToken, digest: bytes) -> None:
        """Store a new token."""

    def replace_digest(self, unit_of_work: UnitOfWork, token_id: str, digest: bytes) -> None:
        """Give a token another secret, so that the one before is not accepted any more."""

    def end(self, unit_of_work: UnitOfWork, token: AgentToken) -> None:
        """Store when a token ends, or by whom and when it was revoked."""

    def note_uses(self, unit_of_work: UnitOfWork, uses: Mapping[str, datetime]) -> None:
        """Store when tokens were used last, by their ids; instants before those stored change nothing."""

    def remove_ended(self, unit_of_work: UnitOfWork, before: datetime, limit: int) -> int:
        """Remove at most `limit` tokens that ended before an instant, and return how many; fewer means none is left.

        Of each agent one token stays, by which its tenant is known, and of all tokens the one that changed last.
        """

    def page(self, conditions: TokenFilter, request: PageRequest) -> Page[AgentToken]:
        """Return the tokens that meet conditions, the newest first.

        Raises InvalidArgument if the page token is not one of this listing, and QueryFailed.
        """

    def usable_since(self, change: int, at: datetime) -> tuple[int, Sequence[tuple[bytes, AgentToken]]] | None:
        """Return the number of the last change, and all tokens accepted at an instant with their digests.

        None if the last change is the given one. Raises QueryFailed.
        """
