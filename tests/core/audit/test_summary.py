"""The figures of the audit trail, and its conditions on evaluated actions, on every database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cstp_grpc.contract.enums import Stakes
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditFilter, JudgedAction
from cstp_grpc.core.audit.sql_summary import SqlAuditSummary
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.audit.summary import AuditBucketSize, AuditCounts, AuditGrouping, SummaryRequest
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
CHECK = AuditEntry(
    timestamp=NOON,
    event=AuditEvent.GUARDRAIL_CHECK,
    requesting_agent="emerson",
    request_id="request-1",
    action="Deploy the Service to 100% of users",
    allowed=True,
    judged=JudgedAction(category="deployment", stakes=Stakes.HIGH, project="shop", context={"note": "a\0b \\u0000"}),
)
ENTRIES = (
    CHECK,
    replace(CHECK, timestamp=NOON + HOUR, allowed=False, violations=("one", "two")),
    replace(
        CHECK,
        timestamp=NOON + HOUR + timedelta(minutes=59, seconds=59.9),
        event=AuditEvent.INTENT_ANNOUNCED,
        requesting_agent="alice",
        allowed=False,
        violations=("one",),
        dryrun=("three",),
        action="Drop a table",
        judged=JudgedAction(category="database", stakes=Stakes.LOW),
    ),
    replace(CHECK, timestamp=NOON + 2 * HOUR, event=AuditEvent.VERDICTS_MERGED, judged=None),
    replace(CHECK, timestamp=NOON + 30 * HOUR, allowed=None, event=AuditEvent.DECISION_RECORDED, judged=None),
)


@pytest.fixture
def trail(database: Database, writer: GroupCommitWriter) -> SqlAuditTrail:
    trail = SqlAuditTrail(database, writer)
    for entry in ENTRIES:
        trail.record(entry)
    return trail


@pytest.fixture
def summarize(trail: SqlAuditTrail, database: Database) -> Callable[..., Any]:
    summary = SqlAuditSummary(database, lambda: NOON + 48 * HOUR)

    def summarize(**fields: Any) -> Any:
        return summary.summarize(SummaryRequest(**({"after": NOON - HOUR} | fields)))

    return summarize


@pytest.mark.contract("SqlAuditSummary.summarize")
def test_entries_are_counted_by_verdict(summarize: Callable[..., Any]) -> None:
    found = summarize()

    assert found.counts == AuditCounts(5, allowed=1, blocked=2, last_at=NOON + 30 * HOUR)
    assert (found.after, found.before) == (NOON - HOUR, NOON + 48 * HOUR)
    assert summarize(after=NOON + HOUR, before=NOON + HOUR).counts == AuditCounts(1, 0, 1, NOON + HOUR)
    assert summarize(after=NOON + 40 * HOUR).counts == AuditCounts()
    assert summarize(after=None).counts.entries == 1, "the last day"


def test_entries_are_counted_by_hour_and_day(summarize: Callable[..., Any]) -> None:
    hours = summarize(bucket=AuditBucketSize.HOUR)
    days = summarize(bucket=AuditBucketSize.DAY)

    assert [(each.start, each.counts.entries, each.counts.blocked) for each in hours.buckets] == [
        (NOON, 1, 0),
        (NOON + HOUR, 2, 2),
        (NOON + 2 * HOUR, 1, 0),
        (NOON + 30 * HOUR, 1, 0),
    ]
    assert [(each.start, each.counts.entries) for each in days.buckets] == [
        (NOON - 12 * HOUR, 4),
        (NOON + 12 * HOUR, 1),
    ]
    assert hours.counts == days.counts == summarize().counts


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        (AuditGrouping.AGENT, [("emerson", 4, 1, 1), ("alice", 1, 0, 1)]),
        (AuditGrouping.GUARDRAIL, [("one", 2, 0, 2), ("three", 1, 0, 1), ("two", 1, 0, 1)]),
        (AuditGrouping.CATEGORY, [("deployment", 2, 1, 1), ("database", 1, 0, 1)]),
        (AuditGrouping.PROJECT, [("shop", 2, 1, 1)]),
        (AuditGrouping.STAKES, [("high", 2, 1, 1), ("low", 1, 0, 1)]),
    ],
)
def test_entries_are_grouped(
    summarize: Callable[..., Any], grouping: AuditGrouping, expected: list[tuple[str, int, int, int]]
) -> None:
    groups = summarize(group_by=(grouping,)).groups

    assert [(each.value, each.counts.entries, each.counts.allowed, each.counts.blocked) for each in groups] == expected
    assert {each.grouping for each in groups} == {grouping}


def test_only_the_largest_groups_of_each_kind_are_returned(summarize: Callable[..., Any]) -> None:
    groups = summarize(group_by=(AuditGrouping.EVENT, AuditGrouping.AGENT), max_groups=1).groups

    assert [(each.grouping, each.value) for each in groups] == [
        (AuditGrouping.EVENT, AuditEvent.GUARDRAIL_CHECK),
        (AuditGrouping.AGENT, "emerson"),
    ]


def test_a_period_of_too_many_buckets_is_refused(summarize: Callable[..., Any]) -> None:
    long_ago = NOON - timedelta(days=60)

    assert summarize(after=long_ago, bucket=AuditBucketSize.DAY).counts.entries == 5
    with pytest.raises(InvalidArgument, match="bucket"):
        summarize(after=long_ago, bucket=AuditBucketSize.HOUR)


CONDITIONS = [
    (AuditFilter(words=("service", "DEPLOY")), 4),
    (AuditFilter(words=("100%",)), 4),
    (AuditFilter(words=("service", "table")), 0),
    (AuditFilter(words=("_eploy",)), 0),
    (AuditFilter(category="deployment"), 2),
    (AuditFilter(category="deploy\0ment"), 0),
    (AuditFilter(project="shop", allowed=False), 1),
    (AuditFilter(stakes=(Stakes.HIGH, Stakes.LOW)), 3),
    (AuditFilter(guardrail_id="one"), 2),
    (AuditFilter(guardrail_id="one", category="database"), 1),
    (AuditFilter(after=NOON + HOUR, before=NOON + 2 * HOUR), 3),
]


@pytest.mark.contract("SqlAuditTrail.page", "SqlAuditTrail.count", "SqlAuditTrail.matching", "SqlAuditTrail.ids_after")
@pytest.mark.parametrize(("conditions", "expected"), CONDITIONS)
def test_conditions_mean_the_same_in_every_read(
    trail: SqlAuditTrail, summarize: Callable[..., Any], conditions: AuditFilter, expected: int
) -> None:
    page = trail.page(conditions, PageRequest(100))
    period = {"after": conditions.after or NOON, "before": conditions.before}

    assert len(page.items) == expected
    assert trail.count(conditions) == expected
    matching = trail.matching(conditions, trail.ids_after(0, None))
    assert list(matching) == sorted(page.items, key=lambda each: each.id or 0)
    assert summarize(conditions=conditions, **period).counts.entries == expected


@pytest.mark.contract("SqlAuditTrail.newest_id", "SqlAuditTrail.ids_after")
def test_the_newest_entry_of_before_an_instant_is_found(trail: SqlAuditTrail) -> None:
    ids = trail.ids_after(0, None)

    assert trail.newest_id() == ids[-1]
    assert trail.newest_id(NOON + HOUR) == ids[1]
    assert trail.newest_id(NOON - HOUR) == 0
    assert list(trail.ids_after(ids[1], 2)) == list(ids[2:4])
