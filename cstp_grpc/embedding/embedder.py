"""The port of embedders, a cache in front of one, and the batches of tokenised texts that they work on in threads."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """Converts texts to unit vectors whose dot product is their cosine similarity. Safe for many threads."""

    @property
    def model(self) -> str:
        """The model's name; vectors of different models cannot be compared."""

    @property
    def dimensions(self) -> int:
        """The length of the vectors."""

    def is_cached(self, text: str) -> bool:
        """Return True if the vector of a text is in memory, so that `embed` computes nothing."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 of shape (len(texts), dimensions), each row of length 1. Raises QueryFailed."""


class CachedEmbedder:
    """Caches the vectors of the `size` single texts that were used last.

    Batches of texts are not cached, so that an import does not displace queries.
    """

    def __init__(self, inner: Embedder, size: int) -> None:
        self._inner = inner
        self._vectors: LRUCache[bytes, Vectors] = LRUCache(size)
        # Guards the cache, whose lookups reorder it; held for no computation. Two threads may embed the same text, and
        # the later of the two equal results stays.
        self._lock = threading.Lock()

    @property
    def model(self) -> str:
        """The name of the inner embedder's model."""
        return self._inner.model

    @property
    def dimensions(self) -> int:
        """The length of the vectors."""
        return self._inner.dimensions

    def is_cached(self, text: str) -> bool:
        """Return True if the vector of a text is cached."""
        # Without the lock: `in` does not reorder the cache, and an outdated answer only costs time.
        return cache_key(text) in self._vectors

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of the texts; that of a single text is shared and read-only. Raises QueryFailed."""
        if len(texts) != 1:
            return self._inner.embed(texts)
        key = cache_key(texts[0])
        with self._lock:
            known = self._vectors.get(key)
        if known is not None:
            return known
        vectors = self._inner.embed(texts)
        # The cache and all callers share this array.
        vectors.setflags(write=False)
        with self._lock:
            self._vectors[key] = vectors
        return vectors


class LazyEmbedder:
    """Loads an embedder when the first text is embedded, for processes that may end without embedding any."""

    def __init__(self, model: str, dimensions: int, load: Callable[[], Embedder]) -> None:
        """State the model and the length of its vectors, which must be known before it is loaded."""
        self._model = model
        self._dimensions = dimensions
        self._load = load
        # Held while loading: other threads wait for it in place of loading the model too.
        self._lock = threading.Lock()
        self._loaded: Embedder | None = None

    @property
    def model(self) -> str:
        """The model's name."""
        return self._model

    @property
    def dimensions(self) -> int:
        """The length of the vectors."""
        return self._dimensions

    def is_cached(self, text: str) -> bool:  # noqa: ARG002
        """Return False: no vector is cached."""
        return False

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of the texts. Raises QueryFailed, and what loading raises."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            loaded = self._loaded
        return loaded.embed(texts)


def cache_key(text: str) -> bytes:
    """Return a fixed-size hash of a text, so that long texts do not fill the cache."""
    # 128 bits: a collision would give a text the vector of another one. surrogatepass, because a text may contain
    # lone surrogates, which JSON can express.
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


BATCH_TOKENS = 256
"""Tokens of a batch, padding included; a longer text is a batch of its own. Measured on real records: with 2048 tokens
the intermediate arrays of a transformer leave the processor's caches, and a text takes a third more CPU time.
"""


def batch_by_length(lengths: Sequence[int], max_tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Yield the positions of texts in batches of similar length, the longest texts first."""
    batch: list[int] = []
    longest = 0
    # The longest first, so that threads which share the batches end at nearly the same time.
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        # All texts of a batch are padded to its first.
        if batch and (len(batch) + 1) * longest > max_tokens:
            yield batch
            batch = []
        longest = longest if batch else lengths[index]
        batch.append(index)
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class EmbeddingThreads:
    """Threads of an embedder: for one batch of texts, and for how many batches at once."""

    per_batch: int = 1
    batches: int = 1


ONE_THREAD = EmbeddingThreads()


class BatchThreads:
    """Runs work on batches with several threads, which all calls share; a single batch runs on the caller's thread."""

    def __init__(self, threads: int) -> None:
        # Its threads start with the first work that needs them, so that a server without imports has none.
        self._pool = ThreadPoolExecutor(threads, "embedding") if threads > 1 else None

    def run(self, work: Callable[[list[int]], None], batches: Sequence[list[int]]) -> None:
        """Call `work` with each batch. Raises what `work` raises for the first batch that fails."""
        if self._pool is None or len(batches) < 2:
            for batch in batches:
                work(batch)
        else:
            # Exhausted, since `map` raises the error of a batch only when its result is taken.
            for _ in self._pool.map(work, batches):
                pass
