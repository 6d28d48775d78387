"""Tokens by which agents call, and how their secrets are made and recognized."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import is_storable
from cstp_grpc.contract.enums import DEFAULT_TENANT, Permission
from cstp_grpc.contract.limits import MAX_NAME_CHARACTERS

if TYPE_CHECKING:
    pass

SECRET_PREFIX: Final = "cstp_"  # noqa: S105 - the beginning of all secrets
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
    """Chosen by its creator, to recognize a repetition of the request."""
    note: str | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str | None = None
    rotated_from: str | None = None

    def is_usable(self, at: datetime) -> bool:
        return self.revoked_at is None and at < self.expires_at


@dataclass(frozen=True, slots=True)
class TokenFilter:
    """Conditions that tokens must all meet. None does not restrict; `usable_at` leaves out those that have ended."""

    tenant: str
    agent: str | None = None
    usable_at: datetime | None = None
    id_prefix: str | None = None


def make_secret() -> str:
    return SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def make_token_id() -> str:
    return f"tok-{secrets.token_hex(ID_BYTES)}"


def token_digest(token: str) -> bytes:
    # No slow password hash: secrets are long and random, and every call is authenticated.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
