"""Texts to vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into unit vectors whose dot product is their cosine similarity. Safe for many threads."""

    @property
    def model(self) -> str:
        """The model's name; vectors of different models cannot be compared."""

    @property
    def dimensions(self) -> int:
        """How long the vectors are."""

    def is_cached(self, text: str) -> bool:
        """Whether the vector of a text is in memory, so that `embed` computes nothing."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 of shape (len(texts), dimensions), each row of length 1. Raises QueryFailed."""
