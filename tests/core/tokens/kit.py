"""Tokens on a database, with clocks that tests set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count

from cstp_grpc.contract.caller import Caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.core.audit.model import AuditFilter
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.tokens.administration import NewToken, TokenAdministration, TokenLifetimes
from cstp_grpc.core.tokens.live_tokens import LiveTokens, TokenFollower
from cstp_grpc.core.tokens.model import AgentToken, token_digest
from cstp_grpc.core.tokens.sql_store import SqlTokenStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
CHECK = frozenset({Permission.CHECK})
ADMIN = Caller("ada", "ada", frozenset({Permission.ADMIN, Permission.CHECK, Permission.QUERY}), "r-1", "default")


class TokenKit:
    """Tokens of one server on a database."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        self.now = NOON
        self.seconds = 0.0
        self.store = SqlTokenStore(database)
        self.trail = SqlAuditTrail(database, writer)
        self.live = LiveTokens(self.clock, lambda: self.seconds)
        self.follower = TokenFollower(self.store, writer, self.live, self.clock, shared=True)
        self.administration = TokenAdministration(
            self.store,
            self.trail,
            writer,
            self.live,
            self.follower.refresh,
            self.clock,
            TokenLifetimes(timedelta(days=30), timedelta(days=90)),
            {"carol": "other"},
        )
        self._requests = count(1)

    def clock(self) -> datetime:
        return self.now

    def create(self, agent: str = "deployer", *, request_id: str = "", caller: Caller = ADMIN) -> NewToken:
        """Make a token with the permission to check."""
        name = request_id or f"request-{next(self._requests)}"
        return self.administration.create(caller, name, agent, CHECK, None, "for tests")

    def rotate(self, token_id: str, keep: timedelta | None = None, *, request_id: str = "") -> NewToken:
        """Make a token in the place of another."""
        name = request_id or f"request-{next(self._requests)}"
        return self.administration.rotate(ADMIN, name, token_id, keep, None)

    def find(self, secret: str) -> AgentToken | None:
        """Return the token that this server accepts by a secret."""
        return self.live.find(token_digest(secret))

    def audited(self) -> list[tuple[str, str | None]]:
        """Return what the trail has of tokens, the oldest first."""
        entries = self.trail.page(AuditFilter(), PageRequest(0, "")).items
        return [(entry.event.value, entry.action) for entry in reversed(entries)]
