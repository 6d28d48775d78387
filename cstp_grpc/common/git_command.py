"""Running git in repositories of unknown origin."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

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


INHERITED_VARIABLES = ("HOME", "PATH", "XDG_CONFIG_HOME")
"""The only variables that git inherits; others, such as GIT_DIR and GIT_CONFIG_*, could direct it to another repository
or make it start programs.
"""
# No network, no prompt and no write: repositories to validate may be of any origin.
FIXED_VARIABLES = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
"""Variables that are set for git."""


def git_command(*arguments: str, search_path: str | None = None) -> list[str]:
    """Return a command line that runs git with SETTINGS. Raises FileNotFoundError if git is not installed.

    `search_path` replaces the PATH of this process.
    """
    # Imported here: hooks start with every tool call, and only look for work trees.
    import shutil

    git = shutil.which("git", path=search_path)
    if git is None:
        raise FileNotFoundError("git is not installed")
    return [git, "--no-pager", *(part for setting in SETTINGS for part in ("-c", setting)), *arguments]


def find_work_tree(folder: Path) -> Path | None:
    """Return the nearest folder from here upwards that is the root of a git work tree, or None."""
    # lexists: `.git` is a folder, in linked work trees and submodules a file, and it may be a link.
    return next((above for above in (folder, *folder.parents) if os.path.lexists(above / ".git")), None)


@contextmanager
def start_git(
    *arguments: str, folder: Path, environment: Mapping[str, str], seconds: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Start git in a folder and yield the process, which is killed when the block ends or the time is up.

    Of the environment, git gets only the INHERITED_VARIABLES. Raises OSError if git is missing.
    """
    import subprocess
    import threading

    inherited = {name: environment[name] for name in INHERITED_VARIABLES if name in environment}
    process = subprocess.Popen(
        git_command(*arguments, search_path=environment.get("PATH")),
        cwd=folder,
        env=inherited | FIXED_VARIABLES,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    # Reading its output blocks, so that a timer must end the process; the reader then gets the end of the file.
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        with process:
            yield process
            # Before Popen's own exit waits: git blocks on a full pipe if its output is not read to the end.
            process.kill()
    finally:
        process.kill()
        timer.cancel()
