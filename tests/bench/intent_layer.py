"""Section `project`: the Intent Layer on a large project, without a server, beside reading the files of a chain."""

from __future__ import annotations

import os
from collections.abc import Callable

from cstp_grpc.modules.intent_layer.context_resolution import resolve_context
from cstp_grpc.modules.intent_layer.model import ContextRequest
from cstp_grpc.modules.intent_layer.node_staleness import GitHistory
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from tests.bench.cpu_time import run_time
from tests.bench.load import Series
from tests.bench.parts import without_request
from tests.bench.results import Better
from tests.bench.run import Run
from tests.modules.intent_layer.trees import validate_nodes, write_large_tree

FOLDERS, NODES = 10_000, 1_000
TOKENS = 2_000


def measure_project(run: Run) -> None:
    """Measure resolving a path of a large project, and judging all its nodes.

    "Cold" is a tree that has read nothing yet; the operating system has the files in memory.
    """
    folder = run.folder / "project"
    target = f"{write_large_tree(folder, FOLDERS, NODES)[-1]}/folder0/code.py"
    tree = ProjectTree(folder)
    files = [folder / file.path for node in tree.nodes_to_path(target) for file in node.files]
    whole, tight = ContextRequest(target), ContextRequest(target, max_tokens=TOKENS)
    base = repeat(f"read {len(files)} files", lambda: [file.read_bytes() for file in files])
    resolving = {
        "resolve-cold": repeat("resolve, cold", lambda: resolve_context(ProjectTree(folder), whole)),
        "resolve-warm": repeat("resolve, warm", lambda: resolve_context(tree, whole)),
        "resolve-tight": repeat(f"resolve within {TOKENS} tokens, warm", lambda: resolve_context(tree, tight)),
    }
    run.measure([base, *resolving.values()])
    for name, series in resolving.items():
        run.compare(name, series, base)
    history = GitHistory(folder, os.environ)
    for _ in range(run.rounds):
        run.progress("judging all nodes")
        seconds = run_time(lambda: validate_nodes(ProjectTree(folder), (), history))
        run.add("validate-cold.seconds", "s", Better.LOWER, [seconds])


def repeat(name: str, act: Callable[[], object]) -> Series:
    """Return the series of a function without a request."""
    return Series(name, 1, without_request(lambda _: act()), [os.getpid()])
