"""Dot products of many vectors with one.

None of them is a matrix product: for that, BLAS splits the work among threads that wait for each other by spinning,
which made a server with more calls than cores a hundred times slower. What takes the time is reading the vectors.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.intp] | NDArray[np.int32]
Float = TypeVar("Float", np.float32, np.float64)

SPLIT_FROM = 3000
"""Vectors from which on a second core saves more than it costs to ask it."""

GATHERED = 256
"""How many rows are gathered at a time; so many vectors stay in the processor's cache."""


def products(vectors: NDArray[Float], query: NDArray[Float]) -> NDArray[Float]:
    """Return the dot product of each vector with a query."""
    scores: NDArray[Float] = np.vecdot(vectors, query)
    return scores


def gathered_products(vectors: NDArray[Float], rows: Numbers, query: NDArray[Float]) -> NDArray[Float]:
    """Return the dot products of some of the vectors with a query."""
    scores = np.empty(len(rows), vectors.dtype)
    for start in range(0, len(rows), GATHERED):
        scores[start : start + GATHERED] = products(vectors[rows[start : start + GATHERED]], query)
    return scores


class Scorer:
    """Computes dot products with the help of a second thread while no other call has it."""

    def __init__(self) -> None:
        self._helper = ThreadPoolExecutor(1, "scoring")
        self._free = threading.Lock()

    def products(self, vectors: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the dot product of each vector with a query."""
        if len(vectors) < SPLIT_FROM or not self._free.acquire(blocking=False):
            return products(vectors, query)
        try:
            half = len(vectors) // 2
            scores = np.empty(len(vectors), np.float32)
            other = self._helper.submit(np.vecdot, vectors[half:], query, scores[half:])
            np.vecdot(vectors[:half], query, scores[:half])
            other.result()
        finally:
            self._free.release()
        return scores
