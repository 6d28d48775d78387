"""The store of tokens in SQL, and its table as the newest migration leaves it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import Permission
from cstp_grpc.core.tokens.model import AgentToken, TokenFilter, TokenIdentity
from cstp_grpc.platform.storage import pagination
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.row_mapper import ColumnCodec, RowMapper
from cstp_grpc.platform.storage.unit_of_work import (
    IDENTIFIER,
    GlobalWriteLock,
    UnitOfWork,
    UtcDateTime,
    begins_with,
    metadata,
)

agent_tokens = sa.Table(
    "agent_tokens",
    metadata,
    sa.Column("id", IDENTIFIER, primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False),
    sa.Column("agent", IDENTIFIER, nullable=False),
    sa.Column("permissions", sa.Text, nullable=False),
    sa.Column("tenant", IDENTIFIER, nullable=False),
    sa.Column("note", sa.Text),
    sa.Column("created_by", IDENTIFIER, nullable=False),
    sa.Column("request_id", IDENTIFIER, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False),
    sa.Column("last_used_at", UtcDateTime),
    sa.Column("revoked_at", UtcDateTime),
    sa.Column("revoked_by", IDENTIFIER),
    sa.Column("rotated_from", IDENTIFIER),
    sa.Column("change", sa.BigInteger, nullable=False),
    sa.Index("uq_agent_tokens_digest", "digest", unique=True),
    sa.Index("uq_agent_tokens_created_by_request_id", "created_by", "request_id", unique=True),
    sa.Index(None, "agent"),
    sa.Index(None, "tenant", "created_at", "id"),
    sa.Index(None, "expires_at"),
    sa.Index(None, "change", unique=True),
    sqlite_with_rowid=False,
)
"""Tokens by the SHA-256 of their secrets. `permissions` are words with spaces between them; `change` numbers the last
change of each, other than its last use, in the order of all changes."""

columns = agent_tokens.c
PERMISSION_WORDS = frozenset(permission.value for permission in Permission)
NEWEST = sa.select(sa.func.coalesce(sa.func.max(columns.change), 0))


class SqlTokenStore:
    """Stores tokens by the digests of their secrets; no two have the same digest, or creator and request id."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._order = GlobalWriteLock(database.dialect)

    def hold(self, unit_of_work: UnitOfWork) -> None:
        """Make the changes of other servers wait until the transaction ends; every change needs it."""
        self._order.hold(unit_of_work)

    def load(self, unit_of_work: UnitOfWork, token_id: str) -> AgentToken | None:
        return first_token(unit_of_work, sa.select(agent_tokens).where(columns.id == replace_unstorable(token_id)))

    def find_request(self, unit_of_work: UnitOfWork, created_by: str, request_id: str) -> AgentToken | None:
        """Return the token that a creator made by a request, or None."""
        found = sa.select(agent_tokens).where(columns.created_by == created_by, columns.request_id == request_id)
        return first_token(unit_of_work, found)

    def find_tenants(self, unit_of_work: UnitOfWork, agent: str) -> Collection[str]:
        """Return the tenants that tokens of an agent belong to, ended ones too."""
        return unit_of_work.execute(sa.select(columns.tenant).where(columns.agent == agent).distinct()).scalars().all()

    def list_agents(self, unit_of_work: UnitOfWork) -> Collection[str]:
        """Return the agents that have tokens, ended ones too."""
        return unit_of_work.execute(sa.select(columns.agent).distinct()).scalars().all()

    def count_usable(self, unit_of_work: UnitOfWork, agent: str, at: datetime) -> int:
        """Return how many tokens of an agent are accepted at an instant."""
        usable = (columns.agent == agent, columns.revoked_at.is_(None), columns.expires_at > at)
        count: int = unit_of_work.execute(
            sa.select(sa.func.count()).select_from(agent_tokens).where(*usable)
        ).scalar_one()
        return count

    def add(self, unit_of_work: UnitOfWork, token: AgentToken, digest: bytes) -> None:
        row = TOKEN.to_row(token) | {"digest": digest, "change": NEWEST.scalar_subquery() + 1}
        unit_of_work.execute(sa.insert(agent_tokens).values(row))

    def replace_digest(self, unit_of_work: UnitOfWork, token_id: str, digest: bytes) -> None:
        """Give a token another secret, so that the one before is not accepted any more."""
        self._change(unit_of_work, token_id, {"digest": digest})

    def end(self, unit_of_work: UnitOfWork, token: AgentToken) -> None:
        """Store when a token ends, or when and by which agent it was revoked."""
        ending = ("expires_at", "revoked_at", "revoked_by")
        self._change(unit_of_work, token.id, {name: getattr(token, name) for name in ending})

    def note_uses(self, unit_of_work: UnitOfWork, uses: Mapping[str, datetime]) -> None:
        """Store when tokens were used last, by their ids; instants before those stored change nothing."""
        # In the order of their ids, so that two servers that store uses of the same tokens cannot deadlock.
        for token_id, at in sorted(uses.items()):
            older = sa.or_(columns.last_used_at.is_(None), columns.last_used_at < at)
            unit_of_work.execute(sa.update(agent_tokens).where(columns.id == token_id, older).values(last_used_at=at))

    def remove_ended(self, unit_of_work: UnitOfWork, before: datetime, limit: int) -> int:
        """Remove at most `limit` tokens that ended before an instant, and return how many; fewer means none is left.

        Of each agent one token stays, by which its tenant is known, and of all tokens the one that changed last.
        """
        self._order.hold(unit_of_work)
        other = agent_tokens.alias().c
        stays_longer = sa.or_(other.change > columns.change, sa.not_(ended_before(other, before)))
        has_other = sa.exists().where(other.agent == columns.agent, other.id != columns.id, stays_longer)
        # The greatest number stays too: given again, it would hide the next change from servers that know it.
        newest = sa.select(sa.func.max(agent_tokens.alias().c.change)).scalar_subquery()
        chosen = (
            sa.select(columns.id)
            .where(ended_before(columns, before), has_other, columns.change < newest)
            .order_by(columns.change)
            .limit(limit)
        )
        ids = unit_of_work.execute(chosen).scalars().all()
        return unit_of_work.execute(sa.delete(agent_tokens).where(columns.id.in_(ids))).rowcount

    def read_agents(self, tenant: str) -> tuple[Mapping[str, str], Sequence[AgentToken]]:
        """Return the tenants of all agents that have tokens, and the tokens of the agents of one. Raises QueryFailed.

        Ended tokens are included.
        """
        tenants = sa.select(columns.agent, sa.func.min(columns.tenant)).group_by(columns.agent)
        own = sa.select(agent_tokens).where(columns.tenant == tenant)
        with self._database.read_snapshot() as unit_of_work:
            found = {row[0]: row[1] for row in unit_of_work.execute(tenants)}
            return found, [TOKEN.from_row(row) for row in unit_of_work.execute(own).mappings()]

    def page(self, conditions: TokenFilter, request: pagination.PageRequest) -> pagination.Page[AgentToken]:
        """Return the tokens that meet conditions, the newest first.

        Raises InvalidArgument if the page token is not one of this listing, and QueryFailed.
        """
        query = sa.select(agent_tokens).where(columns.tenant == conditions.tenant)
        if conditions.agent is not None:
            query = query.where(columns.agent == replace_unstorable(conditions.agent))
        if conditions.usable_at is not None:
            query = query.where(columns.revoked_at.is_(None), columns.expires_at > conditions.usable_at)
        if conditions.id_prefix is not None:
            query = query.where(begins_with(columns.id, conditions.id_prefix))
        # Not the instant, which is another one for each page.
        listing = (conditions.tenant, conditions.agent, conditions.usable_at is None, conditions.id_prefix)
        if request.token:
            microseconds, last_id = pagination.decode_page_token(request.token, listing, (int, str))
            last = sa.tuple_(pagination.from_microseconds(int(microseconds)), str(last_id))
            query = query.where(sa.tuple_(columns.created_at, columns.id) < last)
        query = query.order_by(sa.desc(columns.created_at), sa.desc(columns.id)).limit(request.limit + 1)
        with self._database.read_snapshot() as unit_of_work:
            found = [TOKEN.from_row(row) for row in unit_of_work.execute(query).mappings()]
        items = tuple(found[: request.limit])
        more = len(found) > len(items)
        key = (pagination.to_microseconds(items[-1].created_at), items[-1].id) if more else ()
        return pagination.Page(items, pagination.encode_page_token(listing, key) if more else "")

    def usable_since(self, change: int, at: datetime) -> tuple[int, Sequence[tuple[bytes, AgentToken]]] | None:
        """Return the number of the last change, and all tokens accepted at an instant with their digests.

        None if the last change is the given one. Raises QueryFailed.
        """
        with self._database.background_snapshot() as unit_of_work:
            newest: int = unit_of_work.execute(NEWEST).scalar_one()
            if newest == change:
                return None
            usable = sa.select(agent_tokens).where(columns.revoked_at.is_(None), columns.expires_at > at)
            rows = unit_of_work.execute(usable).mappings().all()
        # A token that was added between the two statements is read again with its own number.
        return newest, [(bytes(row["digest"]), TOKEN.from_row(row)) for row in rows]

    def _change(self, unit_of_work: UnitOfWork, token_id: str, values: Mapping[str, Any]) -> None:
        changed = {**values, "change": NEWEST.scalar_subquery() + 1}
        unit_of_work.execute(sa.update(agent_tokens).where(columns.id == token_id).values(changed))


def ended_before(token: ReadOnlyColumnCollection[str, sa.Column[Any]], instant: datetime) -> sa.ColumnElement[bool]:
    # Never null, so that its negation holds for tokens that were not revoked.
    return sa.or_(token.expires_at < instant, sa.func.coalesce(token.revoked_at < instant, sa.false()))


def first_token(unit_of_work: UnitOfWork, query: sa.Select[Any]) -> AgentToken | None:
    row = unit_of_work.execute(query).mappings().first()
    return None if row is None else TOKEN.from_row(row)


TOKEN = RowMapper(
    AgentToken,
    agent_tokens,
    nested={
        "identity": RowMapper(
            TokenIdentity,
            agent_tokens,
            renamed={"name": "agent"},
            codecs={
                "permissions": ColumnCodec(
                    lambda permissions: " ".join(sorted(permissions)),
                    # A newer server on the same database may know more permissions; nothing here asks for them.
                    lambda words: frozenset(map(Permission, PERMISSION_WORDS.intersection(words.split()))),
                )
            },
        )
    },
)
