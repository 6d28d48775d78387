"""Data that the stores of decisions exchange with searches and the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.decisions import model
from cstp_grpc.core.decisions.decision_terms import NO_TERMS, Terms

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
    """Changes of a transaction in the journal; `result` is the result of its job."""

    result: T
    rows: Sequence[IndexRow]
    erased: Sequence[ErasedRow]


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A decision with the internal fields of the journal.

    `stated_status` is the status in its content, regardless of later reviews and links; `content_hash` distinguishes a
    repetition from another content. `recorded_at` and `changed_at` are those of its row; without them it gets the
    instant of its change.
    """

    decision: model.Decision
    stated_status: DecisionStatus
    content_hash: str
    idempotency_key: str | None = None
    recorded_at: datetime | None = field(default=None, compare=False)
    changed_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DeclaredLinks:
    """The links that a decision declares: from it to others, and from those that supersede it."""

    decision_id: str
    links: model.Links
    superseded_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnpreparedDecision:
    """A whole decision that is to be embedded, and its revision."""

    decision: model.Decision
    revision: int


@dataclass(frozen=True, slots=True, eq=False)
class PreparedVectors:
    """The vectors of the passages of a decision in one of its revisions."""

    decision_id: str
    revision: int
    passages: PassageVectors


@dataclass(frozen=True, slots=True)
class NeededBackground:
    """The ids of decisions of which more is needed: their contexts, or the decisions that superseded them."""

    contexts: tuple[str, ...] = ()
    successors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DecisionBackground:
    """Contexts of decisions and the decisions that superseded them, by id, as far as a reader may know them."""

    contexts: Mapping[str, str] = field(default_factory=dict)
    successors: Mapping[str, model.Decision] = field(default_factory=dict)
    lessons: Mapping[str, str] = field(default_factory=dict)
    """Of long lessons, the sentence that helps, or "" if none does."""


NO_BACKGROUND = DecisionBackground()
"""Nothing is known, or needed."""


MAX_BACKGROUND = 8
"""How many decisions are read at once. Chosen: more than an announcement is answered with."""
