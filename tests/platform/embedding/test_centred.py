"""Vectors without what all of a model have in common."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.platform.embedding.embedder import UNRELATED_TEXTS, CentredEmbedder, Vectors
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from tests.waiting import SECONDS

TEXTS = ("Use a queue for mail", "Move mail to a queue", "Encrypt the backups")


class TiltedEmbedder(LexicalEmbedder):
    """The lexical embedder with a direction that all its vectors share, as those of many models do."""

    def __init__(self, tilt: float) -> None:
        super().__init__()
        self._tilt = tilt
        self.embedded: list[str] = []
        self.problem: str | None = None

    def embed(self, texts: Sequence[str]) -> Vectors:
        if self.problem:
            raise QueryFailed(self.problem)
        self.embedded += texts
        vectors = super().embed(texts)
        vectors = vectors + np.float32(self._tilt / np.sqrt(self.dimensions))
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def similarities(vectors: Vectors) -> list[float]:
    return [float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])]


@pytest.mark.parametrize("tilt", [1.0, 2.0, 5.0])
def test_unrelated_texts_are_unlike_whatever_the_model_makes_of_all(tilt: float) -> None:
    plain, tilted = LexicalEmbedder().embed(TEXTS), TiltedEmbedder(tilt).embed(TEXTS)
    assert similarities(tilted)[1] > 0.45
    centred = CentredEmbedder(TiltedEmbedder(tilt)).embed(TEXTS)
    assert similarities(centred) == pytest.approx(similarities(plain), abs=0.1)


def test_a_model_that_shares_nothing_is_left_alone() -> None:
    found = CentredEmbedder(LexicalEmbedder()).embed(TEXTS)
    assert similarities(found) == pytest.approx(similarities(LexicalEmbedder().embed(TEXTS)), abs=0.1)


@given(st.lists(st.text(max_size=30), max_size=4), st.floats(0, 1000))
def test_vectors_have_length_1(texts: list[str], tilt: float) -> None:
    found = CentredEmbedder(TiltedEmbedder(tilt)).embed(texts)
    assert found.dtype == np.float32
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-5)


def test_its_own_texts_are_embedded_once() -> None:
    inner = TiltedEmbedder(2)
    embedder = CentredEmbedder(inner)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: embedder.embed(TEXTS), range(8)))
    assert all((each == found[0]).all() for each in found)
    assert inner.embedded.count(UNRELATED_TEXTS[0]) == 1


def test_what_failed_is_tried_again() -> None:
    inner = TiltedEmbedder(2)
    embedder = CentredEmbedder(inner)
    inner.problem = "the endpoint is away"
    with pytest.raises(QueryFailed, match="away"):
        embedder.embed(TEXTS)
    inner.problem = None
    assert embedder.embed(TEXTS).shape == (3, inner.dimensions)


def test_who_waits_for_the_common_part_fails_with_it() -> None:
    inner = TiltedEmbedder(2)
    embedder, begun, may_fail = CentredEmbedder(inner), threading.Event(), threading.Event()
    calls = []

    def fail(texts: Sequence[str]) -> Vectors:
        calls.append(texts)
        begun.set()
        assert may_fail.wait(SECONDS)
        raise QueryFailed("the endpoint is away")

    inner.embed = fail  # type: ignore[method-assign]
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(embedder.embed, TEXTS) for _ in range(4)]
        assert begun.wait(SECONDS)
        # The others cannot be seen to wait; whoever comes later fails alone, after no wait.
        may_fail.set()
        assert all(isinstance(answer.exception(SECONDS), QueryFailed) for answer in answers)
    assert all(texts == UNRELATED_TEXTS for texts in calls)


def test_the_model_is_another_one() -> None:
    embedder = CentredEmbedder(LexicalEmbedder())
    assert (embedder.model, embedder.dimensions) == ("lexical-v1:centred", LexicalEmbedder().dimensions)
    assert not embedder.is_cached("any")
