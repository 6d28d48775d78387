"""Nodes in folders that git ignores, and in others that are only named like them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cstp_grpc.modules.intent_layer.node_staleness import GitHistory
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from cstp_grpc.modules.intent_layer.validation import select_nodes
from tests.modules.intent_layer.repositories import Repository, new_repository
from tests.modules.intent_layer.trees import validate_nodes, write_tree

NAMES = ("build", "dist", "node_modules", "target", "venv", ".venv")
BAD_NODE = "## Purpose\n\nSee [nothing](missing.md).\n"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return new_repository(tmp_path / "shop")


def folders(root: Path) -> list[str]:
    return [node.folder for node in ProjectTree(root).nodes()]


def test_nodes_are_found_whatever_their_folder_is_called(repository: Repository) -> None:
    write_tree(repository.root, {f"src/{name}/AGENTS.md": BAD_NODE for name in NAMES})
    expected = sorted(f"src/{name}" for name in NAMES)
    assert folders(repository.root) == expected
    tree = ProjectTree(repository.root)
    assert [node.folder for node in select_nodes(tree)] == expected
    assert [node.folder for node in tree.nodes_to_path("src/build/x.py")] == ["src/build"]
    repository.git("add", "--all")
    assert folders(repository.root) == expected


def test_what_git_ignores_is_skipped_whatever_it_is_called(repository: Repository) -> None:
    write_tree(
        repository.root,
        {
            ".gitignore": "/output/\nbuild/\n",
            "AGENTS.md": "x",
            "output/AGENTS.md": "x",
            "src/output/AGENTS.md": "x",
            "src/build/deep/AGENTS.md": "x",
            "src/.gitignore": "cache/\n",
            "src/cache/AGENTS.md": "x",
            "src/__pycache__/AGENTS.md": "x",
        },
    )
    assert folders(repository.root) == [".", "src/output"]
    assert folders(repository.root / "src") == ["output"]


def test_what_is_tracked_is_not_ignored(repository: Repository) -> None:
    write_tree(repository.root, {".gitignore": "build/\n", "build/AGENTS.md": "x", "build/out/AGENTS.md": "x"})
    repository.git("add", "--force", "build/AGENTS.md")
    assert folders(repository.root) == ["build"]


def test_where_git_gives_no_answer_the_names_decide(repository: Repository, tmp_path: Path) -> None:
    nodes = {"AGENTS.md": "x", **{f"{name}/AGENTS.md": "x" for name in NAMES}, "output/AGENTS.md": "x"}
    write_tree(tmp_path / "plain", nodes)
    assert folders(tmp_path / "plain") == [".", "output"]
    write_tree(repository.root, {".gitignore": "/inner/\n", **{f"inner/{path}": text for path, text in nodes.items()}})
    assert folders(repository.root / "inner") == [".", "output"]
    (repository.root / ".git" / "config").write_text("not a configuration")
    assert folders(repository.root) == ["inner", "inner/output"]


def test_a_repository_inside_is_skipped_by_names(repository: Repository) -> None:
    new_repository(repository.root / "inner")
    write_tree(repository.root, {"inner/AGENTS.md": "x", "inner/build/AGENTS.md": "x", "build/AGENTS.md": "x"})
    assert folders(repository.root) == ["build", "inner"]


def test_a_node_in_such_a_folder_is_stale_when_its_own_files_change(repository: Repository) -> None:
    repository.commit("build/AGENTS.md", "AGENTS.md", "node_modules/x/index.js")
    repository.commit("build/rules.py", "node_modules/x/index.js")
    found = validate_nodes(ProjectTree(repository.root), history=GitHistory(repository.root, {}))
    stale = [finding.file for finding in found if "changed in" in finding.message]
    assert stale == ["build/AGENTS.md"]
