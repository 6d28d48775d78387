"""What is published on a package index: the source distribution, and the wheel that is built of it."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.installations import ROOT, build_distribution

PACKAGES = ("cstp_grpc", "bridge")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    archive = build_distribution("sdist", ROOT, tmp_path_factory.mktemp("sdist"))
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked


def files(folder: Path) -> set[str]:
    """Return the files below a folder, without what Python and systems leave there."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in found if path.name != ".DS_Store"}


def files_of_packages(folder: Path) -> set[str]:
    """Return the files of both packages in a folder."""
    return {f"{package}/{name}" for package in PACKAGES for name in files(folder / package)}


def test_the_source_distribution_is_the_packages_and_what_they_are_made_of(source: Path) -> None:
    made_of = {f"{folder}/{name}" for folder in ("guardrails", "proto", "third_party") for name in files(ROOT / folder)}
    beside = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert files(source) == files_of_packages(ROOT) | made_of | beside


def test_the_wheel_of_the_source_distribution_is_the_packages(source: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(build_distribution("wheel", source, tmp_path)) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    packaged = {f"cstp_grpc/core/guardrails/packaged/{file.name}" for file in (ROOT / "guardrails").iterdir()}
    assert names == files_of_packages(ROOT) | packaged
