"""Projects to test with; `python -m tests.modules.intent_layer.trees` measures resolving in a large one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from cstp_grpc.modules.intent_layer.context_resolution import PROTOCOL_SECTIONS
from cstp_grpc.modules.intent_layer.model import ValidationFinding
from cstp_grpc.modules.intent_layer.node_staleness import GitHistory
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from cstp_grpc.modules.intent_layer.validation import select_nodes, validate_selected

BRANCHING = 4
"""How many folders a folder of the large project has."""


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write files, given by their paths, and the folders that they need; a path that ends with `/` is a folder."""
    for path, text in files.items():
        target = root / path
        if path.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode())
    return root


def validate_nodes(
    tree: ProjectTree, paths: Iterable[str] = (), history: GitHistory | None = None
) -> tuple[ValidationFinding, ...]:
    return validate_selected(tree, select_nodes(tree, paths), history)


def node_text(title: str, *, entries: int = 5) -> str:
    """The text of a plausible node of some 1 500 tokens, with every section of the protocol."""
    sections = "\n".join(f"## {name}\n\n{_entries(title, name, entries)}" for name in PROTOCOL_SECTIONS)
    return f"# {title}\n\nWhat stands here belongs to no section.\n\n{sections}"


def _entries(title: str, name: str, count: int) -> str:
    lines = "".join(
        f"- **Rule {n}** of {name} for `{title}`: see `src/{n}.py` before a change.\n" for n in range(count)
    )
    return f"{lines}\n### An example\n\n```python\ncheck({title!r})\n## no heading\n```\n"


def folder_paths(count: int) -> list[str]:
    """The paths of folders, each above those in it; `BRANCHING` of them in every folder."""
    paths = ["."]
    for number in range(1, count):
        above = paths[(number - 1) // BRANCHING]
        name = f"folder{(number - 1) % BRANCHING}"
        paths.append(name if above == "." else f"{above}/{name}")
    return paths


def write_large_tree(root: Path, folders: int = 10_000, nodes: int = 1_000) -> list[str]:
    """Write a project of many folders, the upper ones with nodes; returns the paths of the folders with nodes.

    Each folder holds a file `code.py`, too.
    """
    paths = folder_paths(folders)
    for number, path in enumerate(paths):
        folder = root / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "code.py").write_text("x = 1\n")
        if number < nodes:
            (folder / ("AGENTS.md" if number else "CLAUDE.md")).write_text(node_text(path))
    return paths[:nodes]
