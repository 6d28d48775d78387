"""The activity of agents, counted from the audit trail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.core.audit.refused_calls import MAX_COUNT
from cstp_grpc.core.audit.sql_tables import BLOCKED, NOT_A_CHECK, audit_entries
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, UnitOfWork

MAX_AGENTS: Final = 10_000
"""Maximum number of agents that are read. Chosen: each costs one step in an index, about 5 µs."""

columns = audit_entries.c
OTHER_EVENTS: Final = [event.value for event in AuditEvent if event is not AuditEvent.GUARDRAIL_CHECK]


@dataclass(frozen=True, slots=True)
class AgentCounts:
    """The audit entries of an agent in a period; the fields are those of the contract's AgentCounts."""

    entries: int = 0
    checks: int = 0
    announcements: int = 0
    decisions: int = 0
    blocked: int = 0
    refused_calls: int = 0


@dataclass(frozen=True, slots=True)
class AgentActivity:
    """The first and last audit entry of an agent, None without any, and its counts in a period."""

    first_at: datetime | None = None
    last_at: datetime | None = None
    counts: AgentCounts = AgentCounts()


class SqlAgentActivity:
    """Reads the agents of the trail and counts their entries, by its indexes alone as far as they go."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # The ends are two steps in an index for each agent, where grouping would read an entry of it for each row.
        own = columns.requesting_agent == sa.bindparam("agent")
        ends = (sa.select(end(columns.timestamp)).where(own).scalar_subquery() for end in (sa.func.min, sa.func.max))
        self._ends = CompiledStatement(sa.select(*ends), database.dialect)

    def list_agents(self) -> Sequence[str]:
        """Return the agents of the trail, at most MAX_AGENTS. Raises QueryFailed."""
        # A step in the index for each agent, since DISTINCT would read an entry of the index for each audit entry.
        agents = sa.select(sa.func.min(columns.requesting_agent).label("name")).cte("agents", recursive=True)
        following = sa.select(sa.func.min(columns.requesting_agent)).where(columns.requesting_agent > agents.c.name)
        agents = agents.union_all(sa.select(following.scalar_subquery()).where(agents.c.name.is_not(None)))
        query = sa.select(agents.c.name).limit(MAX_AGENTS)
        with self._database.read_snapshot() as unit_of_work:
            return [name for name in unit_of_work.execute(query).scalars() if name]

    def read_activity(self, agents: Collection[str], since: datetime) -> Mapping[str, AgentActivity]:
        """Return the activity of agents, with their counts since an instant. Raises QueryFailed."""
        # Fewer than the variables that SQLite allows in a statement, because a page has fewer agents.
        of_agents = columns.requesting_agent.in_(sorted(agents))
        recent = columns.timestamp >= since
        with self._database.read_snapshot() as unit_of_work:
            ends = {agent: self._ends.all(unit_of_work, {"agent": agent})[0] for agent in agents}
            entries = count_by_agent(unit_of_work, of_agents, recent)
            # Of all agents, since SQLite would otherwise choose the index of agents and read every entry.
            blocked = count_by_agent(unit_of_work, recent, sa.text(BLOCKED))
            # Named one by one, so that the index which leaves out checks is used: they are most of the trail.
            events = sa.and_(recent, sa.text(NOT_A_CHECK), columns.event.in_(OTHER_EVENTS))
            numbers = [sa.func.count(), sa.func.coalesce(sa.func.sum(columns.count), 0)]
            query = sa.select(columns.requesting_agent, columns.event, *numbers).where(events)
            rows = unit_of_work.execute(query.group_by(columns.requesting_agent, columns.event)).all()
        by_event: Counter[tuple[str, str]] = Counter()
        others: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        for agent, event, count, calls in rows:
            by_event[agent, event] = count
            others[agent] += count
            if event == AuditEvent.CALLS_REFUSED:
                refused[agent] = min(int(calls), MAX_COUNT)

        def counts_of(agent: str) -> AgentCounts:
            return AgentCounts(
                entries=entries[agent],
                checks=entries[agent] - others[agent],
                announcements=by_event[agent, AuditEvent.INTENT_ANNOUNCED],
                decisions=by_event[agent, AuditEvent.DECISION_RECORDED],
                blocked=blocked[agent],
                refused_calls=refused[agent],
            )

        return {agent: AgentActivity(first, last, counts_of(agent)) for agent, (first, last) in ends.items()}


def count_by_agent(unit_of_work: UnitOfWork, *conditions: sa.ColumnExpressionArgument[bool]) -> Counter[str]:
    query: sa.Select[Any] = sa.select(columns.requesting_agent, sa.func.count()).where(*conditions)
    return Counter({row[0]: row[1] for row in unit_of_work.execute(query.group_by(columns.requesting_agent))})
