"""Decisions, imports and search matches, and the filter on decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.platform.storage.pagination import estimate_message_bytes


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason for a decision; `text` is private, `strength` is 0 to 1."""

    type: str
    text: str = ""
    strength: float | None = None


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a decision to others, by their ids."""

    supersedes: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    relates_to: tuple[str, ...] = ()
    summarizes: tuple[str, ...] = ()


SUMMARY_TAG = "summary"
"""The tag by which summaries are found; a decision with it is one if it has the links."""


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The summaries that a compaction wrote, or would write, and how many decisions they cite for the first time.

    `truncated` means that there are further summaries to write, or decisions that were not read.
    """

    summaries: tuple[Decision, ...]
    added: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Decisions each of which says nearly the same as another, latest first.

    `similarity` is that of the two closest.
    """

    decisions: tuple[Decision, ...]
    similarity: float


@dataclass(frozen=True, slots=True)
class DuplicateReport:
    """Groups of duplicates, the most similar first, and the number of decisions that were compared.

    `truncated` means that there are further decisions, or groups.
    """

    groups: tuple[DuplicateGroup, ...]
    compared: int
    truncated: bool


class LinkType(StrEnum):
    """How a decision relates to another; the values are the names of the fields of `Links`."""

    SUPERSEDES = "supersedes"
    DEPENDS_ON = "depends_on"
    RELATES_TO = "relates_to"
    SUMMARIZES = "summarizes"


@dataclass(frozen=True, slots=True, order=True)
class DecisionLink:
    """One link from a decision to another."""

    from_id: str
    type: LinkType
    to_id: str


@dataclass(frozen=True, slots=True)
class DecisionGraph:
    """Decisions with their distance in links from the first, and all links between them.

    `truncated` means that further decisions are linked and left out.
    """

    nodes: tuple[tuple[Decision, int], ...]
    links: tuple[DecisionLink, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class ThoughtContent:
    """A step of reasoning about a decision, or about the agent's intent with a correlation id."""

    text: str
    decision_id: str | None = None
    correlation_id: str | None = None
    visibility: Visibility = Visibility.PRIVATE
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Thought:
    """A recorded thought; `expires_at` is None if it does not expire, and in the store."""

    id: str
    agent: str
    recorded_at: datetime
    content: ThoughtContent
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SourceLinks:
    """The links of an imported decision to others of the same agent, by their sources."""

    supersedes: tuple[str, ...] = ()
    superseded_by: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    relates_to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DecisionContent:
    """The content of a decision as an agent states it.

    `date` is aware and None means now; `status` None means decided, or reviewed if an outcome is given; `confidence` is
    0 to 1; `context` is private; `notes` is the lesson; `review_by` is aware.
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
    review_by: datetime | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A recorded decision; instants are aware, in UTC."""

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
    review_by: datetime | None = None


@dataclass(frozen=True, slots=True)
class DecisionReview:
    """A review of a decision; `notes` is the lesson as the review left it.

    `reviewer` is None for reviews from before they were kept, `confidence` is that of the decision at the time.
    """

    reviewer: str | None
    outcome: Outcome
    at: datetime
    notes: str | None = None
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class FormerContent:
    """A content that a decision had until `replaced_at`, with its number."""

    revision: int
    content: DecisionContent
    replaced_at: datetime


@dataclass(frozen=True, slots=True)
class DecisionHistory:
    """The latest reviews and former contents of a decision, latest first, and the number of all reviews.

    `revision` is the number of the present content.
    """

    reviews: tuple[DecisionReview, ...] = ()
    review_count: int = 0
    revision: int = 1
    former: tuple[FormerContent, ...] = ()


@dataclass(frozen=True, slots=True)
class DecisionProvenance:
    """The state of a decision in its journal, as far as a decision does not have it; see the contract."""

    changed_date: datetime
    recorded_date: datetime | None = None
    stated_status: DecisionStatus | None = None
    content_hash: str = ""
    reviews: tuple[DecisionReview, ...] = ()
    links: Links = field(default_factory=Links)
    superseded_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DecisionIdentity:
    """The identity of a decision of another journal, and its state there; see the contract."""

    id: str
    provenance: DecisionProvenance
    reviewed_date: datetime | None = None
    source: str | None = None
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class RemovalFilter:
    """Conditions of the decisions to remove, of any agent; None does not restrict."""

    agent: str | None = None
    except_agent: str | None = None
    unchanged_since: datetime | None = None
    """Only those that were last changed before this instant."""


@dataclass(frozen=True, slots=True)
class DeletedDecision:
    """The remains of a deleted decision: its id, its agent, and the key it was recorded under."""

    id: str
    agent: str
    deleted_at: datetime
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class JournalChange:
    """The present state of a decision since a revision of the journal, or the id of one that was deleted then.

    Without either it only says up to which revision there is nothing.
    """

    revision: int
    decision: Decision | None = None
    deleted_id: str | None = None


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """A decision to import; with the importing agent, `source` identifies it unless it has an `identity`.

    With `restore_deleted` it is imported even if that agent deleted it. The content of a deletion has no meaning.
    """

    source: str
    content: DecisionContent
    links: SourceLinks = field(default_factory=SourceLinks)
    restore_deleted: bool = False
    identity: DecisionIdentity | None = None


class ImportAction(StrEnum):
    """The action of an import on a record."""

    IMPORTED = "imported"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    OUTDATED = "outdated"
    ERASED = "erased"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of importing one record."""

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


class MatchReason(StrEnum):
    """Why a search found a decision."""

    IDENTIFIER = "identifier"
    WORDS = "words"
    MEANING = "meaning"
    LESSON = "lesson"


@dataclass(frozen=True, slots=True)
class Match:
    """A search result: a decision with its relevance, 0 to 1, and its cosine similarity to the query, -1 to 1."""

    decision: Decision
    score: float
    similarity: float = 0.0
    matched_by: tuple[MatchReason, ...] = ()
    similar_count: int = 0
    """How many more decisions say almost the same, and are left out for it."""
    similar_outcomes: tuple[Outcome, ...] = ()
    """The outcomes of this decision and of those, each once."""
    superseded_by: str | None = None
    """The decision that supersedes it, if the caller may read that one."""

    @property
    def distance(self) -> float:
        """The cosine distance, 1 - similarity, to six decimals; float32 vectors do not carry more."""
        return round(1.0 - self.similarity, 6)


class ScoreFeature(StrEnum):
    """A feature that a score depends on: of a decision, or, from `MIDPOINT` on, of the query alone."""

    MEANING = "meaning"
    WORDS = "words"
    NAME = "name"
    IDENTIFIER = "identifier"
    MIDPOINT = "midpoint"
    IDENTIFIER_QUERY = "identifier_query"
    LACK_OF_SPREAD = "lack_of_spread"
    UNKNOWN_WORDS = "unknown_words"


@dataclass(frozen=True, slots=True)
class Contribution:
    """The part of a sum that a feature gives: its value times its weight."""

    feature: ScoreFeature
    value: float
    weight: float

    @property
    def amount(self) -> float:
        return self.value * self.weight


class SearchOutcome(StrEnum):
    """Whether a search lists a decision, or the first reason that keeps it out."""

    LISTED = "listed"
    FILTERED = "filtered"
    NOT_INDEXED = "not_indexed"
    BELOW_MIN_SCORE = "below_min_score"
    SIMILAR_LISTED = "similar_listed"
    BEYOND_LIMIT = "beyond_limit"
    NOT_PROPOSED = "not_proposed"


@dataclass(frozen=True, slots=True)
class SearchExplanation:
    """A decision with its place in the results, from 1 on, or 0, and the contributions to its score.

    The score is None if the search does not have the decision yet; it disregards successors.
    """

    decision: Decision
    outcome: SearchOutcome
    place: int = 0
    score: float | None = None
    contributions: tuple[Contribution, ...] = ()
    unmet_filters: DecisionFilter | None = None
    similar_to: str | None = None
    """The listed decision that stands for it."""


@dataclass(frozen=True, slots=True)
class ExplainedSearch:
    """The results of a search in their order, then the expected decisions that are not among them."""

    decisions: tuple[SearchExplanation, ...]
    min_score: float
    slope: float
    """A score is the logistic function of this times the sum of the contributions."""


BoundT = TypeVar("BoundT", float, datetime)
Predicate = Callable[[Decision], bool]


def build_predicate(filters: DecisionFilter) -> Predicate:
    """Return a predicate of decisions that meet all conditions; an absent value meets no condition on it."""
    conditions = list(filter_predicates(filters))
    if not conditions:
        return lambda _: True
    return lambda decision: all(condition(decision) for condition in conditions)


def filter_predicates(filters: DecisionFilter) -> Iterator[Predicate]:
    """Yield a predicate for each condition of a filter."""
    # Only the given conditions: each match of each search is tested by all of these.
    if (category := filters.category) is not None:
        yield lambda decision: decision.category == category
    if (project := filters.project) is not None:
        yield lambda decision: decision.project == project
    if (agent := filters.agent) is not None:
        yield lambda decision: decision.agent == agent
    if (other := filters.without_agent) is not None:
        yield lambda decision: decision.agent != other
    if filters.min_confidence is not None or filters.max_confidence is not None:
        yield lambda decision: is_in_range(decision.confidence, filters.min_confidence, filters.max_confidence)
    if filters.date_after is not None or filters.date_before is not None:
        yield lambda decision: is_in_range(decision.date, filters.date_after, filters.date_before)
    if stakes := filters.stakes:
        yield lambda decision: decision.stakes in stakes
    if status := filters.status:
        yield lambda decision: decision.status in status
    if outcome := filters.outcome:
        yield lambda decision: decision.outcome in outcome
    if tags := filters.tags:
        yield lambda decision: all(tag in decision.tags for tag in tags)


def is_in_range(value: BoundT | None, least: BoundT | None, greatest: BoundT | None) -> bool:
    """Return True if a value exists and lies between two inclusive bounds; None means no bound."""
    return value is not None and (least is None or least <= value) and (greatest is None or value <= greatest)


OBJECT_BYTES = 1000
"""Estimated memory of a decision without its texts: the objects of Python."""


def estimate_memory_bytes(decision: Decision) -> int:
    """Return the estimated number of bytes that a decision without its private parts takes in memory."""
    reasons = (reason.type for reason in decision.reasons)
    return OBJECT_BYTES + estimate_message_bytes(
        (decision.id, decision.title, decision.notes, *decision.tags, *reasons)
    )


def content_texts(content: DecisionContent | Decision) -> Iterator[str | None]:
    """Yield the texts of a content, by which the size of its message is estimated."""
    yield from (content.title, content.context, content.category, content.notes, content.project)
    for reason in content.reasons:
        yield from (reason.type, reason.text)
    yield from content.tags
