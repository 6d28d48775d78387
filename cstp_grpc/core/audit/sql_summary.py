"""Counts audit entries in SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from cstp_grpc.core.audit import sql_conditions, summary
from cstp_grpc.core.audit.sql_tables import audit_entries, audit_guardrails
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

ENTRIES: Final = audit_entries.c
COUNTS: Final = (
    sa.func.count(),
    sa.func.count().filter(sql_conditions.IS_JUDGMENT, ENTRIES.allowed),
    sa.func.count().filter(sql_conditions.IS_JUDGMENT, ~ENTRIES.allowed),
    sa.func.max(ENTRIES.timestamp),
)
BUCKET_FORMATS: Final = {summary.AuditBucketSize.HOUR: "%Y-%m-%d %H", summary.AuditBucketSize.DAY: "%Y-%m-%d"}
"""The beginning of an instant in UTC as both databases write it, such as `2026-01-31 14`."""
BUCKET_CHARACTERS: Final = {summary.AuditBucketSize.HOUR: 13, summary.AuditBucketSize.DAY: 10}
GROUP_COLUMNS: Final[dict[summary.AuditGrouping, sa.ColumnElement[Any]]] = {
    summary.AuditGrouping.EVENT: ENTRIES.event,
    summary.AuditGrouping.AGENT: ENTRIES.requesting_agent,
    summary.AuditGrouping.GUARDRAIL: audit_guardrails.c.guardrail_id,
    summary.AuditGrouping.CATEGORY: sql_conditions.CATEGORY,
    summary.AuditGrouping.PROJECT: sql_conditions.PROJECT,
    summary.AuditGrouping.STAKES: sql_conditions.STAKES,
}


class SqlAuditSummary:
    """Counts the entries of `audit_entries`; no more rows are read than there are buckets and groups."""

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    def summarize(self, request: summary.SummaryRequest) -> summary.AuditSummary:
        """Return figures of the matching entries. Raises InvalidArgument for too many buckets, and QueryFailed."""
        after, before = request.period(self._clock())
        request = replace(request, conditions=replace(request.conditions, after=after, before=before))
        with self._database.read_snapshot() as unit_of_work:
            buckets = tuple(read_buckets(unit_of_work, request))
            groups = tuple(group for each in request.group_by for group in read_groups(unit_of_work, request, each))
            if request.bucket is not None:
                return summary.AuditSummary(
                    after, before, summary.AuditCounts.sum([each.counts for each in buckets]), buckets, groups
                )
            ((*counts,),) = unit_of_work.execute(select_counts(request)).all()
            return summary.AuditSummary(after, before, summary.AuditCounts(*counts), (), groups)


def select_counts(request: summary.SummaryRequest, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    query = sa.select(*columns, *COUNTS).select_from(audit_entries)
    return query.where(*sql_conditions.all_clauses(request.conditions))


def read_buckets(unit_of_work: UnitOfWork, request: summary.SummaryRequest) -> Iterator[summary.AuditBucket]:
    size = request.bucket
    if size is None:
        return
    start = sa.func.substr(sa.cast(ENTRIES.timestamp, sa.Text), 1, BUCKET_CHARACTERS[size]).label("start")
    for text, *counts in unit_of_work.execute(select_counts(request, start).group_by(start).order_by(start)):
        yield summary.AuditBucket(
            datetime.strptime(text, BUCKET_FORMATS[size]).replace(tzinfo=UTC), summary.AuditCounts(*counts)
        )


def read_groups(
    unit_of_work: UnitOfWork, request: summary.SummaryRequest, grouping: summary.AuditGrouping
) -> Iterator[summary.AuditGroup]:
    value = GROUP_COLUMNS[grouping].label("value")
    query = select_counts(request, value)
    if grouping is summary.AuditGrouping.GUARDRAIL:
        named = audit_guardrails.c
        query = query.join(audit_guardrails, named.entry_id == ENTRIES.id)
        # Implied, and needed to walk the index of guardrails instead of all entries.
        query = query.where(named.timestamp.between(request.conditions.after, request.conditions.before))
    query = query.where(value.is_not(None)).group_by(value).order_by(sa.desc(sa.func.count()), value)
    for text, *counts in unit_of_work.execute(query.limit(request.max_groups or summary.DEFAULT_GROUPS)):
        yield summary.AuditGroup(grouping, text, summary.AuditCounts(*counts))
