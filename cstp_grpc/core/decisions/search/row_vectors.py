"""The vectors of the matrix, private or shared by processes, and their dot products.

None of the products of float32 is a matrix product: BLAS splits those among threads that wait by spinning, which made a
server with more calls than cores a hundred times slower. Most of the time is spent reading the vectors, so a scan of
many rows reads their int8 codes (scalar quantization), which take a quarter of the memory. Their dot products estimate
those of the vectors within a bound.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import numkong
import numpy as np
from numpy.typing import NDArray

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.decisions.store import Vector, Vectors

Codes = NDArray[np.int8]
Scores = NDArray[np.float32]
Numbers = NDArray[np.intp] | NDArray[np.int32]
Float = TypeVar("Float", np.float32, np.float64)

MIN_CODES_TO_SPLIT = 12_000
"""int8 codes from which a second core saves more than handing work to a thread costs (measured)."""

ROWS_PER_ENCODING = 512
"""Rows whose codes are made together. Chosen: the vectors are still in a processor's cache."""

ROWS_PER_GATHER = 256
"""Rows gathered at a time. Chosen: 256 vectors of 384 float32 are 400 KB, which stay in a processor's L2 cache."""


def dot_products(vectors: NDArray[Float], query: NDArray[Float]) -> NDArray[Float]:
    scores: NDArray[Float] = np.vecdot(vectors, query)
    return scores


def gather_dot_products(vectors: NDArray[Float], rows: Numbers, query: NDArray[Float]) -> NDArray[Float]:
    scores = np.empty(len(rows), vectors.dtype)
    for start in range(0, len(rows), ROWS_PER_GATHER):
        scores[start : start + ROWS_PER_GATHER] = dot_products(vectors[rows[start : start + ROWS_PER_GATHER]], query)
    return scores


class CodeScanner:
    """Scans int8 codes with a second thread, unless another call is using it."""

    def __init__(self) -> None:
        self._helper = ThreadPoolExecutor(1, "scoring")
        # Taken without waiting: a call that finds the helper busy computes alone, since all cores are in use then.
        self._free = threading.Lock()

    def split(self, count: int, work: Callable[[int, int], None]) -> None:
        """Call a function that reads so many codes for all of them, or for both halves at the same time."""
        if count < MIN_CODES_TO_SPLIT or not self._free.acquire(blocking=False):
            work(0, count)
            return
        try:
            other = self._helper.submit(work, count // 2, count)
            try:
                work(0, count // 2)
            finally:
                other.result()
        finally:
            self._free.release()


LEVELS = 127
"""The largest magnitude of a code; -128 is not used, so that codes are symmetric."""

ROUNDING = 1e-5
"""Share of the product of two norms by which float32 arithmetic may be off, in a score or an estimate of it: sums of
some hundred products err by about 1e-6."""

ROWS_PER_PRODUCT = 1 << 17
"""Rows of one matrix product. Chosen: its int32 results, 8 MB for 16 queries, are then read from the cache again."""


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
        self.extremes = extremes

    @classmethod
    def empty(cls, capacity: int, dimensions: int) -> Int8Codes:
        """Return codes in memory of this process, with room for `capacity` rows."""
        extremes = np.zeros(2, np.float32)
        return cls(np.zeros((capacity, dimensions), np.int8), np.zeros(capacity, np.float32), extremes)

    def write(self, begin: int, vectors: Vectors) -> None:
        rounded, end = QuantizedVectors.of(vectors), begin + len(vectors)
        self.codes[begin:end], self.scales[begin:end] = rounded.codes, rounded.scales
        found = np.array([rounded.residuals.max(), rounded.norms.max()], np.float32)
        np.maximum(self.extremes, found, out=self.extremes)

    def copy(self, kept: Any, capacity: int) -> Int8Codes:
        """Return codes that begin with those of the kept rows, with room for `capacity` rows."""
        codes = self.codes[kept]
        copied = Int8Codes.empty(capacity, self.codes.shape[1])
        copied.codes[: len(codes)] = codes
        copied.scales[: len(codes)] = self.scales[kept]
        # Those of rows that are not kept may make the bound a little wider than it must be.
        copied.extremes[:] = self.extremes
        return copied

    def error_bounds(self, queries: QuantizedVectors) -> Scores:
        """Return for each query how much an estimate may differ from its score, be it of float32 or float64."""
        residual, norm = self.extremes
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


Rows = NDArray[np.intp]
"""Numbers of rows."""

HEADER_BYTES: Final = mmap.ALLOCATIONGRANULARITY
"""Bytes before the vectors: the number of complete slots as int64, the extremes of the codes as two float32, and
padding to a page boundary."""

CODES_OFFSET: Final = 1 << 40
SCALES_OFFSET: Final = 2 << 40
"""Where the codes and their scales begin: far behind any vector, so that all three grow without being moved."""

FIRST_SLOTS: Final = 4096
"""Initial number of slots, doubled when full. The file is sparse: memory is used only for slots that are written."""


SAVED_NAMES: Final = ("vectors", "codes", "scales", "extremes")
ROWS_PER_PART: Final = 4096
"""Rows saved at a time. Chosen: their vectors of 384 float32 take 6 MB of memory."""


class LocalVectors:
    """Vectors and codes in arrays of this process, row by row; a row is written once, before any reader knows it."""

    def __init__(self, array: Vectors, codes: Int8Codes, encoded: int) -> None:
        """Use an array whose first rows, if any, have their codes already."""
        self._array = array
        self._codes = codes
        self._encoded = encoded
        """How many rows have codes; the others get theirs together, which takes a tenth of the time."""
        # Guards `_encoded` and the codes of the rows from there on: readers encode, too.
        self._lock = threading.Lock()

    @classmethod
    def empty(cls, capacity: int, dimensions: int) -> LocalVectors:
        return cls(np.zeros((capacity, dimensions), np.float32), Int8Codes.empty(capacity, dimensions), 0)

    def write(self, place: int, vector: Vector) -> None:
        """Write the vector of a row. Raises ValueError if its length is wrong."""
        self._array[place] = vector
        if place >= self._encoded + ROWS_PER_ENCODING:
            self._encode(place)

    def copy(self, kept: Any, capacity: int) -> LocalVectors:
        """Return vectors that begin with those of the kept rows, with room for `capacity` rows."""
        entries = self._array[kept]
        self._encode(int(np.arange(len(self._array))[kept].max(initial=-1)) + 1)
        array = np.zeros((capacity, self._array.shape[1]), np.float32)
        array[: len(entries)] = entries
        return LocalVectors(array, self._codes.copy(kept, capacity), len(entries))

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]], count: int) -> LocalVectors:
        """Return the vectors of which `save` returned the arrays, `count` of them; the arrays may have more room."""
        vectors, codes, scales, extremes = (arrays[name] for name in SAVED_NAMES)
        return cls(vectors, Int8Codes(codes, scales, extremes[:2]), count)

    def save(self, rows: Rows) -> Sequence[tuple[str, Iterable[NDArray[Any]]]]:
        """Return the arrays of some rows by name, each in parts."""
        self._encode(int(rows.max(initial=-1)) + 1)
        arrays: Sequence[NDArray[Any]] = self._array, self._codes.codes, self._codes.scales
        split = np.array_split(rows, len(rows) // ROWS_PER_PART + 1)
        parts = [map(array.__getitem__, split) for array in arrays]
        return [*zip(SAVED_NAMES, parts, strict=False), (SAVED_NAMES[-1], [self._codes.extremes])]

    def take(self, rows: Rows) -> Vectors:
        return self._array[rows]

    def products(self, size: int, query: Vector) -> Scores:
        return dot_products(self._array[:size], query)

    def products_of(self, rows: Rows, query: Vector) -> Scores:
        return gather_dot_products(self._array, rows, query)

    def estimates(self, size: int, queries: QuantizedVectors, scanner: CodeScanner) -> Scores:
        """Return the estimated dot products of queries with the first `size` rows, in a row for each query."""
        self._encode(size)
        return self._codes.estimates(size, queries, scanner.split)

    def error_bounds(self, queries: QuantizedVectors) -> Scores:
        return self._codes.error_bounds(queries)

    def _encode(self, end: int) -> None:
        """Make the codes of the rows before `end`, all of which are written."""
        # Read without the lock: it only grows.
        if self._encoded < end:
            with self._lock:
                if self._encoded < end:
                    self._codes.write(self._encoded, self._array[self._encoded : end])
                    self._encoded = end


class SharedVectorPool:
    """Vectors and codes in memory that several processes map, each vector once, in a slot that never changes.

    Vectors are found by their bytes, so that processes need no coordination: adding a vector that another process has
    added returns its slot. A slot counts only once it is written, so that a process that dies while writing leaves only
    its own slot unfinished. Slots are freed only with the whole memory, when its last process ends. One thread per
    process at a time may add; any thread may read.
    """

    def __init__(self, descriptor: int, dimensions: int) -> None:
        """Map the memory, which is empty or contains vectors of `dimensions`."""
        self._descriptor = descriptor
        self._dimensions = dimensions
        self._slots: dict[int, int] = {}
        """The slots below `_seen` by the hash of their bytes; of two slots with one hash, the last one."""
        self._seen = 0
        """How many slots this process has read."""
        # Old mappings are never closed. Arrays of readers point into them; and each has a descriptor of its own, and
        # closing any descriptor of a file releases the record lock that the process holds on it (POSIX fcntl).
        self._mappings: list[mmap.mmap] = []
        # Under the lock, so that of several processes that start together only one sets the size.
        with self._exclusive_lock():
            if os.fstat(descriptor).st_size == 0:
                self._resize(FIRST_SLOTS)
            self._map()

    @property
    def vectors(self) -> Vectors:
        # The array first: a mapping made in between only adds slots. Rows of published snapshots are in either.
        return self._array[: self._seen]

    @property
    def codes(self) -> Int8Codes:
        """The codes of at least the slots of `vectors`."""
        return self._codes

    def slot_of(self, vector: Vector) -> int:
        """Return the slot of a vector, adding the vector if it is new. Raises ValueError if its length is wrong."""
        if vector.shape != (self._dimensions,):
            raise ValueError(f"a vector has the shape {vector.shape}, not ({self._dimensions},)")
        content = np.ascontiguousarray(vector, np.float32).tobytes()
        found = self._find(content)
        return self._add(content) if found is None else found

    def _find(self, content: bytes) -> int | None:
        # The bytes are compared too, because different vectors may have equal hashes.
        slot = self._slots.get(hash(content))
        return slot if slot is not None and self._array[slot].tobytes() == content else None

    def _add(self, content: bytes) -> int:
        with self._exclusive_lock():
            self._read_new_slots()
            # Looked up again: another process may have added the vector before this one got the lock.
            found = self._find(content)
            if found is not None:
                return found
            slot = self._seen
            if slot == self._capacity():
                self._resize(2 * slot)
            if slot == len(self._array):
                self._map()
            # The vector before the count. If the process is killed in between, or after the resize above, the count
            # does not include the slot, the kernel drops the lock, and the next process writes to the slot again.
            self._array[slot] = np.frombuffer(content, np.float32)
            self._codes.write(slot, self._array[slot : slot + 1])
            self._count[0] = slot + 1
            self._read_new_slots()
            return slot

    def _read_new_slots(self) -> None:
        count = int(self._count[0])
        if count > len(self._array):
            self._map()
        for slot in range(self._seen, count):
            self._slots[hash(self._array[slot].tobytes())] = slot
        self._seen = count

    def _capacity(self) -> int:
        return (os.fstat(self._descriptor).st_size - SCALES_OFFSET) // 4

    def _resize(self, slots: int) -> None:
        # The file is as long as its last part, the scales; unwritten parts take no memory.
        os.ftruncate(self._descriptor, SCALES_OFFSET + 4 * slots)

    def _map(self) -> None:
        slots, dimensions = self._capacity(), self._dimensions
        memory = self._map_part(0, HEADER_BYTES + 4 * slots * dimensions)
        codes = self._map_part(CODES_OFFSET, slots * dimensions)
        scales = self._map_part(SCALES_OFFSET, 4 * slots)
        # All mappings show the same pages, so a count written through any of them is seen through this one.
        self._count = np.frombuffer(memory, np.int64, 1)
        self._codes = Int8Codes(
            np.frombuffer(codes, np.int8).reshape(slots, dimensions),
            np.frombuffer(scales, np.float32),
            np.frombuffer(memory, np.float32, 2, offset=8),
        )
        self._array = np.frombuffer(memory, np.float32, offset=HEADER_BYTES).reshape(slots, dimensions)

    def _map_part(self, offset: int, length: int) -> mmap.mmap:
        part = mmap.mmap(self._descriptor, length, offset=offset)
        self._mappings.append(part)
        return part

    @contextmanager
    def _exclusive_lock(self) -> Iterator[None]:
        """Lock out other processes that add; the lock ends with its process."""
        # A record lock belongs to the process: it does not keep two threads of one process apart.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1)


class SharedVectors:
    """Vectors in a shared pool, by the slot of each row; otherwise as `LocalVectors`."""

    def __init__(self, pool: SharedVectorPool, slots: NDArray[np.int32]) -> None:
        self._pool = pool
        self._slots = slots

    def write(self, place: int, vector: Vector) -> None:
        self._slots[place] = self._pool.slot_of(vector)

    def copy(self, kept: Any, capacity: int) -> SharedVectors:
        entries = self._slots[kept]
        slots = np.zeros(capacity, np.int32)
        slots[: len(entries)] = entries
        return SharedVectors(self._pool, slots)

    def take(self, rows: Rows) -> Vectors:
        return self._pool.vectors[self._slots[rows]]

    def products(self, size: int, query: Vector) -> Scores:
        vectors = self._pool.vectors
        if len(vectors) > 2 * size:
            # Most slots belong to replaced rows, so gathering reads less memory than scoring all slots.
            return gather_dot_products(vectors, self._slots[:size], query)
        return dot_products(vectors, query)[self._slots[:size]]

    def products_of(self, rows: Rows, query: Vector) -> Scores:
        return gather_dot_products(self._pool.vectors, self._slots[rows], query)

    def estimates(self, size: int, queries: QuantizedVectors, scanner: CodeScanner) -> Scores:
        # The slots first: the codes have at least these.
        slots = len(self._pool.vectors)
        codes, taken = self._pool.codes, self._slots[:size]
        if slots > 2 * size:
            return codes.copy(taken, size).estimates(size, queries, scanner.split)
        return codes.estimates(slots, queries, scanner.split)[:, taken]

    def error_bounds(self, queries: QuantizedVectors) -> Scores:
        return self._pool.codes.error_bounds(queries)


RowVectors = LocalVectors | SharedVectors
"""The vectors of the matrix by row."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The estimated scores of the first `size` rows of `vectors`, and by how much they may be off, for each query."""

    vectors: RowVectors
    size: int
    estimates: Scores
    bounds: Scores


class QueryBatch:
    """Queries whose scores are estimated in one scan, as soon as the first of them needs it. Safe for many threads."""

    def __init__(self, queries: Sequence[Vector]) -> None:
        self._queries = {query.tobytes(): query for query in queries}
        self.places = {key: place for place, key in enumerate(self._queries)}
        """The place of each query in the batch, by its bytes."""
        # Held during the scan, so that others of the batch wait for its result.
        self._lock = threading.Lock()
        self._scan: Scan | None = None

    def scan(self, vectors: RowVectors, size: int, scanner: CodeScanner) -> Scan:
        with self._lock:
            scan = self._scan
            if scan is None or scan.vectors is not vectors or scan.size < size:
                # Only now: most queries are of journals that are too small for a scan.
                rounded = QuantizedVectors.of(np.array(list(self._queries.values())))
                estimates = vectors.estimates(size, rounded, scanner)
                # Afterwards, since the bounds are of all rows that have codes.
                scan = self._scan = Scan(vectors, size, estimates, vectors.error_bounds(rounded))
            return scan


class SharedScans:
    """Estimates scores, for queries that are expected together in one scan. Safe for many threads.

    Reading the codes of all rows takes most of the time of a scan, so 16 queries together take three times as long as
    one.
    """

    def __init__(self, scanner: CodeScanner) -> None:
        self._scanner = scanner
        # Read and written without a lock: each operation on the dict is atomic, and a query that is found in no batch,
        # or in that of another caller, gets the same estimates.
        self._expected: dict[bytes, QueryBatch] = {}

    @contextmanager
    def expect(self, queries: Sequence[Vector]) -> Iterator[None]:
        """Scan for all of the queries when one of them needs it, until the end of the block.

        Queries that are expected already, such as by an outer block, stay with the queries of that block.
        """
        batch = QueryBatch(queries)
        for key in batch.places:
            self._expected.setdefault(key, batch)
        try:
            yield
        finally:
            for key in batch.places:
                if self._expected.get(key) is batch:
                    self._expected.pop(key, None)

    def estimates(self, vectors: RowVectors, size: int, query: Vector) -> tuple[Scores, float]:
        key = query.tobytes()
        batch = self._expected.get(key) or QueryBatch([query])
        scan, place = batch.scan(vectors, size, self._scanner), batch.places[key]
        return scan.estimates[place, :size], float(scan.bounds[place])
