"""Paths that stay inside a project, whatever links there are."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.errors import InvalidArgument, Unavailable
from cstp_grpc.modules.intent_layer.project_tree import (
    ProjectTree,
)
from tests.modules.intent_layer.sample_project import PROJECT, refusal
from tests.modules.intent_layer.trees import write_tree


@pytest.mark.parametrize(
    ("written", "located"),
    [
        (".", "."),
        ("./", "."),
        ("src", "src"),
        ("src/", "src"),
        ("./src//api/./handlers.ts", "src/api/handlers.ts"),
        ("src/../tests", "tests"),
        ("src/api/../..", "."),
        ("src/new/deeper/file.ts", "src/new/deeper/file.ts"),
        ("src/api/handlers.ts/below", "src/api/handlers.ts/below"),
        ("src/ a b", "src/ a b"),
        ("~", "~"),
        ("...", "..."),
        ("src\\api", "src\\api"),
    ],
)
def test_a_path_is_normalised(tree: ProjectTree, written: str, located: str) -> None:
    assert tree.locate(written) == located


@pytest.mark.parametrize(
    "path",
    [
        "",
        "..",
        "../project",
        "src/../../project/src",
        "src/../..",
        "/",
        "/etc/passwd",
        "//src",
        "src\0",
        "\0",
        "src/\ud800",
        "\udcff",
        "a" * 256,
        "src/" + "é" * 128,
        "a/" * 2500 + "a",
        "a" * 5000,
    ],
)
def test_a_path_that_leaves_or_that_no_file_can_have_is_refused(tree: ProjectTree, path: str) -> None:
    refusal(tree, path)


def test_an_absolute_path_is_refused_even_inside(tree: ProjectTree, root: Path) -> None:
    refusal(tree, str(root / "src"))


def test_the_longest_names_and_paths_are_taken(tree: ProjectTree) -> None:
    assert tree.locate("a" * 255) == "a" * 255
    longest = "/".join(["a" * 255] * 15)
    assert tree.locate(longest) == longest
    assert tree.nearest_folder(longest) == "."


@given(st.lists(st.sampled_from(["src", "api", "new", "..", ".", "", "in", "out", "loop", "AGENTS.md"]), max_size=8))
def test_what_is_located_stays_inside(parts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = write_tree(Path(folder) / "project", PROJECT)
        outside = write_tree(Path(folder) / "outside", {"AGENTS.md": "secret"})
        (root / "in").symlink_to("src/api")
        (root / "src/out").symlink_to(outside)
        (root / "out").symlink_to("src/out")
        (root / "loop").symlink_to("loop")
        tree = ProjectTree(root)
        try:
            located = tree.locate("/".join(parts))
        except InvalidArgument:
            return
        assert (root / located).resolve() == root / located
        assert "secret" not in repr(tree.nodes_to_path(located))


def test_a_link_inside_is_followed(tree: ProjectTree, root: Path) -> None:
    (root / "link").symlink_to("src/api")
    (root / "absolute").symlink_to(root / "src")
    assert tree.locate("link/handlers.ts") == "src/api/handlers.ts"
    assert tree.locate("link/new.ts") == "src/api/new.ts"
    assert tree.locate("absolute/api") == "src/api"
    assert [node.path for node in tree.nodes_to_path(tree.locate("link"))] == [
        "CLAUDE.md",
        "src/AGENTS.md",
        "src/api/AGENTS.md",
    ]


@pytest.mark.parametrize("path", ["out", "out/sub", "out/new/file", "src/out", "out/../src/out", "deep/again"])
def test_a_link_that_leads_outside_is_refused(tree: ProjectTree, root: Path, secret: Path, path: str) -> None:
    (root / "out").symlink_to(secret)
    (root / "src/out").symlink_to("../../project-secret/sub")
    (root / "deep").symlink_to("out")
    assert "secret" not in refusal(tree, path).message


def test_a_link_to_nothing_outside_is_refused(tree: ProjectTree, root: Path) -> None:
    (root / "out").symlink_to("/nowhere/at/all")
    refusal(tree, "out")
    refusal(tree, "out/file")


def test_links_in_a_circle_are_refused(tree: ProjectTree, root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    refusal(tree, "a")
    refusal(tree, "a/file")
    (root / "src/self").symlink_to(".")
    assert tree.locate("src/self/self/api") == "src/api"


def test_a_link_to_a_name_that_is_not_utf8_is_refused(tree: ProjectTree, root: Path) -> None:
    name = os.fsdecode(b"\xff")
    (root / name).mkdir()
    (root / "link").symlink_to(name)
    refusal(tree, "link")


def test_a_root_that_is_a_link_is_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(root)
    tree = ProjectTree(tmp_path / "current")
    assert tree.locate("src/api") == "src/api"
    assert len(tree.nodes_to_path("src/api")) == 3


def test_a_root_that_is_missing_is_unavailable(tmp_path: Path) -> None:
    tree = ProjectTree(tmp_path / "nowhere")
    for call in (lambda: tree.locate("src"), lambda: tree.nodes_to_path("src"), lambda: list(tree.nodes())):
        with pytest.raises(Unavailable):
            call()


def test_what_is_there_is_known(tree: ProjectTree) -> None:
    assert (tree.exists("."), tree.is_folder(".")) == (True, True)
    assert (tree.exists("src/api"), tree.is_folder("src/api")) == (True, True)
    assert (tree.exists("src/api/handlers.ts"), tree.is_folder("src/api/handlers.ts")) == (True, False)
    assert (tree.exists("src/new"), tree.is_folder("src/new")) == (False, False)
    assert (tree.exists("src/api/handlers.ts/x"), tree.is_folder("src/api/handlers.ts/x")) == (False, False)


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        (".", "."),
        ("src/api", "src/api"),
        ("src/api/handlers.ts", "src/api"),
        ("src/api/new/deeper/x", "src/api"),
        ("src/api/handlers.ts/x", "src/api"),
        ("new", "."),
    ],
)
def test_the_nearest_folder_is_found(tree: ProjectTree, path: str, folder: str) -> None:
    assert tree.nearest_folder(path) == folder


@pytest.mark.parametrize("path", ["..", "../project-secret", "src/../../project-secret", "/etc", "", "a\0b", "\ud800"])
def test_a_path_that_was_not_located_finds_nothing(tree: ProjectTree, secret: Path, path: str) -> None:
    assert not tree.exists(path)
    assert tree.node(path) is None
    assert tree.nodes_to_path(path) == ()
    assert tree.listing(path) is None
    assert tree.read(f"{path}/AGENTS.md") is None
    assert tree.document(f"{path}/AGENTS.md") is None
