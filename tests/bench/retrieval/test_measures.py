"""Measures of rankings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.retrieval.measures import MEASURES, bootstrap_interval, discounted_gain, recall_at, reciprocal_rank


def test_recall_is_the_share_of_the_right_ones() -> None:
    assert recall_at(2, ["a", "b", "c"], {"b", "c"}) == 0.5


def test_the_reciprocal_rank_is_that_of_the_first_right_one() -> None:
    assert reciprocal_rank(["a", "b", "c"], {"c", "b"}) == 0.5
    assert reciprocal_rank(["a"], {"b"}) == 0


def test_gain_is_discounted_by_rank() -> None:
    assert discounted_gain(["a", "b"], {"a"}) == 1
    assert discounted_gain(["a", "b"], {"b"}) == pytest.approx(0.63093, abs=1e-5)


@given(st.permutations(list("abcdefgh")), st.sets(st.sampled_from("abcdefgh"), min_size=1))
def test_measures_are_1_if_all_that_is_right_comes_first(ranking: Sequence[str], right: set[str]) -> None:
    best = sorted(ranking, key=lambda key: key not in right)
    for measure in MEASURES.values():
        assert 0 <= measure(ranking, right) <= 1 + 1e-9
        assert measure(best, right) == pytest.approx(min(1, 5 / len(right)) if measure is MEASURES["recall@5"] else 1)


def test_the_interval_contains_the_mean_and_narrows_with_more_queries() -> None:
    few, many = bootstrap_interval([0.0, 1.0] * 10), bootstrap_interval([0.0, 1.0] * 1000)
    assert few[0] < 0.5 < few[1]
    assert many[1] - many[0] < few[1] - few[0]
    assert bootstrap_interval([1.0, 1.0]) == (1.0, 1.0)
