"""The Intent Layer on a large project, without a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from cstp_grpc.intent_layer.git import GitHistory
from cstp_grpc.intent_layer.model import ContextRequest
from cstp_grpc.intent_layer.resolution import resolve
from cstp_grpc.intent_layer.tree import Tree
from cstp_grpc.intent_layer.validation import validate
from tests.bench.load import Call, Series
from tests.intent_layer.trees import write_large_tree

FOLDERS, NODES = 10_000, 1_000
TOKENS = 2_000


def series(folder: Path) -> tuple[Series, list[Series], list[Series]]:
    """Return the base, reading the files of a chain as they are, then what resolves that chain, then what judges all.

    "Cold" is a tree that has read nothing yet; the operating system has the files in memory.
    """
    target = f"{write_large_tree(folder, FOLDERS, NODES)[-1]}/folder0/code.py"
    tree = Tree(folder)
    files = [folder / file.path for node in tree.chain(target) for file in node.files]
    whole, tight = ContextRequest(target), ContextRequest(target, max_tokens=TOKENS)
    history = GitHistory(folder, os.environ)
    base = made(f"read {len(files)} files", lambda: [file.read_bytes() for file in files])
    resolving = [
        made("resolve, cold", lambda: resolve(Tree(folder), whole)),
        made("resolve, warm", lambda: resolve(tree, whole)),
        made(f"resolve within {TOKENS} tokens, warm", lambda: resolve(tree, tight)),
    ]
    judging = [
        made("validate all, cold", lambda: validate(Tree(folder), (), history)),
        made("validate all, warm", lambda: validate(tree, (), history)),
    ]
    return base, resolving, judging


def made(name: str, act: Callable[[], object]) -> Series:
    """Return the series of an act without a request."""
    return Series(name, 1, lambda: Call(lambda: None, lambda _: act()))
