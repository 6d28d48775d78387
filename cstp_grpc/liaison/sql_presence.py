"""Who is there, and what liaison agents hold, in an SQL database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, case, delete, func, or_, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from cstp_grpc.liaison.model import AgentPresence, AlarmKind, Hold, liaison_agent
from cstp_grpc.storage.driver_statement import DriverStatement, parameters
from cstp_grpc.storage.order import WriteOrder
from cstp_grpc.storage.tables import DUE_HOLD, liaison_heartbeats, liaison_holds
from cstp_grpc.storage.text import storable

heartbeats = liaison_heartbeats.c
holds = liaison_holds.c

FLAGS = {
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
    """Keeps presence in the table `liaison_heartbeats`, and judges `liaison_holds`, whose rows come and go with those
    of `chat_sessions`: see `SqlSessionStore`.
    """

    def __init__(self, engine: Engine) -> None:
        dialect = engine.dialect
        upsert = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
        beat = upsert(liaison_heartbeats).values(parameters(heartbeats.keys()))
        changed = [name for name in heartbeats.keys() if name not in ("tenant", "pillar")]  # noqa: SIM118
        beat = beat.on_conflict_do_update(
            index_elements=["tenant", "pillar"], set_={name: beat.excluded[name] for name in changed}
        )
        self._order = WriteOrder(engine)
        self._presence = DriverStatement(PRESENCE, dialect)
        self._beat = DriverStatement(beat, dialect)
        self._first_due = DriverStatement(FIRST_DUE, dialect)

    def hold_order(self, connection: Connection) -> None:
        """Keep the writes of other servers waiting until the transaction ends, before it reads what it decides by."""
        self._order.hold(connection)

    def presence(self, connection: Connection, tenant: str, pillar: str) -> AgentPresence | None:
        """Return whether the local agent of a pillar is there; None if it never told."""
        row = self._presence.first(connection, {"tenant": tenant, "pillar": pillar})
        return None if row is None else AgentPresence(*row)

    def presences(self, connection: Connection, tenant: str) -> list[AgentPresence]:
        """Return what the local agents of a tenant told of themselves."""
        query = select(liaison_heartbeats).where(heartbeats.tenant == tenant)
        return [AgentPresence(*row) for row in connection.execute(query)]

    def write_presence(self, connection: Connection, presence: AgentPresence) -> None:
        """Write whether an agent is there. Sessions of one that is not are due at once."""
        self._order.hold(connection)
        known = self.presence(connection, presence.tenant, presence.pillar)
        self._beat.run(connection, {name: getattr(presence, name) for name in heartbeats.keys()})  # noqa: SIM118
        if (known is not None and known.is_present) == presence.is_present:
            return
        of_agent = (holds.tenant == presence.tenant, holds.agent == liaison_agent(presence.pillar))
        if presence.is_present:
            statement = update(liaison_holds).where(*of_agent, holds.absence_told).values(absence_told=False)
            connection.execute(statement)
        else:
            due = case((or_(holds.due_at.is_(None), holds.due_at > presence.since), presence.since), else_=holds.due_at)
            connection.execute(update(liaison_holds).where(*of_agent).values(due_at=due))

    def lapsed(self, connection: Connection, now: datetime, limit: int) -> list[AgentPresence]:
        """Return agents that count as present though their time is over, the longest first."""
        query = select(liaison_heartbeats).where(heartbeats.is_present, heartbeats.available_until <= now)
        rows = connection.execute(query.order_by(heartbeats.available_until).limit(limit))
        return [AgentPresence(*row) for row in rows]

    def due_holds(self, connection: Connection, now: datetime, limit: int) -> list[Hold]:
        """Return the sessions that are due to be looked at, the longest due first."""
        query = select(liaison_holds).where(holds.due_at <= now).order_by(holds.due_at).limit(limit)
        return [hold_of(row) for row in connection.execute(query)]

    def settle(self, connection: Connection, hold: Hold, due_at: datetime | None) -> None:
        """Write which alarms of a session were told, and when it is due again; None for not until something happens."""
        told = {column.name: kind in hold.told for kind, column in FLAGS.items()}
        connection.execute(update(liaison_holds).where(*of_hold(hold)).values(due_at=due_at, **told))

    def release(self, connection: Connection, hold: Hold) -> None:
        """Forget a session that no liaison agent has."""
        connection.execute(delete(liaison_holds).where(*of_hold(hold)))

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next session is due, or the next agent's time is over; None if there is none."""
        ((session, agent),) = self._first_due.all(connection, {})
        return min((instant for instant in (session, agent) if instant is not None), default=None)

    def held_sessions(self, connection: Connection, tenant: str) -> dict[str, int]:
        """Return how many open sessions each liaison agent of a tenant has."""
        query = select(holds.agent, func.count()).where(holds.tenant == tenant).group_by(holds.agent)
        return {row[0]: row[1] for row in connection.execute(query)}


def of_hold(hold: Hold) -> tuple[Any, ...]:
    """Return the conditions that a row of `liaison_holds` meets."""
    return (
        holds.tenant == hold.tenant,
        holds.session_id == storable(hold.session_id),
        holds.activation_key == hold.activation_key,
    )


def hold_of(row: Sequence[Any]) -> Hold:
    """Return a row of `liaison_holds` as a hold."""
    tenant, session_id, agent, activation_key, handed_over_at, claimed_at, _due_at, unclaimed, silence, absence = row
    flags = zip(FLAGS, (unclaimed, silence, absence), strict=True)
    told = frozenset(kind for kind, is_told in flags if is_told)
    return Hold(tenant, session_id, agent, activation_key, handed_over_at, claimed_at, told)
