"""Vectors rounded to int8, whose dot products estimate those of the vectors within a bound (scalar quantization).

A code takes a quarter of the memory of its vector, and a scan of many vectors waits for memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numkong
import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int8]
Scores = NDArray[np.float32]
Vectors = NDArray[np.float32]
"""Vectors of shape (count, dimensions)."""

LEVELS = 127
"""The largest magnitude of a code; -128 is not used, so that codes are symmetric."""

ROUNDING = 1e-5
"""Share of the product of two norms by which float32 arithmetic may be off, in a score or an estimate of it: sums of
some hundred products err by about 1e-6."""

ROWS_PER_PRODUCT = 1 << 17
"""Rows of one matrix product. Chosen: its int32 results, 8 MB for 16 queries, are then read from the cache again."""

GROUPS = 64
"""Rows of a group, of which a lower bound of the best scores takes only the maximum."""


@dataclass(frozen=True, slots=True)
class QuantizedVectors:
    """Vectors, each as `scales` times int8 `codes`; `residuals` are the lengths of the differences."""

    codes: Codes
    scales: Scores
    residuals: Scores
    norms: Scores

    @classmethod
    def of(cls, vectors: Vectors) -> QuantizedVectors:
        scales = np.abs(vectors).max(axis=1, initial=0.0) / np.float32(LEVELS)
        # A vector of zeros has no scale; any other represents it as well.
        scales[scales == 0] = 1.0
        levels = np.rint(vectors / scales[:, np.newaxis])
        differences = vectors - levels * scales[:, np.newaxis]
        return cls(levels.astype(np.int8), scales, vector_lengths(differences), vector_lengths(vectors))


def vector_lengths(vectors: Vectors) -> Scores:
    # In float64, since the squares of very short vectors are 0 in float32.
    exact = vectors.astype(np.float64)
    lengths: Scores = np.sqrt(np.vecdot(exact, exact)).astype(np.float32)
    return lengths


class Int8Codes:
    """The codes and scales of vectors by row. A row is written once, before any reader knows it.

    `extremes` has the largest residual and the largest norm of all rows, which only grow.
    """

    def __init__(self, codes: Codes, scales: Scores, extremes: Scores) -> None:
        """Use given arrays, which may be in memory that processes share."""
        self.codes = codes
        self.scales = scales
        self._extremes = extremes

    @classmethod
    def empty(cls, capacity: int, dimensions: int) -> Int8Codes:
        """Return codes in memory of this process, with room for `capacity` rows."""
        extremes = np.zeros(2, np.float32)
        return cls(np.zeros((capacity, dimensions), np.int8), np.zeros(capacity, np.float32), extremes)

    def write(self, begin: int, vectors: Vectors) -> None:
        rounded, end = QuantizedVectors.of(vectors), begin + len(vectors)
        self.codes[begin:end], self.scales[begin:end] = rounded.codes, rounded.scales
        found = np.array([rounded.residuals.max(), rounded.norms.max()], np.float32)
        np.maximum(self._extremes, found, out=self._extremes)

    def copy(self, kept: Any, capacity: int) -> Int8Codes:
        """Return codes that begin with those of the kept rows, with room for `capacity` rows."""
        codes = self.codes[kept]
        copied = Int8Codes.empty(capacity, self.codes.shape[1])
        copied.codes[: len(codes)] = codes
        copied.scales[: len(codes)] = self.scales[kept]
        # Those of rows that are not kept may make the bound a little wider than it must be.
        copied._extremes[:] = self._extremes
        return copied

    def error_bounds(self, queries: QuantizedVectors) -> Scores:
        """Return for each query how much an estimate may differ from its score, be it of float32 or float64."""
        residual, norm = self._extremes
        # With q = q' + a and v = v' + b, of which q' and v' are what the codes say: qv - q'v' = qb + av', and each of
        # these products is at most the product of the norms (Cauchy-Schwarz).
        # The smallest normal number is for products of vectors so short that rounding them is not relative any more.
        rounding = np.float32(ROUNDING) * queries.norms * norm + np.finfo(np.float32).tiny
        bounds: Scores = queries.norms * residual + queries.residuals * (norm + residual) + rounding
        return bounds

    def estimates(
        self, size: int, queries: QuantizedVectors, split: Callable[[int, Callable[[int, int], None]], None]
    ) -> Scores:
        """Return the estimated dot products of queries and the first `size` rows, in a row for each query.

        `split` calls a function for parts of a range of rows, perhaps at the same time.
        """
        packed = numkong.dots_pack(queries.codes)
        codes, scales = self.codes, self.scales
        found = np.empty((len(queries.codes), size), np.float32)

        def fill(begin: int, end: int) -> None:
            for start in range(begin, end, ROWS_PER_PRODUCT):
                stop = min(end, start + ROWS_PER_PRODUCT)
                # Releases the interpreter's lock, and uses no thread but this one.
                products = np.asarray(numkong.dots_packed(codes[start:stop], packed))
                part = found[:, start:stop]
                # int32 fits into float32 here: for 384 dimensions a product is below 2^23.
                part[:] = products.T
                part *= scales[start:stop]
                part *= queries.scales[:, np.newaxis]

        split(size, fill)
        return found


def select_best(estimates: Scores, limit: int, least: float, error: float) -> NDArray[np.intp]:
    """Return the places of all estimates whose scores may be among the `limit` best and at least `least`.

    `error` is the maximum difference between an estimate and its score.
    """
    least -= error
    if len(estimates) > limit:
        # As many scores are at least the limit-th best estimate less `error`; the score of an estimate that is lower by
        # twice the error is below those.
        least = max(least, nth_best_bound(estimates, limit) - 2 * error)
    return np.flatnonzero(estimates >= np.float32(least))


def nth_best_bound(scores: Scores, n: int) -> float:
    """Return a score that at least `n` of the scores, of which there are more, reach: about the n-th best."""
    length = len(scores) // GROUPS
    if length > n:
        # Only the maximum of each group counts, which takes a tenth of the time of looking at all. Each group has rows
        # from everywhere, since neighbours are often alike.
        scores = scores[: length * GROUPS].reshape(GROUPS, length).max(axis=0)
    return float(np.partition(scores, -n)[-n])
