"""The journal: recording, reading, reviewing, sharing and importing decisions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.decisions.batch import Candidate, candidate, merge
from cstp_grpc.decisions.embedding import Embedder
from cstp_grpc.decisions.identity import content_hash, recorded_id, tidy, tidy_links
from cstp_grpc.decisions.lifecycle import as_read_by, new_entry, reviewed
from cstp_grpc.decisions.model import Decision, DecisionContent, DecisionFilter, ImportRecord, ImportResult, Links
from cstp_grpc.decisions.revisions import RevisionTokens
from cstp_grpc.decisions.store import DecisionStore, Declaration, Entry, IndexRow, Vector, embedded_text
from cstp_grpc.decisions.transaction import Act, Citations, JournalEvent, Trail, Transaction
from cstp_grpc.errors import Conflict, NotFound, PermissionDenied, Unavailable
from cstp_grpc.storage.outbox import Outbox
from cstp_grpc.storage.paging import Page, PageRequest
from cstp_grpc.storage.text import storable
from cstp_grpc.storage.writer import Writer
from cstp_grpc.vocabulary import Outcome, Visibility

__all__ = ["Journal", "JournalEvent", "Trail"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Journal:
    """Keeps the decisions of all agents and shows each agent what it may read.

    A decision is private to the agent that recorded it until that agent shares it; to others a private one does not
    exist, and to peers no shared one that they do not find. Each change is one transaction, with its events in the
    trail and its places in the outbox. `listener` gets the changed rows after the commit and before the caller its
    answer, so that a search finds them at once.

    Methods that read raise QueryFailed, methods that write Unavailable, where the store does not answer.
    """

    def __init__(
        self,
        store: DecisionStore,
        outbox: Outbox,
        writer: Writer,
        embedder: Embedder,
        trail: Trail,
        clock: Callable[[], datetime],
        listener: Callable[[Sequence[IndexRow]], None],
        citations: Citations | None = None,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._writer = writer
        self._embedder = embedder
        self._trail = trail
        self._clock = clock
        self._listener = listener
        self._citations = citations
        self._lock = threading.Lock()
        self._revision = 0
        self._tokens = RevisionTokens(store.identity())

    @property
    def revision(self) -> str:
        """The token of a revision by which the journal has what was written or found by writes here."""
        return self._tokens.write(self._revision)

    def get(self, decision_id: str, caller: str) -> Decision:
        """Return a decision: the caller's own whole, another's shared one without what is private.

        Raises NotFound, also for another's private one.
        """
        decision = self._store.get(decision_id)
        if decision is None or not self._store.may_read(decision, caller):
            raise not_found(decision_id)
        return self._shown([decision], caller)[0]

    def list(self, caller: str, filters: DecisionFilter, page: PageRequest) -> Page[Decision]:
        """Return a page of the decisions that the caller may read, latest first, without contexts and reasons' texts.

        Raises InvalidArgument for a page token of another listing.
        """
        found = self._store.page(caller, filters, page)
        return Page(self._shown(found.items, caller), found.next_token)

    def record(
        self,
        content: DecisionContent,
        links: Links,
        caller: str,
        request_id: str,
        idempotency_key: str | None = None,
    ) -> Decision:
        """Record a decision of the caller's and return it; those of the caller's that it supersedes become superseded.

        Recording the same content under the same key again returns the decision that is there, as it now is. Raises
        Conflict where the key was used for another content, and QueryFailed where the embedder does not answer.
        """
        act = self._act(caller, request_id)
        content, links = tidy(content), tidy_links(links)
        entry = new_entry(recorded_id(), content, content_hash(content, links), caller, act.at)
        entry = replace(entry, decision=replace(entry.decision, links=links), idempotency_key=idempotency_key)
        vector = self._embedder.embed([text_of(entry)])[0]

        def job(transaction: Transaction) -> Decision:
            known = transaction.find_recorded(idempotency_key) if idempotency_key is not None else None
            if known is not None:
                return same(known, entry)
            transaction.insert([entry])
            transaction.put_vectors(self._embedder.model, [(entry.decision.id, vector)])
            if links != Links():
                transaction.declare([Declaration(entry.decision.id, links)])
            transaction.tell("recorded", entry.decision)
            return entry.decision

        return self._write(act, job)

    def review(self, decision_id: str, outcome: Outcome, notes: str | None, caller: str, request_id: str) -> Decision:
        """Set how a decision that the caller may read turned out, and the lesson; None keeps the present lesson.

        It becomes reviewed unless it is superseded. Raises NotFound.
        """
        act = self._act(caller, request_id)
        lesson = None if notes is None else storable(notes)

        def job(transaction: Transaction) -> Decision:
            entry = self._readable_entry(transaction, decision_id, caller)
            after = reviewed(entry, outcome, lesson, act.at)
            transaction.update([after])
            transaction.tell("reviewed", after.decision)
            transaction.warn(after.decision)
            return after.decision

        return self._shown([self._write(act, job)], caller)[0]

    def share(self, decision_id: str, caller: str, request_id: str) -> Decision:
        """Let every agent find a decision of the caller's. Raises NotFound, PermissionDenied for another's shared."""
        return self._set_visibility(decision_id, Visibility.SHARED, self._act(caller, request_id))

    def unshare(self, decision_id: str, caller: str, request_id: str) -> Decision:
        """Make a decision of the caller's private. Raises NotFound, PermissionDenied for another's shared."""
        return self._set_visibility(decision_id, Visibility.PRIVATE, self._act(caller, request_id))

    def import_batch(self, records: Sequence[ImportRecord], caller: str, request_id: str) -> Sequence[ImportResult]:
        """Import records in their order, all or none, and return what became of each.

        The caller and the source identify a decision: what is there with the same content stays, what has another
        content is updated as `lifecycle.updated` says. Links to decisions that are not imported yet hold once they
        are. Raises QueryFailed where the embedder does not answer.
        """
        act = self._act(caller, request_id)
        candidates = [candidate(record, caller) for record in records]
        vectors = self._missing_vectors(candidates)

        def job(transaction: Transaction) -> Sequence[ImportResult]:
            known = transaction.load({item.decision_id for item in candidates})
            merged = merge(candidates, known, caller, act.at)
            entries = merged.entries
            transaction.insert([entry for key, entry in entries.items() if key not in known])
            transaction.update([entry for key, entry in entries.items() if key in known])
            transaction.put_vectors(self._embedder.model, self._changed_vectors(entries, known, vectors))
            transaction.declare(list(merged.declarations.values()))
            for changed in merged.changes:
                transaction.tell("imported", changed)
            return merged.results

        return self._write(act, job)

    def _shown(self, decisions: Sequence[Decision], caller: str) -> tuple[Decision, ...]:
        """Return readable decisions as an agent may see them."""
        others = [item.links for item in decisions if item.agent != caller]
        targets = {key for links in others for key in (*links.supersedes, *links.depends_on, *links.relates_to)}
        readable = self._store.readable(sorted(targets), caller, DecisionFilter())
        return tuple(as_read_by(item, caller, readable) for item in decisions)

    def _missing_vectors(self, candidates: Sequence[Candidate]) -> dict[str, Vector]:
        """Return the vectors of the texts that are not embedded yet, by text."""
        texts = {item.decision_id: embedded_text(item.content.title, item.content.context) for item in candidates}
        present = self._store.embedded_texts(self._embedder.model, list(texts))
        missing = list(dict.fromkeys(text for key, text in texts.items() if present.get(key) != text))
        return dict(zip(missing, self._embedder.embed(missing), strict=True)) if missing else {}

    def _changed_vectors(
        self, entries: Mapping[str, Entry], known: Mapping[str, Entry], vectors: Mapping[str, Vector]
    ) -> Sequence[tuple[str, Vector]]:
        """Return the vectors to set for imported entries, by id."""
        changed = []
        for key, entry in entries.items():
            text = text_of(entry)
            if text in vectors:
                changed.append((key, vectors[text]))
            elif key not in known or text_of(known[key]) != text:
                # Another import changed the decision since `_missing_vectors` looked.
                changed.append((key, self._embedder.embed([text])[0]))
        return changed

    def _set_visibility(self, decision_id: str, visibility: Visibility, act: Act) -> Decision:
        def job(transaction: Transaction) -> Decision:
            entry = self._readable_entry(transaction, decision_id, act.caller)
            if entry.decision.agent != act.caller:
                raise PermissionDenied(f"{decision_id} belongs to another agent")
            if entry.decision.visibility is not visibility:
                entry = replace(entry, decision=replace(entry.decision, visibility=visibility))
                transaction.update([entry])
                transaction.tell("shared" if visibility is Visibility.SHARED else "unshared", entry.decision)
            return entry.decision

        return self._write(act, job)

    def _readable_entry(self, transaction: Transaction, decision_id: str, caller: str) -> Entry:
        """Return the entry of a decision that an agent may read. Raises NotFound."""
        entry = transaction.load([decision_id]).get(decision_id)
        if entry is None or not self._store.may_read(entry.decision, caller):
            raise not_found(decision_id)
        return entry

    def _act(self, caller: str, request_id: str) -> Act:
        return Act(caller, request_id, self._clock())

    def _write(self, act: Act, job: Callable[[Transaction], T]) -> T:
        """Run a job in a transaction and tell the listener what it changed."""

        def run(connection: Connection) -> tuple[T, Sequence[IndexRow]]:
            self._outbox.hold(connection)
            transaction = Transaction(connection, self._store, self._outbox, self._trail, act, self._citations)
            return job(transaction), transaction.rows(self._embedder.model)

        try:
            result, rows = self._writer.run(run)
        except SQLAlchemyError as error:
            logger.exception("the journal cannot be written")
            raise Unavailable("the journal cannot be written now; try again") from error
        if rows:
            self._listener(rows)
            with self._lock:
                self._revision = max(self._revision, rows[-1].revision)
        return result


def not_found(decision_id: str) -> NotFound:
    """Return the error for a decision that is not there, or that the caller must not know of."""
    return NotFound(f"there is no decision {decision_id}")


def same(known: Entry, entry: Entry) -> Decision:
    """Return the decision that was recorded under a key. Raises Conflict where its content was another."""
    if known.content_hash != entry.content_hash:
        raise Conflict("requestId was used to record another decision")
    return known.decision


def text_of(entry: Entry) -> str:
    """Return the text that stands for a decision in a search."""
    return embedded_text(entry.decision.title, entry.decision.context)
