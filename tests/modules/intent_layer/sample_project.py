"""A project with nodes, and ways to look at all of it."""

from __future__ import annotations

import pytest

from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.modules.intent_layer.project_tree import (
    ProjectTree,
)

PROJECT = {
    "CLAUDE.md": "# Shop\n\n## Purpose\n\nSells.\n",
    "src/AGENTS.md": "## Purpose\n\nThe code.\n",
    "src/api/AGENTS.md": "## Contracts\n\nAll endpoints need auth.\n",
    "src/api/handlers.ts": "x",
    "src/auth/AGENTS.md": "## Pitfalls\n\nTokens expire.\n",
    "tests/unit/a.py": "x",
}


def everything(tree: ProjectTree) -> str:
    return repr(list(tree.walk()))


def refusal(tree: ProjectTree, path: str) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        tree.locate(path, "paths[3]")
    assert [violation.field for violation in caught.value.violations] == ["paths[3]"]
    return caught.value
