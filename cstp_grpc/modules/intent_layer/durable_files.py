"""Crash-safe file writes: a file is either complete or absent, also after a power failure.

Folders are open descriptors and files are names in them, so that no symbolic link is followed. When a function returns,
its effect is on disk. Every function raises Unavailable if the file system refuses.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import InvalidArgument, Unavailable
from cstp_grpc.modules.intent_layer.model import ROOT
from cstp_grpc.modules.intent_layer.project_files import ABSENT_ERRNOS, LIST_FLAGS, READ_FLAGS, join_path
from cstp_grpc.modules.intent_layer.project_tree import MAX_FILE_BYTES, ProjectTree

# O_EXCL refuses an existing name and a symbolic link, so that nothing outside the folder is ever written.
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_MODE = 0o666
FOLDER_MODE = 0o777
"""The permissions of new files and folders before the process's umask is applied."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """The content of a regular file and its permission bits."""

    data: bytes
    mode: int


@contextmanager
def open_folder(tree: ProjectTree, path: str) -> Iterator[int | None]:
    """Open the folder at a located path for listing and fsync; yield None if it is missing."""
    # The tree's descriptor may be an O_PATH one, which the kernel neither lists nor syncs; see TRAVERSE_FLAGS.
    with tree.open_folder(path) as traversed:
        try:
            descriptor = None if traversed is None else os.open(".", LIST_FLAGS, dir_fd=traversed)
        except OSError as error:
            raise Unavailable(
                f"{path} vanished" if error.errno == errno.ENOENT else f"{path} cannot be listed"
            ) from None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def ensure_folder(tree: ProjectTree, path: str) -> Iterator[int]:
    """Open the folder at a located path as `open_folder` does, and create it and its parents if missing."""
    above = ROOT
    for name in [] if path == ROOT else path.split("/"):
        with open_folder(tree, above) as descriptor:
            if descriptor is None:
                raise Unavailable(f"{above} is no folder")
            with _write_errors_as_unavailable(name):
                with suppress(FileExistsError):
                    os.mkdir(name, FOLDER_MODE, dir_fd=descriptor)
                # Also if it existed: another process may have created it and not have synced it yet.
                os.fsync(descriptor)
        above = join_path(above, name)
    with open_folder(tree, path) as descriptor:
        if descriptor is None:
            raise Unavailable(f"{path} is no folder")
        yield descriptor


def read_file(folder: int, name: str, limit: int = MAX_FILE_BYTES) -> FileContent | None:
    """Return a regular file, or None if it is missing. Raises InvalidArgument if it exceeds `limit` bytes."""
    try:
        descriptor = os.open(name, READ_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno in ABSENT_ERRNOS:
            return None
        raise Unavailable(f"{name} cannot be read") from None
    try:
        with open(descriptor, "rb") as file:  # noqa: PTH123
            # Of the open file and not of its name, which may mean another file by now.
            status = os.fstat(descriptor)
            # One byte more than allowed shows an oversized file, also one that grew since its size was read.
            data = file.read(limit + 1) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        raise Unavailable(f"{name} cannot be read") from None
    if data is None:
        return None
    if len(data) > limit:
        raise InvalidArgument.field("path", f"{name} is larger than {limit} bytes")
    return FileContent(data, stat.S_IMODE(status.st_mode))


def create_file(folder: int, name: str, data: bytes, temporary: str) -> bool:
    """Write a new file; return False if the name is taken, and leave that file unchanged.

    `temporary` is the name of the file until it is complete; no other writer may use it.
    """
    # After a crash the folder holds the temporary file, the final one, or two names of one complete file. Listings
    # skip the temporary name, which begins with a dot.
    write_temporary(folder, data, None, temporary)
    try:
        if link_new(folder, name, temporary):
            return True
    except Unavailable:
        remove_file(folder, temporary)
        raise
    remove_file(folder, temporary)
    return False


def replace_file(folder: int, name: str, data: bytes, mode: int | None, temporary: str) -> None:
    """Write a file and replace the one of that name; `mode` None gives the mode of a new file.

    A temporary file that an earlier attempt left is overwritten.
    """
    write_temporary(folder, data, mode, temporary)
    rename_over(folder, name, temporary)


def write_temporary(folder: int, data: bytes, mode: int | None, temporary: str) -> None:
    """Write the temporary file, over one that an earlier attempt left."""
    with _write_errors_as_unavailable(temporary):
        # Removed rather than truncated: after a crash in link_new it is a second name of a finished file.
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        _write_new_file(folder, temporary, data, mode)


def rename_over(folder: int, name: str, temporary: str) -> None:
    """Rename the temporary file to its final name, replacing an existing file."""
    with _write_errors_as_unavailable(name):
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        # Without this a power failure could bring the old file back after the call returned.
        os.fsync(folder)


def link_new(folder: int, name: str, temporary: str) -> bool:
    """Give the temporary file its final name; return False if the name is taken."""
    with _write_errors_as_unavailable(name):
        try:
            # A link instead of a rename, because rename(2) would replace a file of that name without a word.
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return False
        os.unlink(temporary, dir_fd=folder)
        os.fsync(folder)
    return True


def move_file(source: int, target: int, name: str) -> None:
    """Move a file from one folder to another, replacing an existing file of that name."""
    with _write_errors_as_unavailable(name):
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        # The target first: a power failure between the two may leave the file in both folders, never in neither.
        os.fsync(target)
        os.fsync(source)


def remove_file(folder: int, name: str) -> None:
    with _write_errors_as_unavailable(name):
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return
        os.fsync(folder)


@contextmanager
def _write_errors_as_unavailable(name: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise Unavailable(f"{name} cannot be written") from None


def _write_new_file(folder: int, name: str, data: bytes, mode: int | None) -> None:
    """Write a new file; remove it again if that fails."""
    descriptor = os.open(name, CREATE_FLAGS, FILE_MODE if mode is None else mode, dir_fd=folder)
    try:
        remaining = memoryview(data)
        while remaining:
            # write(2) may write less than it is given.
            remaining = remaining[os.write(descriptor, remaining) :]
        if mode is not None:
            # The umask was applied to the mode at creation; a replaced file keeps its exact permissions.
            os.fchmod(descriptor, mode)
        # Before the file gets its final name: else the name could survive a power failure, and the content not.
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(descriptor)
