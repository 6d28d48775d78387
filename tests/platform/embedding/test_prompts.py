"""Prompts before queries and before stored texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from cstp_grpc.platform.config import EmbeddingSettings
from cstp_grpc.platform.embedding.embedder import Embedders
from cstp_grpc.platform.embedding.http_embedder import MAX_CHARACTERS
from cstp_grpc.platform.embedding.lexical_embedder import DIMENSIONS
from cstp_grpc.server.wiring.embedding import build_configured_embedders
from tests.platform.embedding.endpoints import embedding_server
from tests.platform.embedding.test_onnx_folder import write_json, write_model

E5 = {"query_prefix": "query: ", "passage_prefix": "passage: "}


def build_remote(url: str, **given: Any) -> Embedders:
    settings = {"provider": "openai", "url": url, "model": "small", "dimensions": DIMENSIONS, **given}
    return build_configured_embedders(EmbeddingSettings.model_validate(settings), Path())


def build_local(folder: Path, **given: Any) -> Embedders:
    settings = EmbeddingSettings(provider="onnx", model_path=folder, **given)
    return build_configured_embedders(settings, folder)


def test_an_endpoint_gets_the_prompt_of_each_side_once_for_each_text() -> None:
    with embedding_server() as endpoint:
        embedders = build_remote(endpoint.url, **E5)
        for _ in range(2):
            query, stored = (side.embed(["a queue"]) for side in (embedders.queries, embedders.stored))
            assert not np.allclose(query, stored)
        embedders.stored.embed(["a queue", "a cache"])
        sent = [request["input"] for request in endpoint.requests]
    assert sent == [["query: a queue"], ["passage: a queue"], ["passage: a queue", "passage: a cache"]]


def test_a_vector_that_is_cached_for_one_side_is_not_for_the_other() -> None:
    with embedding_server() as endpoint:
        embedders = build_remote(endpoint.url, **E5)
        embedders.queries.embed(["a queue"])
    assert embedders.queries.is_cached("a queue")
    assert not embedders.stored.is_cached("a queue")


def test_the_prompt_counts_in_the_length_that_an_endpoint_gets() -> None:
    with embedding_server() as endpoint:
        build_remote(endpoint.url, **E5).stored.embed(["word " * MAX_CHARACTERS])
        (text,) = endpoint.requests[0]["input"]
    assert text.startswith("passage: word ")
    assert len(text) == MAX_CHARACTERS


def test_the_prompt_counts_in_the_tokens_that_a_model_reads(folder: Path) -> None:
    write_json(write_model(folder) / "sentence_bert_config.json", {"max_seq_length": 2})
    embedders = build_local(folder, passage_prefix="mail ")
    longer, shorter = ["queue page"], ["queue"]
    np.testing.assert_allclose(embedders.stored.embed(longer), embedders.stored.embed(shorter), atol=1e-6)
    assert not np.allclose(embedders.queries.embed(longer), embedders.queries.embed(shorter))


def test_the_prompts_and_the_pooling_are_part_of_the_name_of_a_model(folder: Path) -> None:
    write_model(folder)
    kinds: list[dict[str, Any]] = [
        {},
        {"query_prefix": "mail "},
        {"passage_prefix": "mail "},
        {"query_prefix": "mail"},
        {"query_prefix": "mail ", "passage_prefix": "mail "},
        {"query_prefix": "mail ", "pooling": "cls"},
        {"pooling": "cls"},
    ]
    built = [build_local(folder, **kind) for kind in kinds]
    assert all(each.stored.model == each.queries.model for each in built)
    assert len({each.stored.model for each in built}) == len(kinds)


def test_without_prompts_a_model_has_the_name_it_always_had() -> None:
    embedders = build_remote("http://127.0.0.1:1/v1")
    assert embedders.stored.model == f"openai:small:{DIMENSIONS}:centred"
    assert embedders.stored is embedders.queries


ENDPOINT = {"provider": "openai", "url": "https://example.org/v1", "model": "m", "dimensions": 3}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"query_prefix": "query: "}, "query_prefix applies to onnx and openai only: the provider is minilm"),
        ({"provider": "lexical", "passage_prefix": "a"}, "passage_prefix applies to onnx and openai only"),
        ({**ENDPOINT, "pooling": "cls"}, "pooling applies to onnx only: the provider is openai"),
        ({**ENDPOINT, "query_prefix": "a\nb"}, "query_prefix\n.*match pattern"),
        ({**ENDPOINT, "passage_prefix": "a\x85"}, "passage_prefix\n.*match pattern"),
        ({**ENDPOINT, "passage_prefix": "a" * 301}, "passage_prefix\n.*at most 300 characters"),
        ({"provider": "onnx", "model_path": "m", "pooling": "max"}, "pooling\n.*'mean', 'cls' or 'last'"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_the_field(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        EmbeddingSettings.model_validate(settings)
