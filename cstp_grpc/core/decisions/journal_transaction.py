"""The transaction in which one request changes the journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.enums import Outcome
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink
from cstp_grpc.core.decisions.lifecycle import content_of, has_same_content, next_change, review_of, with_status
from cstp_grpc.core.decisions.model import (
    Decision,
    DecisionLink,
    DecisionReview,
    DeletedDecision,
    LinkType,
    RemovalFilter,
)
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_history import SqlHistoryStore
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import DeclaredLinks, ErasedRow, IndexRow, JournalEntry, PassageVectors
from cstp_grpc.core.decisions.topic_summaries import is_faithful
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

MAX_FOLLOWED = 1000
"""Decisions that are looked at for a circle of superseded ones. Chosen: far longer than any chain of successors."""


class CitationNotifier(Protocol):
    """Notifies agents that received citations of decisions."""

    def queue_failure_notices(self, unit_of_work: UnitOfWork, decision_id: str, at: datetime) -> None:
        """Queue, in a transaction, a notice to every agent that received a citation of a failed decision."""


@dataclass(frozen=True, slots=True)
class JournalStores:
    """The stores that a change of the journal writes to."""

    decisions: SqlDecisionStore
    history: SqlHistoryStore
    changes: SqlChangeLog


@dataclass(frozen=True, slots=True)
class ChangeContext:
    """The context of a change: the calling agent, the request id and the instant."""

    caller: str
    request_id: str
    at: datetime


class JournalTransaction:
    """The transaction in which one request changes the journal.

    Everything belongs to one unit of work, which the writer commits. Each change gives a decision a new revision, its
    number in the change log.
    """

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        stores: JournalStores,
        sink: AuditSink,
        change: ChangeContext,
        citations: CitationNotifier | None = None,
    ) -> None:
        self._unit_of_work = unit_of_work
        self._citations = citations
        self._store, self._history, self._outbox = stores.decisions, stores.history, stores.changes
        self._sink = sink
        self._change = change
        # Belongs to one transaction, which runs on the writer's thread alone; so no lock.
        self._seen: set[str] = set()
        self.erased: list[ErasedRow] = []
        """The decisions that were deleted."""

    def find_recorded(self, idempotency_key: str) -> JournalEntry | None:
        entry = self._store.find_recorded(self._unit_of_work, self._change.caller, idempotency_key)
        if entry is not None:
            self._seen.add(entry.decision.id)
        return entry

    def load(self, ids: Iterable[str]) -> dict[str, JournalEntry]:
        entries = self._store.load(self._unit_of_work, list(ids))
        self._seen.update(entries)
        return entries

    def insert(self, entries: Sequence[JournalEntry]) -> None:
        self._store.insert(self._unit_of_work, self._with_new_revisions(entries), self._change.at)

    def update(self, entries: Sequence[JournalEntry], *, keeps_dates: bool = False) -> None:
        """Replace entries, which are changed now. With `keeps_dates` they were changed when they say."""
        if not keeps_dates:
            entries = [replace(entry, changed_at=next_change(entry, self._change.at)) for entry in entries]
        self._store.update(self._unit_of_work, self._with_new_revisions(entries), self._change.at)

    def put_vectors(self, model: str, vectors: Sequence[tuple[str, PassageVectors]]) -> None:
        self._store.put_vectors(self._unit_of_work, model, vectors)

    def declare(self, declarations: Sequence[DeclaredLinks]) -> None:
        """Replace the links that decisions declare, and update the status of all affected decisions."""
        targets = self._store.declare(self._unit_of_work, declarations)
        self.update_status(targets.union(declaration.decision_id for declaration in declarations))

    def update_status(self, ids: Iterable[str]) -> list[JournalEntry]:
        """Update the status of decisions that links supersede, or no longer do, and return those that exist."""
        entries = self.load(ids)
        superseded = self._store.find_superseded(self._unit_of_work, list(entries))
        updated = [with_status(entry, superseded=entry.decision.id in superseded) for entry in entries.values()]
        changed = [after for after, before in zip(updated, entries.values(), strict=True) if after != before]
        self.update(changed, keeps_dates=True)
        return updated

    def find_review(self, decision_id: str, request_key: str) -> DecisionReview | None:
        return self._history.find_review(self._unit_of_work, decision_id, self._change.caller, request_key)

    def add_review(self, decision: Decision, request_key: str | None) -> None:
        """Add the caller's review, which a decision has just got, to its history."""
        review = review_of(decision, self._change.caller)
        self._history.add_review(self._unit_of_work, decision.id, review, request_key)

    def add_missing_reviews(self, decision_id: str, reviews: Sequence[DecisionReview]) -> None:
        if reviews:
            self._history.add_missing_reviews(self._unit_of_work, decision_id, reviews)

    def read_revision(self, decision_id: str) -> int:
        return self._history.read_revision(self._unit_of_work, decision_id)

    def check_superseding(self, decision_id: str, added: Sequence[DecisionLink]) -> None:
        """Raise InvalidArgument if a decision would supersede one that supersedes it, itself or by way of others.

        None of them would count any more. Only the caller's decisions are followed, which no other agent supersedes.
        """
        replaced = {link.to_id for link in added if link.type is LinkType.SUPERSEDES}
        followed: set[str] = set()
        # Nothing is followed twice, so that a circle of links ends, too.
        while replaced and len(followed) < MAX_FOLLOWED:
            followed |= replaced
            found = [entry.decision for entry in self.load(replaced).values()]
            own = [item for item in found if item.agent == self._change.caller]
            for item in own:
                if decision_id in item.links.supersedes:
                    problem = f"{item.id} supersedes {decision_id}, so that neither would count; remove that link first"
                    raise InvalidArgument.field("add.supersedes", problem)
            replaced = {key for item in own for key in item.links.supersedes} - followed

    def change_links(self, added: Sequence[DecisionLink], removed: Sequence[DecisionLink]) -> None:
        """Remove and add links of the caller's decisions, and update the status of those that they supersede."""
        declaring = self._store.remove_links(self._unit_of_work, self._change.caller, removed)
        self._store.add_links(self._unit_of_work, added)
        # Others declared a link, too: they are changed as well, so that other journals learn of it.
        self.update(list(self.load(declaring - {link.from_id for link in removed}).values()))
        self.update_status({link.to_id for link in (*added, *removed) if link.type is LinkType.SUPERSEDES})

    def keep_former(self, before: JournalEntry, after: JournalEntry) -> None:
        if not has_same_content(before, after):
            self._history.add_former(self._unit_of_work, before.decision.id, content_of(before), self._change.at)

    def find_removable(self, conditions: RemovalFilter, limit: int) -> list[str]:
        return self._store.find_removable(self._unit_of_work, conditions, limit)

    def delete(self, entry: JournalEntry, owner: str | None = None) -> DeletedDecision:
        """Delete a decision; `owner` replaces the name of its agent in the remains."""
        item = entry.decision
        deleted = DeletedDecision(item.id, item.agent, next_change(entry, self._change.at), entry.idempotency_key)
        if owner is not None:
            deleted = DeletedDecision(item.id, owner, self._change.at)
        return self._delete(deleted, item.agent)

    def import_deletion(self, deleted: DeletedDecision, origin: str) -> None:
        """Delete a decision as another journal did; only the remains are added if this one never had it."""
        self._record(AuditEvent.DECISION_DELETED, deleted.id, f"deleted in another journal (from {origin})")
        self._delete(deleted, deleted.agent)

    def _delete(self, deleted: DeletedDecision, agent: str) -> DeletedDecision:
        """Delete an agent's decision with the summaries that cite it, and update the status of those it superseded."""
        if any(row.decision_id == deleted.id for row in self.erased):
            return deleted
        for entry in self.find_summaries(agent, [deleted.id]):
            self._delete_summary(entry, deleted.agent)
        revision = self._outbox.append(self._unit_of_work, deleted.id)
        self._history.erase(self._unit_of_work, deleted.id)
        targets = self._store.delete(self._unit_of_work, deleted.id)
        self._history.add_deleted(self._unit_of_work, deleted, revision)
        self._seen.discard(deleted.id)
        self.erased.append(ErasedRow(deleted.id, revision))
        # A decision that only this one superseded gets its own status back.
        self.update_status(targets - {deleted.id})
        return deleted

    def find_summaries(self, agent: str, ids: Iterable[str]) -> list[JournalEntry]:
        """Return the summaries of an agent that cite decisions."""
        found = self._store.find_summaries(self._unit_of_work, agent, list(ids))
        return list(self._store.load(self._unit_of_work, found).values())

    def is_faithful(self, summary: Decision) -> bool:
        cited = self._store.load(self._unit_of_work, summary.links.summarizes)
        return is_faithful(summary, {key: entry.decision for key, entry in cited.items()})

    def remove_outdated_summaries(self, agent: str, changed: Iterable[str]) -> None:
        """Delete an agent's summaries of changed decisions that no longer agree with them, or have more readers."""
        for entry in self.find_summaries(agent, changed):
            if not self.is_faithful(entry.decision):
                self._delete_summary(entry, entry.decision.agent)

    def _delete_summary(self, entry: JournalEntry, owner: str) -> None:
        self._record(
            AuditEvent.DECISION_DELETED, entry.decision.id, "a decision that it summarizes was changed or deleted"
        )
        remains = DeletedDecision(entry.decision.id, owner, next_change(entry, self._change.at))
        self._delete(remains, entry.decision.agent)

    def find_deleted(self, ids: Iterable[str]) -> dict[str, DeletedDecision]:
        return self._history.find_deleted(self._unit_of_work, list(ids))

    def was_deleted(self, idempotency_key: str) -> bool:
        return self._history.was_deleted(self._unit_of_work, self._change.caller, idempotency_key)

    def restore(self, entries: Sequence[JournalEntry]) -> None:
        ids = [entry.decision.id for entry in entries]
        self._history.remove_deleted(self._unit_of_work, ids)
        self.insert(entries)
        self.update_status(self._store.restore_links(self._unit_of_work, ids))

    def record_event(self, event: AuditEvent, decision: Decision, text: str | None = None) -> None:
        """Write a change of a decision to the audit trail; `text` takes the place of its title."""
        self._record(event, decision.id, decision.title if text is None else text)

    def _record(self, event: AuditEvent, decision_id: str, text: str) -> None:
        entry = AuditEntry(
            timestamp=self._change.at,
            event=event,
            requesting_agent=self._change.caller,
            request_id=self._change.request_id,
            action=text,
            decision_id=decision_id,
        )
        self._sink.append(self._unit_of_work, entry)

    def notify_cited_agents(self, decision: Decision) -> None:
        """Notify every agent that received a citation of a decision, if its outcome is failure."""
        if self._citations is not None and decision.outcome is Outcome.FAILURE:
            self._citations.queue_failure_notices(self._unit_of_work, decision.id, self._change.at)

    def rows(self, model: str) -> list[IndexRow]:
        """Return the index rows of the decisions that were changed or loaded.

        Loaded ones are included because the rows of an earlier request whose answer was lost may be missing in the
        index.
        """
        return self._store.changed_rows(self._unit_of_work, model, list(self._seen))

    def _with_new_revisions(self, entries: Sequence[JournalEntry]) -> list[tuple[JournalEntry, int]]:
        self._seen.update(entry.decision.id for entry in entries)
        return [(entry, self._outbox.append(self._unit_of_work, entry.decision.id)) for entry in entries]
