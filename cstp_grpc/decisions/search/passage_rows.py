"""The vectors of the passages of all rows, and the best similarity of each row to a query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.search.row_vectors import (
    LocalVectors,
    ParallelDotProduct,
    Rows,
    RowVectors,
    SharedVectorPool,
    SharedVectors,
)
from cstp_grpc.decisions.store import PassageVectors, Vector, Vectors

Similarities = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PassageRows:
    """The passages of rows, in the order of the rows; each row has at least one.

    `starts` has the first passage of each row, with spare capacity, `has_lesson` whether its last one is a lesson;
    `vectors` are those of all passages, of which `capacity` fit.
    """

    vectors: RowVectors
    capacity: int
    starts: NDArray[np.int64]
    has_lesson: NDArray[np.bool_]

    @classmethod
    def empty(cls, capacity: int, dimensions: int, pool: SharedVectorPool | None) -> PassageRows:
        """Return no rows, with room for `capacity` rows of one passage; with `pool`, vectors are shared."""
        vectors: RowVectors
        if pool is None:
            vectors = LocalVectors.empty(capacity, dimensions)
        else:
            vectors = SharedVectors(pool, np.zeros(capacity, np.int32))
        return cls(vectors, capacity, np.zeros(capacity, np.int64), np.zeros(capacity, np.bool_))

    def with_room(self, rows: int, row_capacity: int, passages: int, added: int) -> PassageRows:
        """Return passages that begin with those of the first `rows`, with room for `added` more beyond `passages`.

        There is room for `row_capacity` rows. Returns this object if it has the room.
        """
        grown = self
        if len(self.starts) < row_capacity:
            starts, has_lesson = np.zeros(row_capacity, np.int64), np.zeros(row_capacity, np.bool_)
            starts[:rows], has_lesson[:rows] = self.starts[:rows], self.has_lesson[:rows]
            grown = PassageRows(self.vectors, self.capacity, starts, has_lesson)
        if passages + added > self.capacity:
            capacity = max(2 * self.capacity, passages + added)
            vectors = self.vectors.copy(slice(0, passages), capacity)
            grown = PassageRows(vectors, capacity, grown.starts, grown.has_lesson)
        return grown

    def write(self, row: int, start: int, passages: PassageVectors) -> int:
        """Write the passages of a row that no reader knows yet, and return the end of them.

        Raises ValueError if the length of a vector is wrong.
        """
        for place, vector in enumerate(passages.vectors, start):
            self.vectors.write(place, vector)
        self.starts[row], self.has_lesson[row] = start, passages.has_lesson
        return start + len(passages.vectors)

    def kept(self, rows: Rows, size: int, end: int, capacity: int) -> tuple[PassageRows, int]:
        """Return the passages of some of `size` rows with room for `capacity` rows, and the end of them."""
        numbers, starts = self.numbers_of(rows, size, end)
        copied = np.zeros(capacity, np.int64)
        copied[: len(rows)] = starts
        has_lesson = np.zeros(capacity, np.bool_)
        has_lesson[: len(rows)] = self.has_lesson[rows]
        room = max(capacity, 2 * len(numbers))
        return PassageRows(self.vectors.copy(numbers, room), room, copied, has_lesson), len(numbers)

    def numbers_of(self, rows: Rows, size: int, end: int) -> tuple[Rows, NDArray[np.int64]]:
        """Return the numbers of the passages of some of `size` rows, and where those of each row begin among them.

        `end` is the number of passages of all `size` rows.
        """
        if end == size:
            return rows, np.arange(len(rows))
        starts = self.starts[rows]
        counts = np.append(self.starts[1:size], end)[rows] - starts
        firsts = np.cumsum(counts) - counts
        return np.repeat(starts - firsts, counts) + np.arange(int(counts.sum())), firsts

    def best_of_all(self, size: int, end: int, query: Vector, scorer: ParallelDotProduct) -> Similarities:
        """Return the similarity of the best passage of each of the first `size` rows, which have `end` passages."""
        return self.best_of_each(self.vectors.products(end, query, scorer), size)

    def best_of_each(self, scores: Similarities, size: int) -> Similarities:
        """Return the best of the scores of each of the first `size` rows, of which `scores` has all passages."""
        return scores if len(scores) == size else np.maximum.reduceat(scores, self.starts[:size])

    def best_of(self, rows: Rows, size: int, end: int, query: Vector) -> Similarities:
        """Return the similarity of the best passage of some of `size` rows, which have `end` passages together."""
        numbers, firsts = self.numbers_of(rows, size, end)
        products = self.vectors.products_of(numbers, query)
        return products if len(products) == len(rows) else np.maximum.reduceat(products, firsts)

    def take(self, rows: Rows, size: int, end: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Return the vectors of the passages of some rows, and where those of each row begin among them."""
        numbers, firsts = self.numbers_of(rows, size, end)
        return self.vectors.take(numbers), firsts
