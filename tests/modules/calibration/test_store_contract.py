"""What every store of reviewed decisions does, on each kind of database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cstp_grpc.contract.enums import Outcome, Stakes, Visibility
from cstp_grpc.core.decisions.model import Decision, DecisionContent, DecisionFilter, ImportRecord, Links, Reason
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.modules.calibration.model import ReviewedDecision, StatedConfidence
from cstp_grpc.modules.calibration.sql_store import SqlReviewStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import JournalKit

ALL = DecisionFilter()
DATE = datetime(2026, 2, 1, tzinfo=UTC)


class ReviewKit(JournalKit):
    """A journal beside the store of what was reviewed in it."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        super().__init__(database, writer)
        self.database = database
        self.reviews = SqlReviewStore(database, SHARE_WITH_ALL)

    def record(self, title: str, outcome: Outcome | None = None, agent: str = "alice", **fields: Any) -> Decision:
        """Record a decision, and review it if an outcome is given."""
        recorded = self.journal.record(DecisionContent(title, **fields), Links(), agent, "request")
        return recorded if outcome is None else self.journal.review(recorded.id, outcome, None, agent, "request")

    def titles(self, caller: str, filters: DecisionFilter = ALL, limit: int = 10) -> list[str]:
        """Return the titles that a caller is given."""
        return [item.title for item in self.reviews.read_latest(caller, filters, limit)]


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> ReviewKit:
    return ReviewKit(database, writer)


@pytest.mark.contract("SqlReviewStore.read_latest")
def test_a_reviewed_decision_is_read_without_its_private_parts(kit: ReviewKit) -> None:
    decision = kit.record(
        "Use a queue",
        Outcome.PARTIAL,
        context="secret",
        category="design",
        stakes=Stakes.HIGH,
        confidence=0.8,
        date=DATE,
        notes="Too slow",
        reasons=(Reason("analysis", "secret"), Reason("habit")),
        tags=("queue", "mail"),
        project="shop",
    )
    assert kit.reviews.read_latest("alice", ALL, 10) == [
        ReviewedDecision(
            id=decision.id,
            title="Use a queue",
            agent="alice",
            date=DATE,
            outcome=Outcome.PARTIAL,
            category="design",
            stakes=Stakes.HIGH,
            confidence=0.8,
            notes="Too slow",
            reason_types=("analysis", "habit"),
            tags=("queue", "mail"),
            project="shop",
        )
    ]


@pytest.mark.contract("SqlReviewStore.read_latest")
def test_the_latest_reviewed_decisions_that_pass_the_filters_come_first(kit: ReviewKit) -> None:
    for day in range(4):
        kit.record(
            f"Day {day}", Outcome.SUCCESS, date=DATE + timedelta(days=day), category="odd" if day % 2 else "even"
        )
    kit.record("Not reviewed", date=DATE + timedelta(days=9))
    assert kit.titles("alice") == ["Day 3", "Day 2", "Day 1", "Day 0"]
    assert kit.titles("alice", limit=2) == ["Day 3", "Day 2"]
    assert kit.titles("alice", DecisionFilter(category="odd")) == ["Day 3", "Day 1"]


@pytest.mark.contract("SqlReviewStore.read_latest")
def test_a_caller_reads_its_own_decisions_and_shared_ones(kit: ReviewKit) -> None:
    kit.record("Private", Outcome.SUCCESS, "bob")
    kit.record("Shared", Outcome.FAILURE, "bob", visibility=Visibility.SHARED)
    kit.record("Own", Outcome.SUCCESS, "alice")
    assert sorted(kit.titles("alice")) == ["Own", "Shared"]
    assert kit.titles("alice", DecisionFilter(agent="bob")) == ["Shared"]
    peer = SqlReviewStore(kit.database, ReadPolicy.of(["alice"], ["public"], []))
    assert [item.title for item in peer.read_latest("alice", ALL, 10)] == ["Own"]


@pytest.mark.contract("SqlReviewStore.read_confidences")
def test_the_confidences_of_an_agent_are_those_of_its_latest_outcomes(kit: ReviewKit) -> None:
    kit.record("Old", Outcome.FAILURE, confidence=0.1, date=DATE)
    kit.record("New", Outcome.SUCCESS, confidence=0.9, category="design", date=DATE + timedelta(days=1))
    for ignored in (
        {"outcome": Outcome.ABANDONED, "confidence": 0.5},
        {"outcome": Outcome.SUCCESS},
        {"confidence": 0.5},
    ):
        kit.record("Ignored", **ignored, date=DATE + timedelta(days=2))  # type: ignore[arg-type]
    kit.record("Another's", Outcome.SUCCESS, "bob", confidence=0.3, visibility=Visibility.SHARED)
    newest = StatedConfidence(0.9, Outcome.SUCCESS, "design")
    assert kit.reviews.read_confidences("alice", 10) == [newest, StatedConfidence(0.1, Outcome.FAILURE, None)]
    assert kit.reviews.read_confidences("alice", 1) == [newest]
    assert kit.reviews.read_confidences("carol", 10) == []


@pytest.mark.contract("SqlReviewStore.read_latest", "SqlReviewStore.read_confidences")
def test_the_confidence_is_that_of_the_first_review_and_the_outcome_that_of_the_latest(kit: ReviewKit) -> None:
    def import_with(confidence: float | None) -> str:
        content = DecisionContent("Use a queue", confidence=confidence)
        return kit.journal.import_batch([ImportRecord("adr-1", content)], "alice", "request")[0].decision_id

    decision_id = import_with(0.9)
    kit.journal.review(decision_id, Outcome.SUCCESS, None, "alice", "request")
    assert import_with(0.2) == decision_id
    kit.journal.review(decision_id, Outcome.FAILURE, None, "alice", "request")
    assert kit.journal.get(decision_id, "alice").confidence == 0.2
    (read,) = kit.reviews.read_latest("alice", ALL, 10)
    assert (read.confidence, read.outcome) == (0.9, Outcome.FAILURE)
    assert kit.reviews.read_confidences("alice", 10) == [StatedConfidence(0.9, Outcome.FAILURE, None)]


@pytest.mark.contract("SqlReviewStore.find_changed_agents", "SqlReviewStore.newest_revision")
def test_the_agents_whose_decisions_changed_are_found_once(kit: ReviewKit) -> None:
    assert kit.reviews.find_changed_agents(-1) == (frozenset(), kit.reviews.newest_revision())
    kit.record("One", Outcome.SUCCESS, "alice")
    kit.record("Two", Outcome.FAILURE, "bob")
    agents, revision = kit.reviews.find_changed_agents(-1)
    assert agents == {"alice", "bob"}
    assert kit.reviews.newest_revision() == revision
    assert kit.reviews.find_changed_agents(revision) == (frozenset(), revision)
    three = kit.record("Three", Outcome.SUCCESS, "bob")
    agents, revision = kit.reviews.find_changed_agents(revision)
    assert agents == {"bob"}
    kit.journal.delete(three.id, "bob", "request")
    agents, newest = kit.reviews.find_changed_agents(revision)
    assert agents == {"bob"}
    assert newest > revision
