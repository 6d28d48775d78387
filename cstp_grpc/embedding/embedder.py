"""The port of embedders, and a cache in front of one."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
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


def cache_key(text: str) -> bytes:
    """Return a fixed-size hash of a text, so that long texts do not fill the cache."""
    # 128 bits: a collision would give a text the vector of another one. surrogatepass, because a text may contain
    # lone surrogates, which JSON can express.
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
