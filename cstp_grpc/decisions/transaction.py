"""One change of the journal: decisions, links, vectors, outbox and trail, all or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from sqlalchemy import Connection

from cstp_grpc.decisions.lifecycle import with_status
from cstp_grpc.decisions.model import Decision
from cstp_grpc.decisions.store import DecisionStore, Declaration, Entry, IndexRow, Vector
from cstp_grpc.storage.outbox import Outbox
from cstp_grpc.vocabulary import Outcome

Kind = Literal["recorded", "imported", "reviewed", "shared", "unshared"]


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """Something that happened to a decision; `agent` is the one that caused it."""

    kind: Kind
    decision_id: str
    title: str
    agent: str
    request_id: str
    at: datetime


class Trail(Protocol):
    """Takes down what happens to decisions."""

    def append(self, connection: Connection, event: JournalEvent) -> None:
        """Add an event within a transaction."""


class Citations(Protocol):
    """Knows to whom decisions were cited."""

    def failed(self, connection: Connection, decision_id: str, at: datetime) -> None:
        """Note within a transaction that all of them are told, since a decision was reviewed as failed."""


@dataclass(frozen=True, slots=True)
class Act:
    """A request to change decisions: who makes it, which request it is, and when."""

    caller: str
    request_id: str
    at: datetime


class Transaction:
    """The journal as one request changes it.

    Everything happens on one connection, whose owner commits. Each change gives a decision a new revision, which is
    its place in the outbox.
    """

    def __init__(
        self,
        connection: Connection,
        store: DecisionStore,
        outbox: Outbox,
        trail: Trail,
        act: Act,
        citations: Citations | None = None,
    ) -> None:
        self._connection = connection
        self._citations = citations
        self._store = store
        self._outbox = outbox
        self._trail = trail
        self._act = act
        self._seen: set[str] = set()

    def find_recorded(self, idempotency_key: str) -> Entry | None:
        """Return what the caller recorded under a key."""
        entry = self._store.find_recorded(self._connection, self._act.caller, idempotency_key)
        if entry is not None:
            self._seen.add(entry.decision.id)
        return entry

    def load(self, ids: Iterable[str]) -> dict[str, Entry]:
        """Return entries by id."""
        entries = self._store.load(self._connection, list(ids))
        self._seen.update(entries)
        return entries

    def insert(self, entries: Sequence[Entry]) -> None:
        """Add decisions."""
        self._store.insert(self._connection, self._revised(entries), self._act.at)

    def update(self, entries: Sequence[Entry]) -> None:
        """Replace decisions."""
        self._store.update(self._connection, self._revised(entries), self._act.at)

    def put_vectors(self, model: str, vectors: Sequence[tuple[str, Vector]]) -> None:
        """Set the vectors of decisions by id."""
        self._store.put_vectors(self._connection, model, vectors)

    def declare(self, declarations: Sequence[Declaration]) -> None:
        """Replace the links that decisions declare, and give all decisions concerned the status that follows."""
        targets = self._store.declare(self._connection, declarations)
        concerned = targets.union(declaration.decision_id for declaration in declarations)
        entries = self.load(concerned)
        superseded = self._store.superseded(self._connection, list(entries))
        settled = [with_status(entry, superseded=entry.decision.id in superseded) for entry in entries.values()]
        self.update([after for after, before in zip(settled, entries.values(), strict=True) if after != before])

    def tell(self, kind: Kind, decision: Decision) -> None:
        """Take down what happened to a decision."""
        act = self._act
        event = JournalEvent(kind, decision.id, decision.title, act.caller, act.request_id, act.at)
        self._trail.append(self._connection, event)

    def warn(self, decision: Decision) -> None:
        """Have all told of a decision that failed to whom it was cited."""
        if self._citations is not None and decision.outcome is Outcome.FAILURE:
            self._citations.failed(self._connection, decision.id, self._act.at)

    def rows(self, model: str) -> list[IndexRow]:
        """Return what a search must know of the decisions that were changed or found.

        Those that were only found count too: where an earlier answer got lost, so did its rows.
        """
        return self._store.changed_rows(self._connection, model, list(self._seen))

    def _revised(self, entries: Sequence[Entry]) -> list[tuple[Entry, int]]:
        self._seen.update(entry.decision.id for entry in entries)
        return [(entry, self._outbox.append(self._connection, entry.decision.id)) for entry in entries]
