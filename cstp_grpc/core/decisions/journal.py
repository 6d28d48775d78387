"""The journal: how agents change decisions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.contract.errors import Conflict, InvalidArgument, PermissionDenied
from cstp_grpc.core.audit.model import AuditEvent, AuditSink
from cstp_grpc.core.decisions import lifecycle, model
from cstp_grpc.core.decisions.journal_reader import JournalReader, decision_not_found_error
from cstp_grpc.core.decisions.journal_transaction import (
    ChangeContext,
    CitationNotifier,
    JournalStores,
    JournalTransaction,
)
from cstp_grpc.core.decisions.passages import PreparedTexts, decision_passages
from cstp_grpc.core.decisions.store import DeclaredLinks, ErasedRow, IndexRow, JournalEntry, JournalWrite
from cstp_grpc.platform.embedding.embedder import Embedder
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Journal(JournalReader):
    """Reads, records, reviews, shares and imports decisions.

    Each change is one transaction with its audit entries and its numbers in the change log. `listener` gets the changed
    rows and `erasure_listener` the deleted ones after the commit and before the caller gets its answer, so that a
    search finds them, or not, at once. Writing methods raise Unavailable if the store does not respond.
    """

    def __init__(
        self,
        stores: JournalStores,
        writer: GroupCommitWriter,
        embedder: Embedder,
        sink: AuditSink,
        clock: Callable[[], datetime],
        listener: Callable[[Sequence[IndexRow]], None],
        citations: CitationNotifier | None = None,
        erasure_listener: Callable[[Sequence[ErasedRow]], None] | None = None,
    ) -> None:
        super().__init__(stores.decisions, stores.history, embedder, clock)
        self._stores = stores
        self._writer = writer
        self._sink = sink
        self._listener = listener
        self._citations = citations
        self._erasure_listener = erasure_listener
        # Guards `_revision`, which threads of several calls raise after their commits, in any order.
        self._lock = threading.Lock()
        self._revision = 0
        self._tokens = RevisionTokens(stores.decisions.identity())

    @property
    def revision(self) -> str:
        """The token of the latest revision that this journal has written or found in its writes."""
        return self._tokens.write(self._revision)

    def record(
        self,
        content: model.DecisionContent,
        links: model.Links,
        caller: str,
        request_id: str,
        idempotency_key: str | None = None,
        key_name: str = "requestId",
    ) -> model.Decision:
        """Record a decision of the caller and return it; those of the caller it supersedes become superseded.

        Recording the same content under the same key again returns the existing decision in its present state. Raises
        Conflict, which calls the key by its name, if it was used for another content, and QueryFailed if the embedder
        fails.
        """
        write = self._writer.run(self.prepare_record(content, links, caller, request_id, idempotency_key, key_name))
        self.publish(write)
        return write.result

    def prepare_record(
        self,
        content: model.DecisionContent,
        links: model.Links,
        caller: str,
        request_id: str,
        idempotency_key: str | None,
        key_name: str = "requestId",
    ) -> Callable[[UnitOfWork], JournalWrite[model.Decision]]:
        """Return a function that records a decision within a transaction; `publish` its result. It raises Conflict.

        Texts are embedded before, which may raise QueryFailed.
        """
        change = self._change_context(caller, request_id)
        entry = replace(self._new_entry(content, links, change), idempotency_key=idempotency_key)
        # For a repeated request this is done in vain.
        prepared = self._prepare([entry.decision])

        def job(transaction: JournalTransaction) -> model.Decision:
            known = transaction.find_recorded(idempotency_key) if idempotency_key is not None else None
            if known is not None:
                return require_same_content(known, entry, key_name)
            if idempotency_key is not None and transaction.was_deleted(idempotency_key):
                raise Conflict(f"{key_name} was used to record a decision that is deleted")
            return self._insert(transaction, entry, prepared)

        return self._prepare_write(change, job)

    def record_summary(
        self,
        content: model.DecisionContent,
        links: model.Links,
        cited: Mapping[str, model.Decision],
        caller: str,
        request_id: str,
    ) -> model.Decision | None:
        """Record a summary of decisions of the caller; None if they changed, or another summary cites one of them.

        Raises QueryFailed if the embedder fails.
        """
        change = self._change_context(caller, request_id)
        entry = self._new_entry(content, links, change)
        prepared = self._prepare([entry.decision])

        def job(transaction: JournalTransaction) -> model.Decision | None:
            present = {key: found.decision for key, found in transaction.load(cited).items()}
            others = [each.decision for each in transaction.find_summaries(caller, cited)]
            current = {each.id for each in others if each.status is not DecisionStatus.SUPERSEDED}
            if present != cited or current != set(links.supersedes):
                return None
            return self._insert(transaction, entry, prepared)

        return self._write(change, job)

    def _new_entry(self, content: model.DecisionContent, links: model.Links, change: ChangeContext) -> JournalEntry:
        content, links = lifecycle.normalize_content(content), lifecycle.normalize_links(links)
        content_hash = lifecycle.hash_content(content, links)
        entry = lifecycle.new_entry(lifecycle.new_decision_id(), content, content_hash, change.caller, change.at)
        return replace(entry, decision=replace(entry.decision, links=links))

    def _insert(self, transaction: JournalTransaction, entry: JournalEntry, prepared: PreparedTexts) -> model.Decision:
        decision = entry.decision
        transaction.insert([entry])
        transaction.put_vectors(self._embedder.model, [prepared.vectors_of(decision)])
        if decision.links != model.Links():
            transaction.declare([DeclaredLinks(decision.id, decision.links)])
        transaction.record_event(AuditEvent.DECISION_RECORDED, decision)
        return decision

    def review(
        self,
        decision_id: str,
        outcome: Outcome,
        notes: str | None,
        caller: str,
        request_id: str,
        idempotency_key: str | None = None,
    ) -> model.Decision:
        """Set outcome and lesson of a decision that the caller may read; None keeps the present lesson.

        Its status becomes reviewed unless it is superseded. Earlier reviews stay in its history. The same review under
        the same key changes nothing. Raises NotFound, Conflict if the key was used for another review, and
        QueryFailed if the embedder fails.
        """
        change = self._change_context(caller, request_id)
        lesson = None if notes is None else replace_unstorable(notes)
        present = self._store.get(decision_id)
        readable = present is not None and self._store.may_read(present, caller)
        prepared = self._prepare([lifecycle.with_lesson(present, outcome, lesson)] if present and readable else [])

        def job(transaction: JournalTransaction) -> model.Decision:
            entry = self._readable_entry(transaction, decision_id, caller)
            known = None if idempotency_key is None else transaction.find_review(decision_id, idempotency_key)
            if known is not None:
                require_same_review(known, outcome, lesson)
                return entry.decision
            lifecycle.refuse_summary(entry)
            after = lifecycle.apply_review(entry, outcome, lesson, change.at)
            transaction.update([after])
            transaction.remove_outdated_summaries(after.decision.agent, [decision_id])
            transaction.add_review(after.decision, idempotency_key)
            if decision_passages(after.decision) != decision_passages(entry.decision):
                transaction.put_vectors(self._embedder.model, [prepared.vectors_of(after.decision)])
            transaction.record_event(AuditEvent.DECISION_REVIEWED, after.decision)
            transaction.notify_cited_agents(after.decision)
            return after.decision

        return lifecycle.redact_decisions(self._store, [self._write(change, job)], caller)[0]

    def update(
        self,
        decision_id: str,
        changes: model.DecisionContent,
        names: Sequence[str],
        expected_revision: int | None,
        caller: str,
        request_id: str,
    ) -> tuple[model.Decision, model.DecisionHistory]:
        """Set the named fields of a decision of the caller, and return it with its history.

        The former content is kept; an update that changes nothing makes no revision. Raises NotFound, InvalidArgument
        for a field that cannot be set so, PermissionDenied for another's shared decision, Conflict if the revision is
        not the expected one, and QueryFailed if the embedder fails.
        """
        change = self._change_context(caller, request_id)
        present = self._store.get(decision_id)
        draft = None if present is None else replace(present, **lifecycle.draft_values(changes, names))
        changes_passages = present and draft and decision_passages(present) != decision_passages(draft)
        prepared = self._prepare([draft] if draft and changes_passages else [])

        def job(transaction: JournalTransaction) -> model.Decision:
            before = self._own_entry(transaction, decision_id, caller)
            lifecycle.refuse_summary(before)
            after = lifecycle.apply_update(before, changes, names)
            # Without the expected revision: it may be the repetition of an update whose answer was lost.
            if lifecycle.has_same_content(before, after):
                return before.decision
            if expected_revision not in (None, revision := transaction.read_revision(decision_id)):
                raise Conflict(
                    f"the revision of {decision_id} is {revision}, not {expected_revision}; read it again first"
                )
            transaction.keep_former(before, after)
            transaction.update([after])
            transaction.remove_outdated_summaries(change.caller, [decision_id])
            if decision_passages(after.decision) != decision_passages(before.decision):
                transaction.put_vectors(self._embedder.model, [prepared.vectors_of(after.decision)])
            (after,) = transaction.update_status([decision_id])
            transaction.record_event(AuditEvent.DECISION_UPDATED, after.decision)
            return after.decision

        updated = self._write(change, job)
        return updated, self._read_history(updated, caller)

    def link(
        self, decision_id: str, added: model.Links, removed: model.Links, caller: str, request_id: str
    ) -> model.Decision:
        """Add links from a decision of the caller to readable ones, remove others, and return the decision.

        Raises NotFound, also for a decision to link to that the caller may not read, PermissionDenied for another's
        shared decision, and InvalidArgument for a link to itself or too many links.
        """
        added, removed = lifecycle.normalize_links(added), lifecycle.normalize_links(removed)

        def job(transaction: JournalTransaction) -> model.Decision:
            before = self._own_entry(transaction, decision_id, caller)
            present, wanted = (
                lifecycle.links_from(decision_id, before.decision.links),
                lifecycle.links_from(decision_id, added),
            )
            new = [link for link in wanted if link not in present]
            old = [
                link for link in lifecycle.links_from(decision_id, removed) if link in present and link not in wanted
            ]
            lifecycle.check_linkable(before.decision, wanted, old)
            targets = transaction.load({link.to_id for link in new})
            for link in new:
                if link.to_id not in targets or not self._store.may_read(targets[link.to_id].decision, caller):
                    raise decision_not_found_error(link.to_id)
            transaction.check_superseding(decision_id, new)
            if not new and not old:
                return before.decision
            transaction.change_links(new, old)
            after = transaction.load([decision_id])[decision_id]
            if after.decision.links == before.decision.links:
                # Another agent's decision declares the links that were to be removed.
                return after.decision
            # Written although only its links changed, so that it has a new revision.
            transaction.update([after])
            transaction.record_event(AuditEvent.DECISION_LINKED, after.decision)
            return after.decision

        return self._write(self._change_context(caller, request_id), job)

    def delete(self, decision_id: str, caller: str, request_id: str) -> model.DeletedDecision:
        """Delete a decision of the caller, or return the remains of one that is deleted already.

        Raises NotFound, and PermissionDenied for another's shared decision.
        """

        def job(transaction: JournalTransaction) -> model.DeletedDecision:
            deleted = transaction.find_deleted([decision_id]).get(decision_id)
            if deleted is not None and deleted.agent == caller:
                return deleted
            entry = self._own_entry(transaction, decision_id, caller)
            transaction.record_event(AuditEvent.DECISION_DELETED, entry.decision)
            return transaction.delete(entry)

        return self._write(self._change_context(caller, request_id), job)

    def remove(
        self,
        conditions: model.RemovalFilter,
        limit: int,
        reason: str,
        caller: str,
        request_id: str,
        owner: str | None = None,
    ) -> int:
        """Delete up to `limit` decisions of any agent that meet conditions, and return their number.

        The audit trail records the reason but no titles. `owner` replaces the names of the agents in the remains of
        the decisions. Raises Unavailable.
        """

        def job(transaction: JournalTransaction) -> int:
            entries = transaction.load(transaction.find_removable(conditions, limit))
            for entry in entries.values():
                transaction.record_event(AuditEvent.DECISION_DELETED, entry.decision, reason)
                transaction.delete(entry, owner)
            return len(entries)

        return self._write(self._change_context(caller, request_id), job)

    def share(self, decision_id: str, caller: str, request_id: str) -> model.Decision:
        """Share a decision of the caller. Raises NotFound, PermissionDenied for another's shared one."""
        return self._set_visibility(decision_id, Visibility.SHARED, self._change_context(caller, request_id))

    def unshare(self, decision_id: str, caller: str, request_id: str) -> model.Decision:
        """Unshare a decision of the caller. Raises NotFound, PermissionDenied for another's shared one."""
        return self._set_visibility(decision_id, Visibility.PRIVATE, self._change_context(caller, request_id))

    def import_batch(
        self, records: Sequence[model.ImportRecord], caller: str, request_id: str
    ) -> Sequence[model.ImportResult]:
        """Import records in their order, all or none, and return the result of each.

        The caller and the source identify a decision: one with the same content is kept, one with another content is
        updated as `apply_import` says. One with an identity is updated as `merge_state` says. Links to decisions that
        are not imported yet take effect once they are. Raises QueryFailed if the embedder fails.
        """
        change = self._change_context(caller, request_id)
        candidates = [lifecycle.make_import_candidate(record, caller) for record in records]
        present = self._store.embedded_decisions(self._embedder.model, [item.decision_id for item in candidates])
        prepared = self._prepare_import(candidates, present, change)

        def job(transaction: JournalTransaction) -> Sequence[model.ImportResult]:
            ids = {item.decision_id for item in candidates}
            # Those that summaries cite, too.
            ids.update(key for item in candidates for key in item.declaration.links.summarizes)
            known, deleted = transaction.load(ids), transaction.find_deleted(ids)
            merged = lifecycle.ImportPlanner(known, deleted, caller, change.at).plan(candidates)
            # First: it removes the links to the decision, and those that are left in an export were declared later.
            for key, remains in merged.deletions.items():
                transaction.import_deletion(remains, merged.origins[key])
            entries = merged.entries
            for key in known.keys() & entries.keys():
                transaction.keep_former(known[key], entries[key])
            new = {key: entry for key, entry in entries.items() if key not in known}
            transaction.restore([entry for key, entry in new.items() if key in deleted])
            transaction.insert([entry for key, entry in new.items() if key not in deleted])
            transaction.update([entry for key, entry in entries.items() if key in known], keeps_dates=True)
            embedded = [
                entry.decision
                for key, entry in entries.items()
                # Not known if it was deleted after `present` was read.
                if key not in present
                or key not in known
                or decision_passages(known[key].decision) != decision_passages(entry.decision)
            ]
            transaction.put_vectors(self._embedder.model, list(map(prepared.vectors_of, embedded)))
            transaction.declare(list(merged.declarations.values()))
            transaction.remove_outdated_summaries(caller, entries)
            for key, reviews in merged.reviews.items():
                transaction.add_missing_reviews(key, reviews)
            for changed in merged.changes:
                origin = merged.origins.get(changed.id)
                text = None if origin is None else f"{changed.title} (from {origin})"
                transaction.record_event(AuditEvent.DECISION_IMPORTED, changed, text)
            return merged.results

        return self._write(change, job)

    def refresh_passages(self, decisions: Sequence[model.Decision]) -> None:
        """Compute the vectors and terms of decisions again by the present rules; their content stays unchanged.

        Each gets a new revision, by which other servers and the index learn of it. Raises QueryFailed if the embedder
        fails.
        """
        prepared = self._prepare(decisions)

        def job(transaction: JournalTransaction) -> None:
            entries = transaction.load(item.id for item in decisions)
            transaction.update(list(entries.values()), keeps_dates=True)
            vectors = [prepared.vectors_of(entry.decision) for entry in entries.values()]
            transaction.put_vectors(self._embedder.model, vectors)

        self._write(self._change_context("", ""), job)

    def _prepare(self, decisions: Iterable[model.Decision]) -> PreparedTexts:
        prepared = PreparedTexts(self._embedder)
        prepared.prepare(decisions)
        return prepared

    def _prepare_import(
        self,
        candidates: Sequence[lifecycle.ImportCandidate],
        present: Mapping[str, model.Decision],
        change: ChangeContext,
    ) -> PreparedTexts:
        """Embed the changes of an import of candidates, as far as they are known before the transaction."""
        entries = {key: JournalEntry(item, item.status, "") for key, item in present.items()}
        planned = lifecycle.ImportPlanner(entries, {}, change.caller, change.at).plan(candidates).entries
        return self._prepare(
            entry.decision
            for key, entry in planned.items()
            if key not in present or decision_passages(present[key]) != decision_passages(entry.decision)
        )

    def _set_visibility(self, decision_id: str, visibility: Visibility, change: ChangeContext) -> model.Decision:
        def job(transaction: JournalTransaction) -> model.Decision:
            entry = self._own_entry(transaction, decision_id, change.caller)
            if entry.decision.visibility is not visibility:
                entry = replace(entry, decision=replace(entry.decision, visibility=visibility))
                shared = visibility is Visibility.SHARED
                if shared and not transaction.is_faithful(entry.decision):
                    raise InvalidArgument.field(
                        "id", "is a summary of private decisions; share these, and compact again"
                    )
                transaction.update([entry])
                transaction.remove_outdated_summaries(change.caller, [decision_id])
                event = AuditEvent.DECISION_SHARED if shared else AuditEvent.DECISION_UNSHARED
                transaction.record_event(event, entry.decision)
            return entry.decision

        return self._write(change, job)

    def _readable_entry(self, transaction: JournalTransaction, decision_id: str, caller: str) -> JournalEntry:
        """Return the entry of a decision that the caller may read. Raises NotFound."""
        entry = transaction.load([decision_id]).get(decision_id)
        if entry is None or not self._store.may_read(entry.decision, caller):
            raise decision_not_found_error(decision_id)
        return entry

    def _own_entry(self, transaction: JournalTransaction, decision_id: str, caller: str) -> JournalEntry:
        """Return the entry of a decision of the caller. Raises NotFound, PermissionDenied for another's shared one."""
        entry = self._readable_entry(transaction, decision_id, caller)
        if entry.decision.agent != caller:
            raise PermissionDenied(f"{decision_id} belongs to another agent, which alone may change it")
        return entry

    def _change_context(self, caller: str, request_id: str) -> ChangeContext:
        return ChangeContext(caller, request_id, self._clock())

    def _write(self, change: ChangeContext, job: Callable[[JournalTransaction], T]) -> T:
        write = self._writer.run(self._prepare_write(change, job))
        self.publish(write)
        return write.result

    def _prepare_write(
        self, change: ChangeContext, job: Callable[[JournalTransaction], T]
    ) -> Callable[[UnitOfWork], JournalWrite[T]]:
        def run(unit_of_work: UnitOfWork) -> JournalWrite[T]:
            # First of all, before the job reads: what it reads then stays valid until the commit, and two servers
            # cannot deadlock. See `GlobalWriteLock`.
            self._stores.changes.hold(unit_of_work)
            transaction = JournalTransaction(unit_of_work, self._stores, self._sink, change, self._citations)
            return JournalWrite(job(transaction), transaction.rows(self._embedder.model), transaction.erased)

        return run

    def publish(self, write: JournalWrite[T]) -> None:
        """Let searches find the changes of a committed transaction; before the caller gets its answer."""
        rows, erased = write.rows, write.erased
        # The commit is on disk. If the process is killed before the matrix has the rows, nothing is lost: the matrix of
        # the next process is built from the journal, and the index is fed from the change log.
        if rows:
            self._listener(rows)
        if erased and self._erasure_listener is not None:
            self._erasure_listener(erased)
        if rows or erased:
            with self._lock:
                changed = [row.revision for row in rows[-1:]] + [row.revision for row in erased[-1:]]
                self._revision = max(self._revision, *changed)


def require_same_content(known: JournalEntry, entry: JournalEntry, key_name: str) -> model.Decision:
    """Return the decision recorded under a key. Raises Conflict if its content is different."""
    if known.content_hash != entry.content_hash:
        raise Conflict(f"{key_name} was used to record another decision")
    return known.decision


def require_same_review(known: model.DecisionReview, outcome: Outcome, notes: str | None) -> None:
    """Raise Conflict if the review made under a key has another outcome or lesson."""
    if known.outcome is not outcome or (notes is not None and known.notes != (notes or None)):
        raise Conflict("requestId was used for another review of the decision")
