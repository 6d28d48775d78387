"""Repositories of git to test with, untouched by the settings of who runs the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

IDENTITY = {
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "ann@example.org",
    "GIT_COMMITTER_NAME": "Ann",
    "GIT_COMMITTER_EMAIL": "ann@example.org",
}


class Repository:
    """A work tree whose commits are a day apart, the first on 1 January 2026."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._day = 0

    def git(self, *arguments: str) -> str:
        date = f"2026-01-{self._day:02}T12:00:00Z"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= IDENTITY | {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date, "GIT_CONFIG_GLOBAL": os.devnull}
        command = ["git", "-c", "protocol.file.allow=always", *arguments]
        run = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, check=True, timeout=30)
        return run.stdout.decode()

    def write(self, *paths: str) -> None:
        """Write something new to files."""
        for path in paths:
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("a") as file:
                file.write(f"Written on day {self._day}.\n")

    def commit(self, *paths: str) -> None:
        """Write to files and commit everything."""
        self._day += 1
        self.write(*paths)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", f"Day {self._day}")


def new_repository(root: Path, *options: str) -> Repository:
    root.mkdir(parents=True, exist_ok=True)
    repository = Repository(root)
    repository.git("init", "--quiet", "--initial-branch", "main", *options)
    return repository
