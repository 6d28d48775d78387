"""Decisions as the journal keeps them, and what is asked of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from cstp_grpc.vocabulary import DecisionStatus, Outcome, Stakes, Visibility


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a decision was taken; `text` is private, `strength` is 0 to 1."""

    type: str
    text: str = ""
    strength: float | None = None


@dataclass(frozen=True, slots=True)
class Links:
    """How a decision relates to others, by their identifiers."""

    supersedes: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    relates_to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceLinks:
    """How an imported decision relates to others of the same agent, by their sources."""

    supersedes: tuple[str, ...] = ()
    superseded_by: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    relates_to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DecisionContent:
    """What an agent says of a decision.

    `date` is aware and None means now; `status` None means decided, or reviewed where an outcome is given;
    `confidence` is 0 to 1; `context` is private; `notes` is the lesson.
    """

    title: str
    context: str | None = None
    category: str | None = None
    stakes: Stakes | None = None
    confidence: float | None = None
    status: DecisionStatus | None = None
    outcome: Outcome | None = None
    date: datetime | None = None
    notes: str | None = None
    reasons: tuple[Reason, ...] = ()
    tags: tuple[str, ...] = ()
    project: str | None = None
    visibility: Visibility = Visibility.PRIVATE


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision on record; instants are aware, in UTC."""

    id: str
    title: str
    status: DecisionStatus
    date: datetime
    agent: str
    visibility: Visibility
    context: str | None = None
    category: str | None = None
    stakes: Stakes | None = None
    confidence: float | None = None
    outcome: Outcome | None = None
    reviewed_date: datetime | None = None
    notes: str | None = None
    reasons: tuple[Reason, ...] = ()
    tags: tuple[str, ...] = ()
    project: str | None = None
    links: Links = field(default_factory=Links)
    source: str | None = None


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """A decision read from elsewhere; with the importing agent, `source` identifies it."""

    source: str
    content: DecisionContent
    links: SourceLinks = field(default_factory=SourceLinks)


class ImportAction(StrEnum):
    """What became of an imported record."""

    IMPORTED = "imported"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What became of one record."""

    source: str
    action: ImportAction
    decision_id: str


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """Conditions that decisions must all meet; None or empty does not restrict.

    Instants and confidences are inclusive; `stakes`, `status` and `outcome` mean any of, `tags` all of, `without_agent`
    all but those of that agent.
    """

    category: str | None = None
    min_confidence: float | None = None
    max_confidence: float | None = None
    date_after: datetime | None = None
    date_before: datetime | None = None
    stakes: tuple[Stakes, ...] = ()
    status: tuple[DecisionStatus, ...] = ()
    outcome: tuple[Outcome, ...] = ()
    tags: tuple[str, ...] = ()
    project: str | None = None
    agent: str | None = None
    without_agent: str | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A decision found by a search; `score` is the cosine similarity of query and decision."""

    decision: Decision
    score: float

    @property
    def distance(self) -> float:
        """The cosine distance, 1 - score, to six decimals; float32 vectors do not carry more."""
        return round(1.0 - self.score, 6)
