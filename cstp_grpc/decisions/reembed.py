"""New vectors for old decisions, after the model was changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from cstp_grpc.decisions.embedding import Embedder
from cstp_grpc.decisions.store import DecisionStore, Vector
from cstp_grpc.storage.writer import Writer

logger = logging.getLogger(__name__)

BATCH = 256


def embed_missing(store: DecisionStore, embedder: Embedder, writer: Writer) -> int:
    """Give every decision that has none a vector of this model, and return how many that were.

    It can be interrupted at any time and goes on where it was. Raises QueryFailed and Unavailable.
    """
    count = 0
    while stale := store.stale_vectors(embedder.model, BATCH):
        vectors = embedder.embed([text for _, text in stale])
        pairs = [(decision_id, vector) for (decision_id, _), vector in zip(stale, vectors, strict=True)]
        writer.run(putting(store, embedder.model, pairs))
        count += len(stale)
        logger.info("embedded %d decisions with %s", count, embedder.model)
    return count


def putting(store: DecisionStore, model: str, vectors: Sequence[tuple[str, Vector]]) -> Callable[[Connection], None]:
    """Return the job that stores vectors."""
    return lambda connection: store.put_vectors(connection, model, vectors)
