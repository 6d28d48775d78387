from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cstp_grpc.decisions.embedding.minilm import MiniLmEmbedder
from cstp_grpc.decisions.embedding.weights import PACKAGE, Weights, package_folder, weights_in


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is gone after the test: pytest would keep the 90 MB files of several runs."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(scope="session")
def published() -> Weights:
    """The published weights, as safetensors."""
    place = package_folder()
    found = weights_in(place) if place else None
    if found is None:
        pytest.skip(f"the weights package {PACKAGE} is not installed")
    return found


@pytest.fixture(scope="session")
def cache() -> Iterator[Path]:
    """A folder of converted weights that all tests share."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(scope="session")
def minilm(published: Weights, cache: Path) -> MiniLmEmbedder:
    return MiniLmEmbedder(published, cache, threads=1)
