"""What goes with failure, and groups of failures that resemble each other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Outcome, Stakes
from cstp_grpc.modules.calibration.failure_patterns import (
    MIN_SIMILARITY,
    find_failure_factors,
    find_recurring_failures,
    link_groups,
)
from cstp_grpc.modules.calibration.model import FactorKind, OutcomeTable, RecurringFailure, ReviewedDecision
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from tests.example_counts import examples

START = datetime(2026, 1, 1, tzinfo=UTC)


def decision(number: int, outcome: Outcome = Outcome.FAILURE, **fields: Any) -> ReviewedDecision:
    """A reviewed decision of a day of its own."""
    values: dict[str, Any] = {"title": f"Decision {number}", "agent": "alice", **fields}
    return ReviewedDecision(f"dec-{number:04}", date=START + timedelta(days=number), outcome=outcome, **values)


def group(failures: Sequence[ReviewedDecision], others: Sequence[ReviewedDecision] = ()) -> list[RecurringFailure]:
    """Find groups by the words of the titles."""
    vectors = LexicalEmbedder().embed([item.title for item in failures])
    by_id = {item.id: vector for item, vector in zip(failures, vectors, strict=True)}
    return find_recurring_failures(failures, by_id, others)


def mixed_decisions() -> list[ReviewedDecision]:
    """Of 20 on a Friday 15 fail, of 40 others 4."""
    friday = [decision(n, Outcome.FAILURE if n < 15 else Outcome.SUCCESS, tags=("friday", "deploy")) for n in range(20)]
    others = [decision(n, Outcome.FAILURE if n < 24 else Outcome.PARTIAL, tags=("deploy",)) for n in range(20, 60)]
    return friday + others


def test_a_tag_that_goes_with_failure_is_found_with_its_counts() -> None:
    (factor,) = find_failure_factors(mixed_decisions())
    assert (factor.kind, factor.value) == (FactorKind.TAG, "friday")
    assert factor.table == OutcomeTable(15, 5, 4, 36)
    assert factor.odds_ratio == pytest.approx(15.5 * 36.5 / (5.5 * 4.5))
    assert factor.is_significant
    # "deploy" is nowhere absent, so there is nothing to compare.


def test_what_has_nothing_to_do_with_failure_is_not_significant() -> None:
    decisions = [
        decision(n, Outcome.FAILURE if n % 2 else Outcome.SUCCESS, category="a" if n % 4 < 2 else "b")
        for n in range(40)
    ]
    factors = find_failure_factors(decisions)
    assert [factor.value for factor in factors] == ["a", "b"]
    assert not any(factor.is_significant for factor in factors)
    assert all(factor.p_value == pytest.approx(1) for factor in factors)


def test_every_kind_of_factor_is_tested() -> None:
    fields: dict[str, Any] = {
        "reason_types": ("habit", "habit"),
        "tags": ("t",),
        "category": "c",
        "stakes": Stakes.HIGH,
        "project": "p",
    }
    decisions = [decision(n, **fields) for n in range(10)] + [decision(n, Outcome.SUCCESS) for n in range(10, 20)]
    factors = {(factor.kind, factor.value): factor.table for factor in find_failure_factors(decisions)}
    assert factors == {
        (kind, value): OutcomeTable(10, 0, 0, 10)
        for kind, value in [
            (FactorKind.REASON, "habit"),
            (FactorKind.TAG, "t"),
            (FactorKind.CATEGORY, "c"),
            (FactorKind.STAKES, "high"),
            (FactorKind.PROJECT, "p"),
        ]
    }


@given(st.randoms(use_true_random=False))
def test_the_order_of_decisions_does_not_change_the_factors(shuffling: random.Random) -> None:
    decisions = mixed_decisions()
    expected = find_failure_factors(decisions)
    shuffling.shuffle(decisions)
    assert find_failure_factors(decisions) == expected


FAILED = [
    decision(1, title="Migrate the orders table online"),
    decision(2, title="Migrate the payments table online", notes="The lock on the table blocked all writers"),
    decision(3, title="Migrate the users table online", notes="Writers were blocked by a lock"),
    decision(4, title="Send the newsletter twice"),
]
SUCCEEDED = [decision(n, Outcome.SUCCESS, title=f"Release service {n} online") for n in range(10, 20)]


def test_failures_that_resemble_each_other_are_a_group_with_its_words() -> None:
    (found,) = group(FAILED, SUCCEEDED)
    assert [item.id for item in found.decisions] == ["dec-0003", "dec-0002", "dec-0001"]
    assert found.terms[:2] == ["migrate", "table"]
    assert {"lock", "blocked", "writers"} <= set(found.terms)
    assert "online" not in found.terms[:4]
    assert found.similarity >= MIN_SIMILARITY


def test_failures_without_a_vector_are_in_no_group() -> None:
    assert find_recurring_failures(FAILED, {}, SUCCEEDED) == []


def test_the_order_of_failures_does_not_change_the_groups() -> None:
    assert group(FAILED[::-1], SUCCEEDED[::-1]) == group(FAILED, SUCCEEDED)


def test_a_chain_of_similar_failures_is_not_one_group() -> None:
    # Each is similar to the next (cosine 0.77), the ends are not (-0.94).
    angles = np.arange(6) * 0.69
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    groups = link_groups(vectors @ vectors.T, MIN_SIMILARITY)
    assert len(groups) > 1
    assert sorted(place for places in groups for place in places) == sorted({p for places in groups for p in places})


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(2, 25), st.integers(0, 1000))
def test_groups_are_apart_and_similar_within(count: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, 4)) + 0.5
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = vectors @ vectors.T
    groups = link_groups(similarities, MIN_SIMILARITY)
    members = [place for places in groups for place in places]
    assert len(members) == len(set(members))
    rest = [[place] for place in range(count) if place not in members]
    for one in (every := [*groups, *rest]):
        assert all(
            similarities[np.ix_(one, other)].mean() < MIN_SIMILARITY + 1e-9 for other in every if other is not one
        )
