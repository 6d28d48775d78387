"""Builds the embedders whose models are known, and the cache in front of any."""

from __future__ import annotations

from pathlib import Path

from cstp_grpc.embedding.embedder import CachedEmbedder, Embedder
from cstp_grpc.embedding.lexical_embedder import LexicalEmbedder
from cstp_grpc.embedding.model_files import WeightsMissing, default_locations, find_model_files
from cstp_grpc.embedding.text_batches import EmbeddingThreads

CONVERTED_FOLDER = "models"
"""The folder of converted weights in the data folder."""


def build_embedder(
    provider: str,
    model_path: Path | None,
    download: bool,
    threads: int,
    cache_size: int,
    data_dir: Path,
    batch_threads: int = 1,
) -> Embedder:
    """Return the embedder of a provider, `minilm` or `lexical`, with a cache for `cache_size` texts.

    Raises WeightsMissing if `minilm` finds no usable model files, and ValueError for another provider.
    """
    embedder: Embedder
    if provider == "lexical":
        embedder = LexicalEmbedder()
    elif provider == "minilm":
        embedder = load_minilm(model_path, download, EmbeddingThreads(threads, batch_threads), data_dir)
    else:
        raise ValueError(f"embedding.provider: {provider!r} is neither minilm nor lexical")
    return with_cache(embedder, cache_size)


def with_cache(embedder: Embedder, size: int) -> Embedder:
    """Return an embedder with a cache for `size` texts in front of it, or the embedder itself for 0."""
    return CachedEmbedder(embedder, size) if size else embedder


def load_minilm(model_path: Path | None, download: bool, threads: EmbeddingThreads, data_dir: Path) -> Embedder:
    """Load the embedder all-MiniLM-L6-v2. Raises WeightsMissing."""
    weights = find_model_files(model_path, download)
    # ONNX Runtime takes long to import, and the lexical provider does without it.
    from cstp_grpc.embedding.minilm_embedder import MiniLmEmbedder

    try:
        return MiniLmEmbedder(weights, data_dir / CONVERTED_FOLDER, threads)
    except WeightsMissing as error:
        folder = weights.model.parent
        if model_path is None and folder == default_locations().chroma_cache:
            raise WeightsMissing(error.problem, in_the_way=folder) from error
        raise
