"""Files and folders, each found by its name in a folder that is open, so that no link swapped in leads elsewhere."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import BinaryIO

from cstp_grpc.errors import InvalidArgument, Unavailable
from cstp_grpc.intent_layer.paths import is_utf8, name_of

ATTEMPTS = 5
"""How often a file that changes while it is read is read again."""

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
LIST = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
"""To pass through a folder, which needs no permission to list it where the system can tell the two apart."""
ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""What says that there is nothing to read; a link where none is followed is ELOOP or ENOTDIR."""

Stamp = tuple[int, int, int, int, int]
"""What changes when a file does: device, inode, size, and when its content and the file itself changed, in ns."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The names in a folder, sorted; links to folders are among the files, names that are no UTF-8 in neither."""

    folders: tuple[str, ...]
    files: tuple[str, ...]


def refused(path: str, reason: str) -> InvalidArgument:
    """Return the error for a path at which there is what is not read."""
    return InvalidArgument.field("path", f"{path} {reason}")


def status_at(path: str, folder: int) -> os.stat_result | None:
    """Return what is at a path whose folder is open."""
    try:
        return os.stat(name_of(path), dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise Unavailable(f"{path} cannot be read") from None


def open_at(path: str, flags: int, folder: int) -> int | None:
    """Open what is at a path whose folder is open; None where there is nothing, or a link."""
    try:
        return os.open(name_of(path), flags, dir_fd=folder)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise Unavailable(f"{path} cannot be read") from None


def listing_at(path: str, folder: int) -> Listing:
    """Return what is in the folder at a path, which is open. Raises Unavailable."""
    folders: list[str] = []
    files: list[str] = []
    try:
        descriptor = os.open(".", LIST, dir_fd=folder)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if is_utf8(entry.name):
                        (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
        finally:
            os.close(descriptor)
    except OSError:
        raise Unavailable(f"{path} cannot be listed") from None
    return Listing(tuple(sorted(folders)), tuple(sorted(files)))


def read_at(path: str, folder: int, limit: int) -> tuple[Stamp, bytes] | None:
    """Return the content of the regular file at a path whose folder is open, as it was at one moment.

    None where it has vanished or become something else. Raises InvalidArgument and Unavailable.
    """
    for _ in range(ATTEMPTS):
        descriptor = open_at(path, READ, folder)
        if descriptor is None:
            return None
        with open(descriptor, "rb") as file:  # noqa: PTH123
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                return None
            if before.st_size > limit:
                raise refused(path, f"is larger than {limit} bytes")
            content = _bounded(path, file, limit)
            if len(content) == before.st_size and _unchanged(before, os.fstat(descriptor)):
                return stamp_of(before), content
    raise Unavailable(f"{path} changes while it is read")


def _bounded(path: str, file: BinaryIO, limit: int) -> bytes:
    try:
        return file.read(limit + 1)
    except OSError:
        raise Unavailable(f"{path} cannot be read") from None


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _unchanged(before: os.stat_result, after: os.stat_result) -> bool:
    """Return whether a file's content stayed; one that is replaced loses its name, which changes only the ctime."""
    if after.st_nlink < before.st_nlink:
        return stamp_of(before)[:-1] == stamp_of(after)[:-1]
    return stamp_of(before) == stamp_of(after)
