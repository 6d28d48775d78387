"""The port of embedders, wrappers (a cache, centring), and batches of tokenised texts."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from cstp_grpc.common.lazy_dataclass import dataclass

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

    @property
    def embeds_together(self) -> bool:
        """Whether `embed_together` caches vectors."""

    def embed_together(self, texts: Iterable[str]) -> None:
        """Cache the vectors of single texts that several callers need, all computed at once. Raises QueryFailed."""


class UncachedEmbedder:
    """Base of embedders that compute each vector when it is asked for."""

    embeds_together = False

    def is_cached(self, text: str) -> bool:  # noqa: ARG002
        return False

    def embed_together(self, texts: Iterable[str]) -> None:
        """Do nothing: the vectors would be computed again."""


class Embedders(NamedTuple):
    """The embedders of stored texts and of queries for them, which differ for a model with prompts.

    Texts that are compared as equals, such as intents, are all embedded as stored texts.
    """

    stored: Embedder
    queries: Embedder


class PromptedEmbedder(UncachedEmbedder):
    """Puts the prompt of one side before texts; it counts where the inner embedder truncates them."""

    def __init__(self, inner: Embedder, prefix: str, model: str) -> None:
        """State the model's name, which is that of both sides."""
        self.model, self.dimensions = model, inner.dimensions
        self._inner = inner
        self._prefix = prefix

    def is_cached(self, text: str) -> bool:
        return self._inner.is_cached(self._prefix + text)

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._inner.embed([self._prefix + text for text in texts])


class CachedEmbedder:
    """Caches the vectors of the `size` single texts that were used last.

    Batches of texts are not cached, so that an import does not displace queries. If `is_remote`, other callers do not
    wait for the text of one.
    """

    def __init__(self, inner: Embedder, size: int, *, is_remote: bool = False) -> None:
        self.embeds_together = not is_remote
        self.model, self.dimensions = inner.model, inner.dimensions
        self._inner = inner
        self._vectors: LRUCache[bytes, Vectors] = LRUCache(size)
        # Guards the cache, whose lookups reorder it; held for no computation. Two threads may embed the same text, and
        # the later of the two equal results stays.
        self._lock = threading.Lock()

    def is_cached(self, text: str) -> bool:
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
        self._keep(key, vectors)
        return vectors

    def embed_together(self, texts: Iterable[str]) -> None:
        if unknown := [text for text in dict.fromkeys(texts) if not self.is_cached(text)]:
            for text, vector in zip(unknown, self._inner.embed(unknown), strict=True):
                # A copy, so that one cached vector does not keep the others in memory.
                self._keep(cache_key(text), vector[np.newaxis].copy())

    def _keep(self, key: bytes, vectors: Vectors) -> None:
        # The cache and all callers share this array.
        vectors.setflags(write=False)
        with self._lock:
            self._vectors[key] = vectors


class LazyEmbedder(UncachedEmbedder):
    """Loads an embedder when the first text is embedded, for processes that may end without embedding any."""

    def __init__(self, model: str, dimensions: int, load: Callable[[], Embedder]) -> None:
        """State the model and the length of its vectors, which must be known before it is loaded."""
        self.model, self.dimensions = model, dimensions
        self._load = load
        # Held while loading: other threads wait for it in place of loading the model too.
        self._lock = threading.Lock()
        self._loaded: Embedder | None = None

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of the texts. Raises QueryFailed, and the errors of loading."""
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
        """Call `work` with each batch. Raises the error of `work` for the first batch that fails."""
        if self._pool is None or len(batches) < 2:
            for batch in batches:
                work(batch)
        else:
            # Exhausted, since `map` raises the error of a batch only when its result is taken.
            for _ in self._pool.map(work, batches):
                pass


UNRELATED_TEXTS = (
    "The harbour was closed because of the storm.",
    "Invoices are paid within thirty days.",
    "Add two eggs and a spoon of sugar to the flour.",
    "The compiler rejects a missing semicolon.",
    "Her grandmother played the violin in an orchestra.",
    "Retry the request after a timeout.",
    "The glacier has lost a third of its length since 1950.",
    "Vaccination rates differ between the two regions.",
    "A backup of the database runs every night.",
    "The striker scored twice in the second half.",
    "The museum shows paintings of the seventeenth century.",
    "Rotate the credentials of the service account.",
    "Bees find their way by the position of the sun.",
    "The court dismissed the appeal.",
    "The train to Vienna leaves from platform four.",
    "Use a queue between the producer and the consumer.",
    "Interest rates were raised by half a percent.",
    "Sand the wood before you paint it.",
    "Unit tests must not depend on the network.",
    "The patient was given antibiotics for a week.",
    "The novel is set in a village by the sea.",
    "Colours on the page are defined in one style sheet.",
    "The satellite measures the height of the waves.",
    "Students register for the course by Friday.",
    "The load balancer removes unhealthy hosts.",
    "Wheat prices fell after a good harvest.",
    "He repaired the bicycle with a borrowed pump.",
    "The parliament voted on the budget.",
    "Logs are kept for ninety days and then deleted.",
    "Penguins share the work of hatching their eggs.",
    "The contract ends with three months of notice.",
    "The camera focuses on the nearest face.",
)
"""Texts about different things; the common part of their vectors is common to all vectors of the model. Their order
and wording are part of the model's name: change it with them."""

LEAST_LENGTH = 1e-6
"""The length from which the rest of a vector has a direction; float32 vectors are off by 1e-7."""


class CentredEmbedder(UncachedEmbedder):
    """Subtracts the part that all vectors of an embedder have in common.

    The vectors of many models share a large part, which makes all texts alike: those with nothing in common then have a
    similarity of 0.7. Without that part it is about 0, texts are compared better (Mu and Viswanath, 2018,
    "All-but-the-top"), and scores mean the same for all models. It embeds 32 short texts of its own before the first
    one.
    """

    def __init__(self, inner: Embedder) -> None:
        self.model, self.dimensions = f"{inner.model}:centred", inner.dimensions
        self._inner = inner
        # Not held while the inner embedder computes, which may be a call over the network.
        self._lock = threading.Lock()
        self._common: NDArray[np.float32] | None = None
        self._pending: Future[NDArray[np.float32]] | None = None
        """The result that one thread computes and others wait for; guarded by the lock."""

    def is_cached(self, text: str) -> bool:
        """Return True if the inner embedder computes nothing for a text."""
        return self._common is not None and self._inner.is_cached(text)

    def embed(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return self._inner.embed(texts)
        common = self._read_common()
        vectors = self._inner.embed(texts)
        rest = vectors - common
        lengths = np.linalg.norm(rest, axis=1, keepdims=True)
        # A text that says nothing but what all have in common keeps its vector.
        centred: Vectors = np.where(lengths < LEAST_LENGTH, vectors, rest / np.maximum(lengths, LEAST_LENGTH))
        return centred.astype(np.float32)

    def _read_common(self) -> NDArray[np.float32]:
        """Return the part that all vectors have in common, computed once. Raises QueryFailed."""
        with self._lock:
            if self._common is not None:
                return self._common
            pending = self._pending
            if pending is None:
                own = self._pending = Future()
        if pending is not None:
            # It fails for all that wait if it fails: one after the other they would wait for the same timeout.
            return pending.result()
        try:
            self._common = common_part(self._inner.embed(UNRELATED_TEXTS))
            own.set_result(self._common)
        except BaseException as error:
            own.set_exception(error)
            raise
        finally:
            with self._lock:
                self._pending = None
        return self._common


def common_part(vectors: Vectors) -> NDArray[np.float32]:
    """Return the part that unit vectors of unrelated texts have in common; zeros without such a part.

    It has the direction of their mean. Its squared length is the mean similarity of two of them: the mean of vectors
    with nothing in common is not zero, but as long as there are few of them.
    """
    exact = vectors.astype(np.float64)
    count, total = len(exact), exact.sum(axis=0)
    squared = float(total @ total)
    similarity = (squared - count) / (count * (count - 1))
    if similarity <= 0:
        return np.zeros(vectors.shape[1], np.float32)
    common: NDArray[np.float32] = (total * np.sqrt(similarity / squared)).astype(np.float32)
    return common
