"""Erasing the records of an agent in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, and_, column, delete, exists, func, null, or_, select, table, update

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.core.audit.entry_hashing import EntryRow
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.core.audit.sql_retention import SqlAuditRetention
from cstp_grpc.core.audit.sql_tables import audit_entries
from cstp_grpc.core.decisions.sql_tables import decision_reviews, decisions, deleted_decisions, thoughts
from cstp_grpc.core.intents.sql_shared_intents import SqlSharedIntentStore
from cstp_grpc.core.intents.sql_store import intents, shared_intents
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import GlobalWriteLock, UnitOfWork, UtcDateTime

ERASED_AGENT: Final = "(erased)"
"""Replaces the agent's name in rows that must stay, because their numbers must not be reused."""

# Without importing their modules, which may be disabled while their tables have rows.
approvals = table(
    "approvals",
    *map(
        column,
        (
            *("id", "digest", "agent", "on_behalf_of", "category", "description", "project", "paths"),
            *("announced_context", "context", "correlation_id", "callback_url", "comment", "is_current", "change"),
        ),
    ),
)
tasks = table("tasks", column("agent"), column("id"))
callbacks = table("callbacks", column("agent"), column("id"))
notices = table("notices", column("agent"), column("id"))
chat_sessions = table(
    "chat_sessions", column("tenant"), column("id"), column("user_id"), column("created_at", UtcDateTime)
)
citations = table("citations", column("agent"), column("decision_id"), column("correlation_id"))
SESSION_EVENTS = (
    AuditEvent.SESSION_OPENED,
    AuditEvent.SESSION_CONTEXT_UPDATED,
    AuditEvent.CONTEXT_SHARED,
    AuditEvent.SESSION_ROUTED,
    AuditEvent.SESSION_RETURNED,
    AuditEvent.SESSION_CLAIMED,
    AuditEvent.SESSION_CLOSED,
)
"""The events whose entries describe changes of a session under its id; its deletion contains nothing of a user."""

HAS_CONTENT = or_(audit_entries.c.action.is_not(None), audit_entries.c.judged.is_not(None))
KEPT_INTENT = {
    **dict.fromkeys(
        (
            *("claimed_id", "claimed_url", "intent", "context", "category", "confidence", "metadata", "project"),
            *("paths", "closing_notes", "decision_id"),
        ),
        null(),
    ),
    "agent": ERASED_AGENT,
    "content_hash": "",
    "visibility": "private",
}
"""The values that remain of an intent whose number must not be reused."""
KEPT_APPROVAL = {
    **dict.fromkeys(
        (
            *("on_behalf_of", "category", "description", "project", "paths", "context", "correlation_id"),
            *("callback_url", "comment"),
        ),
        null(),
    ),
    "agent": ERASED_AGENT,
    "announced_context": "",
    "is_current": False,
}


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """How much was erased, of each kind."""

    decisions: int
    reviews: int
    intents: int
    approvals: int
    tasks: int
    callbacks: int
    audit_entries: int
    thoughts: int


class SqlAgentRecordStore:
    """Erases the records of an agent in the tables of all modules.

    The methods of kinds of records take at most `limit` and return how many they took; fewer means that none is left.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._order = GlobalWriteLock(database.dialect)
        self._audit = SqlAuditRetention(database)
        self._shared_intents = SqlSharedIntentStore(database)

    def count_records(self, agent: str) -> ErasureReport:
        """Return how much an erasure would take of each kind. Raises QueryFailed."""
        # Reviews of its own decisions go with them.
        own_decisions = select(decisions.c.id).where(decisions.c.agent == agent)
        others = and_(decision_reviews.c.reviewer == agent, decision_reviews.c.decision_id.not_in(own_decisions))
        counted = {
            "decisions": (decisions, decisions.c.agent == agent),
            "reviews": (decision_reviews, others),
            "intents": (intents, intents.c.agent == agent),
            "approvals": (approvals, is_request_of(agent)),
            "tasks": (tasks, tasks.c.agent == agent),
            "callbacks": (callbacks, callbacks.c.agent == agent),
            "citations": (citations, citations.c.agent == agent),
            "notices": (notices, notices.c.agent == agent),
            "audit_entries": (audit_entries, and_(HAS_CONTENT, is_about_agent(agent))),
            "thoughts": (thoughts, thoughts.c.agent == agent),
        }
        queries = [select(func.count()).select_from(source).where(met) for source, met in counted.values()]
        with self._database.read_snapshot() as unit_of_work:
            row = unit_of_work.execute(select(*(query.scalar_subquery() for query in queries))).one()
        found = dict(zip(counted, row, strict=True))
        found["callbacks"] += found.pop("citations") + found.pop("notices")
        return ErasureReport(**found)

    def find_audit_contents(self, agent: str, after: int, limit: int) -> Sequence[EntryRow]:
        """Return entries with contents of an agent, and about its records, after an id. Raises QueryFailed."""
        return self._find_contents(is_about_agent(agent), after, limit)

    def find_subject_contents(
        self, tenant: str, subject: str, opened_by: datetime, after: int, limit: int
    ) -> Sequence[EntryRow]:
        """Return entries with contents of a user's sessions, from the one after `after`. Raises QueryFailed."""
        return self._find_contents(is_about_subject(tenant, subject, opened_by), after, limit)

    def count_subject_contents(self, tenant: str, subject: str, opened_by: datetime) -> int:
        """Return how many entries with contents a user's sessions have. Raises QueryFailed."""
        is_related = is_about_subject(tenant, subject, opened_by)
        query = select(func.count()).select_from(audit_entries).where(HAS_CONTENT, is_related)
        with self._database.read_snapshot() as unit_of_work:
            found: int = unit_of_work.execute(query).scalar_one()
            return found

    def remove_audit_contents(self, unit_of_work: UnitOfWork, rows: Sequence[EntryRow]) -> int:
        """Remove the contents of audit entries, whose hashes stay, and return how many had one."""
        return self._audit.remove_contents(unit_of_work, rows)

    def erase_reviews(self, unit_of_work: UnitOfWork, agent: str, limit: int) -> int:
        """Remove the name and the lessons of a reviewer from the histories of others' decisions."""
        review = decision_reviews.c
        chosen = select(review.id).where(review.reviewer == agent).limit(limit)
        values = {"reviewer": null(), "request_key": null(), "notes": null()}
        return unit_of_work.execute(update(decision_reviews).where(review.id.in_(chosen)).values(values)).rowcount

    def erase_intents(self, unit_of_work: UnitOfWork, agent: str, at: datetime, limit: int) -> int:
        """Remove revisions of intents, and let all servers forget those that are shared."""
        # In the order in which announcements and closings take their locks.
        self._order.hold(unit_of_work)
        self._erase_shared_intents(unit_of_work, agent, at, limit)
        others = intents.alias().c
        newest = select(func.max(others.id)).scalar_subquery()
        last_closed = (
            select(func.max(others.closing_number)).where(others.closing_number.is_not(None)).scalar_subquery()
        )
        mine = intents.c
        is_needed = or_(mine.id == newest, mine.closing_number == last_closed)
        kept = unit_of_work.execute(select(mine.id).where(mine.agent == agent, is_needed)).scalars().all()
        for key in kept:
            values = KEPT_INTENT | {"correlation_id": f"erased-{key}"}
            unit_of_work.execute(update(intents).where(mine.id == key).values(values))
        chosen = select(mine.id).where(mine.agent == agent).order_by(mine.id).limit(limit - len(kept))
        return len(kept) + unit_of_work.execute(delete(intents).where(mine.id.in_(chosen))).rowcount

    def _find_contents(self, is_related: ColumnElement[bool], after: int, limit: int) -> Sequence[EntryRow]:
        """Return entries with contents that meet a condition, in the order of their ids."""
        entry = audit_entries.c
        columns = (entry.id, entry.action, entry.judged, entry.content_salt)
        query = select(*columns).where(entry.id > after, HAS_CONTENT, is_related).order_by(entry.id).limit(limit)
        with self._database.read_snapshot() as unit_of_work:
            return [dict(row) for row in unit_of_work.execute(query).mappings()]

    def _erase_shared_intents(self, unit_of_work: UnitOfWork, agent: str, at: datetime, limit: int) -> None:
        shared = shared_intents.c
        chosen = select(shared.correlation_id).where(shared.agent == agent).distinct().limit(limit)
        for correlation_id in unit_of_work.execute(chosen).scalars().all():
            # Before the row goes, by which it is known that the intent was shared.
            self._shared_intents.note_change(unit_of_work, (agent, correlation_id), at)
            same = (shared.agent == agent, shared.correlation_id == correlation_id)
            unit_of_work.execute(delete(shared_intents).where(*same))

    def erase_approvals(self, unit_of_work: UnitOfWork, agent: str, limit: int) -> int:
        """Remove approval requests, also those that another agent made on behalf of this one."""
        self._order.hold(unit_of_work)
        request, newest = approvals.c, select(func.max(approvals.alias().c.change)).scalar_subquery()
        kept_key = select(request.id).where(is_request_of(agent), request.change == newest)
        kept = unit_of_work.execute(kept_key).scalars().all()
        for key in kept:
            values = KEPT_APPROVAL | {"digest": f"erased-{key}"}
            unit_of_work.execute(update(approvals).where(request.id == key).values(values))
        chosen = select(request.id).where(is_request_of(agent)).limit(limit - len(kept))
        return len(kept) + unit_of_work.execute(delete(approvals).where(request.id.in_(chosen))).rowcount

    def erase_tasks(self, unit_of_work: UnitOfWork, agent: str, limit: int) -> int:
        """Remove tasks; the database removes their push configurations and notifications with them."""
        chosen = select(tasks.c.id).where(tasks.c.agent == agent).limit(limit)
        return unit_of_work.execute(delete(tasks).where(tasks.c.agent == agent, tasks.c.id.in_(chosen))).rowcount

    def erase_callbacks(self, unit_of_work: UnitOfWork, agent: str, limit: int) -> int:
        """Remove citations, notifications of callbacks, and notices about the agent for webhooks."""
        taken = 0
        for queue in (callbacks, notices):
            chosen = select(queue.c.id).where(queue.c.agent == agent).limit(limit - taken)
            taken += unit_of_work.execute(delete(queue).where(queue.c.id.in_(chosen))).rowcount
        cited = select(citations.c.correlation_id).where(citations.c.agent == agent).limit(limit - taken)
        same = (citations.c.agent == agent, citations.c.correlation_id.in_(cited))
        return min(limit, taken + unit_of_work.execute(delete(citations).where(*same)).rowcount)

    def erase_thoughts(self, unit_of_work: UnitOfWork, agent: str, limit: int) -> int:
        self._order.hold(unit_of_work)
        chosen = select(thoughts.c.number).where(thoughts.c.agent == agent).limit(limit)
        return unit_of_work.execute(delete(thoughts).where(thoughts.c.number.in_(chosen))).rowcount

    def forget_owner(self, unit_of_work: UnitOfWork, agent: str, limit: int) -> int:
        """Remove the name of an agent from the rows that remain of its deleted decisions."""
        deleted = deleted_decisions.c
        chosen = select(deleted.id).where(deleted.agent == agent).limit(limit)
        values = {"agent": ERASED_AGENT, "idempotency_key": null()}
        return unit_of_work.execute(update(deleted_decisions).where(deleted.id.in_(chosen)).values(values)).rowcount


def is_about_agent(agent: str) -> ColumnElement[bool]:
    """Return the condition of audit entries of an agent, and of those about its decisions and approval requests."""
    entry = audit_entries.c
    return or_(
        entry.requesting_agent == agent,
        entry.decision_id.in_(select(decisions.c.id).where(decisions.c.agent == agent)),
        entry.approval_id.in_(select(approvals.c.id).where(is_request_of(agent))),
    )


def is_request_of(agent: str) -> ColumnElement[bool]:
    """Return the condition of approval requests that an agent made, or another one on its behalf."""
    return or_(approvals.c.agent == agent, approvals.c.on_behalf_of == agent)


def is_about_subject(tenant: str, subject: str, opened_by: datetime) -> ColumnElement[bool]:
    """Return the condition of audit entries about the sessions that a user opened by an instant."""
    entry, session, other = audit_entries.c, chat_sessions.c, chat_sessions.alias().c
    # Entries have no tenant: those of an id that a session of another tenant has too may be about that one.
    is_shared = exists().where(other.id == session.id, other.tenant != tenant)
    of_user = (session.tenant == tenant, session.user_id == replace_unstorable(subject))
    ids = select(session.id).where(*of_user, session.created_at <= opened_by, ~is_shared)
    return and_(entry.event.in_([event.value for event in SESSION_EVENTS]), entry.correlation_id.in_(ids))
