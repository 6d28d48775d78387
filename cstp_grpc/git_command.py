"""Running git in repositories of unknown origin."""

from __future__ import annotations

import os
from pathlib import Path

# With -c, which overrides the repository's own .git/config; see git-config(1).
SETTINGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "log.showSignature=false",
    "log.showRoot=true",
    "diff.relative=false",
    "diff.orderFile=/dev/null",
)
"""A repository's own settings must neither start programs nor change what is printed."""
DIFF_OPTIONS = ("--no-ext-diff", "--no-textconv", "--no-color", "-z")
"""Options for commands that print differences: no external diff or textconv programs of the repository, no colour."""


def git_command(*arguments: str, search_path: str | None = None) -> list[str]:
    """Return a command line that runs git with SETTINGS. Raises FileNotFoundError if git is not installed.

    `search_path` replaces the PATH of this process.
    """
    # Here, since the hooks, which start with every call of a tool, only look for work trees.
    import shutil

    git = shutil.which("git", path=search_path)
    if git is None:
        raise FileNotFoundError("git is not installed")
    return [git, "--no-pager", *(part for setting in SETTINGS for part in ("-c", setting)), *arguments]


def find_work_tree(folder: Path) -> Path | None:
    """Return the nearest folder from here upwards that is the root of a git work tree, or None."""
    # lexists: `.git` is a folder, in linked work trees and submodules a file, and it may be a link.
    return next((above for above in (folder, *folder.parents) if os.path.lexists(above / ".git")), None)
