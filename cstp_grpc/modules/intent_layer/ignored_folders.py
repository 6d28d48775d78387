"""The folders of a project in which no nodes are looked for: those that git ignores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from cstp_grpc.common.git_command import find_work_tree, start_git
from cstp_grpc.modules.intent_layer.project_files import name_of

INTERNAL_FOLDERS = frozenset({".git", ".hg", ".svn", ".intent-layer", "__pycache__"})
"""Folders of version control, of Python and of our own, which are always skipped."""
GENERATED_FOLDERS = frozenset({".venv", "build", "dist", "node_modules", "target", "venv"})
"""Names of folders that tools generate or install."""
NAMES_WITHOUT_GIT = INTERNAL_FOLDERS | GENERATED_FOLDERS
"""The names of the folders that are skipped if git gives no answer."""
TIMEOUT_SECONDS = 3.0
"""Time limit of a git process. Chosen: a validation stays interactive. Nodes whose last change is older than the
history read by then count as unknown.
"""
MAX_OUTPUT_BYTES = 4_194_304
"""Maximum bytes read of git's list: 4 MiB. Chosen: some 50 000 paths; a repository may come from anybody."""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class IgnoredFolders:
    """The folders that git ignores, by their paths in the project; None if git gives no answer."""

    folders: frozenset[str] | None

    def skips(self, folder: str) -> bool:
        """Return whether a walk skips a folder, if it does not skip those above."""
        name = name_of(folder)
        if self.folders is None:
            return name in NAMES_WITHOUT_GIT
        return name in INTERNAL_FOLDERS or folder in self.folders

    def skips_path(self, folder: str) -> bool:
        """Return whether a walk skips a folder or one above it."""
        names = folder.split("/")
        return any(self.skips("/".join(names[:count])) for count in range(1, len(names) + 1))


def read_ignored_folders(root: Path, environment: Mapping[str, str] = NO_VARIABLES) -> IgnoredFolders:
    """Ask git for the ignored folders of a project.

    Git gives no answer if it is missing, slow or fails, outside of a work tree, and for a project that it ignores.
    """
    unknown = IgnoredFolders(None)
    if find_work_tree(root) is None:
        return unknown
    # A folder with a tracked file is not listed, whatever the rules say.
    arguments = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    try:
        with start_git(*arguments, folder=root, environment=environment, seconds=TIMEOUT_SECONDS) as process:
            assert process.stdout, "it is a pipe"
            output = process.stdout.read(MAX_OUTPUT_BYTES + 1)
            if len(output) > MAX_OUTPUT_BYTES or process.wait() != 0:
                return unknown
    except OSError:
        return unknown
    listed = {os.fsdecode(path) for path in output.split(b"\0")}
    return unknown if "./" in listed else IgnoredFolders(frozenset(p[:-1] for p in listed if p.endswith("/")))
