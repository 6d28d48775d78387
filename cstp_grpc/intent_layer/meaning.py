"""How alike texts are in what they mean, by the embedder of the decisions."""

from __future__ import annotations

from collections.abc import Sequence

from cstp_grpc.decisions.embedding import Embedder

MAX_COMPARED = 500
"""How many texts are compared at once; a node within its budget has some fifty."""


class EmbeddedSimilarity:
    """Compares the vectors of texts; fulfils `duplicates.Similarity`."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def compare(self, text: str, others: Sequence[str]) -> Sequence[float]:
        """Return for each of the others how alike it is, 0 to 1; those beyond `MAX_COMPARED` count as 0.

        Raises QueryFailed.
        """
        compared = others[:MAX_COMPARED]
        vector, *vectors = self._embedder.embed([text, *compared])
        scores = [min(max(float(each @ vector), 0.0), 1.0) for each in vectors]
        return [*scores, *[0.0] * (len(others) - len(compared))]
