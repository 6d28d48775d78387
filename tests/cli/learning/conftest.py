"""A project to learn in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.cli.learning.learning_project import NODE, Learn
from tests.modules.intent_layer.trees import write_tree


@pytest.fixture
def project(home: Path) -> Path:
    return write_tree(home / "a shop", {"AGENTS.md": NODE, "src/api/handlers.ts": ""})


@pytest.fixture
def learn(invoke: Invoke, project: Path) -> Learn:
    return Learn(invoke, project)
