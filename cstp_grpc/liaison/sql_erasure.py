"""Delete chat sessions and their data from an SQL database."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Select, Table, and_, delete, exists, or_, select, tuple_

from cstp_grpc.liaison.model import Session, SessionStatus
from cstp_grpc.liaison.sql_rows import session_from_row
from cstp_grpc.liaison.sql_tables import (
    chat_messages,
    chat_sessions,
    liaison_activations,
    liaison_event_counters,
    liaison_events,
    liaison_holds,
    liaison_shares,
)
from cstp_grpc.storage.database import Database
from cstp_grpc.storage.storable_text import replace_unstorable
from cstp_grpc.storage.unit_of_work import GlobalWriteLock, UnitOfWork

activations = liaison_activations.c
events = liaison_events.c
holds = liaison_holds.c
messages = chat_messages.c
sessions = chat_sessions.c
shares = liaison_shares.c

IN_USE = exists().where(
    sessions.tenant == shares.tenant,
    sessions.id == shares.conversation_id,
    sessions.activation_key == shares.id,
    sessions.status == SessionStatus.ACTIVE.value,
)
"""The condition that a liaison agent has an active session by a share."""


class SqlErasureStore:
    """Delete from the tables of chat sessions and routing.

    Each method first takes the order lock, as all writers of sessions do, so that servers cannot deadlock.
    """

    def __init__(self, database: Database) -> None:
        self._order = GlobalWriteLock(database.dialect)
        self._overwrites = database.is_sqlite

    def delete_session(self, unit_of_work: UnitOfWork, tenant: str, session_id: str) -> Session | None:
        """Delete a session, its messages, shares, activations and events, and return it, or None if it is missing.

        Shares that name it are deleted even if it is missing, because a share needs no session.
        """
        self._begin(unit_of_work)
        stored_id = replace_unstorable(session_id)
        key = and_(sessions.tenant == tenant, sessions.id == stored_id)
        row = unit_of_work.execute(select(chat_sessions).where(key)).first()
        of_session = and_(shares.tenant == tenant, shares.conversation_id == stored_id)
        unit_of_work.execute(delete(liaison_shares).where(of_session))
        if row is None:
            return None
        # Messages refer to the session, so they go before it.
        for table, condition in (
            (chat_messages, and_(messages.tenant == tenant, messages.session_id == stored_id)),
            (liaison_activations, and_(activations.tenant == tenant, activations.session_id == stored_id)),
            (liaison_events, and_(events.tenant == tenant, events.session_id == stored_id)),
            (liaison_holds, and_(holds.tenant == tenant, holds.session_id == stored_id)),
            (chat_sessions, key),
        ):
            unit_of_work.execute(delete(table).where(condition))
        return session_from_row(row)

    def sessions_of_user(
        self, unit_of_work: UnitOfWork, tenant: str, user_id: str, opened_by: datetime, limit: int
    ) -> list[str]:
        """Return the ids of up to `limit` sessions of a user that were opened by an instant."""
        self._begin(unit_of_work)
        of_user = and_(sessions.tenant == tenant, sessions.user_id == replace_unstorable(user_id))
        query = select(sessions.id).where(of_user, sessions.created_at <= opened_by).order_by(sessions.created_at)
        return [row.id for row in unit_of_work.execute(query.limit(limit))]

    def expired_sessions(self, unit_of_work: UnitOfWork, before: datetime, limit: int) -> list[tuple[str, str]]:
        """Return tenant and id of up to `limit` sessions that last changed before an instant."""
        self._begin(unit_of_work)
        query = select(sessions.tenant, sessions.id).where(sessions.updated_at < before).order_by(sessions.updated_at)
        return [(row.tenant, row.id) for row in unit_of_work.execute(query.limit(limit))]

    def delete_messages(self, unit_of_work: UnitOfWork, before: datetime, limit: int) -> int:
        """Delete up to `limit` messages sent before an instant, and return the number deleted."""
        self._begin(unit_of_work)
        expired = select(*chat_messages.primary_key).where(messages.sent_at < before).order_by(messages.sent_at)
        return delete_rows(unit_of_work, chat_messages, expired.limit(limit))

    def delete_shares(self, unit_of_work: UnitOfWork, before: datetime, limit: int) -> int:
        """Delete up to `limit` shares made before an instant, and return the number deleted.

        Shares that await delivery, or by which a liaison agent has an active session, are kept.
        """
        self._begin(unit_of_work)
        expired = (
            select(*liaison_shares.primary_key)
            .where(
                shares.shared_at < before,
                shares.next_attempt_at.is_(None),
                or_(shares.conversation_id.is_(None), ~IN_USE),
            )
            .order_by(shares.shared_at)
            .limit(limit)
        )
        keys = [tuple(row) for row in unit_of_work.execute(expired)]
        # The activation of a share is the answer to a routing, of which the share has the context.
        unit_of_work.execute(delete(liaison_activations).where(tuple_(activations.tenant, activations.key).in_(keys)))
        unit_of_work.execute(delete(liaison_shares).where(tuple_(*liaison_shares.primary_key).in_(keys)))
        return len(keys)

    def delete_events(self, unit_of_work: UnitOfWork, before: datetime, limit: int) -> int:
        """Delete up to `limit` events of each tenant from before an instant, oldest first.

        Returns the number deleted.
        """
        self._begin(unit_of_work)
        tenants = unit_of_work.execute(select(liaison_event_counters.c.tenant)).scalars().all()
        return sum(delete_tenant_events(unit_of_work, tenant, before, limit) for tenant in tenants)

    def _begin(self, unit_of_work: UnitOfWork) -> None:
        self._order.hold(unit_of_work)
        if self._overwrites:
            # Privacy: SQLite leaves deleted content in free pages unless told to overwrite it.
            unit_of_work.connection.exec_driver_sql("PRAGMA secure_delete = ON")


def delete_tenant_events(unit_of_work: UnitOfWork, tenant: str, before: datetime, limit: int) -> int:
    """Delete the oldest events of a tenant from before an instant, and return the number deleted.

    Only the first events by sequence are read: since time rises with the sequence, no index by time is needed.
    """
    first = select(events.sequence, events.occurred_at).where(events.tenant == tenant).order_by(events.sequence)
    rows = unit_of_work.execute(first.limit(limit))
    expired = [row.sequence for row in rows if row.occurred_at < before]
    if expired:
        unit_of_work.execute(delete(liaison_events).where(events.tenant == tenant, events.sequence.in_(expired)))
    return len(expired)


def delete_rows(unit_of_work: UnitOfWork, table: Table, keys: Select[Any]) -> int:
    """Delete the rows whose primary keys a query selects, and return their number."""
    found = [tuple(row) for row in unit_of_work.execute(keys)]
    unit_of_work.execute(delete(table).where(tuple_(*table.primary_key).in_(found)))
    return len(found)
