from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cstp_grpc.platform.embedding.model_files import (
    RECEIPT,
    UNFINISHED,
    WEIGHTS,
    ModelFiles,
    WeightsMissing,
    prepare_onnx_model,
    write_atomically,
)


def keep_looks(path: Path, change: bytes) -> None:
    """Overwrite the beginning of a file without changing its size or modification time."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(change)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def copied(published: ModelFiles, folder: Path) -> ModelFiles:
    """Published weights that a test may damage."""
    source = folder / "source"
    source.mkdir()
    return ModelFiles(
        Path(shutil.copy(published.model, source)),
        Path(shutil.copy(published.tokenizer, source)),
    )


@pytest.fixture(scope="module")
def damaged_cache() -> Iterator[Path]:
    """A folder of converted weights that tests damage, one after the other: each leaves them whole again."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def converted(published: ModelFiles, damaged_cache: Path) -> Path:
    """The model of a conversion in `damaged_cache`; it is converted once, which takes half a second."""
    return prepare_onnx_model(published, damaged_cache)


def test_onnx_is_used_as_it_is(folder: Path) -> None:
    weights = ModelFiles(folder / "model.onnx", folder / "tokenizer.json")
    assert prepare_onnx_model(weights, folder / "cache") == folder / "model.onnx"
    assert not (folder / "cache").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_file_that_is_not_the_published_one_is_refused(name: str, published: ModelFiles, folder: Path) -> None:
    (folder / "model.safetensors").symlink_to(published.model)
    (folder / "tokenizer.json").symlink_to(published.tokenizer)
    (folder / name).unlink()
    (folder / name).write_bytes(b"other")
    weights = ModelFiles(folder / "model.safetensors", folder / "tokenizer.json")
    with pytest.raises(WeightsMissing, match=f"{name}: is not the published {name}"):
        prepare_onnx_model(weights, folder / "cache")
    assert not (folder / "cache").exists()


def test_weights_are_converted_once(copied: ModelFiles, folder: Path) -> None:
    first = prepare_onnx_model(copied, folder / "cache")
    written = first.stat()
    keep_looks(copied.model, b"damaged, but it is not read again")
    second = prepare_onnx_model(copied, folder / "cache")
    assert (second, second.stat().st_mtime_ns, second.stat().st_ino) == (first, written.st_mtime_ns, written.st_ino)


def test_weights_that_were_replaced_are_verified_again(copied: ModelFiles, folder: Path) -> None:
    prepare_onnx_model(copied, folder / "cache")
    copied.model.write_bytes(b"other weights")
    with pytest.raises(WeightsMissing, match=r"model\.safetensors: is not the published"):
        prepare_onnx_model(copied, folder / "cache")


def test_other_weights_do_not_profit_from_an_earlier_conversion(
    published: ModelFiles, cache: Path, folder: Path
) -> None:
    prepare_onnx_model(published, cache)
    (folder / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(WeightsMissing, match=r"model\.safetensors: is not the published"):
        prepare_onnx_model(ModelFiles(folder / "model.safetensors", published.tokenizer), cache)


@pytest.mark.parametrize("name", ["model.onnx", pytest.param(WEIGHTS, marks=pytest.mark.slow)])
def test_a_damaged_conversion_is_replaced(
    name: str, converted: Path, published: ModelFiles, damaged_cache: Path
) -> None:
    damaged = converted.with_name(name)
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    prepare_onnx_model(published, damaged_cache)
    assert damaged.read_bytes() == whole


@pytest.mark.parametrize("content", [b"{", *(pytest.param(other, marks=pytest.mark.slow) for other in (b"[]", None))])
def test_a_conversion_without_a_good_receipt_is_replaced(
    content: bytes | None, converted: Path, published: ModelFiles, damaged_cache: Path
) -> None:
    whole = converted.read_bytes()
    keep_looks(converted, b"half written")
    receipt = converted.parent / RECEIPT
    receipt.unlink()
    if content is not None:
        receipt.write_bytes(content)
    assert prepare_onnx_model(published, damaged_cache).read_bytes() == whole


def test_what_an_interrupted_conversion_left_is_removed(
    converted: Path, published: ModelFiles, damaged_cache: Path
) -> None:
    converted.rename(converted.parent / f"{UNFINISHED}x")
    assert prepare_onnx_model(published, damaged_cache) == converted
    assert {path.name for path in converted.parent.iterdir()} == {"model.onnx", WEIGHTS, RECEIPT}


def test_a_folder_that_cannot_be_written_is_named(published: ModelFiles, folder: Path) -> None:
    (folder / "cache").write_text("a file")
    with pytest.raises(WeightsMissing, match=r"cache/.*: the converted weights cannot be written"):
        prepare_onnx_model(published, folder / "cache")


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    occupied = tmp_path / "model.onnx"
    occupied.mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(occupied, b"content")
    assert list(tmp_path.iterdir()) == [occupied]
