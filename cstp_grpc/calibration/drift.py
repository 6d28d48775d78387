"""A test for drift: whether confidences came to mean something else at some time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np

from cstp_grpc.calibration.model import DetectedChange, Drift
from cstp_grpc.calibration.scores import BUCKETS, BucketNumbers, Values, assign_buckets

MIN_FOR_DRIFT: Final = 40
"""Decisions that the test needs. Chosen: twice as many as a single figure, one for before and one for after."""

MAX_FOR_DRIFT: Final = 2000
"""Decisions that are tested, the latest. Chosen: with the permutations, it takes about 0.1 s."""

FALSE_ALARMS: Final = 0.01
"""The probability of a false alarm."""

PERMUTATIONS: Final = 999
"""Chosen: the smallest p-value, 0.001, is a tenth of FALSE_ALARMS, and more would take longer."""

PERMUTATIONS_AT_ONCE: Final = 100
"""Chosen: an array of so many rows of MAX_FOR_DRIFT values takes 1.6 MB."""

SEED: Final = 20_260_101
"""A fixed seed, so that the same decisions have the same answer whenever and by whichever server it is given."""

ROUNDING: Final = 1e-9
"""Sums in another order differ by less; a tie counts as being as great."""


@dataclass(frozen=True, slots=True)
class LargestDeviation:
    """The largest deviation of a cumulated sum from 0, and how many decisions were cumulated there."""

    size: float
    count: int


def detect_drift(dates: Sequence[datetime], confidences: Values, outcomes: Values) -> Drift | None:
    """Test for one change at an unknown time; the decisions are in the order of their dates. None if too few.

    The statistic is the largest cumulated difference of outcomes from the success rate of their bucket of confidence
    (the CUSUM of Page 1954, Continuous Inspection Schemes, for a change point as in Page 1955, A Test for a Change in
    a Parameter Occurring at an Unknown Point). If confidences mean the same all the time, the outcomes of a bucket can
    be exchanged, so random exchanges tell how large the statistic is by chance, whatever the confidences are and
    whenever they are stated (Antoch and Huskova 2001, Permutation Tests in Change Point Analysis). With the statistic
    itself counted among its permutations the false alarms are bounded exactly (Phipson and Smyth 2010, Permutation
    P-values Should Never Be Zero).
    """
    if len(outcomes) < MIN_FOR_DRIFT:
        return None
    dates, confidences, outcomes = dates[-MAX_FOR_DRIFT:], confidences[-MAX_FOR_DRIFT:], outcomes[-MAX_FOR_DRIFT:]
    numbers = assign_buckets(confidences)
    deviation = largest_deviation(outcomes - bucket_rates(outcomes, numbers))
    p_value = permutation_p_value(outcomes, numbers, deviation.size)
    change = None
    if p_value <= FALSE_ALARMS:
        gaps = confidences - outcomes
        before, after = gaps[: deviation.count], gaps[deviation.count :]
        change = DetectedChange(dates[deviation.count], float(before.mean()), float(after.mean()))
    return Drift(len(outcomes), p_value, change)


def bucket_rates(outcomes: Values, numbers: BucketNumbers) -> Values:
    """Return the success rate of the bucket of each decision."""
    sums, counts = np.bincount(numbers, outcomes, BUCKETS), np.bincount(numbers, minlength=BUCKETS)
    rates: Values = (sums / np.maximum(counts, 1))[numbers]
    return rates


def largest_deviation(residuals: Values) -> LargestDeviation:
    """Return the largest deviation of the cumulated residuals, before the last of them, where all sum up to 0."""
    sums = np.abs(np.cumsum(residuals[:-1]))
    place = int(sums.argmax())
    return LargestDeviation(float(sums[place]), place + 1)


def permutation_p_value(outcomes: Values, numbers: BucketNumbers, size: float) -> float:
    """Return the share of permutations within buckets that deviate at least as much."""
    rates = bucket_rates(outcomes, numbers)
    members = [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
    random = np.random.default_rng(SEED)
    as_great = 0
    for start in range(0, PERMUTATIONS, PERMUTATIONS_AT_ONCE):
        rows = min(PERMUTATIONS_AT_ONCE, PERMUTATIONS - start)
        exchanged = np.tile(outcomes, (rows, 1))
        for places in members:
            exchanged[:, places] = random.permuted(exchanged[:, places], axis=1)
        deviations = np.abs(np.cumsum(exchanged - rates, axis=1)[:, :-1]).max(axis=1)
        as_great += int((deviations >= size - ROUNDING).sum())
    return (1 + as_great) / (1 + PERMUTATIONS)
