"""Scores of stated confidences against outcomes.

Confidences are forecasts from 0 to 1 and outcomes their values from 0 to 1, in arrays of the same length. Nothing here
depends on the order of decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.calibration.model import BrierScore, Calibration, Interval, ReliabilityBucket

Values = NDArray[np.float64]
BucketNumbers = NDArray[np.intp]

BUCKETS: Final = 10
"""Buckets of equal width. Chosen: agents state tenths, and finer buckets would have too few decisions each."""

Z_95: Final = NormalDist().inv_cdf(0.975)


def assign_buckets(confidences: Values) -> BucketNumbers:
    """Return the number of the bucket of each confidence."""
    # Rounded first: 0.7 * 10 is 7.000000000000001 and 0.29 * 100 is 28.999999999999996, neither of which is meant.
    return np.minimum(np.floor(np.round(confidences * BUCKETS, 9)), BUCKETS - 1).astype(np.intp)


def bucket_number(confidence: float) -> int:
    """Return the number of the bucket of one confidence, as `assign_buckets` does."""
    return min(math.floor(round(confidence * BUCKETS, 9)), BUCKETS - 1)


def bucket_bounds(number: int) -> tuple[float, float]:
    """Return the ends of a bucket."""
    return number / BUCKETS, (number + 1) / BUCKETS


def wilson_interval(rate: float, count: int, z: float = Z_95) -> Interval:
    """Return the interval of a success rate that was observed in `count` decisions, by default of 95 %.

    Source: Wilson 1927, Probable Inference, the Law of Succession, and Statistical Inference. It stays within 0 and 1
    and is sound for few decisions (Brown, Cai and DasGupta 2001, Interval Estimation for a Binomial Proportion).
    """
    share = z * z / count
    center = (rate + share / 2) / (1 + share)
    half = z / (1 + share) * math.sqrt(rate * (1 - rate) / count + share / (4 * count))
    return Interval(max(0.0, center - half), min(1.0, center + half))


def score_calibration(confidences: Values, outcomes: Values) -> Calibration:
    """Return the calibration of at least one decision."""
    numbers = assign_buckets(confidences)
    mean = float(outcomes.mean())
    return Calibration(
        mean_confidence=float(confidences.mean()),
        success_rate=mean,
        success_interval=wilson_interval(mean, len(outcomes)),
        brier=decompose_brier_score(confidences, outcomes, numbers),
        calibration_error=expected_calibration_error(confidences, outcomes, numbers),
        p_value=spiegelhalter_p_value(confidences, outcomes),
        buckets=reliability_buckets(confidences, outcomes, numbers),
    )


def decompose_brier_score(confidences: Values, outcomes: Values, numbers: BucketNumbers) -> BrierScore:
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
    places = (np.cumsum(used) - 1)[numbers]
    confidence_rest, outcome_rest = confidences - forecasts[places], outcomes - rates[places]
    total = len(outcomes)
    return BrierScore(
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
    return two_sided_p_value(difference / math.sqrt(variance))


def two_sided_p_value(z: float) -> float:
    """Return the probability that a standard normal value is at least as far from 0."""
    return math.erfc(abs(z) / math.sqrt(2))


def reliability_buckets(confidences: Values, outcomes: Values, numbers: BucketNumbers) -> Sequence[ReliabilityBucket]:
    """Return the buckets that have decisions, from low to high."""
    found = []
    for number in np.unique(numbers):
        within = outcomes[numbers == number]
        successes, failures = int((within == 1).sum()), int((within == 0).sum())
        lower, upper = bucket_bounds(int(number))
        rate = float(within.mean())
        found.append(
            ReliabilityBucket(
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
