from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.platform.config import EmbeddingSettings
from cstp_grpc.platform.embedding.embedder import Embedder
from cstp_grpc.platform.embedding.model_files import ModelFiles, WeightsMissing, default_locations
from cstp_grpc.platform.embedding.onnx_embedders import MiniLmEmbedder
from cstp_grpc.server.wiring import embedding
from cstp_grpc.server.wiring.embedding import build_embedder, build_lazy_embedders


def build(provider: str, data_dir: Path, model_path: Path | None = None, cache_size: int = 10) -> Embedder:
    return build_embedder(
        provider, model_path=model_path, download=False, threads=1, cache_size=cache_size, data_dir=data_dir
    )


def test_lexical_needs_no_weights(tmp_path: Path) -> None:
    embedder = build("lexical", tmp_path, model_path=tmp_path / "nowhere")
    assert embedder.model == "lexical-v1"
    assert not list(tmp_path.iterdir())


def test_minilm_takes_the_weights_from_the_configured_folder(
    published: ModelFiles, minilm: MiniLmEmbedder, folder: Path
) -> None:
    embedder = build("minilm", folder, model_path=published.model.parent)
    assert (embedder.model, embedder.dimensions) == ("all-MiniLM-L6-v2", 384)
    np.testing.assert_allclose(embedder.embed(["a ledger"]), minilm.embed(["a ledger"]), atol=1e-6)


def test_minilm_without_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing, match="nowhere is not a folder"):
        build("minilm", tmp_path, model_path=tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["", "not what it should be"])
def test_wrong_weights_in_chromas_cache_are_to_be_deleted(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = default_locations().chroma_cache
    cache.mkdir(parents=True)
    for name in ("model.onnx", "tokenizer.json"):
        (cache / name).write_text(content)
    with pytest.raises(WeightsMissing) as raised:
        build("minilm", tmp_path / "data")
    problem, _, *ways = str(raised.value).splitlines()
    assert problem.startswith(f"{cache / 'tokenizer.json'}: is not a tokenizer")
    assert ways[0].startswith(f"  - delete the folder {cache}, which is looked at first, and then ")
    assert not any(way.startswith(("  - pip", "  - embedding.download")) for way in ways)


def test_wrong_weights_in_the_configured_folder_are_not_to_be_deleted(tmp_path: Path) -> None:
    for name in ("model.onnx", "tokenizer.json"):
        (tmp_path / name).write_text("not what it should be")
    with pytest.raises(WeightsMissing, match=r"tokenizer\.json: is not a tokenizer") as raised:
        build("minilm", tmp_path / "data", model_path=tmp_path)
    assert "delete" not in str(raised.value)


def test_another_provider_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"embedding\.provider: 'word2vec'"):
        build("word2vec", tmp_path)


@pytest.mark.parametrize(("cache_size", "kept"), [(10, True), (0, False)])
def test_a_memory_of_size_0_keeps_nothing(cache_size: int, kept: bool, tmp_path: Path) -> None:
    embedder = build("lexical", tmp_path, cache_size=cache_size)
    assert (embedder.embed(["a ledger"]) is embedder.embed(["a ledger"])) == kept


def test_lexical_does_without_the_libraries_of_the_model(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from cstp_grpc.server.wiring.embedding import build_embedder\n"
        "build_embedder('lexical', None, False, 1, 10, Path()).embed(['a ledger'])\n"
        "print(sorted({'onnxruntime', 'onnx', 'tokenizers', 'chromadb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=60)
    assert done.stdout == "[]\n"


def test_converted_model_is_loaded_with_the_first_text(published: ModelFiles, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from cstp_grpc.platform.config import EmbeddingSettings\n"
        "from cstp_grpc.server.wiring.embedding import build_lazy_embedders\n"
        "settings = EmbeddingSettings(model_path=sys.argv[1])\n"
        "embedder = build_lazy_embedders(settings, Path(sys.argv[2]), finds_files=True).queries\n"
        "print('onnxruntime' in sys.modules, len(embedder.embed(['a ledger'])[0]), 'onnxruntime' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(published.model.parent), str(tmp_path)]
    starts = [subprocess.run(command, capture_output=True, check=True, text=True, timeout=60) for _ in range(2)]
    assert [start.stdout for start in starts] == ["True 384 True\n", "False 384 True\n"]


@pytest.mark.parametrize("name", ["model.onnx", "model.safetensors"])
def test_faults_of_files_that_were_never_loaded_end_the_start(name: str, tmp_path: Path) -> None:
    for each in (name, "tokenizer.json"):
        (tmp_path / each).write_text("not what it should be")
    with pytest.raises(WeightsMissing):
        build_lazy_embedders(EmbeddingSettings(model_path=tmp_path), tmp_path / "data", finds_files=True)


@pytest.mark.parametrize(("is_server", "shown"), [(True, "the log of the server says why"), (False, "/models/minilm")])
def test_only_the_user_of_this_process_learns_where_a_lost_model_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_server: bool, shown: str
) -> None:
    def lose(*_: object) -> NoReturn:
        raise WeightsMissing("/models/minilm: is not a folder")

    monkeypatch.setattr(embedding, "find_model_files", lambda *_: None)
    monkeypatch.setattr(embedding, "is_converted", lambda *_: True)
    monkeypatch.setattr(embedding, "load_minilm", lose)
    embedders = build_lazy_embedders(EmbeddingSettings(), tmp_path, finds_files=is_server)
    with pytest.raises(QueryFailed, match=shown) as failure:
        embedders.queries.embed(["a text"])
    assert ("/models/minilm" in str(failure.value)) is not is_server
    assert ("/models/minilm" in caplog.text) is is_server
