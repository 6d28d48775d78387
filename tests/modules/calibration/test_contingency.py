"""Odds ratios, Fisher's test and the adjustment for many tests, against published values."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.modules.calibration.failure_patterns import FisherTest, adjust_p_values, odds_ratio, odds_ratio_interval
from cstp_grpc.modules.calibration.model import OutcomeTable

PUBLISHED = [
    # The lady tasting tea (Fisher 1935); the example of scipy; convictions of twins (Fisher 1958), as in R.
    (OutcomeTable(3, 1, 1, 3), 0.4857143),
    (OutcomeTable(6, 2, 1, 4), 0.1025641),
    (OutcomeTable(2, 10, 15, 3), 0.0005367),
]

tables = st.builds(OutcomeTable, *[st.integers(0, 30)] * 4)


@pytest.mark.parametrize(("table", "expected"), PUBLISHED)
def test_the_p_values_of_fishers_test_are_the_published_ones(table: OutcomeTable, expected: float) -> None:
    assert FisherTest(60).p_value(table) == pytest.approx(expected, abs=5e-8)


@given(tables)
def test_the_p_value_is_the_exact_sum_of_probabilities(table: OutcomeTable) -> None:
    row = table.failures_with + table.others_with
    column = table.failures_with + table.failures_without
    total = row + table.failures_without + table.others_without
    possible = range(max(0, row + column - total), min(row, column) + 1)
    ways = {count: math.comb(row, count) * math.comb(total - row, column - count) for count in possible}
    as_rare = sum(each for each in ways.values() if each <= ways[table.failures_with])
    exact = Fraction(as_rare, math.comb(total, column))
    assert FisherTest(total).p_value(table) == pytest.approx(float(exact), abs=1e-9)


def test_an_odds_ratio_has_half_a_decision_added_to_each_count() -> None:
    table = OutcomeTable(10, 20, 5, 40)
    assert odds_ratio(table) == pytest.approx(10.5 * 40.5 / (20.5 * 5.5))
    error = math.sqrt(1 / 10.5 + 1 / 20.5 + 1 / 5.5 + 1 / 40.5)
    interval = odds_ratio_interval(table)
    assert math.log(interval.high / interval.low) == pytest.approx(2 * 1.959964 * error, rel=1e-6)


@given(tables)
def test_odds_ratios_are_finite_and_within_their_interval(table: OutcomeTable) -> None:
    interval = odds_ratio_interval(table)
    assert 0 < interval.low < odds_ratio(table) < interval.high < math.inf


@given(tables)
def test_having_something_and_lacking_it_have_inverse_odds_ratios(table: OutcomeTable) -> None:
    swapped = OutcomeTable(table.failures_without, table.others_without, table.failures_with, table.others_with)
    assert odds_ratio(table) * odds_ratio(swapped) == pytest.approx(1)


def test_of_the_example_of_benjamini_and_hochberg_the_first_four_are_discoveries() -> None:
    # Fifteen hypotheses about thrombolysis, section 4 of their paper.
    p_values = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
    p_values += [0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    adjusted = adjust_p_values(p_values)
    assert [each <= 0.05 for each in adjusted] == [True] * 4 + [False] * 11
    assert adjusted[0] == pytest.approx(0.0015)


@given(st.lists(st.floats(0, 1), max_size=30))
def test_adjusting_keeps_the_order_and_lowers_no_p_value(p_values: list[float]) -> None:
    adjusted = adjust_p_values(p_values)
    assert all(before <= after <= 1 for before, after in zip(p_values, adjusted, strict=True))
    pairs = sorted(zip(p_values, adjusted, strict=True))
    assert [after for _, after in pairs] == sorted(adjusted)
