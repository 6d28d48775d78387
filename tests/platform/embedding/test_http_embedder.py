"""Vectors of an endpoint, over real HTTP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.platform.config import EmbeddingSettings
from cstp_grpc.platform.embedding.embedder import Embedder
from cstp_grpc.platform.embedding.http_embedder import parse_vectors
from cstp_grpc.platform.embedding.lexical_embedder import DIMENSIONS, LexicalEmbedder
from cstp_grpc.server.wiring.embedding import build_http_embedder, with_cache
from tests.platform.embedding.endpoints import EmbeddingServer, embedding_server, embeddings

TEXTS = ("Use a queue for mail", "Cache pages", "half a surrogate pair: \ud800", "", "Use Redis")


@pytest.fixture
def endpoint() -> Iterator[EmbeddingServer]:
    with embedding_server() as running:
        yield running


def build(url: str, **settings: Any) -> Embedder:
    """Return an embedder for an endpoint, without a cache."""
    given = {"provider": "openai", "url": url, "model": "small", "dimensions": DIMENSIONS, "cache_size": 0}
    configured = EmbeddingSettings.model_validate({**given, **settings})
    return with_cache(build_http_embedder(configured), configured.cache_size)


def test_texts_are_asked_in_batches_and_get_unit_vectors_in_their_order(endpoint: EmbeddingServer) -> None:
    embedder = build(endpoint.url, batch=2, api_key="secret-key")
    np.testing.assert_allclose(embedder.embed(TEXTS), LexicalEmbedder().embed(TEXTS), atol=1e-6)
    assert [request["input"] for request in endpoint.requests] == [list(TEXTS[:2]), list(TEXTS[2:4]), [TEXTS[4]]]
    assert {request["model"] for request in endpoint.requests} == {"small"}
    assert set(endpoint.paths) == {"/v1/embeddings"}
    assert {headers["authorization"] for headers in endpoint.headers} == {"Bearer secret-key"}


def test_the_model_is_part_of_what_vectors_are(endpoint: EmbeddingServer) -> None:
    assert build(endpoint.url).model == f"openai:small:{DIMENSIONS}"
    assert build(endpoint.url, model="large").model == f"openai:large:{DIMENSIONS}"
    assert build(endpoint.url, dimensions=8).model == "openai:small:8"
    assert not endpoint.requests


def test_without_a_key_none_is_sent(endpoint: EmbeddingServer) -> None:
    build(f"{endpoint.url}/").embed(["a"])
    assert "authorization" not in endpoint.headers[0]
    assert endpoint.paths == ["/v1/embeddings"]


def test_no_texts_ask_nothing(endpoint: EmbeddingServer) -> None:
    assert build(endpoint.url).embed([]).shape == (0, DIMENSIONS)
    assert not endpoint.requests


def test_a_long_text_is_cut(endpoint: EmbeddingServer) -> None:
    build(endpoint.url).embed(["word " * 100_000])
    assert len(endpoint.requests[0]["input"][0]) == 8192


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_transient_failure_is_repeated(endpoint: EmbeddingServer, status: int) -> None:
    endpoint.replies += [(status, {}), (status, {})]
    np.testing.assert_allclose(build(endpoint.url).embed(TEXTS), LexicalEmbedder().embed(TEXTS), atol=1e-6)
    assert len(endpoint.requests) == 3


def test_what_fails_too_often_is_an_error(endpoint: EmbeddingServer) -> None:
    endpoint.replies += [(503, {})] * 3
    with pytest.raises(QueryFailed, match="the endpoint answers with HTTP 503"):
        build(endpoint.url).embed(TEXTS)
    assert len(endpoint.requests) == 3


def test_a_refusal_is_not_repeated_and_its_text_is_not_even_logged(
    endpoint: EmbeddingServer, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.replies.append((401, {"error": "the key sk-123 is wrong"}))
    with pytest.raises(QueryFailed) as raised:
        build(endpoint.url).embed(TEXTS)
    assert raised.value.message == "The text could not be turned into a vector: the endpoint answers with HTTP 401."
    assert "HTTP 401" in caplog.text
    assert "sk-123" not in caplog.text
    assert len(endpoint.requests) == 1


def test_a_wait_that_outlasts_the_deadline_is_not_begun(endpoint: EmbeddingServer) -> None:
    endpoint.replies.append((429, {}))
    endpoint.response_headers["retry-after"] = "3600"
    with pytest.raises(QueryFailed, match="HTTP 429"):
        build(endpoint.url).embed(TEXTS)
    assert len(endpoint.requests) == 1


def test_an_endpoint_that_does_not_answer_in_time_is_an_error(endpoint: EmbeddingServer) -> None:
    endpoint.may_answer.clear()
    with pytest.raises(QueryFailed, match="could not be turned into a vector"):
        build(endpoint.url, timeout_seconds=0.2).embed(TEXTS)


def test_an_endpoint_that_does_not_listen_is_an_error() -> None:
    with embedding_server() as stopped:
        url = stopped.url
    with pytest.raises(QueryFailed, match="the endpoint cannot be reached"):
        build(url).embed(TEXTS)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"data": [{"index": 0, "embedding": [1.0] * 3}]}, "have 3 dimensions instead of 2"),
        ({"data": [{"index": 1, "embedding": [1.0] * 2}]}, "not a list of embeddings"),
        ({"data": [{"index": 0, "embedding": [1, 1]}] * 2}, "2 embeddings for 1 texts"),
        ({"data": [{"index": 0, "embedding": "AAAAAA=="}]}, "have 0 dimensions instead of 2"),
        ({"data": [{"index": 0, "embedding": [0, 0]}]}, "have no direction"),
        ({"data": [{"index": 0, "embedding": [math.nan, 1]}]}, "have no direction"),
        ({"data": [{"index": 0, "embedding": ["a", "b"]}]}, "are not numbers"),
        ({"data": [{"index": 0, "embedding": [10**400, 1]}]}, "are not numbers"),
        ({"error": "quota"}, "not a list of embeddings"),
        ([], "not a list of embeddings"),
        (b"<html>", "not a list of embeddings"),
        (b"[" * 100_000, "not a list of embeddings|too large"),
        (b" " * 1_000_000, "too large"),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error(endpoint: EmbeddingServer, content: Any, reason: str) -> None:
    endpoint.replies.append((200, content))
    with pytest.raises(QueryFailed, match=reason):
        build(endpoint.url, dimensions=2, batch=1).embed(["a"])
    assert len(endpoint.requests) == 1


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_answer_is_vectors_or_refused(body: bytes) -> None:
    with pytest.raises(QueryFailed):
        parse_vectors(body, 1, 3)


def test_a_failed_text_is_not_cached(endpoint: EmbeddingServer) -> None:
    embedder = build(endpoint.url, cache_size=10, retries=0)
    endpoint.replies.append((503, {}))
    with pytest.raises(QueryFailed):
        embedder.embed(["a"])
    assert not embedder.is_cached("a")
    embedder.embed(["a"])
    embedder.embed(["a"])
    assert len(endpoint.requests) == 2
    assert embeddings(["a"])[0] == 200


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"provider": "openai"}, "url and model and dimensions must be given"),
        ({"provider": "openai", "url": "https://x", "model": "m"}, "dimensions must be given"),
        ({"provider": "onnx"}, "model_path must be given"),
        ({"url": "http://example.org/v1", "api_key": "k"}, "api_key would be sent unencrypted"),
        ({"url": "https://me:secret@example.org/v1"}, "url must have no user or password: the key belongs in api_key"),
        ({"url": "https://me@example.org/v1"}, "url must have no user or password"),
        ({"url": "ftp://example.org"}, "url"),
    ],
)
def test_incomplete_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        EmbeddingSettings.model_validate(settings)
