"""The embedder that the settings ask for."""

from __future__ import annotations

from pathlib import Path

from cstp_grpc.decisions.embedding import Embedder
from cstp_grpc.decisions.embedding.cached import CachedEmbedder
from cstp_grpc.decisions.embedding.lexical import LexicalEmbedder
from cstp_grpc.decisions.embedding.weights import WeightsMissing, resolve_weights, usual_places

CONVERTED = "models"
"""The folder of converted weights in the data folder."""


def build_embedder(
    provider: str, model_path: Path | None, download: bool, threads: int, cache_size: int, data_dir: Path
) -> Embedder:
    """Return the embedder of that provider, `minilm` or `lexical`, with a memory for `cache_size` texts.

    Raises WeightsMissing where `minilm` finds no weights that may be used, and ValueError for another provider.
    """
    embedder: Embedder
    if provider == "lexical":
        embedder = LexicalEmbedder()
    elif provider == "minilm":
        embedder = load_minilm(model_path, download, threads, data_dir)
    else:
        raise ValueError(f"embedding.provider: {provider!r} is neither minilm nor lexical")
    return CachedEmbedder(embedder, cache_size) if cache_size else embedder


def load_minilm(model_path: Path | None, download: bool, threads: int, data_dir: Path) -> Embedder:
    """Return all-MiniLM-L6-v2. Raises WeightsMissing."""
    weights = resolve_weights(model_path, download)
    # ONNX Runtime takes long to import, and the lexical provider does without it.
    from cstp_grpc.decisions.embedding.minilm import MiniLmEmbedder

    try:
        return MiniLmEmbedder(weights, data_dir / CONVERTED, threads)
    except WeightsMissing as error:
        folder = weights.model.parent
        if model_path is None and folder == usual_places().chroma_cache:
            raise WeightsMissing(error.problem, in_the_way=folder) from error
        raise
