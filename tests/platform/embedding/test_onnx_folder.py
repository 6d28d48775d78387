"""A user's sentence-transformer, of which these tests make small ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from cstp_grpc.contract.errors import ConfigError, QueryFailed
from cstp_grpc.platform.config import EmbeddingSettings
from cstp_grpc.platform.embedding.embedder import ONE_THREAD, EmbeddingThreads
from cstp_grpc.platform.embedding.onnx_embedders import OnnxFolderEmbedder
from cstp_grpc.server.wiring.embedding import build_configured_embedders

WORDS = ("[UNK]", "cache", "queue", "mail", "page", "Cache")
DIMENSIONS = 5
MEANINGS = np.random.default_rng(3).normal(size=(len(WORDS), DIMENSIONS)).astype(np.float32)
"""The hidden state of each word."""


def write_model(folder: Path, pooling: str = "mean_tokens", meanings: NDArray[np.float32] = MEANINGS) -> Path:
    """Write a model that knows a few words, each with one meaning wherever it stands, and return its folder."""
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    shape = ["batch", "length"]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["words", "input_ids"], ["token_embeddings"])],
        "words",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("token_embeddings", TensorProto.FLOAT, [*shape, meanings.shape[1]])],
        [numpy_helper.from_array(meanings, "words")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (folder / "onnx" / "model.onnx").write_bytes(model.SerializeToString())
    modes = ("mean_tokens", "cls_token", "max_tokens", "lasttoken", "weightedmean_tokens")
    content: dict[str, Any] = {f"pooling_mode_{mode}": mode == pooling for mode in modes}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": meanings.shape[1], **content})
    return folder


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(vector / np.linalg.norm(vector))


def states(words: Sequence[str]) -> NDArray[np.float32]:
    return np.asarray(MEANINGS[[WORDS.index(word) for word in words]])


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean_tokens", lambda hidden: hidden.mean(axis=0)),
        ("max_tokens", lambda hidden: hidden.max(axis=0)),
        ("cls_token", lambda hidden: hidden[0]),
        ("lasttoken", lambda hidden: hidden[-1]),
    ],
)
def test_a_text_is_pooled_as_its_configuration_says(
    folder: Path, pooling: str, expected: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> None:
    embedder = OnnxFolderEmbedder(write_model(folder, pooling), EmbeddingThreads(1, 2))
    texts = ["cache", "queue mail", "page cache mail queue"]
    assert embedder.dimensions == DIMENSIONS
    wanted = [unit(expected(states(text.split()))) for text in texts]
    np.testing.assert_allclose(embedder.embed(texts), wanted, atol=1e-6)


def test_no_more_tokens_are_read_than_the_model_was_trained_for(folder: Path) -> None:
    write_json(write_model(folder) / "sentence_bert_config.json", {"max_seq_length": 2, "do_lower_case": True})
    embedder = OnnxFolderEmbedder(folder, ONE_THREAD)
    vector, shorter = embedder.embed(["Cache QUEUE mail", "cache queue"])
    np.testing.assert_allclose(vector, shorter, atol=1e-6)
    np.testing.assert_allclose(vector, unit(states(["cache", "queue"]).mean(axis=0)), atol=1e-6)


@pytest.mark.parametrize(("pooling", "position"), [("cls", 0), ("last", -1)])
def test_the_settings_override_the_pooling_of_the_folder(folder: Path, pooling: str, position: int) -> None:
    own = OnnxFolderEmbedder(write_model(folder), ONE_THREAD)
    text = ["cache queue mail"]
    embedder = OnnxFolderEmbedder(folder, ONE_THREAD, pooling=pooling)
    np.testing.assert_allclose(embedder.embed(text), [unit(states(text[0].split())[position])], atol=1e-6)
    assert embedder.model == f"{own.model}:{pooling}"
    same = OnnxFolderEmbedder(folder, ONE_THREAD, pooling="mean")
    np.testing.assert_array_equal(same.embed(text), own.embed(text))
    assert same.model == own.model


def test_a_folder_without_a_pooling_needs_that_of_the_settings(folder: Path) -> None:
    (write_model(folder) / "1_Pooling" / "config.json").unlink()
    names = {OnnxFolderEmbedder(folder, ONE_THREAD, pooling=pooling).model for pooling in ("mean", "cls", "last")}
    assert len(names) == 3
    with pytest.raises(ConfigError, match=r"must hold tokenizer.json, 1_Pooling/config.json and "):
        OnnxFolderEmbedder(folder, ONE_THREAD)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"must hold tokenizer.json and model.onnx or "):
        OnnxFolderEmbedder(folder, ONE_THREAD, pooling="mean")


def test_the_name_of_the_model_follows_from_its_files(folder: Path) -> None:
    names = set()
    for pooling, meanings in (("mean_tokens", MEANINGS), ("max_tokens", MEANINGS), ("max_tokens", MEANINGS + 1)):
        embedder = OnnxFolderEmbedder(write_model(folder / "mine", pooling, meanings), ONE_THREAD)
        assert embedder.model.startswith("onnx:mine:")
        assert OnnxFolderEmbedder(folder / "mine", ONE_THREAD).model == embedder.model
        names.add(embedder.model)
    assert len(names) == 3


def test_it_is_configured_by_its_folder(folder: Path) -> None:
    settings = EmbeddingSettings(provider="onnx", model_path=write_model(folder), dimensions=DIMENSIONS)
    embedder = build_configured_embedders(settings, folder).queries
    assert embedder.embed(["cache"]).shape == (1, DIMENSIONS)
    assert embedder.is_cached("cache")


def test_other_dimensions_than_configured_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"embedding\.dimensions: 384, but the model in .* has 5"):
        OnnxFolderEmbedder(write_model(folder), ONE_THREAD, 384)


def spoil_dimensions(folder: Path) -> None:
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 7, "pooling_mode_cls_token": True})


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "must hold tokenizer.json, 1_Pooling/config.json and "),
        (lambda folder: (folder / "onnx" / "model.onnx").unlink(), "must hold tokenizer.json, 1_Pooling/config.json"),
        (lambda folder: (folder / "onnx" / "model.onnx").write_bytes(b"no graph"), "is not an ONNX model"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is not a tokenizer"),
        (lambda folder: (folder / "1_Pooling" / "config.json").write_text("["), "cannot be read as JSON"),
        (lambda folder: write_json(folder / "1_Pooling" / "config.json", []), "must hold an object"),
        (lambda folder: write_model(folder, "weightedmean_tokens"), "it has pooling_mode_weightedmean_tokens"),
        (lambda folder: write_model(folder, "nothing"), "it has none"),
        (spoil_dimensions, "has 5 dimensions, but 1_Pooling/config.json says 7"),
        (
            lambda folder: write_json(folder / "modules.json", [{"type": "sentence_transformers.models.Dense"}]),
            "has the module Dense, which is not supported",
        ),
        (
            lambda folder: write_json(folder / "sentence_bert_config.json", {"max_seq_length": "many"}),
            "must be a positive number",
        ),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_with_the_file(
    folder: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    spoil(write_model(folder))
    with pytest.raises(ConfigError) as raised:
        OnnxFolderEmbedder(folder, ONE_THREAD)
    assert reason in str(raised.value)
    assert str(raised.value).startswith("embedding.model_path: ")


def test_a_text_without_a_direction_cannot_be_embedded(folder: Path) -> None:
    embedder = OnnxFolderEmbedder(write_model(folder), ONE_THREAD)
    with pytest.raises(QueryFailed, match="could not be turned into a vector"):
        embedder.embed([""])
