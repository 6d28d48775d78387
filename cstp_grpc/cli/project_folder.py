"""The project folder that a command works on without a server, and paths relative to it."""

from __future__ import annotations

import functools
import getpass
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from cstp_grpc.cli.command_decorators import Command
from cstp_grpc.common.git_command import INHERITED_VARIABLES, find_work_tree
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.modules.intent_layer.model import ROOT
from cstp_grpc.modules.intent_layer.project_files import read_ignored_folders
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from cstp_grpc.platform.config import inherited_environment

EXIT_NOT_APPLIED = 2
"""The protocol's exit code for an action that is not done without an error: no node covers the path, or a duplicate."""
UNKNOWN_USER = "unknown"


@dataclass(frozen=True, slots=True)
class ProjectFolder:
    """A project's folder; relative paths are relative to `base`."""

    root: Path
    base: Path
    tree: ProjectTree

    def path(self, written: str, field: str = "path") -> str:
        """Return a path relative to the root; a trailing slash stays. Raises InvalidArgument if it is outside."""
        if not written:
            raise InvalidArgument.field(field, "must not be empty")
        absolute = os.path.abspath(self.base / written)  # noqa: PTH100
        relative = _relative_to_root(absolute, str(self.root))
        if relative is None:
            # The current folder may have been entered by a link; the path that was written counts first, since links in
            # it are the project's.
            relative = _relative_to_root(os.path.realpath(absolute), os.path.realpath(self.root))
        if relative is not None:
            return f"{relative}/" if written.endswith("/") and relative != ROOT else relative
        raise InvalidArgument.field(field, f"{written} is not in the project {self.root}")

    def paths(self, written: Sequence[str]) -> tuple[str, ...]:
        """Return paths as `path` does. Raises InvalidArgument, which names the path, also for links that lead out."""
        fields = _path_fields(written)
        paths = tuple(self.path(each, field) for each, field in zip(written, fields, strict=True))
        for path, field in zip(paths, fields, strict=True):
            self.tree.locate(path, field)
        return paths

    def existing_paths(self, written: Sequence[str]) -> tuple[str, ...]:
        """Return paths as `paths` does; raises InvalidArgument for one that is not there, too."""
        paths = self.paths(written)
        for path, each, field in zip(paths, written, _path_fields(written), strict=True):
            if not (self.root / path).exists():
                raise InvalidArgument.field(field, f"there is no {each}")
        return paths


class ProjectCommandGroup(click.Group):
    """A group whose usage errors exit with code 1, because 2 has another meaning here."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _usage_errors_as_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _usage_errors_as_errors():
            return super().invoke(ctx)


def with_project(command: Callable[..., None]) -> Command:
    """Add the option --project, and pass the command the project as `project`."""

    @click.option(
        "--project",
        "folder",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        metavar="DIR",
        help="The project's folder, from which paths are meant then.",
    )
    @functools.wraps(command)
    def wrapper(*args: Any, folder: Path | None, **kwargs: Any) -> None:
        command(*args, project=open_project(folder), **kwargs)

    return wrapper


def open_project(folder: Path | None) -> ProjectFolder:
    current = Path.cwd()
    root = (find_work_tree(current) or current) if folder is None else folder.absolute()
    read_ignored = partial(read_ignored_folders, environment=inherited_environment(INHERITED_VARIABLES))
    return ProjectFolder(root, current if folder is None else root, ProjectTree(root, read_ignored=read_ignored))


def current_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return UNKNOWN_USER


utc_now = partial(datetime.now, UTC)
"""Return the current time in UTC."""


@contextmanager
def _usage_errors_as_errors() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        error.show()
        raise click.exceptions.Exit(1) from error


def _path_fields(written: Sequence[str]) -> list[str]:
    return ["path"] if len(written) == 1 else [f"paths[{number}]" for number in range(len(written))]


def _relative_to_root(path: str, root: str) -> str | None:
    relative = os.path.relpath(path, root)
    return None if relative == ".." or relative.startswith("../") else relative
