"""The paths in reports that other tools wrote, perhaps in another checkout of the project, on another machine."""

from __future__ import annotations

import posixpath
import re

from cstp_grpc.errors import InvalidArgument
from cstp_grpc.intent_layer.model import ROOT
from cstp_grpc.intent_layer.paths import MAX_PATH_BYTES
from cstp_grpc.intent_layer.tree import Tree

DRIVE = re.compile(r"[A-Za-z]:(?=[\\/])|\\\\")
"""How an absolute path begins on Windows."""
MAX_NAMES = 64
"""How many of its last names an absolute path is looked for by."""


def place_reported_path(tree: Tree, written: str) -> str | None:
    """Return the located path that a report means, or None if it is not in the project.

    An absolute path is never opened as it is. Below the project's own root it is the rest of it; otherwise its longest
    suffix that exists in the project, or the root if it ends with the name of the project's folder.
    """
    drive = DRIVE.match(written)
    path = written[drive.end() :].replace("\\", "/") if drive else written
    if not (drive or path.startswith(("/", "~/"))):
        return _locate_relative(tree, path)
    if len(path) > MAX_PATH_BYTES:
        return None
    path = posixpath.normpath(f"/{path.lstrip('~/')}")
    root = str(tree.root)
    if not drive and (path == root or path.startswith(f"{root}/")):
        return _locate(tree, path[len(root) + 1 :] or ROOT)
    names = [name for name in path.split("/") if name][-MAX_NAMES:]
    for first in range(len(names)):
        place = _locate(tree, "/".join(names[first:]))
        if place is not None and tree.exists(place):
            return place
    return ROOT if names and names[-1] == tree.root.name else None


def _locate_relative(tree: Tree, path: str) -> str | None:
    """Return a located path, with `\\` taken for `/` if something exists there only then."""
    place = _locate(tree, path)
    if "\\" not in path or (place is not None and tree.exists(place)):
        return place
    other = _locate(tree, path.replace("\\", "/"))
    return other if other is not None and tree.exists(other) else place


def _locate(tree: Tree, path: str) -> str | None:
    try:
        return tree.locate(path)
    except InvalidArgument:
        return None
