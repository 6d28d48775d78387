"""How alike texts are, by their vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cstp_grpc.platform.embedding.embedder import UncachedEmbedder, Vectors
from cstp_grpc.server.wiring.intent_layer import MAX_COMPARED, EmbeddedSimilarity

ANGLES = {"this": 0.0, "nearly": 60.0, "beside": 90.0, "against": 180.0}


class Compass(UncachedEmbedder):
    """An embedder that knows the directions of a few words."""

    model = "compass"
    dimensions = 2

    def embed(self, texts: Sequence[str]) -> Vectors:
        angles = np.radians([ANGLES[text] for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_each_is_told_how_alike_it_is() -> None:
    scores = EmbeddedSimilarity(Compass()).compare("this", ["nearly", "against", "this", "beside"])
    assert scores == pytest.approx([0.5, 0, 1, 0], abs=1e-6)
    assert all(0 <= score <= 1 for score in scores)


def test_nothing_is_like_nothing() -> None:
    assert list(EmbeddedSimilarity(Compass()).compare("this", [])) == []


def test_no_more_than_so_many_are_compared() -> None:
    scores = EmbeddedSimilarity(Compass()).compare("this", ["this"] * (MAX_COMPARED + 2))
    assert scores == pytest.approx([1] * MAX_COMPARED + [0, 0])
