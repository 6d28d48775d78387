"""Presence of agents and the sessions that they have, in an SQL database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, case, delete, func, or_, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from cstp_grpc.liaison.model import AgentPresence, AlarmKind, SessionHold, liaison_agent
from cstp_grpc.liaison.sql_tables import DUE_HOLD, liaison_heartbeats, liaison_holds
from cstp_grpc.storage.database import Database
from cstp_grpc.storage.storable_text import replace_unstorable
from cstp_grpc.storage.unit_of_work import CompiledStatement, GlobalWriteLock, UnitOfWork, bind_parameters

heartbeats = liaison_heartbeats.c
holds = liaison_holds.c

REPORTED_COLUMNS = {
    AlarmKind.UNCLAIMED: holds.unclaimed_told,
    AlarmKind.SILENT: holds.silence_told,
    AlarmKind.ABSENT: holds.absence_told,
}
PRESENCE = select(liaison_heartbeats).where(
    heartbeats.tenant == bindparam("tenant"), heartbeats.pillar == bindparam("pillar")
)
FIRST_DUE = select(
    select(func.min(holds.due_at)).where(text(DUE_HOLD)).scalar_subquery(),
    select(func.min(heartbeats.available_until)).where(heartbeats.is_present).scalar_subquery(),
)


class SqlPresenceStore:
    """Store presence in `liaison_heartbeats`, and supervise the rows of `liaison_holds`.

    `SqlSessionStore` inserts and deletes the latter with those of `chat_sessions`.
    """

    def __init__(self, database: Database) -> None:
        dialect = database.dialect
        upsert = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
        beat = upsert(liaison_heartbeats).values(bind_parameters(heartbeats.keys()))
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

    def presence(self, unit_of_work: UnitOfWork, tenant: str, pillar: str) -> AgentPresence | None:
        """Return the presence of a pillar's local agent, or None if it never sent a heartbeat."""
        row = self._presence.first(unit_of_work, {"tenant": tenant, "pillar": pillar})
        return None if row is None else AgentPresence(*row)

    def presences(self, unit_of_work: UnitOfWork, tenant: str) -> list[AgentPresence]:
        """Return the presence of all local agents of a tenant."""
        query = select(liaison_heartbeats).where(heartbeats.tenant == tenant)
        return [AgentPresence(*row) for row in unit_of_work.execute(query)]

    def write_presence(self, unit_of_work: UnitOfWork, presence: AgentPresence) -> None:
        """Write the presence of an agent. The sessions of an absent one become due at once."""
        self._order.hold(unit_of_work)
        known = self.presence(unit_of_work, presence.tenant, presence.pillar)
        self._beat.run(unit_of_work, {name: getattr(presence, name) for name in heartbeats.keys()})  # noqa: SIM118
        if (known is not None and known.is_present) == presence.is_present:
            return
        of_agent = (holds.tenant == presence.tenant, holds.agent == liaison_agent(presence.pillar))
        if presence.is_present:
            statement = update(liaison_holds).where(*of_agent, holds.absence_told).values(absence_told=False)
            unit_of_work.execute(statement)
        else:
            due = case((or_(holds.due_at.is_(None), holds.due_at > presence.since), presence.since), else_=holds.due_at)
            unit_of_work.execute(update(liaison_holds).where(*of_agent).values(due_at=due))

    def lapsed_agents(self, unit_of_work: UnitOfWork, now: datetime, limit: int) -> list[AgentPresence]:
        """Return agents that are marked as present though their time is over, the longest first."""
        query = select(liaison_heartbeats).where(heartbeats.is_present, heartbeats.available_until <= now)
        rows = unit_of_work.execute(query.order_by(heartbeats.available_until).limit(limit))
        return [AgentPresence(*row) for row in rows]

    def due_holds(self, unit_of_work: UnitOfWork, now: datetime, limit: int) -> list[SessionHold]:
        """Return the sessions that are due for a check, the longest due first."""
        query = select(liaison_holds).where(holds.due_at <= now).order_by(holds.due_at).limit(limit)
        return [hold_from_row(row) for row in unit_of_work.execute(query)]

    def update_hold(self, unit_of_work: UnitOfWork, hold: SessionHold, due_at: datetime | None) -> None:
        """Write the reported alarms of a session and when it is due again; None until something happens."""
        reported = {column.name: kind in hold.reported for kind, column in REPORTED_COLUMNS.items()}
        unit_of_work.execute(update(liaison_holds).where(*hold_conditions(hold)).values(due_at=due_at, **reported))

    def delete_hold(self, unit_of_work: UnitOfWork, hold: SessionHold) -> None:
        """Delete the record of a session that no liaison agent has."""
        unit_of_work.execute(delete(liaison_holds).where(*hold_conditions(hold)))

    def next_due(self, unit_of_work: UnitOfWork) -> datetime | None:
        """Return when the next session or agent is due for a check, or None if there is none."""
        ((session, agent),) = self._first_due.all(unit_of_work, {})
        return min((instant for instant in (session, agent) if instant is not None), default=None)

    def held_sessions(self, unit_of_work: UnitOfWork, tenant: str) -> dict[str, int]:
        """Return the number of open sessions of each liaison agent of a tenant."""
        query = select(holds.agent, func.count()).where(holds.tenant == tenant).group_by(holds.agent)
        return {row[0]: row[1] for row in unit_of_work.execute(query)}


def hold_conditions(hold: SessionHold) -> tuple[Any, ...]:
    """Return the conditions that select a row of `liaison_holds`."""
    return (
        holds.tenant == hold.tenant,
        holds.session_id == replace_unstorable(hold.session_id),
        holds.activation_key == hold.activation_key,
    )


def hold_from_row(row: Sequence[Any]) -> SessionHold:
    """Return a hold from a row of `liaison_holds`."""
    tenant, session_id, agent, activation_key, handed_over_at, claimed_at, _due_at, unclaimed, silence, absence = row
    flags = zip(REPORTED_COLUMNS, (unclaimed, silence, absence), strict=True)
    reported = frozenset(kind for kind, is_reported in flags if is_reported)
    return SessionHold(tenant, session_id, agent, activation_key, handed_over_at, claimed_at, reported)
