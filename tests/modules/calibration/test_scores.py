"""Scores of confidences: against published values, and what holds for all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.modules.calibration.scores import (
    assign_buckets,
    bucket_number,
    score_calibration,
    spiegelhalter_p_value,
    wilson_interval,
)
from tests.modules.calibration.strategies import Forecasts, confidences, forecasts


def test_the_brier_score_is_that_of_the_documentation_of_scikit_learn() -> None:
    scored = score_calibration(np.array([0.1, 0.9, 0.8, 0.3]), np.array([0.0, 1.0, 1.0, 0.0]))
    assert scored.brier.score == pytest.approx(0.0375)


def test_forecasts_of_one_value_a_bucket_have_the_terms_of_murphy() -> None:
    # 10 times 0.85 of which 6 succeed, 10 times 0.25 of which 3 do.
    scored = score_calibration(
        np.array([0.85] * 10 + [0.25] * 10), np.array([1.0] * 6 + [0.0] * 4 + [1.0] * 3 + [0.0] * 7)
    )
    assert scored.success_rate == pytest.approx(0.45)
    assert scored.brier.reliability == pytest.approx((0.25**2 + 0.05**2) / 2)
    assert scored.brier.resolution == pytest.approx(0.15**2)
    assert scored.brier.uncertainty == pytest.approx(0.45 * 0.55)
    assert scored.brier.spread == pytest.approx(0)
    assert scored.calibration_error == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_intervals_are_those_of_newcombe_1998(successes: int, count: int, low: float, high: float) -> None:
    interval = wilson_interval(successes / count, count)
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


@given(forecasts())
def test_the_terms_of_the_brier_score_sum_up_to_it(values: Forecasts) -> None:
    brier = score_calibration(*values).brier
    assert brier.reliability - brier.resolution + brier.uncertainty + brier.spread == pytest.approx(
        brier.score, abs=1e-9
    )


@given(forecasts())
def test_figures_stay_within_their_bounds(values: Forecasts) -> None:
    scored = score_calibration(*values)
    brier = scored.brier
    for share in (
        scored.mean_confidence,
        scored.success_rate,
        scored.calibration_error,
        brier.score,
        brier.reliability,
    ):
        assert -1e-12 <= share <= 1 + 1e-12
    assert -1e-12 <= brier.resolution <= brier.uncertainty + 1e-12 <= 0.25 + 2e-12
    assert scored.p_value is None or 0 <= scored.p_value <= 1
    for bucket in scored.buckets:
        interval = bucket.success_interval
        assert 0 <= interval.low <= bucket.success_rate + 1e-12
        assert bucket.success_rate - 1e-12 <= interval.high <= 1
        assert bucket.lower - 1e-9 <= bucket.mean_confidence <= bucket.upper + 1e-9
    # No bucket hides what the whole has: the error of the means is at most the mean of the errors.
    assert abs(scored.mean_confidence - scored.success_rate) <= scored.calibration_error + 1e-9


@given(forecasts(), st.randoms(use_true_random=False))
def test_the_order_of_decisions_does_not_matter(values: Forecasts, random: st.DataObject) -> None:
    order = list(range(len(values[0])))
    random.shuffle(order)  # type: ignore[attr-defined]
    one, other = score_calibration(*values), score_calibration(values[0][order], values[1][order])
    assert one.brier.score == pytest.approx(other.brier.score)
    assert one.calibration_error == pytest.approx(other.calibration_error, abs=1e-12)
    assert [bucket.count for bucket in one.buckets] == [bucket.count for bucket in other.buckets]


@given(forecasts())
def test_each_decision_is_in_one_bucket(values: Forecasts) -> None:
    buckets = score_calibration(*values).buckets
    assert sum(bucket.count for bucket in buckets) == len(values[0])
    assert [bucket.lower for bucket in buckets] == sorted({bucket.lower for bucket in buckets})


@pytest.mark.parametrize(
    ("confidence", "lower"), [(0.0, 0.0), (0.1, 0.1), (0.29, 0.2), (0.3, 0.3), (0.7, 0.7), (1.0, 0.9)]
)
def test_a_confidence_on_a_boundary_is_in_the_upper_bucket(confidence: float, lower: float) -> None:
    (bucket,) = score_calibration(np.array([confidence]), np.array([1.0])).buckets
    assert bucket.lower == lower


@given(confidences)
def test_one_confidence_is_in_the_same_bucket_as_among_many(confidence: float) -> None:
    assert [bucket_number(confidence)] == assign_buckets(np.array([confidence])).tolist()


@given(confidences)
def test_confidences_that_come_true_as_often_as_they_say_have_no_error(confidence: float) -> None:
    # Half successes stand for any rate: the mean of the outcomes is what counts.
    scored = score_calibration(np.array([confidence] * 3), np.array([confidence] * 3))
    assert scored.calibration_error == pytest.approx(0, abs=1e-12)
    assert scored.brier.score == pytest.approx(0, abs=1e-12)


def test_the_test_of_spiegelhalter_is_the_binomial_one_for_a_single_confidence() -> None:
    # 60 of 100 where 0.8 was stated: z = (60 - 80) / sqrt(100 * 0.8 * 0.2) = -5.
    p_value = spiegelhalter_p_value(np.full(100, 0.8), np.array([1.0] * 60 + [0.0] * 40))
    assert p_value == pytest.approx(math.erfc(5 / math.sqrt(2)))


@pytest.mark.parametrize(
    ("confidence", "outcome", "expected"), [(0.5, 0.0, None), (1.0, 1.0, None), (1.0, 0.0, 0.0), (0.0, 0.0, None)]
)
def test_confidences_that_allow_no_test_have_no_p_value(
    confidence: float, outcome: float, expected: float | None
) -> None:
    assert spiegelhalter_p_value(np.full(3, confidence), np.full(3, outcome)) == expected
