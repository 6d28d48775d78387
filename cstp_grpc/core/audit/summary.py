"""Figures of the audit trail: how many entries there are, by time and by group."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.audit.model import AuditFilter

DEFAULT_PERIOD: Final = timedelta(days=1)
MAX_BUCKETS: Final = 1000
DEFAULT_GROUPS: Final = 20


class AuditBucketSize(StrEnum):
    """How a period is divided, in UTC."""

    HOUR = "hour"
    DAY = "day"


SECONDS: Final = {AuditBucketSize.HOUR: 3600, AuditBucketSize.DAY: 86_400}


class AuditGrouping(StrEnum):
    """The property by which entries are grouped."""

    EVENT = "event"
    AGENT = "agent"
    GUARDRAIL = "guardrail"
    CATEGORY = "category"
    PROJECT = "project"
    STAKES = "stakes"


@dataclass(frozen=True, slots=True)
class AuditCounts:
    """How many entries there are; `allowed` and `blocked` count checks and announcements."""

    entries: int = 0
    allowed: int = 0
    blocked: int = 0
    last_at: datetime | None = None

    @classmethod
    def sum(cls, parts: Sequence[AuditCounts]) -> AuditCounts:
        return cls(
            sum(each.entries for each in parts),
            sum(each.allowed for each in parts),
            sum(each.blocked for each in parts),
            max((each.last_at for each in parts if each.last_at is not None), default=None),
        )


@dataclass(frozen=True, slots=True)
class AuditBucket:
    """The entries of an hour or a day; `start` is aware, in UTC."""

    start: datetime
    counts: AuditCounts


@dataclass(frozen=True, slots=True)
class AuditGroup:
    """The entries that share a value of a property."""

    grouping: AuditGrouping
    value: str
    counts: AuditCounts


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """The figures of a period."""

    after: datetime
    before: datetime
    counts: AuditCounts
    buckets: tuple[AuditBucket, ...] = ()
    groups: tuple[AuditGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """Which figures to compute; without instants, those of the last day. A `max_groups` of 0 means 20 of each kind."""

    conditions: AuditFilter = field(default_factory=AuditFilter)
    after: datetime | None = None
    before: datetime | None = None
    bucket: AuditBucketSize | None = None
    group_by: tuple[AuditGrouping, ...] = ()
    max_groups: int = 0

    def period(self, now: datetime) -> tuple[datetime, datetime]:
        """Return the first and the last instant. Raises InvalidArgument for too many buckets."""
        before = self.before or now
        try:
            after = self.after or before - DEFAULT_PERIOD
        except OverflowError:
            after = before
        if self.bucket is not None and (before - after).total_seconds() > MAX_BUCKETS * SECONDS[self.bucket]:
            raise InvalidArgument.field("bucket", f"must divide the period into at most {MAX_BUCKETS} parts")
        return after, before
