"""Builds the embedder that the settings configure, and the cache in front of any."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
from pathlib import Path
from urllib.parse import urlsplit

from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.platform.config import EmbeddingSettings
from cstp_grpc.platform.embedding.embedder import (
    CachedEmbedder,
    CentredEmbedder,
    Embedder,
    Embedders,
    EmbeddingThreads,
    LazyEmbedder,
    PromptedEmbedder,
)
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from cstp_grpc.platform.embedding.model_files import DIMENSIONS as MINILM_DIMENSIONS
from cstp_grpc.platform.embedding.model_files import MODEL as MINILM
from cstp_grpc.platform.embedding.model_files import WeightsMissing, default_locations, find_model_files, is_converted
from cstp_grpc.platform.storage.locks import hold_file_lock

logger = logging.getLogger(__name__)

CONVERTED_FOLDER = "models"
"""The folder of converted weights in the data folder."""
MODEL_LOCK = "models.lock"
"""The file that a process holds a lock on while it loads, and perhaps converts, weights."""


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


def with_cache(embedder: Embedder, size: int, *, is_remote: bool = False) -> Embedder:
    """Return an embedder with a cache for `size` texts in front of it, or the embedder itself for 0."""
    return CachedEmbedder(embedder, size, is_remote=is_remote) if size else embedder


def load_minilm(model_path: Path | None, download: bool, threads: EmbeddingThreads, data_dir: Path) -> Embedder:
    """Load the embedder all-MiniLM-L6-v2. Raises WeightsMissing."""
    weights = find_model_files(model_path, download)
    # ONNX Runtime takes long to import, and the lexical provider does without it.
    from cstp_grpc.platform.embedding.onnx_embedders import MiniLmEmbedder

    try:
        return MiniLmEmbedder(weights, data_dir / CONVERTED_FOLDER, threads)
    except WeightsMissing as error:
        folder = weights.model.parent
        if model_path is None and folder == default_locations().chroma_cache:
            raise WeightsMissing(error.problem, in_the_way=folder) from error
        raise


def build_sides(embedder: Embedder, settings: EmbeddingSettings) -> Embedders:
    """Return the embedders of both sides for a model that is unknown here, with their caches.

    Vectors are centred, so that scores mean the same for all models; each side by texts with its own prompt.
    """
    is_remote = settings.provider == "openai"
    # In the order of Embedders.
    prefixes = settings.passage_prefix or "", settings.query_prefix or ""
    if not any(prefixes):
        both = with_cache(CentredEmbedder(embedder), settings.cache_size, is_remote=is_remote)
        return Embedders(both, both)
    # Part of the name, so that other prompts are another model, whose vectors are not compared.
    digest = hashlib.sha256(json.dumps(prefixes).encode()).hexdigest()[:16]
    model = f"{embedder.model}:prompts-{digest}"
    prompted = (CentredEmbedder(PromptedEmbedder(embedder, prefix, model)) for prefix in prefixes)
    return Embedders(*(with_cache(side, settings.cache_size, is_remote=is_remote) for side in prompted))


def build_configured_embedders(settings: EmbeddingSettings, data_dir: Path) -> Embedders:
    """Return the configured embedders with their caches.

    Raises WeightsMissing if the model files of `minilm` are found nowhere, and ConfigError if those of `onnx` do not
    fit. An endpoint is not called yet.
    """
    match settings.provider:
        case "openai":
            return build_sides(build_http_embedder(settings), settings)
        case "onnx":
            # ONNX Runtime takes long to import, and the other providers do without it.
            from cstp_grpc.platform.embedding.onnx_embedders import OnnxFolderEmbedder

            assert settings.model_path is not None, "checked with the settings"
            threads = EmbeddingThreads(settings.threads, settings.batch_threads)
            folder = OnnxFolderEmbedder(settings.model_path, threads, settings.dimensions, settings.pooling)
            return build_sides(folder, settings)
        case "minilm" | "lexical":
            embedder = build_embedder(
                settings.provider,
                settings.model_path,
                settings.download,
                settings.threads,
                settings.cache_size,
                data_dir,
                settings.batch_threads,
            )
            return Embedders(embedder, embedder)


def build_lazy_embedders(settings: EmbeddingSettings, data_dir: Path, *, finds_files: bool) -> Embedders:
    """Return the configured embedders, which load a slow model only when the first text is embedded.

    Faults in the model files of `minilm` are reported then, as QueryFailed; with `finds_files`, only those of files
    that were loaded before. Raises ConfigError, and WeightsMissing with `finds_files`.
    """
    # The length of the vectors of an `onnx` model is known once it is loaded; the others have nothing to load.
    if settings.provider != "minilm" or (
        finds_files
        and not is_converted(find_model_files(settings.model_path, settings.download), data_dir / CONVERTED_FOLDER)
    ):
        return build_configured_embedders(settings, data_dir)

    def load() -> Embedder:
        threads = EmbeddingThreads(settings.threads, settings.batch_threads)
        try:
            # Several processes may use the folder, and converting weights removes the unfinished files of others.
            with hold_file_lock(data_dir / MODEL_LOCK):
                return load_minilm(settings.model_path, settings.download, threads, data_dir)
        except WeightsMissing as error:
            if not finds_files:
                # In the process of the user, who installs the model.
                raise QueryFailed(str(error)) from error
            logger.exception("the embedding model cannot be loaded")
            raise QueryFailed("The embedding model cannot be loaded; the log of the server says why.") from error

    embedder = with_cache(LazyEmbedder(MINILM, MINILM_DIMENSIONS, load), settings.cache_size)
    return Embedders(embedder, embedder)


def build_http_embedder(settings: EmbeddingSettings) -> Embedder:
    """Return the embedder that calls the configured endpoint."""
    from cstp_grpc.client.http_client import HttpClient
    from cstp_grpc.client.retry import Retrier, RetryPolicy
    from cstp_grpc.client.tls import tls_context
    from cstp_grpc.platform.embedding.http_embedder import EmbeddingEndpoint, HttpEmbedder

    assert settings.url is not None, "checked with the settings, as are the next two"
    assert settings.model is not None
    assert settings.dimensions is not None
    endpoint = EmbeddingEndpoint(
        url=settings.url,
        model=settings.model,
        dimensions=settings.dimensions,
        seconds=settings.timeout_seconds,
        batch=settings.batch,
        api_key=None if settings.api_key is None else settings.api_key.get_secret_value(),
    )
    http = HttpClient(tls_context(None, urlsplit(settings.url).scheme), max_bytes=endpoint.max_response_bytes)
    policy = RetryPolicy(attempts=settings.retries + 1)
    return HttpEmbedder(endpoint, http, Retrier(policy, time.sleep, random.random, time.monotonic))
