"""An embedder whose vectors have no direction in common, so that unrelated texts have a similarity of about 0.

The vectors of many models share a large part, which makes all texts alike: those with nothing in common then have a
similarity of 0.7. Without that part they are compared better (Mu and Viswanath, 2018, "All-but-the-top"), and scores
mean the same for all models.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.embedding.embedder import Embedder, Vectors

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
"""Texts about different things; what their vectors have in common, all vectors of the model have. Their order and
wording are part of the model's name: change it with them."""

LEAST_LENGTH = 1e-6
"""The length from which the rest of a vector has a direction; float32 vectors are off by 1e-7."""


class CentredEmbedder:
    """Takes what all vectors of an embedder have in common away from them.

    It embeds 32 short texts of its own before the first one.
    """

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._common: NDArray[np.float32] | None = None
        self._pending: Future[NDArray[np.float32]] | None = None
        """What one thread computes and others wait for; guarded by the lock."""

    @property
    def model(self) -> str:
        """The name of the inner embedder's model, marked as centred."""
        return f"{self._inner.model}:centred"

    @property
    def dimensions(self) -> int:
        """The length of the vectors."""
        return self._inner.dimensions

    def is_cached(self, text: str) -> bool:
        """Return True if the inner embedder computes nothing for a text."""
        return self._common is not None and self._inner.is_cached(text)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of the texts. Raises QueryFailed."""
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
    """Return the part that unit vectors of unrelated texts have in common; zeros if they have none.

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
