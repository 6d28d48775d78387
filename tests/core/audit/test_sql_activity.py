"""The activity of agents, on every database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cstp_grpc.core.audit.model import AuditEntry, AuditEvent
from cstp_grpc.core.audit.sql_activity import AgentActivity, AgentCounts, SqlAgentActivity
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
CHECK = AuditEntry(NOON, AuditEvent.GUARDRAIL_CHECK, "emerson", "request-1", action="Deploy", allowed=True)


@pytest.fixture
def activity(database: Database) -> SqlAgentActivity:
    return SqlAgentActivity(database)


@pytest.fixture
def trail(database: Database, writer: GroupCommitWriter) -> SqlAuditTrail:
    return SqlAuditTrail(database, writer)


@pytest.mark.contract("SqlAgentActivity.list_agents")
def test_each_agent_of_the_trail_is_listed_once(activity: SqlAgentActivity, trail: SqlAuditTrail) -> None:
    assert activity.list_agents() == []
    for agent in ("grace", "emerson", "grace", "ada", ""):
        trail.record(replace(CHECK, requesting_agent=agent))
    assert sorted(activity.list_agents()) == ["ada", "emerson", "grace"]


@pytest.mark.contract("SqlAgentActivity.read_activity")
def test_entries_are_counted_by_kind_since_an_instant(activity: SqlAgentActivity, trail: SqlAuditTrail) -> None:
    blocked = replace(CHECK, allowed=False, violations=("no-friday",))
    for entry in (
        replace(blocked, timestamp=NOON - HOUR),
        CHECK,
        replace(blocked, timestamp=NOON + HOUR),
        replace(blocked, event=AuditEvent.INTENT_ANNOUNCED, correlation_id="c-1"),
        replace(CHECK, event=AuditEvent.DECISION_RECORDED, allowed=None),
        replace(CHECK, event=AuditEvent.CONTEXT_READ, allowed=None),
        replace(CHECK, event=AuditEvent.CALLS_REFUSED, allowed=None, count=2**31 - 1),
        replace(CHECK, event=AuditEvent.CALLS_REFUSED, allowed=None, count=3),
        replace(CHECK, requesting_agent="grace"),
    ):
        trail.record(entry)
    found = activity.read_activity(["emerson", "ada"], NOON)
    counts = AgentCounts(entries=7, checks=2, announcements=1, decisions=1, blocked=2, refused_calls=2**31 - 1)
    assert found == {
        "emerson": AgentActivity(NOON - HOUR, NOON + HOUR, counts),
        "ada": AgentActivity(None, None, AgentCounts()),
    }
