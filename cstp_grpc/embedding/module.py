"""Builds the embedder that the settings configure."""

from __future__ import annotations

import random
import time
from pathlib import Path

from cstp_grpc.config import EmbeddingSettings
from cstp_grpc.embedding.embedder import Embedder
from cstp_grpc.embedding.factory import build_embedder, with_cache
from cstp_grpc.embedding.text_batches import EmbeddingThreads


def build_configured_embedder(settings: EmbeddingSettings, data_dir: Path) -> Embedder:
    """Return the configured embedder with its cache.

    Raises WeightsMissing if the model files of `minilm` are found nowhere, and ConfigError if those of `onnx` do not
    fit. An endpoint is not asked yet.
    """
    match settings.provider:
        case "openai":
            return with_cache(build_http_embedder(settings), settings.cache_size)
        case "onnx":
            # ONNX Runtime takes long to import, and the other providers do without it.
            from cstp_grpc.embedding.onnx_folder_embedder import OnnxFolderEmbedder

            assert settings.model_path is not None, "checked with the settings"
            threads = EmbeddingThreads(settings.threads, settings.batch_threads)
            embedder = OnnxFolderEmbedder(settings.model_path, threads, settings.dimensions)
            return with_cache(embedder, settings.cache_size)
        case "minilm" | "lexical":
            return build_embedder(
                settings.provider,
                settings.model_path,
                settings.download,
                settings.threads,
                settings.cache_size,
                data_dir,
                settings.batch_threads,
            )


def build_http_embedder(settings: EmbeddingSettings) -> Embedder:
    """Return the embedder that asks the configured endpoint."""
    from cstp_grpc.client.http_client import HttpClient
    from cstp_grpc.client.retry import Retrier, RetryPolicy
    from cstp_grpc.client.tls import tls_context
    from cstp_grpc.embedding.http_embedder import EmbeddingEndpoint, HttpEmbedder

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
    http = HttpClient(tls_context(None), max_bytes=endpoint.max_response_bytes)
    policy = RetryPolicy(attempts=settings.retries + 1)
    return HttpEmbedder(endpoint, http, Retrier(policy, time.sleep, random.random, time.monotonic))
