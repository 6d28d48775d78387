"""A memory for the vectors of texts that are asked for again."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence

from cachetools import LRUCache

from cstp_grpc.decisions.embedding import Embedder, Vectors


class CachedEmbedder:
    """Keeps the vectors of the `size` single texts that were used last.

    Several texts at once are not kept, so that an import does not displace the queries.
    """

    def __init__(self, inner: Embedder, size: int) -> None:
        self._inner = inner
        self._vectors: LRUCache[bytes, Vectors] = LRUCache(size)
        self._lock = threading.Lock()

    @property
    def model(self) -> str:
        """The name of the model behind."""
        return self._inner.model

    @property
    def dimensions(self) -> int:
        """How long the vectors are."""
        return self._inner.dimensions

    def is_cached(self, text: str) -> bool:
        """Whether the vector of a text is among those that are kept."""
        return digest(text) in self._vectors

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of the texts; that of a single text is shared and read-only. Raises QueryFailed."""
        if len(texts) != 1:
            return self._inner.embed(texts)
        key = digest(texts[0])
        with self._lock:
            known = self._vectors.get(key)
        if known is not None:
            return known
        vectors = self._inner.embed(texts)
        vectors.setflags(write=False)
        with self._lock:
            self._vectors[key] = vectors
        return vectors


def digest(text: str) -> bytes:
    """Return a short name for a text, so that long texts do not fill the memory."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
