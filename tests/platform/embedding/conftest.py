from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cstp_grpc.platform.embedding.model_files import PACKAGE, ModelFiles, files_in_folder, package_folder
from cstp_grpc.platform.embedding.onnx_embedders import MiniLmEmbedder


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is gone after the test: pytest would keep the 90 MB files of several runs."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(scope="session")
def published() -> ModelFiles:
    """The published weights, as safetensors."""
    place = package_folder()
    found = files_in_folder(place) if place else None
    if found is None:
        pytest.skip(f"the weights package {PACKAGE} is not installed")
    return found


@pytest.fixture(scope="session")
def cache() -> Iterator[Path]:
    """A folder of converted weights that all tests share."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(scope="session")
def minilm(published: ModelFiles, cache: Path) -> MiniLmEmbedder:
    return MiniLmEmbedder(published, cache)
