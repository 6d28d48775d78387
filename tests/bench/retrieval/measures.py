"""Measures of rankings, each from 0 to 1, and their bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

DEPTH = 10
"""Results that the discounted gain looks at."""

RESAMPLES = 2000
"""Bootstrap samples: the percentiles of an interval then vary in the third decimal."""


def recall_at(depth: int, ranking: Sequence[str], right: Collection[str]) -> float:
    """Return the share of the right records among the first `depth`."""
    return len(set(ranking[:depth]) & set(right)) / len(right)


def reciprocal_rank(ranking: Sequence[str], right: Collection[str]) -> float:
    """Return 1 divided by the rank of the first right record; 0 if there is none."""
    return next((1 / rank for rank, key in enumerate(ranking, 1) if key in right), 0.0)


def discounted_gain(ranking: Sequence[str], right: Collection[str]) -> float:
    """Return the normalised discounted cumulative gain of the first ten (Järvelin and Kekäläinen, 2002)."""
    gain = sum(1 / math.log2(rank + 1) for rank, key in enumerate(ranking[:DEPTH], 1) if key in right)
    best = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(right), DEPTH) + 1))
    return gain / best


MEASURES: Mapping[str, Callable[[Sequence[str], Collection[str]], float]] = {
    "recall@5": lambda ranking, right: recall_at(5, ranking, right),
    "recall@10": lambda ranking, right: recall_at(10, ranking, right),
    "MRR": reciprocal_rank,
    "nDCG@10": discounted_gain,
}


def bootstrap_interval(values: Sequence[float], share: float = 0.95, seed: int = 1) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean of one value per query (Efron, 1979)."""
    samples = np.random.default_rng(seed).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.quantile(samples.mean(axis=1), [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)
