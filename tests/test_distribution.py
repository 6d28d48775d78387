"""What is published on a package index: the source distribution, and the wheel that is built of it."""

from __future__ import annotations

import re
import tarfile
import zipfile
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path

import pytest

from cstp_grpc.common.version import VERSION
from tests.installations import ROOT, build_distribution

PACKAGES = ("cstp_grpc", "bridge", "console")


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


@pytest.mark.slow
def test_the_source_distribution_is_the_packages_and_what_they_are_made_of(source: Path) -> None:
    made_of = {f"{folder}/{name}" for folder in ("guardrails", "proto", "third_party") for name in files(ROOT / folder)}
    made_of.add("scripts/package_metadata.py")
    beside = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert files(source) == files_of_packages(ROOT) | made_of | beside


@pytest.mark.slow
def test_the_wheel_of_the_source_distribution_is_the_packages_without_agents_files(
    source: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(build_distribution("wheel", source, tmp_path)) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    packaged = {f"cstp_grpc/core/guardrails/packaged/{file.name}" for file in (ROOT / "guardrails").iterdir()}
    expected = files_of_packages(ROOT) | packaged
    assert names == {name for name in expected if not name.endswith("AGENTS.md")}


def read_metadata(folder: Path) -> EmailMessage:
    """Build a wheel of the repository and return its metadata."""
    with zipfile.ZipFile(build_distribution("wheel", ROOT, folder)) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(wheel.read(name), policy=policy.default)


def links(readme: str) -> list[str]:
    """Return where the links and pictures of a README lead, outside of code."""
    return re.findall(r"\]\(([^)]+)\)", re.sub(r"^```.*?^```$", "", readme, flags=re.DOTALL | re.MULTILINE))


def test_the_readme_on_an_index_has_no_relative_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CSTP_REPOSITORY_URL", raising=False)
    metadata = read_metadata(tmp_path)
    readme = metadata.get_content()
    assert readme.startswith("# CSTP")
    assert metadata.get_all("Project-URL") is None
    assert [link for link in links(readme) if not link.startswith(("https://", "#"))] == []


def test_a_release_links_to_its_files_in_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSTP_REPOSITORY_URL", "https://git.example.com/team/cstp/")
    metadata = read_metadata(tmp_path)
    base = f"https://git.example.com/team/cstp/blob/v{VERSION}/"
    assert f"Changelog, {base}CHANGELOG.md" in metadata.get_all("Project-URL", [])
    found = links(metadata.get_content())
    assert base + "docs/security-model.md" in found
    pictures = [link for link in found if link.endswith(".svg")]
    assert pictures
    assert all(picture.startswith(base.replace("/blob/", "/raw/")) for picture in pictures)
    written = set(links((ROOT / "README.md").read_text()))
    assert {link.removeprefix(base) for link in found if link.startswith(base)} <= written
