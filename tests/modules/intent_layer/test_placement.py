"""Where facts belong: the protocol's examples, and the laws of the lowest common ancestor."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.modules.intent_layer.learning_merge import place_fact
from cstp_grpc.modules.intent_layer.model import ROOT, FactPlacement
from cstp_grpc.modules.intent_layer.project_files import common_folder
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from tests.modules.intent_layer.trees import write_tree

folders = st.lists(st.sampled_from(["a", "ab", "b", "é"]), max_size=5).map("/".join).map(lambda path: path or ROOT)
several = st.lists(folders, min_size=1, max_size=6)


def is_above(upper: str, lower: str) -> bool:
    return PurePosixPath(lower).is_relative_to(upper) or upper == ROOT


@given(several)
def test_the_common_folder_is_above_all_and_none_below_it_is(paths: list[str]) -> None:
    common = common_folder(paths)
    assert all(is_above(common, path) for path in paths)
    below = {child for path in paths for child in (PurePosixPath(path), *PurePosixPath(path).parents)}
    assert not any(
        str(child) != common and is_above(common, str(child)) and all(is_above(str(child), path) for path in paths)
        for child in below
    )


@given(several, several)
def test_the_common_folder_is_the_same_in_any_order_and_grouping(first: list[str], second: list[str]) -> None:
    common = common_folder([*first, *second])
    assert common == common_folder([*reversed(second), *first])
    assert common == common_folder([common_folder(first), common_folder(second)])
    assert common == common_folder([*first, *second, common])


@given(folders)
def test_a_folder_is_common_to_itself(folder: str) -> None:
    assert common_folder([folder, folder]) == folder


@pytest.mark.parametrize(
    ("paths", "folder", "file"),
    [
        (["api/v1/*", "api/v2/*"], "api", "api/AGENTS.md"),
        (["**"], ".", "CLAUDE.md"),
        (["payments/", "billing/"], ".", "CLAUDE.md"),
        (["payments/charge.py", "billing/invoice.py"], ".", "CLAUDE.md"),
        (["src/**/x.py"], "src", "src/AGENTS.md"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_the_protocols_examples(tmp_path: Path, paths: list[str], folder: str, file: str, there: bool) -> None:
    if there:
        names = ("api/v1/x.py", "api/v2/x.py", "payments/charge.py", "billing/invoice.py", "src/a/x.py")
        write_tree(tmp_path, dict.fromkeys(names, ""))
    assert place_fact(ProjectTree(tmp_path), paths) == FactPlacement(folder, file, exists=False, covering=None)


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("src/api/x.py", "src/api"),
        ("src/api", "src/api"),
        ("src/api/", "src/api"),
        ("./src//api/../api", "src/api"),
        ("src/api/new.py", "src/api"),
        ("src/new/new.py", "src/new"),
        ("src/new/", "src/new"),
        ("src/api/x.py/new.py", "src/api"),
        ("src/api/x.py/new/deep/", "src/api"),
        ("src/api/*.py", "src/api"),
        ("src/api/st*r.py", "src/api"),
        ("linked/x.py", "src/api"),
        (".", "."),
    ],
)
def test_a_single_path_belongs_to_its_folder(tmp_path: Path, path: str, folder: str) -> None:
    write_tree(tmp_path, {"src/api/x.py": "", "src/api/st*r.py": ""})
    (tmp_path / "linked").symlink_to("src/api")
    assert place_fact(ProjectTree(tmp_path), [path]).folder == folder


def test_the_node_that_is_there_is_named_as_it_is(tmp_path: Path) -> None:
    tree = ProjectTree(write_tree(tmp_path, {"AGENTS.md": "a", "src/CLAUDE.md": "b", "src/x.py": "", "lib/x.py": ""}))
    assert place_fact(tree, ["lib/x.py"]) == FactPlacement("lib", "lib/AGENTS.md", exists=False, covering="AGENTS.md")
    assert place_fact(tree, ["src/x.py"]) == FactPlacement(
        "src", "src/CLAUDE.md", exists=True, covering="src/CLAUDE.md"
    )
    assert place_fact(tree, ["src/", "lib"]) == FactPlacement(".", "AGENTS.md", exists=True, covering="AGENTS.md")


def test_the_covering_node_is_the_nearest_above(tmp_path: Path) -> None:
    tree = ProjectTree(write_tree(tmp_path, {"CLAUDE.md": "a", "src/AGENTS.md": "b", "src/a/b/c/x.py": ""}))
    placement = place_fact(tree, ["src/a/b/c/x.py", "src/a/b/new.py"])
    assert placement == FactPlacement("src/a/b", "src/a/b/AGENTS.md", exists=False, covering="src/AGENTS.md")


def test_no_path_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="paths"):
        place_fact(ProjectTree(Path("/nonexistent")), [])


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a\0b", "out/x", "a/../../x", "\udc80", "*/../../x", ""])
def test_a_path_that_leaves_the_project_names_its_place(tmp_path: Path, path: str) -> None:
    (tmp_path / "out").symlink_to("/etc")
    with pytest.raises(InvalidArgument) as caught:
        place_fact(ProjectTree(tmp_path), ["a", path])
    assert caught.value.violations[0].field == "paths[1]"


@given(st.lists(st.text(st.sampled_from("ab/.*?"), min_size=1, max_size=12), min_size=1, max_size=4))
def test_whatever_is_asked_the_place_is_in_the_project(paths: list[str]) -> None:
    tree = ProjectTree(Path(__file__).parent)
    try:
        placement = place_fact(tree, paths)
    except InvalidArgument:
        return
    assert os.path.normpath(placement.folder) == placement.folder
    # `..a` is a name like any other.
    assert not placement.folder.startswith(("../", "/"))
    assert placement.folder != ".."
    assert not {"*", "?"} & set(placement.folder)
