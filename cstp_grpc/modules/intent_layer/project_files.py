"""Paths within a project, the folders that git ignores, and file access below an open folder descriptor.

Files are opened by their names in open folders, so that no symbolic link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from cstp_grpc.common.git_command import find_work_tree, start_git
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import InvalidArgument, Unavailable
from cstp_grpc.modules.intent_layer.model import ROOT

MAX_PATH_BYTES = 4096
"""PATH_MAX of Linux."""
MAX_NAME_BYTES = 255
"""NAME_MAX of Linux, which its common file systems share."""
REPOSITORY_FOLDERS = frozenset({".git", ".hg", ".svn"})
"""Folders of version control. Nothing in them is read as a node, also not through a link, and no review writes there,
because their files name programs that git runs.
"""


def parent_of(path: str) -> str:
    """Return the folder above a path; the root is above itself."""
    return path.rpartition("/")[0] or ROOT


def is_in_repository(path: str) -> bool:
    """Return whether a path is in a folder of version control; case is ignored, as some file systems do."""
    return not REPOSITORY_FOLDERS.isdisjoint(path.casefold().split("/"))


def names_in(folder: str) -> tuple[str, ...]:
    """Return the path segments of a folder; as sort keys they put a folder before its contents."""
    return () if folder == ROOT else tuple(folder.split("/"))


def iter_ancestors(folder: str) -> Iterator[str]:
    yield folder
    while folder != ROOT:
        folder = parent_of(folder)
        yield folder


def common_folder(folders: Iterable[str]) -> str:
    """Return the lowest common ancestor of folders."""
    common = takewhile(lambda level: len(set(level)) == 1, zip(*map(names_in, folders), strict=False))
    return "/".join(level[0] for level in common) or ROOT


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def join_path(folder: str, name: str) -> str:
    return name if folder == ROOT else f"{folder}/{name}"


def parse_path(path: str, field: str) -> list[str]:
    """Return the segments of a caller's path with `..` resolved. Raises InvalidArgument."""
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
        # Resolved as written, before any link: `link/..` is the folder of the link, as a reader of the path expects.
        if part == "..":
            if not parts:
                raise InvalidArgument.field(field, "must not leave the project")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return parts


def located_names(path: str) -> list[str] | None:
    if path == ROOT:
        return []
    names = path.split("/")
    well_formed = {"", ".", ".."}.isdisjoint(names) and "\0" not in path and is_utf8(path)
    return names if well_formed else None


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8; file names need not be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


MAX_READ_ATTEMPTS = 5
"""Attempts to read a file that changes meanwhile. Chosen: an editor's save takes one, a file that is written all the
time fails soon."""

# O_NONBLOCK keeps the opening of a FIFO from waiting for a writer, O_NOCTTY a terminal from becoming the process's own;
# both kinds are rejected by their type, but only after they were opened.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
LIST_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
TRAVERSE_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
"""To open a folder on the way to another: with O_PATH (Linux) that needs the permission to search it only."""
ABSENT_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors that mean that there is no such file. O_NOFOLLOW refuses a symbolic link with ELOOP, and with O_DIRECTORY with
ENOTDIR, open(2).
"""

FileStamp = tuple[int, int, int, int, int]
"""Device, inode, size, mtime and ctime in ns. The ctime counts, because programs can set the mtime back."""


@dataclass(frozen=True, slots=True)
class FolderListing:
    """The names in a folder, sorted.

    Symbolic links to folders count as files, names that are not UTF-8 are left out.
    """

    folders: tuple[str, ...]
    files: tuple[str, ...]


def invalid_path_error(path: str, reason: str) -> InvalidArgument:
    return InvalidArgument.field("path", f"{path} {reason}")


def stat_at(path: str, folder: int) -> os.stat_result | None:
    """Return the status of a path in an open folder, or None if it is missing."""
    try:
        return os.stat(name_of(path), dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in ABSENT_ERRNOS:
            return None
        raise Unavailable(f"{path} cannot be read") from None


def open_at(path: str, flags: int, folder: int) -> int | None:
    """Open a path in an open folder; return None if it is missing or a symbolic link."""
    try:
        return os.open(name_of(path), flags, dir_fd=folder)
    except OSError as error:
        if error.errno in ABSENT_ERRNOS:
            return None
        raise Unavailable(f"{path} cannot be read") from None


def list_folder_at(path: str, folder: int) -> FolderListing:
    """Return the names in the open folder at a path. Raises Unavailable."""
    folders: list[str] = []
    files: list[str] = []
    try:
        # Opened again: the descriptor given may be an O_PATH one, which cannot be listed.
        descriptor = os.open(".", LIST_FLAGS, dir_fd=folder)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if is_utf8(entry.name):
                        (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
        finally:
            os.close(descriptor)
    except OSError:
        raise Unavailable(f"{path} cannot be listed") from None
    return FolderListing(tuple(sorted(folders)), tuple(sorted(files)))


def read_at(path: str, folder: int, limit: int) -> tuple[FileStamp, bytes] | None:
    """Return the content of a regular file in an open folder, consistent at one moment.

    None if it has vanished or is no longer a regular file. Raises InvalidArgument and Unavailable.
    """
    for _ in range(MAX_READ_ATTEMPTS):
        descriptor = open_at(path, READ_FLAGS, folder)
        if descriptor is None:
            return None
        with open(descriptor, "rb") as file:  # noqa: PTH123
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                return None
            if before.st_size > limit:
                raise invalid_path_error(path, f"is larger than {limit} bytes")
            content = _read_up_to(path, file, limit)
            # Compared afterwards: a writer that is at work leaves a mixture of old and new content.
            if len(content) == before.st_size and _is_unchanged(before, os.fstat(descriptor)):
                return stamp_of(before), content
    raise Unavailable(f"{path} changes while it is read")


def _read_up_to(path: str, file: BinaryIO, limit: int) -> bytes:
    try:
        return file.read(limit + 1)
    except OSError:
        raise Unavailable(f"{path} cannot be read") from None


def stamp_of(status: os.stat_result) -> FileStamp:
    """Return the stamp of a file, by which a change is detected."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_unchanged(before: os.stat_result, after: os.stat_result) -> bool:
    """Return whether the content is unchanged.

    Replacing a file removes its name, which changes only the ctime; the open descriptor still reads the old content.
    """
    if after.st_nlink < before.st_nlink:
        return stamp_of(before)[:-1] == stamp_of(after)[:-1]
    return stamp_of(before) == stamp_of(after)


INTERNAL_FOLDERS = frozenset({".git", ".hg", ".svn", ".intent-layer", "__pycache__"})
"""Folders of version control, of Python and of our own, which are always skipped."""
GENERATED_FOLDERS = frozenset({".venv", "build", "dist", "node_modules", "target", "venv"})
"""Names of folders that tools generate or install."""
NAMES_WITHOUT_GIT = INTERNAL_FOLDERS | GENERATED_FOLDERS
"""The names of the folders that are skipped if git gives no answer."""
GIT_TIMEOUT_SECONDS = 3.0
"""Time limit of a git process. Chosen: a validation stays interactive. Nodes whose last change is older than the
history read by then count as unknown.
"""
MAX_IGNORED_BYTES = 4_194_304
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
        with start_git(*arguments, folder=root, environment=environment, seconds=GIT_TIMEOUT_SECONDS) as process:
            assert process.stdout, "it is a pipe"
            output = process.stdout.read(MAX_IGNORED_BYTES + 1)
            if len(output) > MAX_IGNORED_BYTES or process.wait() != 0:
                return unknown
    except OSError:
        return unknown
    listed = {os.fsdecode(path) for path in output.split(b"\0")}
    return unknown if "./" in listed else IgnoredFolders(frozenset(p[:-1] for p in listed if p.endswith("/")))
