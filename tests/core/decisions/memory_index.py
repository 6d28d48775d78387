"""An index in memory with full recall."""

from __future__ import annotations

from collections.abc import Sequence

from cstp_grpc.core.decisions.search.ann_index import IndexUnavailable
from cstp_grpc.core.decisions.search.chroma_index import ChromaIndex
from cstp_grpc.core.decisions.store import Vector


class MemoryIndex(ChromaIndex):
    """Stands for a collection of Chroma; `failing` makes it unavailable."""

    def __init__(self) -> None:  # there is no server to call
        self.vectors: dict[str, Vector] = {}
        self.fed = -1
        self.failing = False
        self.asked = 0

    @property
    def revision(self) -> int:
        if self.failing:
            raise IndexUnavailable("gone")
        return self.fed

    def propose(self, vector: Vector, count: int) -> list[str]:
        self.asked += 1
        return sorted(self.vectors, key=lambda name: -float(self.vectors[name] @ vector))[:count]

    def upsert(self, ids: Sequence[str], vectors: Sequence[Vector], revision: int) -> None:
        if self.failing:
            raise IndexUnavailable("gone")
        self.vectors.update(zip(ids, vectors, strict=True))
        self.fed = revision

    def remove(self, ids: Sequence[str]) -> None:
        if self.failing:
            raise IndexUnavailable("gone")
        for key in ids:
            self.vectors.pop(key, None)

    def count(self) -> int:
        return len(self.vectors)

    def reset(self) -> None:
        self.vectors.clear()
        self.fed = -1
