"""Vectors of the passages of decisions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cstp_grpc.decisions.decision_terms import SearchedContent, cached_terms
from cstp_grpc.decisions.model import Decision
from cstp_grpc.decisions.passages import decision_passages
from cstp_grpc.decisions.store import PassageVectors, Vector
from cstp_grpc.embedding.embedder import Embedder


class PreparedTexts:
    """The vectors of passages, computed before the transaction that stores them.

    Embedding takes milliseconds for each text, in which all other writers would wait.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: dict[str, Vector] = {}

    def prepare(self, decisions: Iterable[Decision]) -> None:
        """Embed the passages of decisions, and work out their terms. Raises QueryFailed."""
        missing: dict[str, None] = {}
        for decision in decisions:
            cached_terms(SearchedContent.of(decision))
            missing.update((text, None) for text in decision_passages(decision).texts if text not in self._vectors)
        if missing:
            self._vectors.update(zip(missing, self._embedder.embed(list(missing)), strict=True))

    def vectors_of(self, decision: Decision) -> tuple[str, PassageVectors]:
        """Return the id of a decision with the vectors of its passages. Raises QueryFailed."""
        # Embeds only if another change came between the preparation and the transaction, which is rare.
        self.prepare([decision])
        passages = decision_passages(decision)
        vectors = np.stack([self._vectors[text] for text in passages.texts])
        return decision.id, PassageVectors(vectors, passages.has_lesson)
