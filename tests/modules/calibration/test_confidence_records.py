"""Warnings to agents whose confidences have been far from their record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Outcome
from cstp_grpc.core.decisions.model import DecisionFilter
from cstp_grpc.modules.calibration.confidence_records import ConfidenceRecords
from cstp_grpc.modules.calibration.model import ReviewedDecision, StatedConfidence
from cstp_grpc.modules.calibration.sql_store import SqlReviewStore


class CountedReviews(SqlReviewStore):
    """A store in memory that counts how often it is read."""

    def __init__(self, *found: StatedConfidence) -> None:
        self.found = list(found)
        self.reads = 0
        self.looks = 0
        self.changed: frozenset[str] = frozenset()

    def read_latest(self, caller: str, filters: DecisionFilter, limit: int) -> list[ReviewedDecision]:
        raise NotImplementedError("announcements do not need it")

    def read_confidences(self, agent: str, limit: int) -> list[StatedConfidence]:
        self.reads += 1
        return self.found[:limit] if agent == "alice" else []

    def find_changed_agents(self, after_revision: int) -> tuple[frozenset[str], int]:
        self.looks += 1
        return self.changed, after_revision + 1

    def newest_revision(self) -> int:
        return 0


def find_warning(records: ConfidenceRecords, category: str | None, confidence: float) -> str | None:
    """Ask as an announcement of alice does."""
    record = records.current_record("alice") or records.read_record("alice")
    return record.find_warning(category, confidence)


def outcomes(confidence: float, successes: int, failures: int, category: str | None = None) -> list[StatedConfidence]:
    return [
        *[StatedConfidence(confidence, Outcome.SUCCESS, category)] * successes,
        *[StatedConfidence(confidence, Outcome.FAILURE, category)] * failures,
    ]


def test_an_agent_whose_confidence_has_meant_less_is_told_with_figures() -> None:
    records = ConfidenceRecords(CountedReviews(*outcomes(0.9, 24, 17, "deployment")))
    assert find_warning(records, "deployment", 0.9) == (
        "Your confidence of 0.9 has meant 0.59 in 41 reviewed decisions of the category deployment"
        " (95 % interval 0.43 to 0.72)."
    )


def test_an_agent_whose_confidence_has_meant_more_is_told_too() -> None:
    records = ConfidenceRecords(CountedReviews(*outcomes(0.5, 30, 0)))
    warning = find_warning(records, None, 0.55)
    assert warning is not None
    assert warning.startswith("Your confidences near 0.55, on average 0.5, have meant 1 in 30 reviewed decisions (")


def test_the_confidence_that_is_named_is_the_one_that_was_compared() -> None:
    known = [*outcomes(0.81, 2, 1), *outcomes(0.899, 34, 13)]
    assert find_warning(ConfidenceRecords(CountedReviews(*known)), None, 0.8) == (
        "Your confidences near 0.8, on average 0.89, have meant 0.72 in 50 reviewed decisions"
        " (95 % interval 0.58 to 0.83)."
    )


@pytest.mark.parametrize(
    ("known", "confidence"),
    [
        (outcomes(0.9, 5, 14), 0.9),  # one too few
        (outcomes(0.9, 36, 5), 0.9),  # as good as it says
        (outcomes(0.9, 24, 17), 0.7),  # another bucket
        (outcomes(0.9, 16, 6), 0.9),  # may be chance
        ([], 0.9),
    ],
)
def test_an_agent_without_a_significant_gap_is_told_nothing(known: list[StatedConfidence], confidence: float) -> None:
    assert find_warning(ConfidenceRecords(CountedReviews(*known)), "deployment", confidence) is None


def test_enough_decisions_of_the_category_count_instead_of_all() -> None:
    known = [*outcomes(0.9, 20, 0, "docs"), *outcomes(0.9, 0, 20, "deployment"), *outcomes(0.9, 2, 3, "design")]
    records = ConfidenceRecords(CountedReviews(*known))
    assert find_warning(records, "docs", 0.9) is None
    assert "of 0.9 has meant 0 in 20 " in (find_warning(records, "deployment", 0.9) or "")
    # Too few of their own: all 45 are spoken of.
    assert "in 45 reviewed decisions (" in (find_warning(records, "design", 0.9) or "")


def test_the_store_is_read_once_until_the_agents_decisions_change() -> None:
    store = CountedReviews(*outcomes(0.9, 24, 17))
    records = ConfidenceRecords(store)
    assert records.current_record("alice") is None
    for _ in range(3):
        assert find_warning(records, None, 0.9)
        assert records.current_record("alice")
    assert store.reads == 1
    records.note_changes(["bob"])
    assert records.current_record("alice")
    store.found = outcomes(0.9, 41, 0)
    records.note_changes(["alice"])
    assert records.current_record("alice") is None
    assert find_warning(records, None, 0.9) is None
    assert store.reads == 2


def test_a_deletion_outdates_every_record() -> None:
    records = ConfidenceRecords(CountedReviews(*outcomes(0.9, 24, 17)))
    assert find_warning(records, None, 0.9)
    records.note_deletions()
    assert records.current_record("alice") is None
    assert find_warning(records, None, 0.9)
    assert records.current_record("alice")


def test_changes_of_other_processes_are_noticed() -> None:
    store = CountedReviews(*outcomes(0.9, 24, 17))
    records = ConfidenceRecords(store)
    assert find_warning(records, None, 0.9)
    records.read_foreign_changes()
    assert records.current_record("alice")
    store.changed = frozenset({"alice"})
    records.read_foreign_changes()
    assert records.current_record("alice") is None


def test_without_a_record_in_memory_the_changes_of_others_are_not_looked_for() -> None:
    store = CountedReviews(*outcomes(0.9, 24, 17))
    records = ConfidenceRecords(store)
    records.read_foreign_changes()
    assert store.looks == 0
    assert find_warning(records, None, 0.9)
    records.read_foreign_changes()
    assert store.looks == 1


def test_a_foreign_change_while_the_store_is_read_is_not_missed() -> None:
    class Committing(CountedReviews):
        def read_confidences(self, agent: str, limit: int) -> list[StatedConfidence]:
            before = super().read_confidences(agent, limit)
            self.changed = frozenset({agent})
            records.read_foreign_changes()
            return before

    records = ConfidenceRecords(Committing(*outcomes(0.9, 24, 17)))
    find_warning(records, None, 0.9)
    assert records.current_record("alice") is None


def test_a_change_while_the_store_is_read_is_not_missed() -> None:
    class Reviewing(CountedReviews):
        def read_confidences(self, agent: str, limit: int) -> list[StatedConfidence]:
            before = super().read_confidences(agent, limit)
            records.note_changes([agent])
            return before

    records = ConfidenceRecords(Reviewing(*outcomes(0.9, 24, 17)))
    find_warning(records, None, 0.9)
    assert records.current_record("alice") is None


def test_right_confidences_are_hardly_ever_called_misleading() -> None:
    random = np.random.default_rng(5)
    warned = 0
    for _ in range(500):
        successes = int(random.binomial(40, 0.8))
        records = ConfidenceRecords(CountedReviews(*outcomes(0.8, successes, 40 - successes)))
        warned += find_warning(records, None, 0.8) is not None
    assert warned <= 3


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(list(Outcome)[:3])), max_size=80), st.floats(0, 1))
def test_a_warning_never_comes_of_fewer_decisions_than_figures_need(
    pairs: list[tuple[float, Outcome]], confidence: float
) -> None:
    known = [StatedConfidence(stated, outcome, None) for stated, outcome in pairs]
    warning = find_warning(ConfidenceRecords(CountedReviews(*known)), "docs", confidence)
    assert warning is None or len(known) >= 20
