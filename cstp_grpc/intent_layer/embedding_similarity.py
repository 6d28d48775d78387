"""Text similarity by the embedder that the decisions use."""

from __future__ import annotations

from collections.abc import Sequence

from cstp_grpc.embedding.embedder import Embedder

MAX_COMPARED = 500
"""Texts that are embedded for one comparison at most. Chosen: ten times the statements of a node within its budget."""


class EmbeddedSimilarity:
    """Compares texts by the dot product of their vectors; implements `duplicate_search.TextSimilarity`."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def compare(self, text: str, others: Sequence[str]) -> Sequence[float]:
        """Return the similarity to each of the others, from 0 to 1; those beyond `MAX_COMPARED` get 0.

        Raises QueryFailed.
        """
        compared = others[:MAX_COMPARED]
        vector, *vectors = self._embedder.embed([text, *compared])
        scores = [min(max(float(each @ vector), 0.0), 1.0) for each in vectors]
        return [*scores, *[0.0] * (len(others) - len(compared))]
