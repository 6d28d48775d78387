"""Scores of stated confidences against outcomes, and a test for drift: whether they came to mean something else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.modules.calibration import model

Values = NDArray[np.float64]
BucketNumbers = NDArray[np.intp]

BUCKETS: Final = 10
"""Buckets of equal width. Chosen: agents state tenths, and finer buckets would have too few decisions each."""

Z_95: Final = NormalDist().inv_cdf(0.975)


def assign_buckets(confidences: Values) -> BucketNumbers:
    # Rounded first: 0.7 * 10 is 7.000000000000001 and 0.29 * 100 is 28.999999999999996, neither of which is meant.
    return np.minimum(np.floor(np.round(confidences * BUCKETS, 9)), BUCKETS - 1).astype(np.intp)


def bucket_number(confidence: float) -> int:
    return min(math.floor(round(confidence * BUCKETS, 9)), BUCKETS - 1)


def bucket_bounds(number: int) -> tuple[float, float]:
    return number / BUCKETS, (number + 1) / BUCKETS


def wilson_interval(rate: float, count: int, z: float = Z_95) -> model.Interval:
    """Return the interval of a success rate that was observed in `count` decisions, by default of 95 %.

    Source: Wilson 1927, Probable Inference, the Law of Succession, and Statistical Inference. It stays within 0 and 1
    and is sound for few decisions (Brown, Cai and DasGupta 2001, Interval Estimation for a Binomial Proportion).
    """
    share = z * z / count
    center = (rate + share / 2) / (1 + share)
    half = z / (1 + share) * math.sqrt(rate * (1 - rate) / count + share / (4 * count))
    return model.Interval(max(0.0, center - half), min(1.0, center + half))


def score_calibration(confidences: Values, outcomes: Values) -> model.Calibration:
    """Return the calibration of at least one decision."""
    numbers = assign_buckets(confidences)
    mean = float(outcomes.mean())
    return model.Calibration(
        mean_confidence=float(confidences.mean()),
        success_rate=mean,
        success_interval=wilson_interval(mean, len(outcomes)),
        brier=decompose_brier_score(confidences, outcomes, numbers),
        calibration_error=expected_calibration_error(confidences, outcomes, numbers),
        p_value=spiegelhalter_p_value(confidences, outcomes),
        buckets=reliability_buckets(confidences, outcomes, numbers),
    )


def decompose_brier_score(confidences: Values, outcomes: Values, numbers: BucketNumbers) -> model.BrierScore:
    """Return the Brier score, the mean squared error, and its terms over buckets.

    Sources: Brier 1950, Verification of Forecasts Expressed in Terms of Probability; Murphy 1973, A New Vector
    Partition of the Probability Score. Since confidences within a bucket differ, two more terms belong to the sum, the
    variance within buckets and the covariance within them (Stephenson, Coelho and Jolliffe 2008, Two Extra Components
    in the Brier Score Decomposition); `spread` is the first less the second.
    """
    counts = np.bincount(numbers, minlength=BUCKETS)
    used = counts > 0
    sizes = counts[used]
    forecasts = np.bincount(numbers, confidences, BUCKETS)[used] / sizes
    rates = np.bincount(numbers, outcomes, BUCKETS)[used] / sizes
    # The position of each decision's bucket among those that have decisions.
    places = (np.cumsum(used) - 1)[numbers]
    confidence_rest, outcome_rest = confidences - forecasts[places], outcomes - rates[places]
    total = len(outcomes)
    return model.BrierScore(
        score=float(np.mean((confidences - outcomes) ** 2)),
        reliability=float(sizes @ (forecasts - rates) ** 2 / total),
        resolution=float(sizes @ (rates - outcomes.mean()) ** 2 / total),
        uncertainty=float(outcomes.var()),
        spread=float(np.mean(confidence_rest**2) - 2 * np.mean(confidence_rest * outcome_rest)),
    )


def expected_calibration_error(confidences: Values, outcomes: Values, numbers: BucketNumbers) -> float:
    """Return the mean distance of confidence and success rate over buckets, weighted by their decisions.

    Source: Naeini, Cooper and Hauskrecht 2015, Obtaining Well Calibrated Probabilities Using Bayesian Binning.
    """
    gaps = np.bincount(numbers, confidences - outcomes, BUCKETS)
    return float(np.abs(gaps).sum() / len(outcomes))


def spiegelhalter_p_value(confidences: Values, outcomes: Values) -> float | None:
    """Return the two-sided p-value of the hypothesis that every confidence is right.

    None if the confidences allow no test: all are 0.5, or 0 or 1 and right. Source: Spiegelhalter 1986, Probabilistic
    Prediction in Patient Management and Clinical Trials.
    """
    slope = 1 - 2 * confidences
    difference = float(np.vecdot(outcomes - confidences, slope))
    variance = float(np.vecdot(slope**2, confidences * (1 - confidences)))
    if variance <= 0:
        # Certain of all, and wrong at least once: impossible if every confidence were right.
        return 0.0 if difference else None
    return math.erfc(abs(difference / math.sqrt(variance)) / math.sqrt(2))


def reliability_buckets(
    confidences: Values, outcomes: Values, numbers: BucketNumbers
) -> Sequence[model.ReliabilityBucket]:
    """Return the buckets that have decisions, from low to high."""
    found = []
    for number in np.unique(numbers):
        within = outcomes[numbers == number]
        successes, failures = int((within == 1).sum()), int((within == 0).sum())
        lower, upper = bucket_bounds(int(number))
        rate = float(within.mean())
        found.append(
            model.ReliabilityBucket(
                lower=lower,
                upper=upper,
                successes=successes,
                partials=len(within) - successes - failures,
                failures=failures,
                mean_confidence=float(confidences[numbers == number].mean()),
                success_rate=rate,
                success_interval=wilson_interval(rate, len(within)),
            )
        )
    return found


MIN_FOR_DRIFT: Final = 40
"""Decisions that the test needs. Chosen: twice as many as a single figure, one for before and one for after."""

MAX_FOR_DRIFT: Final = 2000
"""Decisions that are tested, the latest. Chosen: with the simulations, it takes about 0.1 s."""

FALSE_ALARMS: Final = 0.01
"""The probability of a false alarm, as measured in simulations."""

SIMULATIONS: Final = 999
"""Chosen: the smallest p-value, 0.001, is a tenth of FALSE_ALARMS, and more would take longer."""

SIMULATIONS_AT_ONCE: Final = 100
"""Chosen: an array of so many rows of MAX_FOR_DRIFT values takes 1.6 MB."""

ASSUMED_RIGHT: Final = 4
"""Right decisions that are added to each bucket where its gap is estimated, as Agresti and Coull 1998 do. Measured:
without them, agents with six decisions in each bucket are called drifting in 2.5 % of cases."""

SEED: Final = 20_260_101
"""A fixed seed, so that the same decisions get the same answer at any time from any server."""

ROUNDING: Final = 1e-9
"""Sums in another order differ by less; a tie counts as being as great."""


@dataclass(frozen=True, slots=True)
class LargestDeviation:
    """The largest deviation of a cumulated sum from 0, and how many decisions were cumulated there."""

    size: float
    count: int


def detect_drift(dates: Sequence[datetime], confidences: Values, outcomes: Values) -> model.Drift | None:
    """Test for one change at an unknown time; the decisions are in the order of their dates. None if too few.

    The gap of a decision is its outcome less its confidence, and the statistic is the largest cumulated difference of
    gaps from the mean gap of their bucket of confidence (the CUSUM of Page 1954, Continuous Inspection Schemes, for a
    change point as in Page 1955, A Test for a Change in a Parameter Occurring at an Unknown Point). An agent that
    states another confidence than before, and is as right as it says, keeps its gap. How large the statistic is by
    chance is simulated: each decision succeeds with its confidence plus the mean gap of its bucket (a parametric
    bootstrap; Efron and Tibshirani 1993, An Introduction to the Bootstrap). The decisions themselves are counted among
    the simulations (Phipson and Smyth 2010, Permutation P-values Should Never Be Zero).
    """
    if len(outcomes) < MIN_FOR_DRIFT:
        return None
    dates, confidences, outcomes = dates[-MAX_FOR_DRIFT:], confidences[-MAX_FOR_DRIFT:], outcomes[-MAX_FOR_DRIFT:]
    numbers = assign_buckets(confidences)
    deviation = largest_deviation(center_gaps(outcomes - confidences, numbers))
    p_value = simulate_p_value(confidences, outcomes, numbers, deviation.size)
    change = None
    if p_value <= FALSE_ALARMS:
        gaps = confidences - outcomes
        before, after = gaps[: deviation.count], gaps[deviation.count :]
        change = model.DetectedChange(dates[deviation.count], float(before.mean()), float(after.mean()))
    return model.Drift(len(outcomes), p_value, change)


def center_gaps(gaps: Values, numbers: BucketNumbers) -> Values:
    """Return gaps less the mean gap of their bucket; several rows of them are centred each for itself."""
    _, places, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    in_buckets = gaps.take(np.argsort(places, kind="stable"), axis=-1)
    # Not a matrix product, whose threads would take the time of other calls, and twice as long.
    means = np.add.reduceat(in_buckets, np.cumsum(sizes) - sizes, axis=-1) / sizes
    centered: Values = gaps - means.take(places, axis=-1)
    return centered


def largest_deviation(residuals: Values) -> LargestDeviation:
    """Return the largest deviation of the cumulated residuals, before the last of them, where all sum up to 0."""
    sums = np.abs(np.cumsum(residuals[:-1]))
    place = int(sums.argmax())
    return LargestDeviation(float(sums[place]), place + 1)


def simulate_p_value(confidences: Values, outcomes: Values, numbers: BucketNumbers, size: float) -> float:
    """Return the share of simulated agents without drift that deviate at least as much."""
    sums, counts = np.bincount(numbers, outcomes - confidences, BUCKETS), np.bincount(numbers, minlength=BUCKETS)
    rates = np.clip(confidences + (sums / (counts + ASSUMED_RIGHT))[numbers], 0, 1)
    random = np.random.default_rng(SEED)
    as_great = 0
    for start in range(0, SIMULATIONS, SIMULATIONS_AT_ONCE):
        rows = min(SIMULATIONS_AT_ONCE, SIMULATIONS - start)
        simulated = (random.random((rows, len(rates))) < rates) - confidences
        deviations = np.abs(np.cumsum(center_gaps(simulated, numbers), axis=1)[:, :-1]).max(axis=1)
        as_great += int((deviations >= size - ROUNDING).sum())
    return (1 + as_great) / (1 + SIMULATIONS)
