"""Projects with nodes, and trees that read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cstp_grpc.modules.intent_layer.project_tree import (
    ProjectTree,
)
from tests.modules.intent_layer.filed_reports import FILES
from tests.modules.intent_layer.sample_project import PROJECT
from tests.modules.intent_layer.trees import write_tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "project", PROJECT)


@pytest.fixture
def tree(root: Path) -> ProjectTree:
    return ProjectTree(root)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder outside the project, with a node that nobody in it may see."""
    return write_tree(tmp_path / "project-secret", {"AGENTS.md": "## Purpose\n\nsecret\n", "sub/AGENTS.md": "secret"})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "project", FILES)
