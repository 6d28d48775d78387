"""Shares, activations, events and presence in an SQL database, and the deletion of all that belongs to sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.modules.liaison import model
from cstp_grpc.modules.liaison.sql_tables import (
    DUE_HOLD,
    EVENT_ROW,
    SHARE_ROW,
    TO_DELIVER,
    activation_row,
    chat_messages,
    chat_sessions,
    decode_activation,
    event_from_row,
    liaison_activations,
    liaison_event_counters,
    liaison_events,
    liaison_heartbeats,
    liaison_holds,
    liaison_shares,
    session_from_row,
    share_from_row,
    share_row,
)
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.delivery_queue import SqlDeliveryQueue
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, GlobalWriteLock, UnitOfWork, bind_parameters

PENDING = model.DeliveryState.PENDING.value

activations = liaison_activations.c
counters = liaison_event_counters.c
events = liaison_events.c
shares = liaison_shares.c
holds = liaison_holds.c
heartbeats = liaison_heartbeats.c
messages = chat_messages.c
sessions = chat_sessions.c

ACTIVATION = (
    sa.select(activations.answer, shares.shared_context)
    .join(liaison_shares, sa.and_(shares.tenant == activations.tenant, shares.id == activations.key))
    .where(activations.tenant == sa.bindparam("tenant"), activations.key == sa.bindparam("key"))
)
OF_SHARE = (shares.tenant == sa.bindparam("tenant"), shares.id == sa.bindparam("id"))
SHARE = sa.select(liaison_shares).where(*OF_SHARE)
DELIVERED = (
    sa.update(liaison_shares)
    .where(*OF_SHARE, shares.delivery == PENDING)
    .values(bind_parameters(("delivery", "attempts", "next_attempt_at", "task_id", "delivered_at")))
)
# From the counters, of which each tenant has one row; the events themselves expire.
EVENT_COUNT = sa.select(sa.func.coalesce(sa.func.sum(counters.last_sequence), 0))
LAST_SEQUENCE = sa.select(counters.last_sequence).where(counters.tenant == sa.bindparam("tenant"))


class SqlRoutingStore(SqlDeliveryQueue[model.Share]):
    """Store shares, activations and events in the tables of these names that begin with `liaison_`.

    The first statement of a writing transaction waits for the writers of other servers: see `GlobalWriteLock`. To add
    an activation, a transaction first reads the session with the lock.
    """

    def __init__(self, database: Database) -> None:
        # As text, exactly as in the partial index, without which the databases do not use it.
        to_deliver = sa.text(TO_DELIVER)
        super().__init__(
            database,
            liaison_shares,
            ("tenant", "id"),
            share_from_row,
            since="shared_at",
            condition=sa.and_(to_deliver, shares.delivery == PENDING),
            is_waiting=to_deliver,
        )
        dialect = database.dialect
        add_share = database.insertion(liaison_shares).values(bind_parameters(shares.keys())).on_conflict_do_nothing()
        count_event = database.insertion(liaison_event_counters).values(tenant=sa.bindparam("tenant"), last_sequence=1)
        count_event = count_event.on_conflict_do_update(
            index_elements=["tenant"], set_={"last_sequence": counters.last_sequence + 1}
        )
        self._activation = CompiledStatement(ACTIVATION, dialect)
        add_activation = sa.insert(liaison_activations).values(bind_parameters(activations.keys()))
        self._add_activation = CompiledStatement(add_activation, dialect)
        self._share = CompiledStatement(SHARE, dialect)
        self._add_share = CompiledStatement(add_share, dialect)
        self._delivered = CompiledStatement(DELIVERED, dialect)
        self._count_event = CompiledStatement(count_event.returning(counters.last_sequence), dialect)
        self._add_event = CompiledStatement(sa.insert(liaison_events).values(bind_parameters(events.keys())), dialect)
        self._event_count = CompiledStatement(EVENT_COUNT, dialect)
        self._last_sequence = CompiledStatement(LAST_SEQUENCE, dialect)

    def activation(self, unit_of_work: UnitOfWork, tenant: str, key: str) -> model.Activation | None:
        row = self._activation.first(unit_of_work, {"tenant": tenant, "key": replace_unstorable(key)})
        return None if row is None else decode_activation(*row)

    def add_activation(self, unit_of_work: UnitOfWork, tenant: str, activation: model.Activation) -> None:
        """Add an activation; its key must be new, and the share of that id holds its context."""
        self._add_activation.run(unit_of_work, activation_row(tenant, activation))

    def share(self, unit_of_work: UnitOfWork, tenant: str, share_id: str) -> model.Share | None:
        row = self._share.first(unit_of_work, {"tenant": tenant, "id": replace_unstorable(share_id)})
        return None if row is None else share_from_row(row)

    def add_share(self, unit_of_work: UnitOfWork, share: model.Share) -> bool:
        """Add a share and return True; False if the id is taken."""
        self._order.hold(unit_of_work)
        return self._add_share.run(unit_of_work, share_row(share)) == 1

    def update_delivery(self, unit_of_work: UnitOfWork, share: model.Share) -> bool:
        """Write the delivery state of a share and return True; False if it was no longer pending.

        The columns are delivery, attempts, next_attempt_at, task_id and delivered_at.
        """
        self.hold(unit_of_work)
        return self._delivered.run(unit_of_work, SHARE_ROW.to_row(share)) == 1

    def postpone(self, unit_of_work: UnitOfWork, item: model.Share) -> None:
        """Store when a share is due next, how many attempts failed and the task that they left, if it is pending."""
        self.update_delivery(unit_of_work, item)

    def add_event(self, unit_of_work: UnitOfWork, event: model.Event) -> model.Event:
        """Add an event and return it with its sequence number, the tenant's next one."""
        # The order lock makes sequences visible in rising order: no smaller one is still to be committed elsewhere.
        self._order.hold(unit_of_work)
        ((sequence,),) = self._count_event.all(unit_of_work, {"tenant": event.tenant})
        numbered = replace(event, sequence=sequence)
        self._add_event.run(unit_of_work, EVENT_ROW.to_row(numbered))
        return numbered

    def events(
        self, unit_of_work: UnitOfWork, conditions: model.EventFilter, after: int, limit: int
    ) -> Sequence[model.Event]:
        """Return up to `limit` events after a sequence number, in order."""
        return [event_from_row(row) for row in unit_of_work.execute(event_query(conditions, after).limit(limit))]

    def count_events(self, unit_of_work: UnitOfWork) -> int:
        """Return the number of events that all tenants ever had."""
        ((count,),) = self._event_count.all(unit_of_work, {})
        return int(count)

    def last_sequence(self, unit_of_work: UnitOfWork, tenant: str) -> int:
        """Return the sequence number of the tenant's last event, even if removed; 0 if it never had one."""
        row = self._last_sequence.first(unit_of_work, {"tenant": tenant})
        return 0 if row is None else row[0]


def event_query(conditions: model.EventFilter, after: int) -> sa.Select[Any]:
    """Return the query for the events after a sequence number that meet all conditions, in order."""
    query = sa.select(liaison_events).where(events.tenant == conditions.tenant, events.sequence > after)
    for column, expected in ((events.session_id, conditions.session_id), (events.agent, conditions.agent)):
        if expected is not None:
            query = query.where(column == replace_unstorable(expected))
    if conditions.types:
        query = query.where(events.type.in_(map(replace_unstorable, conditions.types)))
    return query.order_by(events.sequence)


IN_USE = sa.exists().where(
    sessions.tenant == shares.tenant,
    sessions.id == shares.conversation_id,
    sessions.activation_key == shares.id,
    sessions.status == model.SessionStatus.ACTIVE.value,
)
"""The condition that a liaison agent has an active session by a share."""


class SqlErasureStore:
    """Delete from the tables of chat sessions and routing.

    Each method first takes the order lock, as all writers of sessions do, so that servers cannot deadlock.
    """

    def __init__(self, database: Database) -> None:
        self._order = GlobalWriteLock(database.dialect)
        self._overwrites = database.is_sqlite

    def delete_session(self, unit_of_work: UnitOfWork, tenant: str, session_id: str) -> model.Session | None:
        """Delete a session, its messages, shares, activations and events, and return it, or None if it is missing.

        Shares that name it are deleted even if it is missing, because a share needs no session.
        """
        self._begin(unit_of_work)
        stored_id = replace_unstorable(session_id)
        key = sa.and_(sessions.tenant == tenant, sessions.id == stored_id)
        row = unit_of_work.execute(sa.select(chat_sessions).where(key)).first()
        of_session = sa.and_(shares.tenant == tenant, shares.conversation_id == stored_id)
        unit_of_work.execute(sa.delete(liaison_shares).where(of_session))
        if row is None:
            return None
        # Messages refer to the session, so they go before it.
        for table, condition in (
            (chat_messages, sa.and_(messages.tenant == tenant, messages.session_id == stored_id)),
            (liaison_activations, sa.and_(activations.tenant == tenant, activations.session_id == stored_id)),
            (liaison_events, sa.and_(events.tenant == tenant, events.session_id == stored_id)),
            (liaison_holds, sa.and_(holds.tenant == tenant, holds.session_id == stored_id)),
            (chat_sessions, key),
        ):
            unit_of_work.execute(sa.delete(table).where(condition))
        return session_from_row(row)

    def sessions_of_user(
        self, unit_of_work: UnitOfWork, tenant: str, user_id: str, opened_by: datetime, limit: int
    ) -> list[str]:
        """Return the ids of up to `limit` sessions of a user that were opened by an instant."""
        self._begin(unit_of_work)
        of_user = sa.and_(sessions.tenant == tenant, sessions.user_id == replace_unstorable(user_id))
        query = sa.select(sessions.id).where(of_user, sessions.created_at <= opened_by).order_by(sessions.created_at)
        return [row.id for row in unit_of_work.execute(query.limit(limit))]

    def count_user_records(
        self, unit_of_work: UnitOfWork, tenant: str, user_id: str, opened_by: datetime
    ) -> model.UserRecords:
        """Return how much is stored of the sessions of a user that were opened by an instant."""
        of_user = sa.and_(sessions.tenant == tenant, sessions.user_id == replace_unstorable(user_id))
        ids = sa.select(sessions.id).where(of_user, sessions.created_at <= opened_by)

        def count(table: sa.Table, key: sa.ColumnElement[str]) -> int:
            query = sa.select(sa.func.count()).select_from(table).where(table.c.tenant == tenant, key.in_(ids))
            found: int = unit_of_work.execute(query).scalar_one()
            return found

        return model.UserRecords(
            sessions=count(chat_sessions, sessions.id),
            messages=count(chat_messages, messages.session_id),
            shares=count(liaison_shares, shares.conversation_id),
            activations=count(liaison_activations, activations.session_id),
            events=count(liaison_events, events.session_id),
        )

    def expired_sessions(self, unit_of_work: UnitOfWork, before: datetime, limit: int) -> list[tuple[str, str]]:
        """Return tenant and id of up to `limit` sessions that last changed before an instant."""
        self._begin(unit_of_work)
        query = (
            sa.select(sessions.tenant, sessions.id).where(sessions.updated_at < before).order_by(sessions.updated_at)
        )
        return [(row.tenant, row.id) for row in unit_of_work.execute(query.limit(limit))]

    def delete_messages(self, unit_of_work: UnitOfWork, before: datetime, limit: int) -> int:
        """Delete up to `limit` messages sent before an instant, and return the number deleted."""
        self._begin(unit_of_work)
        expired = sa.select(*chat_messages.primary_key).where(messages.sent_at < before).order_by(messages.sent_at)
        return delete_rows(unit_of_work, chat_messages, expired.limit(limit))

    def delete_shares(self, unit_of_work: UnitOfWork, before: datetime, limit: int) -> int:
        """Delete up to `limit` shares made before an instant, and return the number deleted.

        Shares that await delivery, or by which a liaison agent has an active session, are kept.
        """
        self._begin(unit_of_work)
        expired = (
            sa.select(*liaison_shares.primary_key)
            .where(
                shares.shared_at < before,
                shares.next_attempt_at.is_(None),
                sa.or_(shares.conversation_id.is_(None), ~IN_USE),
            )
            .order_by(shares.shared_at)
            .limit(limit)
        )
        keys = [tuple(row) for row in unit_of_work.execute(expired)]
        # The activation of a share is the answer to a routing, of which the share has the context.
        unit_of_work.execute(
            sa.delete(liaison_activations).where(sa.tuple_(activations.tenant, activations.key).in_(keys))
        )
        unit_of_work.execute(sa.delete(liaison_shares).where(sa.tuple_(*liaison_shares.primary_key).in_(keys)))
        return len(keys)

    def delete_events(self, unit_of_work: UnitOfWork, before: datetime, limit: int) -> int:
        """Delete up to `limit` events of each tenant from before an instant, oldest first.

        Returns the number deleted.
        """
        self._begin(unit_of_work)
        tenants = unit_of_work.execute(sa.select(liaison_event_counters.c.tenant)).scalars().all()
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
    first = sa.select(events.sequence, events.occurred_at).where(events.tenant == tenant).order_by(events.sequence)
    rows = unit_of_work.execute(first.limit(limit))
    expired = [row.sequence for row in rows if row.occurred_at < before]
    if expired:
        unit_of_work.execute(sa.delete(liaison_events).where(events.tenant == tenant, events.sequence.in_(expired)))
    return len(expired)


def delete_rows(unit_of_work: UnitOfWork, table: sa.Table, keys: sa.Select[Any]) -> int:
    """Delete the rows whose primary keys a query selects, and return their number."""
    found = [tuple(row) for row in unit_of_work.execute(keys)]
    unit_of_work.execute(sa.delete(table).where(sa.tuple_(*table.primary_key).in_(found)))
    return len(found)


REPORTED_COLUMNS = {
    model.AlarmKind.UNCLAIMED: holds.unclaimed_told,
    model.AlarmKind.SILENT: holds.silence_told,
    model.AlarmKind.ABSENT: holds.absence_told,
}
PRESENCE = sa.select(liaison_heartbeats).where(
    heartbeats.tenant == sa.bindparam("tenant"), heartbeats.pillar == sa.bindparam("pillar")
)
FIRST_DUE = sa.select(
    sa.select(sa.func.min(holds.due_at)).where(sa.text(DUE_HOLD)).scalar_subquery(),
    sa.select(sa.func.min(heartbeats.available_until)).where(heartbeats.is_present).scalar_subquery(),
)


class SqlPresenceStore:
    """Store presence in `liaison_heartbeats`, and supervise the rows of `liaison_holds`.

    `SqlSessionStore` inserts and deletes the latter with those of `chat_sessions`.
    """

    def __init__(self, database: Database) -> None:
        dialect = database.dialect
        beat = database.insertion(liaison_heartbeats).values(bind_parameters(heartbeats.keys()))
        changed = [name for name in heartbeats.keys() if name not in ("tenant", "pillar")]  # noqa: SIM118
        beat = beat.on_conflict_do_update(
            index_elements=["tenant", "pillar"], set_={name: beat.excluded[name] for name in changed}
        )
        self._order = GlobalWriteLock(database.dialect)
        self._presence = CompiledStatement(PRESENCE, dialect)
        self._beat = CompiledStatement(beat, dialect)
        self._first_due = CompiledStatement(FIRST_DUE, dialect)

    def lock_order(self, unit_of_work: UnitOfWork) -> None:
        """Take the order lock, so that other servers' writes wait until the transaction ends."""
        self._order.hold(unit_of_work)

    def presence(self, unit_of_work: UnitOfWork, tenant: str, pillar: str) -> model.AgentPresence | None:
        """Return the presence of a pillar's local agent, or None if it never sent a heartbeat."""
        row = self._presence.first(unit_of_work, {"tenant": tenant, "pillar": pillar})
        return None if row is None else model.AgentPresence(*row)

    def presences(self, unit_of_work: UnitOfWork, tenant: str) -> list[model.AgentPresence]:
        query = sa.select(liaison_heartbeats).where(heartbeats.tenant == tenant)
        return [model.AgentPresence(*row) for row in unit_of_work.execute(query)]

    def write_presence(self, unit_of_work: UnitOfWork, presence: model.AgentPresence) -> None:
        """Write the presence of an agent. The sessions of an absent one become due at once."""
        self._order.hold(unit_of_work)
        known = self.presence(unit_of_work, presence.tenant, presence.pillar)
        self._beat.run(unit_of_work, {name: getattr(presence, name) for name in heartbeats.keys()})  # noqa: SIM118
        if (known is not None and known.is_present) == presence.is_present:
            return
        of_agent = (holds.tenant == presence.tenant, holds.agent == model.liaison_agent(presence.pillar))
        if presence.is_present:
            statement = sa.update(liaison_holds).where(*of_agent, holds.absence_told).values(absence_told=False)
            unit_of_work.execute(statement)
        else:
            due = sa.case(
                (sa.or_(holds.due_at.is_(None), holds.due_at > presence.since), presence.since), else_=holds.due_at
            )
            unit_of_work.execute(sa.update(liaison_holds).where(*of_agent).values(due_at=due))

    def lapsed_agents(self, unit_of_work: UnitOfWork, now: datetime, limit: int) -> list[model.AgentPresence]:
        """Return agents that are marked as present though their time is over, the longest first."""
        query = sa.select(liaison_heartbeats).where(heartbeats.is_present, heartbeats.available_until <= now)
        rows = unit_of_work.execute(query.order_by(heartbeats.available_until).limit(limit))
        return [model.AgentPresence(*row) for row in rows]

    def due_holds(self, unit_of_work: UnitOfWork, now: datetime, limit: int) -> list[model.SessionHold]:
        """Return the sessions that are due for a check, the longest due first."""
        query = sa.select(liaison_holds).where(holds.due_at <= now).order_by(holds.due_at).limit(limit)
        return [hold_from_row(row) for row in unit_of_work.execute(query)]

    def update_hold(self, unit_of_work: UnitOfWork, hold: model.SessionHold, due_at: datetime | None) -> None:
        """Write the reported alarms of a session and when it is due again; None until something happens."""
        reported = {column.name: kind in hold.reported for kind, column in REPORTED_COLUMNS.items()}
        unit_of_work.execute(sa.update(liaison_holds).where(*hold_conditions(hold)).values(due_at=due_at, **reported))

    def delete_hold(self, unit_of_work: UnitOfWork, hold: model.SessionHold) -> None:
        unit_of_work.execute(sa.delete(liaison_holds).where(*hold_conditions(hold)))

    def next_due(self, unit_of_work: UnitOfWork) -> datetime | None:
        ((session, agent),) = self._first_due.all(unit_of_work, {})
        return min((instant for instant in (session, agent) if instant is not None), default=None)

    def held_sessions(self, unit_of_work: UnitOfWork, tenant: str) -> dict[str, int]:
        """Return the number of open sessions of each liaison agent of a tenant."""
        query = sa.select(holds.agent, sa.func.count()).where(holds.tenant == tenant).group_by(holds.agent)
        return {row[0]: row[1] for row in unit_of_work.execute(query)}


def hold_conditions(hold: model.SessionHold) -> tuple[Any, ...]:
    return (
        holds.tenant == hold.tenant,
        holds.session_id == replace_unstorable(hold.session_id),
        holds.activation_key == hold.activation_key,
    )


def hold_from_row(row: Sequence[Any]) -> model.SessionHold:
    tenant, session_id, agent, activation_key, handed_over_at, claimed_at, _due_at, unclaimed, silence, absence = row
    flags = zip(REPORTED_COLUMNS, (unclaimed, silence, absence), strict=True)
    reported = frozenset(kind for kind, is_reported in flags if is_reported)
    return model.SessionHold(tenant, session_id, agent, activation_key, handed_over_at, claimed_at, reported)
