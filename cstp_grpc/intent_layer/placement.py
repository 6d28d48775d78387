"""Where a fact belongs: at the lowest common ancestor of what it is about."""

from __future__ import annotations

from collections.abc import Iterable

from cstp_grpc.errors import InvalidArgument
from cstp_grpc.intent_layer.model import ROOT, Placement
from cstp_grpc.intent_layer.paths import common_folder, joined, names_in, parent_of
from cstp_grpc.intent_layer.tree import NODE_FILES, Tree

WILDCARDS = frozenset("*?")
ROOT_FILE, CHILD_FILE = NODE_FILES
"""What a node is called in the root of a project, and below."""


def place(tree: Tree, paths: Iterable[str]) -> Placement:
    """Return where a fact about paths belongs, be they there yet or not.

    A path that is not there is a file's, unless it ends with a slash. A pattern stands for the folder above its first
    wildcard. Raises InvalidArgument without paths, and as `Tree.locate` and `Tree.chain` do.
    """
    folders = [_folder(tree, path, f"paths[{number}]") for number, path in enumerate(paths)]
    if not folders:
        raise InvalidArgument.field("paths", "must not be empty")
    folder = common_folder(folders)
    node = tree.node(folder)
    chain = tree.chain(folder)
    file = node.path if node else new_file(folder)
    return Placement(folder, file, node is not None, chain[-1].path if chain else None)


def new_file(folder: str) -> str:
    """Return the file of the node to create in a folder that has none."""
    return joined(folder, ROOT_FILE if folder == ROOT else CHILD_FILE)


def _folder(tree: Tree, path: str, field: str) -> str:
    """Return the folder that a path is, or lies in."""
    located = tree.locate(path, field)
    if tree.is_folder(located):
        return located
    if not tree.exists(located) and not WILDCARDS.isdisjoint(path):
        return _folder(tree, _before_wildcard(path), field)
    folder = located if path.endswith("/") else parent_of(located)
    return _above_files(tree, folder)


def _before_wildcard(pattern: str) -> str:
    """Return the folder above the first wildcard of a pattern, with a slash at its end."""
    names = pattern.split("/")
    first = next(number for number, name in enumerate(names) if not WILDCARDS.isdisjoint(name))
    return "/".join([*names[:first], ""]) or ROOT


def _above_files(tree: Tree, folder: str) -> str:
    """Return a folder that may not be there yet, or, where a file is in its way, the one that holds the file."""
    reached = tree.folder_of(folder)
    if reached == folder:
        return folder
    depth = len(names_in(reached))
    return reached if tree.exists("/".join(names_in(folder)[: depth + 1])) else folder
