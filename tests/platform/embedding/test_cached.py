from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.platform.embedding.embedder import CachedEmbedder, UncachedEmbedder, Vectors
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder


class Observed(UncachedEmbedder):
    """The lexical embedder, noting what it is asked for; it fails while `broken`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.broken = False
        self._inner = LexicalEmbedder()

    @property
    def model(self) -> str:
        return self._inner.model

    @property
    def dimensions(self) -> int:
        return self._inner.dimensions

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.asked.append(tuple(texts))
        if self.broken:
            raise QueryFailed("broken")
        return self._inner.embed(texts)


def test_a_repeated_text_is_computed_once() -> None:
    inner = Observed()
    cached = CachedEmbedder(inner, 10)
    first, second = cached.embed(["a ledger"]), cached.embed(["a ledger"])
    assert inner.asked == [("a ledger",)]
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, LexicalEmbedder().embed(["a ledger"]))


def test_another_text_has_another_vector() -> None:
    cached = CachedEmbedder(LexicalEmbedder(), 10)
    assert not np.array_equal(cached.embed(["a ledger"]), cached.embed(["a queue"]))


def test_the_text_used_longest_ago_is_forgotten() -> None:
    inner = Observed()
    cached = CachedEmbedder(inner, 2)
    for text in ("one", "two", "one", "three", "one", "two"):
        cached.embed([text])
    assert inner.asked == [("one",), ("two",), ("three",), ("two",)]


def test_batches_neither_read_nor_fill_the_memory() -> None:
    inner = Observed()
    cached = CachedEmbedder(inner, 10)
    cached.embed(["one"])
    cached.embed(["one", "two"])
    cached.embed(["two"])
    assert inner.asked == [("one",), ("one", "two"), ("two",)]


def test_texts_of_several_callers_are_computed_together() -> None:
    inner = Observed()
    cached = CachedEmbedder(inner, 10)
    cached.embed(["one"])
    cached.embed_together(["one", "two", "three", "two"])
    cached.embed_together(["three"])
    vectors = [cached.embed([text])[0] for text in ("one", "two", "three")]
    assert inner.asked == [("one",), ("two", "three")]
    np.testing.assert_array_equal(vectors, LexicalEmbedder().embed(["one", "two", "three"]))
    with pytest.raises(ValueError, match="read-only"):
        cached.embed(["two"])[0, 0] = 1


def test_a_caller_cannot_change_what_others_get() -> None:
    cached = CachedEmbedder(LexicalEmbedder(), 10)
    with pytest.raises(ValueError, match="read-only"):
        cached.embed(["one"])[0, 0] = 1


def test_a_failure_is_not_remembered() -> None:
    inner = Observed()
    cached = CachedEmbedder(inner, 10)
    inner.broken = True
    with pytest.raises(QueryFailed):
        cached.embed(["one"])
    inner.broken = False
    assert cached.embed(["one"]).shape == (1, cached.dimensions)


def test_many_threads_get_the_right_vectors() -> None:
    cached = CachedEmbedder(LexicalEmbedder(), 5)
    texts = [f"text {number % 9}" for number in range(500)]
    with ThreadPoolExecutor(8) as pool:
        vectors = list(pool.map(lambda text: cached.embed([text])[0], texts))
    np.testing.assert_array_equal(vectors, LexicalEmbedder().embed(texts))


def test_it_stands_for_the_embedder_behind() -> None:
    inner = LexicalEmbedder()
    cached = CachedEmbedder(inner, 5)
    assert (cached.model, cached.dimensions) == (inner.model, inner.dimensions)
