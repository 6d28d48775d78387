"""Where the vectors of the matrix are: in arrays of its own, or once for all processes of a host."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.scoring import Scorer, gathered_products
from cstp_grpc.decisions.store import Vector

Rows = NDArray[np.intp]
"""Numbers of rows."""

Vectors = NDArray[np.float32]

HEADER_BYTES: Final = mmap.ALLOCATIONGRANULARITY
"""What comes before the vectors: how many there are, alone on its page."""

FIRST_SLOTS: Final = 4096
"""How many vectors there is room for at first; the room is doubled when it is full, and memory taken as it is used."""


class RowVectors(Protocol):
    """The vectors of the matrix by row; a row is written once, before a reader knows it."""

    def write(self, place: int, vector: Vector) -> None:
        """Set the vector of a row. Raises ValueError if it has another length."""

    def copy(self, kept: Any, capacity: int) -> RowVectors:
        """Return vectors that begin with those of the rows that are kept, with room for `capacity` rows."""

    def take(self, rows: Rows) -> Vectors:
        """Return the vectors of rows."""

    def products(self, size: int, query: Vector, scorer: Scorer) -> NDArray[np.float32]:
        """Return the dot products of the first `size` rows with a query."""

    def products_of(self, rows: Rows, query: Vector) -> NDArray[np.float32]:
        """Return the dot products of some rows with a query."""


class OwnVectors:
    """Vectors in an array of this process, row by row."""

    def __init__(self, array: Vectors) -> None:
        self._array = array

    def write(self, place: int, vector: Vector) -> None:
        """Set the vector of a row. Raises ValueError if it has another length."""
        self._array[place] = vector

    def copy(self, kept: Any, capacity: int) -> OwnVectors:
        """Return vectors that begin with those of the rows that are kept, with room for `capacity` rows."""
        entries = self._array[kept]
        array = np.zeros((capacity, self._array.shape[1]), np.float32)
        array[: len(entries)] = entries
        return OwnVectors(array)

    def take(self, rows: Rows) -> Vectors:
        """Return the vectors of rows."""
        return self._array[rows]

    def products(self, size: int, query: Vector, scorer: Scorer) -> NDArray[np.float32]:
        """Return the dot products of the first `size` rows with a query."""
        return scorer.products(self._array[:size], query)

    def products_of(self, rows: Rows, query: Vector) -> NDArray[np.float32]:
        """Return the dot products of some rows with a query."""
        return gathered_products(self._array, rows, query)


class VectorPool:
    """Vectors in memory that all processes with its descriptor map, each vector once, in a slot that never changes.

    A vector is found by its bytes, so that processes need not agree on anything: who adds one that another process has
    added gets its slot. A slot counts once it is written, so that whoever dies while writing leaves no other than its
    own unfinished. Slots are not freed before the memory is, which its last process takes along. One thread of a
    process at a time may add; any may read.
    """

    def __init__(self, descriptor: int, dimensions: int) -> None:
        """Map the memory, which is empty or holds vectors of so many dimensions."""
        self._descriptor = descriptor
        self._dimensions = dimensions
        self._slots: dict[int, int] = {}
        """Slots by the hash of what is in them, as far as this process has looked; of two with one hash, the last."""
        self._seen = 0
        # Each mapping has a descriptor of its own, and closing any descriptor of the memory ends the process's lock.
        self._mappings: list[mmap.mmap] = []
        with self._sole_access():
            if os.fstat(descriptor).st_size == 0:
                self._resize(FIRST_SLOTS)
            self._map()

    @property
    def vectors(self) -> Vectors:
        """The vectors of all slots that this process knows."""
        return self._array[: self._seen]

    def slot_of(self, vector: Vector) -> int:
        """Return the slot of a vector, which is added if it is in none. Raises ValueError if it has another length."""
        if vector.shape != (self._dimensions,):
            raise ValueError(f"a vector has the shape {vector.shape}, not ({self._dimensions},)")
        content = np.ascontiguousarray(vector, np.float32).tobytes()
        found = self._find(content)
        return self._add(content) if found is None else found

    def _find(self, content: bytes) -> int | None:
        slot = self._slots.get(hash(content))
        return slot if slot is not None and self._array[slot].tobytes() == content else None

    def _add(self, content: bytes) -> int:
        with self._sole_access():
            self._look()
            found = self._find(content)
            if found is not None:
                return found
            slot = self._seen
            if slot == self._capacity():
                self._resize(2 * slot)
            if slot == len(self._array):
                self._map()
            self._array[slot] = np.frombuffer(content, np.float32)
            self._count[0] = slot + 1
            self._look()
            return slot

    def _look(self) -> None:
        """Take note of what was added since the last time."""
        count = int(self._count[0])
        if count > len(self._array):
            self._map()
        for slot in range(self._seen, count):
            self._slots[hash(self._array[slot].tobytes())] = slot
        self._seen = count

    def _capacity(self) -> int:
        return (os.fstat(self._descriptor).st_size - HEADER_BYTES) // (4 * self._dimensions)

    def _resize(self, slots: int) -> None:
        os.ftruncate(self._descriptor, HEADER_BYTES + slots * 4 * self._dimensions)

    def _map(self) -> None:
        memory = mmap.mmap(self._descriptor, os.fstat(self._descriptor).st_size)
        self._mappings.append(memory)
        self._count = np.frombuffer(memory, np.int64, 1)
        array = np.frombuffer(memory, np.float32, offset=HEADER_BYTES)
        self._array = array[: self._capacity() * self._dimensions].reshape(-1, self._dimensions)

    @contextmanager
    def _sole_access(self) -> Iterator[None]:
        """Keep other processes from adding; the lock ends with its process."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1)


class PooledVectors:
    """Vectors in a pool, by the slot of each row."""

    def __init__(self, pool: VectorPool, slots: NDArray[np.int32]) -> None:
        self._pool = pool
        self._slots = slots

    def write(self, place: int, vector: Vector) -> None:
        """Set the vector of a row. Raises ValueError if it has another length."""
        self._slots[place] = self._pool.slot_of(vector)

    def copy(self, kept: Any, capacity: int) -> PooledVectors:
        """Return vectors that begin with those of the rows that are kept, with room for `capacity` rows."""
        entries = self._slots[kept]
        slots = np.zeros(capacity, np.int32)
        slots[: len(entries)] = entries
        return PooledVectors(self._pool, slots)

    def take(self, rows: Rows) -> Vectors:
        """Return the vectors of rows."""
        return self._pool.vectors[self._slots[rows]]

    def products(self, size: int, query: Vector, scorer: Scorer) -> NDArray[np.float32]:
        """Return the dot products of the first `size` rows with a query."""
        vectors = self._pool.vectors
        if len(vectors) > 2 * size:
            # Most slots are of rows that are gone.
            return gathered_products(vectors, self._slots[:size], query)
        return scorer.products(vectors, query)[self._slots[:size]]

    def products_of(self, rows: Rows, query: Vector) -> NDArray[np.float32]:
        """Return the dot products of some rows with a query."""
        return gathered_products(self._pool.vectors, self._slots[rows], query)
