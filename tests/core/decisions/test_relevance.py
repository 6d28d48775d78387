"""What shared words are evidence of, and what scores mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.core.decisions.search.relevance import (
    LONG_QUERY,
    RelevanceCurve,
    evidence_of_words,
    weights_of_words,
)

coverages = st.lists(st.floats(0, 1), min_size=1, max_size=20).map(sorted)
rarities = st.lists(st.floats(0.01, 12), min_size=1, max_size=50)


lengths = st.integers(0, 200)


@given(coverages, rarities, lengths)
def test_who_covers_more_of_a_query_has_more_evidence(coverage: list[float], rarity: list[float], length: int) -> None:
    evidence = evidence_of_words(np.array(coverage), rarity, length)
    assert (np.diff(evidence) >= 0).all()
    assert ((evidence >= 0) & (evidence <= sum(weights_of_words(length)) * np.array(coverage) + 1e-12)).all()


@given(rarities, lengths)
def test_a_query_that_is_covered_counts_in_full(rarity: list[float], length: int) -> None:
    assert evidence_of_words(np.array([1.0]), rarity, length) == pytest.approx(sum(weights_of_words(length)))


def test_one_word_of_three_says_less_than_a_third_of_three() -> None:
    one, three = evidence_of_words(np.array([0.3, 0.9]), [2.0, 2.0, 2.0], 3)
    assert one < three / 3


def test_one_word_of_many_is_as_much_as_its_share() -> None:
    few = evidence_of_words(np.array([0.1]), [1.0] * 100, 100)
    assert few == pytest.approx(0.1 * sum(weights_of_words(100)))


@given(st.integers(0, LONG_QUERY - 1))
def test_covering_a_long_query_says_more(length: int) -> None:
    assert sum(weights_of_words(length)) < sum(weights_of_words(LONG_QUERY))


def test_a_query_of_unknown_words_is_no_evidence() -> None:
    assert evidence_of_words(np.zeros(3), [], 0).tolist() == [0, 0, 0]


CURVE = RelevanceCurve(slope=6, midpoint=0.45, spread=0.1)
similarities = st.lists(st.floats(-1, 1), max_size=200).map(np.array)


@given(similarities)
def test_similarities_never_raise_a_score(found: np.ndarray) -> None:
    assert CURVE.for_query(found).score(0.5) <= CURVE.score(0.5)


@given(similarities, st.floats(0.01, 0.99))
def test_the_least_evidence_of_a_score_has_it(found: np.ndarray, score: float) -> None:
    curve = CURVE.for_query(found)
    assert curve.score(curve.evidence(score)) == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("score", [5e-324, 1e-9, 5e-7, 1e-6])
def test_the_smallest_scores_have_evidence(score: float) -> None:
    assert round(CURVE.score(CURVE.evidence(score)), 6) == 1e-6


def test_what_is_equally_far_from_a_journal_scores_less_than_what_it_knows_about() -> None:
    far, known = np.linspace(-0.05, 0.1, 100), np.linspace(-0.2, 0.4, 100)
    assert CURVE.for_query(far).score(0.4) < 0.3 < CURVE.for_query(known).score(0.4)


def test_in_a_journal_about_one_thing_all_is_near() -> None:
    assert CURVE.for_query(np.linspace(0.5, 0.6, 100)).midpoint == CURVE.midpoint


def test_few_decisions_say_little_about_what_a_journal_knows() -> None:
    few, many = (CURVE.for_query(np.zeros(count)).score(0.4) for count in (5, 100))
    assert many < few < CURVE.score(0.4)


def test_a_curve_without_a_spread_is_the_same_for_all_queries() -> None:
    plain = RelevanceCurve(slope=8, midpoint=0.35)
    assert plain.for_query(np.zeros(100)) is plain
