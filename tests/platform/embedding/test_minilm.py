from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.platform.embedding.embedder import EmbeddingThreads
from cstp_grpc.platform.embedding.model_files import ModelFiles, WeightsMissing, prepare_onnx_model
from cstp_grpc.platform.embedding.onnx_embedders import PROBES, MiniLmEmbedder
from tests.platform.embedding.reference import random_tensors, sentence_vector, write_graph

TEXTS = (
    "Put the message broker behind the same balancer",
    "Naïve Ñandú, 東京 and emoji 🦤: what the tokenizer does not know",
    "We rolled out to one percent of the users first. " * 12,
    "x",
    "",
)


def test_vectors_are_those_of_the_published_model(minilm: MiniLmEmbedder, published: ModelFiles) -> None:
    tensors = {name: value for name, value in load_file(published.model).items() if value.dtype == np.float32}
    tokenizer = Tokenizer.from_file(str(published.tokenizer))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    expected = [sentence_vector(tensors, tokenizer.encode(text).ids) for text in (*TEXTS, *PROBES)]
    cosines = np.vecdot(minilm.embed((*TEXTS, *PROBES)), expected)
    # Nearly those: most weights are int8. Of the shortest texts, a token or none, less is left of each rounding.
    assert cosines.min() > 0.985
    assert np.median(cosines) > 0.998


def test_vectors_are_unit_vectors_of_the_stated_length(minilm: MiniLmEmbedder) -> None:
    vectors = minilm.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), minilm.dimensions)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_no_texts_have_no_vectors(minilm: MiniLmEmbedder) -> None:
    assert minilm.embed([]).shape == (0, minilm.dimensions)


def test_a_text_has_the_same_vector_alone_and_among_others(minilm: MiniLmEmbedder) -> None:
    texts = [f"{number} reasons to " + "measure before deciding " * (number * 7 % 13) for number in range(50)]
    together = minilm.embed(texts)
    alone = np.concatenate([minilm.embed([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_a_paraphrase_is_closer_than_another_subject(minilm: MiniLmEmbedder) -> None:
    text, paraphrase, other = minilm.embed(
        [
            "Roll the release out to a small share of the users first",
            "Deploy the new version gradually, beginning with few users",
            "Encrypt the backups before they leave the building",
        ]
    )
    assert text @ paraphrase > text @ other + 0.2


def test_text_beyond_256_tokens_does_not_count(minilm: MiniLmEmbedder) -> None:
    read = "word " * 254
    first, second, shorter = minilm.embed([read, read + "and something else entirely", "word " * 200 + "else"])
    np.testing.assert_allclose(first, second, atol=1e-6)
    assert first @ shorter < 0.999


def test_many_threads_may_embed_at_once(minilm: MiniLmEmbedder) -> None:
    texts = [f"decision number {number} about " + "storage " * (number % 5) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        vectors = list(pool.map(lambda text: minilm.embed([text])[0], texts))
    np.testing.assert_allclose(vectors, minilm.embed(texts), atol=1e-5)


def test_a_text_that_cannot_be_embedded_fails_plainly(minilm: MiniLmEmbedder, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(QueryFailed) as caught:
        minilm.embed(["half a surrogate pair: \ud800"])
    assert caught.value.message == "The text could not be turned into a vector."
    assert "Traceback" in caplog.text


def test_the_onnx_export_of_others_works_too(minilm: MiniLmEmbedder, published: ModelFiles, cache: Path) -> None:
    exported = ModelFiles(prepare_onnx_model(published, cache), published.tokenizer)
    embedder = MiniLmEmbedder(exported, cache / "unused", EmbeddingThreads(2, 2))
    assert embedder.model == minilm.model
    np.testing.assert_allclose(embedder.embed(TEXTS), minilm.embed(TEXTS), atol=1e-5)


def test_an_onnx_model_that_computes_something_else_is_refused(published: ModelFiles, folder: Path) -> None:
    model = write_graph(folder / "model.onnx", random_tensors(30522))
    with pytest.raises(WeightsMissing, match=r"model\.onnx with .*: is not all-MiniLM-L6-v2"):
        MiniLmEmbedder(ModelFiles(model, published.tokenizer), folder)


def test_an_onnx_model_with_fewer_words_is_refused(published: ModelFiles, folder: Path) -> None:
    model = write_graph(folder / "model.onnx", random_tensors(100))
    with pytest.raises(WeightsMissing, match=r"model\.onnx: cannot be run as all-MiniLM-L6-v2"):
        MiniLmEmbedder(ModelFiles(model, published.tokenizer), folder)


def test_a_file_that_is_no_onnx_model_is_refused(published: ModelFiles, folder: Path) -> None:
    model = folder / "model.onnx"
    model.write_bytes(b"half an archive")
    with pytest.raises(WeightsMissing, match=r"model\.onnx: is not an ONNX model"):
        MiniLmEmbedder(ModelFiles(model, published.tokenizer), folder)


def test_a_tokenizer_that_splits_otherwise_is_refused(published: ModelFiles, cache: Path, folder: Path) -> None:
    cased = folder / "tokenizer.json"
    shutil.copy(published.tokenizer, cased)
    cased.write_text(cased.read_text(encoding="utf-8").replace('"lowercase":true', '"lowercase":false'), "utf-8")
    with pytest.raises(WeightsMissing, match=r"with .*tokenizer\.json: is not all-MiniLM-L6-v2"):
        MiniLmEmbedder(ModelFiles(prepare_onnx_model(published, cache), cased), folder)


def test_a_file_that_is_no_tokenizer_is_refused(published: ModelFiles, cache: Path, folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(WeightsMissing, match=r"tokenizer\.json: is not a tokenizer"):
        MiniLmEmbedder(ModelFiles(prepare_onnx_model(published, cache), folder / "tokenizer.json"), folder)


def test_several_threads_make_the_same_vectors(minilm: MiniLmEmbedder, published: ModelFiles, cache: Path) -> None:
    texts = [f"{number} reasons to " + "measure before deciding " * (number * 7 % 60) for number in range(12)]
    shared = MiniLmEmbedder(published, cache, EmbeddingThreads(1, 3))
    np.testing.assert_allclose(shared.embed(texts), minilm.embed(texts), atol=1e-5)
