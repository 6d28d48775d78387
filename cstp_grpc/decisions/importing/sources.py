"""The names that identify what is imported: the same for a file, whichever way it is reached."""

from __future__ import annotations

import os
from pathlib import Path

from cstp_grpc.decisions.importing.files import real_path
from cstp_grpc.decisions.importing.results import Unreadable
from cstp_grpc.decisions.importing.text import SOURCE_LIMIT, flaw


class Sources:
    """Names files and entries of files; remembers the work trees it has found."""

    def __init__(self) -> None:
        self._work_trees: dict[Path, Path | None] = {}

    def name(self, path: Path) -> str:
        """Return the source of a file.

        In a git work tree it is the name of the tree's folder and the path within, so that other clones of that name
        agree; elsewhere it is the absolute path. Symbolic links are followed. Raises Unreadable.
        """
        real = real_path(path)
        tree = self.work_tree(real)
        return fit((Path(tree.name) / real.relative_to(tree) if tree and tree.name else real).as_posix())

    def work_tree(self, path: Path) -> Path | None:
        """Return the folder of the git work tree that an absolute path lies in, None outside of any."""
        return self._tree_of(path.parent)

    def _tree_of(self, folder: Path) -> Path | None:
        if folder not in self._work_trees:
            if os.path.lexists(folder / ".git"):
                self._work_trees[folder] = folder
            elif folder.parent == folder:
                self._work_trees[folder] = None
            else:
                self._work_trees[folder] = self._tree_of(folder.parent)
        return self._work_trees[folder]


def fit(source: str) -> str:
    """Return the source as it is. Raises Unreadable where the journal cannot hold it."""
    if flaw(source):
        raise Unreadable("its name is not UTF-8 text")
    if len(source) > SOURCE_LIMIT:
        raise Unreadable(f"its source would have {len(source)} characters, at most {SOURCE_LIMIT} are possible")
    return source
