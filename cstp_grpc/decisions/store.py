"""Where decisions are kept: the Protocol that every driver fulfils, and what it speaks in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from cstp_grpc.decisions.model import Decision, DecisionFilter, Links
from cstp_grpc.storage.paging import Page, PageRequest
from cstp_grpc.vocabulary import DecisionStatus, Outcome, Stakes, Visibility

Vector = NDArray[np.float32]
"""The embedding of one decision, of shape (dimensions,)."""

EMBEDDED_CONTEXT = 2000
"""How many characters of a decision's context are embedded; the model reads about 256 tokens."""


def embedded_text(title: str, context: str | None) -> str:
    """Return the text that stands for a decision in a search; at most the first 2000 characters of `context` count."""
    return f"{title}\n{context[:EMBEDDED_CONTEXT]}" if context else title


@dataclass(frozen=True, slots=True, eq=False)
class IndexRow:
    """What a search must know of a decision.

    `revision` grows with every change of the decision; `vector` is float32 of the model's dimensions; `date` is in
    seconds since the epoch.
    """

    decision_id: str
    revision: int
    vector: Vector
    agent: str
    visibility: Visibility
    category: str | None
    confidence: float | None
    date: float
    stakes: Stakes | None
    status: DecisionStatus
    outcome: Outcome | None
    tags: tuple[str, ...]
    project: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A decision and what the journal keeps beside it.

    `stated_status` is the status that its content gives it, whatever reviews and links made of it since;
    `content_hash` tells a repetition from another content.
    """

    decision: Decision
    stated_status: DecisionStatus
    content_hash: str
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Declaration:
    """The links that a decision declares: from it to others, and from those that it says supersede it."""

    decision_id: str
    links: Links
    superseded_by: tuple[str, ...] = ()


class DecisionStore(Protocol):
    """Keeps decisions, their links and their vectors.

    Reads take a connection of their own and raise QueryFailed where the database does not answer. Writes, and the
    reads that they rest on, belong to the transaction of the connection they are given and raise SQLAlchemyError.
    """

    @property
    def is_local(self) -> bool:
        """Whether reading a few decisions waits for no other process."""

    def get(self, decision_id: str) -> Decision | None:
        """Return a decision whole, whoever may read it."""

    def may_read(self, decision: Decision, caller: str) -> bool:
        """Whether an agent may read a decision: its own, or a shared one, which for a peer must be covered too."""

    def readable(self, ids: Sequence[str], caller: str, filters: DecisionFilter) -> dict[str, Decision]:
        """Return those of `ids` that the caller may read and that pass the filters, by id.

        They come without context, texts of reasons, source and links.
        """

    def page(self, caller: str, filters: DecisionFilter, request: PageRequest) -> Page[Decision]:
        """Return the decisions that the caller may read and that pass the filters, latest first, then by id.

        They come without context and texts of reasons, and others' without source. Raises InvalidArgument where the
        page token is not one of this listing.
        """

    def index_rows(self, model: str, after_revision: int = -1) -> Iterator[IndexRow]:
        """Yield the decisions that have a vector of this model and changed after a revision, by rising revision."""

    def index_rows_of(self, model: str, ids: Sequence[str]) -> list[IndexRow]:
        """Return those of `ids` that have a vector of this model, by rising revision."""

    def newest_revision(self) -> int:
        """Return the revision of the decision that changed last; -1 if there is none."""

    def identity(self) -> str:
        """Return the name of the journal, which no other has."""

    def stale_vectors(self, model: str, limit: int) -> list[tuple[str, str]]:
        """Return the id and the text to embed of decisions that have no vector of this model."""

    def embedded_texts(self, model: str, ids: Sequence[str]) -> dict[str, str]:
        """Return the text that was embedded for those of `ids` that have a vector of this model."""

    def put_vectors(self, connection: Connection, model: str, vectors: Sequence[tuple[str, Vector]]) -> None:
        """Set the vectors of decisions by id; they replace those of any model."""

    def find_recorded(self, connection: Connection, agent: str, idempotency_key: str) -> Entry | None:
        """Return the decision that an agent recorded under a key."""

    def load(self, connection: Connection, ids: Sequence[str]) -> dict[str, Entry]:
        """Return entries by id."""

    def insert(self, connection: Connection, entries: Sequence[tuple[Entry, int]], at: datetime) -> None:
        """Add decisions with their revisions; their links are declared separately."""

    def update(self, connection: Connection, entries: Sequence[tuple[Entry, int]], at: datetime) -> None:
        """Replace decisions and their revisions; their links stay."""

    def declare(self, connection: Connection, declarations: Sequence[Declaration]) -> set[str]:
        """Replace the links that decisions declare and return the ids that are, or were, superseded by them."""

    def superseded(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        """Return those of `ids` that a link declared by the same agent says are superseded."""

    def changed_rows(self, connection: Connection, model: str, ids: Sequence[str]) -> list[IndexRow]:
        """Return what `index_rows_of` will return once the transaction is committed."""
