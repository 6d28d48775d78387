"""The ports of the decision store and of what searches leave out, and the data types of their interfaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.decisions.decision_terms import NO_TERMS, Terms
from cstp_grpc.core.decisions.model import (
    Decision,
    DecisionContent,
    DecisionFilter,
    DecisionHistory,
    DecisionLink,
    DecisionReview,
    DeletedDecision,
    JournalChange,
    Links,
    RemovalFilter,
)
from cstp_grpc.platform.storage.pagination import Page, PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

T = TypeVar("T")

Vector = NDArray[np.float32]
"""The embedding of one text, of shape (dimensions,)."""

Vectors = NDArray[np.float32]
"""The embeddings of several texts, of shape (texts, dimensions)."""


@dataclass(frozen=True, slots=True, eq=False)
class PassageVectors:
    """The vectors of a decision's passages in their order, at least one; if `has_lesson`, the last is of its lesson."""

    vectors: Vectors
    has_lesson: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class IndexRow:
    """The data of a decision that a search index holds.

    `revision` grows with every change of the decision; `vectors` are those of its passages; `date` is in seconds since
    the epoch; `terms` are empty until the decision was analysed.
    """

    decision_id: str
    revision: int
    passages: PassageVectors
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
    terms: Terms = field(default_factory=lambda: NO_TERMS)

    @property
    def vector(self) -> Vector:
        first: Vector = self.passages.vectors[0]
        return first


@dataclass(frozen=True, slots=True)
class ErasedRow:
    """A deleted decision, which search indexes remove; `revision` is that of its deletion."""

    decision_id: str
    revision: int


@dataclass(frozen=True, slots=True)
class JournalWrite(Generic[T]):
    """What a transaction changed in the journal; `result` is what its job returned."""

    result: T
    rows: Sequence[IndexRow]
    erased: Sequence[ErasedRow]


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A decision with the internal fields of the journal.

    `stated_status` is the status in its content, regardless of later reviews and links; `content_hash` distinguishes a
    repetition from another content.
    """

    decision: Decision
    stated_status: DecisionStatus
    content_hash: str
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class DeclaredLinks:
    """The links that a decision declares: from it to others, and from those that supersede it."""

    decision_id: str
    links: Links
    superseded_by: tuple[str, ...] = ()


class DecisionStore(Protocol):
    """Stores decisions, their links and their vectors.

    Reads open their own snapshot and raise QueryFailed if the database does not respond. Writes, and the reads they
    depend on, belong to the transaction of the given unit of work.
    """

    @property
    def is_local(self) -> bool:
        """Whether reading a few decisions only reads a file of this machine."""

    def get(self, decision_id: str) -> Decision | None:
        """Return a whole decision, without checking who may read it; None if it does not exist."""

    def may_read(self, decision: Decision, caller: str) -> bool:
        """Return True if an agent may read a decision: its own, or a shared one that the read policy allows."""

    def get_readable(self, ids: Sequence[str], caller: str, filters: DecisionFilter) -> dict[str, Decision]:
        """Return the decisions of `ids` that the caller may read and that pass the filters, by id.

        They have no context, texts of reasons, source and links.
        """

    def page(
        self, caller: str, filters: DecisionFilter, request: PageRequest, due_at: datetime | None = None
    ) -> Page[Decision]:
        """Return the decisions that the caller may read and that pass the filters, latest first, then by id.

        With `due_at` only the caller's own whose review is due at that instant. They have no context and texts of
        reasons, and others' no source and date of review. Raises InvalidArgument if the page token is not one of this
        listing.
        """

    def changes(
        self, caller: str, filters: DecisionFilter, after_revision: int, limit: int
    ) -> tuple[list[JournalChange], int]:
        """Return changes after a revision by rising revision, and the revision up to which these are all.

        These are the decisions that the caller may read and that pass the filters, as `page` returns them, and the
        deletions of its own; together at most `limit`.
        """

    def index_rows(self, model: str, after_revision: int = -1) -> Iterator[IndexRow]:
        """Yield the decisions that have a vector of this model and changed after a revision, by rising revision."""

    def index_rows_of(self, model: str, ids: Sequence[str]) -> list[IndexRow]:
        """Return the rows of `ids` that have a vector of this model, by rising revision."""

    def erased_rows(self, after_revision: int = -1) -> list[ErasedRow]:
        """Return the decisions that were deleted after a revision, by rising revision."""

    def newest_revision(self) -> int:
        """Return the revision of the latest change; -1 if there is none."""

    def read_state(self) -> int:
        """Return a number that is a greater one after each change of a decision.

        What was read later than the number is current for as long as the number stays the same.
        """

    def identity(self) -> str:
        """Return the unique name of the journal."""

    def unembedded_decisions(self, model: str, limit: int) -> list[Decision]:
        """Return whole decisions that have no vectors of this model."""

    def outdated_decisions(self, model: str, limit: int) -> list[Decision]:
        """Return whole decisions whose vectors of this model or whose terms were made by older rules."""

    def embedded_decisions(self, model: str, ids: Sequence[str]) -> dict[str, Decision]:
        """Return the whole decisions of `ids` that have vectors of this model by the present rules, by id."""

    def put_vectors(self, unit_of_work: UnitOfWork, model: str, vectors: Sequence[tuple[str, PassageVectors]]) -> None:
        """Store the vectors of decisions by id, replacing those of any model."""

    def find_recorded(self, unit_of_work: UnitOfWork, agent: str, idempotency_key: str) -> JournalEntry | None:
        """Return the decision that an agent recorded under a key; None if there is none."""

    def load(self, unit_of_work: UnitOfWork, ids: Sequence[str]) -> dict[str, JournalEntry]:
        """Return entries by id."""

    def insert(self, unit_of_work: UnitOfWork, entries: Sequence[tuple[JournalEntry, int]], at: datetime) -> None:
        """Insert decisions with their revisions and terms; their links are stored separately."""

    def update(self, unit_of_work: UnitOfWork, entries: Sequence[tuple[JournalEntry, int]], at: datetime) -> None:
        """Replace decisions with their revisions and terms; their links stay unchanged."""

    def delete(self, unit_of_work: UnitOfWork, decision_id: str) -> set[str]:
        """Remove a decision with its vectors and all links from and to it.

        Returns the ids that were superseded by it, or by a link that it declared.
        """

    def restore_links(self, unit_of_work: UnitOfWork, ids: Sequence[str]) -> set[str]:
        """Bring back the links that the deletion of decisions took away, and return the ids that they supersede.

        These are links that other decisions of the same agent declare and that were imported.
        """

    def touching_links(self, ids: Sequence[str], limit: int) -> list[DecisionLink]:
        """Return links from or to decisions, at most `limit`, each once and in order."""

    def add_links(self, unit_of_work: UnitOfWork, links: Sequence[DecisionLink]) -> None:
        """Add links that the decisions that they lead from declare; those that these declare already stay."""

    def remove_links(self, unit_of_work: UnitOfWork, agent: str, links: Sequence[DecisionLink]) -> None:
        """Remove links that decisions of an agent declare."""

    def declare(self, unit_of_work: UnitOfWork, declarations: Sequence[DeclaredLinks]) -> set[str]:
        """Replace the links that decisions declare and return the ids that are, or were, superseded by them."""

    def find_successors(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """Return the ids of the decisions that supersede those of `ids`, by links of the same agent."""

    def find_superseded(self, unit_of_work: UnitOfWork, ids: Sequence[str]) -> set[str]:
        """Return the ids that a link declared by the same agent supersedes."""

    def find_removable(self, unit_of_work: UnitOfWork, conditions: RemovalFilter, limit: int) -> list[str]:
        """Return the ids of up to `limit` decisions that meet conditions, the longest unchanged first."""

    def changed_rows(self, unit_of_work: UnitOfWork, model: str, ids: Sequence[str]) -> list[IndexRow]:
        """Return the rows that `index_rows_of` will return once the transaction is committed."""


class HistoryStore(Protocol):
    """Stores what happened to decisions: their reviews and former contents, and which were deleted.

    Reads open their own snapshot and raise QueryFailed if the database does not respond. Writes, and the reads they
    depend on, belong to the transaction of the given unit of work.
    """

    def read_history(self, decision_id: str, max_reviews: int, max_former: int) -> DecisionHistory:
        """Return the history of a decision with its latest reviews and former contents, latest first."""

    def add_former(self, unit_of_work: UnitOfWork, decision_id: str, content: DecisionContent, at: datetime) -> None:
        """Add the content that a decision had until an instant."""

    def read_revision(self, unit_of_work: UnitOfWork, decision_id: str) -> int:
        """Return the number of the present content of a decision."""

    def erase(self, unit_of_work: UnitOfWork, decision_id: str) -> None:
        """Remove the reviews and former contents of a decision."""

    def add_deleted(self, unit_of_work: UnitOfWork, deleted: DeletedDecision, revision: int) -> None:
        """Add a deleted decision, with the journal revision of its deletion."""

    def find_deleted(self, unit_of_work: UnitOfWork, ids: Sequence[str]) -> dict[str, DeletedDecision]:
        """Return the deleted decisions of `ids`, by id."""

    def was_deleted(self, unit_of_work: UnitOfWork, agent: str, idempotency_key: str) -> bool:
        """Return True if a decision that an agent recorded under a key is deleted."""

    def remove_deleted(self, unit_of_work: UnitOfWork, ids: Sequence[str]) -> None:
        """Forget that decisions were deleted."""

    def add_review(
        self, unit_of_work: UnitOfWork, decision_id: str, review: DecisionReview, request_key: str | None
    ) -> None:
        """Add the latest review of a decision."""

    def find_review(
        self, unit_of_work: UnitOfWork, decision_id: str, reviewer: str, request_key: str
    ) -> DecisionReview | None:
        """Return the review of a decision that an agent made under a key; None if there is none."""


@dataclass(frozen=True, slots=True)
class NeededBackground:
    """The ids of decisions of which more is needed: their contexts, or the decisions that superseded them."""

    contexts: tuple[str, ...] = ()
    successors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DecisionBackground:
    """Contexts of decisions and the decisions that superseded them, by id, as far as a reader may know them."""

    contexts: Mapping[str, str] = field(default_factory=dict)
    successors: Mapping[str, Decision] = field(default_factory=dict)


NO_BACKGROUND = DecisionBackground()
"""Nothing is known, or needed."""


class BackgroundReader(Protocol):
    """Reads the background of decisions."""

    @property
    def is_local(self) -> bool:
        """Whether reading a few decisions only reads a file of this machine."""

    def read(self, needed: NeededBackground, caller: str) -> DecisionBackground:
        """Return the background of at most `MAX_BACKGROUND` decisions of each kind.

        An agent reads contexts of its own decisions, and of successors the latest that it may read. Raises QueryFailed.
        """


MAX_BACKGROUND = 8
"""How many decisions are read at once. Chosen: more than an announcement is answered with."""
