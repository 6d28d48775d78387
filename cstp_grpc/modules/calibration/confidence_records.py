"""Success rates at the stated confidences of agents so far, cached in memory for announcements."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Final

from cachetools import LRUCache

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.modules.calibration.model import MIN_REVIEWS, OUTCOME_VALUES, StatedConfidence
from cstp_grpc.modules.calibration.scores import bucket_number, wilson_interval
from cstp_grpc.modules.calibration.sql_store import SqlReviewStore

MIN_GAP: Final = 0.1
"""Least difference of a stated confidence from its success rate for a warning: the width of a bucket."""

Z_WARNING: Final = NormalDist().inv_cdf(1 - 0.001 / 2)
"""Bounds the false warnings: a right confidence is outside of such an interval once in about 1000 times, and an agent
has ten buckets in each of a few categories.
"""

RECENT_DECISIONS: Final = 300
"""Decisions of an agent that count, the latest with a confidence and an outcome. Chosen: enough for the buckets that an
agent uses, and read in about 2 ms."""

MAX_AGENTS: Final = 1000
"""Agents whose record is in memory, those that announced last."""


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """The decisions of an agent in one bucket, enough for a judgement: `is_misleading` if they were far from true."""

    count: int
    mean_confidence: float
    success_rate: float
    is_misleading: bool


BucketKey = tuple[str | None, int]
"""A category, or None for all decisions together, and the number of a bucket."""


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """The buckets of an agent, as of a number of changes."""

    buckets: Mapping[BucketKey, BucketRecord]
    changes: int

    def find_warning(self, category: str | None, confidence: float) -> str | None:
        """Return a warning if the agent's confidences near this one have meant something else; None if not.

        The decisions of the category count if they are enough, otherwise all of the agent's.
        """
        bucket = bucket_number(confidence)
        for kind in (category, None):
            found = self.buckets.get((kind, bucket))
            if found is not None:
                return warning_text(found, kind, confidence) if found.is_misleading else None
        return None


class ConfidenceRecords:
    """Warns agents whose confidences are far from their record. Safe for many threads.

    The record of an agent is read from the database once, and again after its decisions have changed, in this process
    or in another.
    """

    def __init__(self, store: SqlReviewStore) -> None:
        """Begin with no record in memory. Raises QueryFailed."""
        self._store = store
        # Guards all below. Not held while the database is asked.
        self._lock = threading.Lock()
        self._records: LRUCache[str, AgentRecord] = LRUCache(MAX_AGENTS)
        self._changes = 0
        """Number of reported changes."""
        self._changed: dict[str, int] = {}
        """The number of the latest change by agent."""
        self._all_changed = 0
        """The number of the latest change of which the agent is not known."""
        self._reading = 0
        """How many records are being read."""
        self._revision = store.newest_revision()
        """The journal revision up to which changes of other processes are known."""

    def current_record(self, agent: str) -> AgentRecord | None:
        """Return the record of an agent if it is in memory and nothing has changed since."""
        with self._lock:
            record = self._records.get(agent)
            changed = max(self._all_changed, self._changed.get(agent, 0))
            return record if record is not None and record.changes >= changed else None

    def read_record(self, agent: str) -> AgentRecord:
        """Read the record of an agent. Raises QueryFailed."""
        # Counted before reading: a change in between makes the record outdated at once, and it is read again.
        with self._lock:
            changes = self._changes
            self._reading += 1
        try:
            buckets = summarize_buckets(self._store.read_confidences(agent, RECENT_DECISIONS))
            record = AgentRecord(buckets, changes)
            with self._lock:
                self._records[agent] = record
        finally:
            with self._lock:
                self._reading -= 1
        return record

    def note_changes(self, agents: Iterable[str]) -> None:
        """Record that decisions of these agents have changed."""
        with self._lock:
            self._changes += 1
            for agent in agents:
                self._changed[agent] = self._changes

    def note_deletions(self) -> None:
        """Record that decisions of some agents were deleted."""
        with self._lock:
            self._changes += 1
            self._all_changed = self._changes

    def read_foreign_changes(self) -> None:
        """Read the changes of other processes since the last call. Raises QueryFailed."""
        with self._lock:
            if not self._records and not self._reading:
                # Nothing can be outdated. Skipped changes are read with the next ones, since the revision stays.
                return
        agents, revision = self._store.find_changed_agents(self._revision)
        self.note_changes(agents)
        # After the changes are noted: if reading fails, the next call reads the same again. Called by one thread only.
        self._revision = revision


def summarize_buckets(found: Sequence[StatedConfidence]) -> dict[BucketKey, BucketRecord]:
    """Return the buckets that have enough decisions, of each category and of all."""
    pairs: defaultdict[BucketKey, list[tuple[float, float]]] = defaultdict(list)
    for item in found:
        for kind in dict.fromkeys((item.category, None)):
            pairs[kind, bucket_number(item.confidence)].append((item.confidence, OUTCOME_VALUES[item.outcome]))
    return {key: judge_bucket(values) for key, values in pairs.items() if len(values) >= MIN_REVIEWS}


def judge_bucket(values: Sequence[tuple[float, float]]) -> BucketRecord:
    """Return the record of confidences with the values of their outcomes.

    They mislead if they are far from the success rate, and not by chance.
    """
    stated, rate = fmean(confidence for confidence, _ in values), fmean(value for _, value in values)
    interval = wilson_interval(rate, len(values), Z_WARNING)
    is_misleading = abs(stated - rate) >= MIN_GAP and not interval.low <= stated <= interval.high
    return BucketRecord(len(values), stated, rate, is_misleading)


def warning_text(bucket: BucketRecord, category: str | None, confidence: float) -> str:
    """Return a sentence with the figures; it names the mean confidence, which is compared with the success rate."""
    interval = wilson_interval(bucket.success_rate, bucket.count)
    kind = "" if category is None else f" of the category {category}"
    announced, stated = f"{confidence:.2g}", f"{bucket.mean_confidence:.2g}"
    subject = f"Your confidence of {stated} has"
    if announced != stated:
        subject = f"Your confidences near {announced}, on average {stated}, have"
    return (
        f"{subject} meant {bucket.success_rate:.2g} in {bucket.count} reviewed"
        f" decisions{kind} (95 % interval {interval.low:.2f} to {interval.high:.2f})."
    )
