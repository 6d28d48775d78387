"""What shared words are evidence of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.decisions.search.relevance import COVERAGE_WEIGHT, evidence_of_words

coverages = st.lists(st.floats(0, 1), min_size=1, max_size=20).map(sorted)
rarities = st.lists(st.floats(0.01, 12), min_size=1, max_size=50)


@given(coverages, rarities)
def test_who_covers_more_of_a_query_has_more_evidence(coverage: list[float], rarity: list[float]) -> None:
    evidence = evidence_of_words(np.array(coverage), rarity)
    assert (np.diff(evidence) >= 0).all()
    assert ((evidence >= 0) & (evidence <= COVERAGE_WEIGHT * np.array(coverage) + 1e-12)).all()


@given(rarities)
def test_a_query_that_is_covered_counts_in_full(rarity: list[float]) -> None:
    assert evidence_of_words(np.array([1.0]), rarity) == pytest.approx(COVERAGE_WEIGHT)


def test_one_word_of_three_says_less_than_a_third_of_three() -> None:
    one, three = evidence_of_words(np.array([0.3, 0.9]), [2.0, 2.0, 2.0])
    assert one < three / 4


def test_one_word_of_many_is_as_much_as_its_share() -> None:
    few = evidence_of_words(np.array([0.1]), [1.0] * 100)
    assert few == pytest.approx(0.1 * COVERAGE_WEIGHT)


def test_a_query_of_unknown_words_is_no_evidence() -> None:
    assert evidence_of_words(np.zeros(3), []).tolist() == [0, 0, 0]
