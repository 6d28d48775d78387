"""The project whose folder a command works on, without a server, and the paths that the command is given."""

from __future__ import annotations

import functools
import getpass
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from cstp_grpc.cli.options import Command
from cstp_grpc.errors import InvalidArgument
from cstp_grpc.intent_layer.model import ROOT
from cstp_grpc.intent_layer.tree import Tree

OTHERWISE = 2
"""The protocol's exit code for what is neither done nor an error: nothing covers the path, or it is a duplicate."""
UNKNOWN_USER = "unknown"


@dataclass(frozen=True, slots=True)
class Project:
    """A project's folder; relative paths are meant from `base`."""

    root: Path
    base: Path
    tree: Tree

    def path(self, written: str, field: str = "path") -> str:
        """Return a path relative to the root; a slash at its end stays. Raises InvalidArgument for one outside."""
        if not written:
            raise InvalidArgument.field(field, "must not be empty")
        absolute = os.path.abspath(self.base / written)  # noqa: PTH100
        relative = _below(absolute, str(self.root))
        if relative is None:
            relative = _below(os.path.realpath(absolute), os.path.realpath(self.root))
        if relative is not None:
            return f"{relative}/" if written.endswith("/") and relative != ROOT else relative
        raise InvalidArgument.field(field, f"{written} is not in the project {self.root}")

    def paths(self, written: Sequence[str]) -> tuple[str, ...]:
        """Return paths as `path` does. Raises InvalidArgument also where a link leads out; it says which of several."""
        fields = ["path"] if len(written) == 1 else [f"paths[{number}]" for number in range(len(written))]
        paths = tuple(self.path(each, field) for each, field in zip(written, fields, strict=True))
        for path, field in zip(paths, fields, strict=True):
            self.tree.locate(path, field)
        return paths


class ProtocolGroup(click.Group):
    """A group whose commands end with exit code 1 where they are used wrongly: 2 means something else here."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read what stands before the command's name."""
        with _usage_errors_as_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _usage_errors_as_errors():
            return super().invoke(ctx)


def in_project(command: Callable[..., None]) -> Command:
    """Give a command the option --project, and the project as `project`."""

    @click.option(
        "--project",
        "folder",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        metavar="DIR",
        help="The project's folder, from which paths are meant then.",
    )
    @functools.wraps(command)
    def wrapper(*args: Any, folder: Path | None, **kwargs: Any) -> None:
        command(*args, project=opened(folder), **kwargs)

    return wrapper


def opened(folder: Path | None) -> Project:
    """Return the project in a folder, or the one around the current folder."""
    current = Path.cwd()
    root = around(current) if folder is None else folder.absolute()
    return Project(root, current if folder is None else root, Tree(root))


def around(folder: Path) -> Path:
    """Return the root of the git work tree that a folder lies in; where it lies in none, the folder itself."""
    return next((above for above in (folder, *folder.parents) if (above / ".git").exists()), folder)


def user() -> str:
    """Return the name of whoever runs the command."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return UNKNOWN_USER


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)


@contextmanager
def _usage_errors_as_errors() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        error.show()
        raise click.exceptions.Exit(1) from error


def _below(path: str, root: str) -> str | None:
    """Return a path from a root on; None where it is not below."""
    relative = os.path.relpath(path, root)
    return None if relative == ".." or relative.startswith("../") else relative
