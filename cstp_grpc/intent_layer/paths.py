"""Paths within a project: relative to its root, with `/` between names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

from cstp_grpc.errors import InvalidArgument
from cstp_grpc.intent_layer.model import ROOT

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
REPOSITORIES = frozenset({".git", ".hg", ".svn"})
"""Folders of version control: what is in them is no node, by whatever link, and no review writes there."""


def parent_of(path: str) -> str:
    """Return the folder above a path; the root is above itself."""
    return path.rpartition("/")[0] or ROOT


def in_repository(path: str) -> bool:
    """Return whether a path is in a folder of version control; some file systems do not tell `.GIT` from `.git`."""
    return not REPOSITORIES.isdisjoint(path.casefold().split("/"))


def names_in(folder: str) -> tuple[str, ...]:
    """Return the names that lead to a folder from the root; they sort a folder before those in it."""
    return () if folder == ROOT else tuple(folder.split("/"))


def upwards(folder: str) -> Iterator[str]:
    """Yield a folder and those that it lies in, the root last."""
    yield folder
    while folder != ROOT:
        folder = parent_of(folder)
        yield folder


def common_folder(folders: Iterable[str]) -> str:
    """Return the lowest folder that all these folders are or lie in."""
    common = takewhile(lambda level: len(set(level)) == 1, zip(*map(names_in, folders), strict=False))
    return "/".join(level[0] for level in common) or ROOT


def name_of(path: str) -> str:
    """Return the last name of a path."""
    return path.rpartition("/")[2]


def joined(folder: str, name: str) -> str:
    """Return the path of what is in a folder."""
    return name if folder == ROOT else f"{folder}/{name}"


def parts_of(path: str, field: str) -> list[str]:
    """Return the names that a caller's path has, `..` resolved. Raises InvalidArgument."""
    if not path:
        raise InvalidArgument.field(field, "must not be empty")
    if not is_utf8(path) or "\0" in path:
        raise InvalidArgument.field(field, "must be UTF-8 without NUL")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise InvalidArgument.field(field, f"must have at most {MAX_PATH_BYTES} bytes")
    if path.startswith("/"):
        raise InvalidArgument.field(field, "must be relative to the project's root")
    parts: list[str] = []
    for part in path.split("/"):
        if len(part.encode()) > MAX_NAME_BYTES:
            raise InvalidArgument.field(field, f"must have no name of more than {MAX_NAME_BYTES} bytes")
        if part == "..":
            if not parts:
                raise InvalidArgument.field(field, "must not leave the project")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return parts


def located_names(path: str) -> list[str] | None:
    """Return the names in a path that was located; None for one that cannot have been."""
    if path == ROOT:
        return []
    names = path.split("/")
    well_formed = {"", ".", ".."}.isdisjoint(names) and "\0" not in path and is_utf8(path)
    return names if well_formed else None


def is_utf8(text: str) -> bool:
    """Return whether a text can be written as UTF-8; names of files need not be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
