"""Reviewed decisions, and the figures that are made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.enums import Outcome, Stakes
from cstp_grpc.core.decisions.model import DecisionFilter
from cstp_grpc.core.decisions.store import Vector

MIN_REVIEWS: Final = 20
"""Decisions that figures need. Chosen: with 20 of them a success rate of a half has a 95 % interval of 0.30 to 0.70;
with fewer, nearly anything is within it."""

OUTCOME_VALUES: Final[Mapping[Outcome, float]] = {Outcome.SUCCESS: 1.0, Outcome.PARTIAL: 0.5, Outcome.FAILURE: 0.0}
"""Degrees of success of outcomes; others are left out.

A partial success is half of one, so a confidence is read as the expected degree of success, which the squared error
rewards stating truly, whatever values the outcomes have (Gneiting 2011, Making and Evaluating Point Forecasts).
Intervals and tests for successes and failures alone remain valid and become cautious, since outcomes between 0 and 1
vary at most as much as those at the ends do with the same mean (Bhatia and Davis 2000, A Better Bound on the Variance).
"""


@dataclass(frozen=True, slots=True)
class ReviewedDecision:
    """A decision with an outcome, as far as other agents may read a shared one; `date` is aware, in UTC."""

    id: str
    title: str
    agent: str
    date: datetime
    outcome: Outcome
    category: str | None = None
    stakes: Stakes | None = None
    confidence: float | None = None
    notes: str | None = None
    reason_types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    project: str | None = None


@dataclass(frozen=True, slots=True)
class ReviewQuery:
    """Which decisions to evaluate; without an agent in the filters and `all_agents`, only those of the caller."""

    filters: DecisionFilter
    all_agents: bool = False


class Grouping(StrEnum):
    """The field that groups decisions."""

    AGENT = "agent"
    CATEGORY = "category"
    STAKES = "stakes"
    MONTH = "month"


class FactorKind(StrEnum):
    """A kind of factor that failed decisions can have in common."""

    REASON = "reason"
    TAG = "tag"
    CATEGORY = "category"
    STAKES = "stakes"
    PROJECT = "project"


@dataclass(frozen=True, slots=True)
class Interval:
    """The 95 % interval of an estimate."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ReliabilityBucket:
    """The decisions whose confidence is at least `lower` and less than `upper`; 1 belongs to the last bucket."""

    lower: float
    upper: float
    successes: int
    partials: int
    failures: int
    mean_confidence: float
    success_rate: float
    success_interval: Interval

    @property
    def count(self) -> int:
        return self.successes + self.partials + self.failures


@dataclass(frozen=True, slots=True)
class BrierScore:
    """A Brier score with its terms: `score` is reliability - resolution + uncertainty + spread."""

    score: float
    reliability: float
    resolution: float
    uncertainty: float
    spread: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration of at least `MIN_REVIEWS` decisions; rates and errors are 0 to 1."""

    mean_confidence: float
    success_rate: float
    success_interval: Interval
    brier: BrierScore
    calibration_error: float
    p_value: float | None
    buckets: Sequence[ReliabilityBucket]


@dataclass(frozen=True, slots=True)
class CalibrationGroup:
    """The calibration of one group; `value` is None for decisions that lack it, `calibration` if they are too few."""

    grouping: Grouping
    value: str | None
    count: int
    calibration: Calibration | None


@dataclass(frozen=True, slots=True)
class DetectedChange:
    """The likeliest change: the date of the first decision after it, and confidence minus outcome on either side."""

    at: datetime
    gap_before: float
    gap_after: float


@dataclass(frozen=True, slots=True)
class Drift:
    """The result of a test for drift; `change` is None if none was detected."""

    count: int
    p_value: float
    change: DetectedChange | None


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """The calibration of the decisions of a query; `calibration` and `drift` are None if they are too few."""

    count: int
    left_out: int
    truncated: bool
    calibration: Calibration | None
    groups: Sequence[CalibrationGroup]
    drift: Drift | None


@dataclass(frozen=True, slots=True)
class OutcomeTable:
    """How often decisions failed with and without something: a table of two rows and two columns."""

    failures_with: int
    others_with: int
    failures_without: int
    others_without: int


@dataclass(frozen=True, slots=True)
class FailureFactor:
    """How something goes with failure; the adjusted p-value accounts for the number of factors tested."""

    kind: FactorKind
    value: str
    table: OutcomeTable
    odds_ratio: float
    odds_interval: Interval
    p_value: float
    adjusted_p_value: float

    @property
    def is_significant(self) -> bool:
        """Whether it is among the factors of which at most 5 % are chance on average."""
        return self.adjusted_p_value <= MAX_FALSE_DISCOVERIES


MAX_FALSE_DISCOVERIES: Final = 0.05
"""The share of factors called significant that are chance, on average."""


@dataclass(frozen=True, slots=True)
class RecurringFailure:
    """Failures that resemble each other, the latest first, with common terms and their mean similarity."""

    decisions: Sequence[ReviewedDecision]
    terms: Sequence[str]
    similarity: float


@dataclass(frozen=True, slots=True)
class PatternReport:
    """Common factors of the failures of a query; empty if the decisions are too few."""

    count: int
    failures: int
    truncated: bool
    too_few: bool
    factors: Sequence[FailureFactor]
    tested: int
    recurring: Sequence[RecurringFailure]


@dataclass(frozen=True, slots=True)
class StatedConfidence:
    """The confidence of a decision with a known outcome, and its category."""

    confidence: float
    outcome: Outcome
    category: str | None


class FailureVectors(Protocol):
    """Reads the vectors of decisions."""

    def read_vectors(self, ids: Sequence[str]) -> Mapping[str, Vector]:
        """Return the unit vector of each decision that has one, by id. Raises QueryFailed."""
