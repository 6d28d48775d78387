"""Files that are there as a whole or not at all, also after a power cut.

Folders are open descriptors and files names in them, so that no link is followed. What a function has done is on disk
when it returns. All raise Unavailable where the file system refuses.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cstp_grpc.errors import InvalidArgument, Unavailable
from cstp_grpc.intent_layer.files import ABSENT, LIST, READ
from cstp_grpc.intent_layer.model import ROOT
from cstp_grpc.intent_layer.paths import joined
from cstp_grpc.intent_layer.tree import MAX_FILE_BYTES, Tree

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_MODE = 0o666
FOLDER_MODE = 0o777
"""Both are lessened by the process's umask."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a regular file holds, and who may read and write it."""

    data: bytes
    mode: int


@contextmanager
def opened(tree: Tree, path: str) -> Iterator[int | None]:
    """Open the folder at a located path, to be listed and synced; None where there is none."""
    with tree.opened(path) as passing:
        descriptor = None if passing is None else _open_folder(path, passing)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def created(tree: Tree, path: str) -> Iterator[int]:
    """Open the folder at a located path as `opened` does; where there is none, it and those above are created."""
    _create_folders(tree, path)
    with opened(tree, path) as descriptor:
        if descriptor is None:
            raise Unavailable(f"{path} is no folder")
        yield descriptor


def read(folder: int, name: str, limit: int = MAX_FILE_BYTES) -> Content | None:
    """Return a regular file, or None where there is none. Raises InvalidArgument for one of more than `limit` bytes."""
    try:
        descriptor = os.open(name, READ, dir_fd=folder)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise Unavailable(f"{name} cannot be read") from None
    try:
        with open(descriptor, "rb") as file:  # noqa: PTH123
            status = os.fstat(descriptor)
            data = file.read(limit + 1) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        raise Unavailable(f"{name} cannot be read") from None
    if data is None:
        return None
    if len(data) > limit:
        raise InvalidArgument.field("path", f"{name} is larger than {limit} bytes")
    return Content(data, stat.S_IMODE(status.st_mode))


def create(folder: int, name: str, data: bytes, temporary: str) -> bool:
    """Write a new file; False where there is something of that name, which stays as it is.

    `temporary` is the name of the file that it is until it is complete; nobody else may use it.
    """
    stage(folder, data, None, temporary)
    try:
        if put_new(folder, name, temporary):
            return True
    except Unavailable:
        remove(folder, temporary)
        raise
    remove(folder, temporary)
    return False


def replace(folder: int, name: str, data: bytes, mode: int | None, temporary: str) -> None:
    """Write a file in the place of what has that name; `mode` None is that of a new file.

    What is left of an earlier attempt at `temporary` is overwritten.
    """
    stage(folder, data, mode, temporary)
    put(folder, name, temporary)


def stage(folder: int, data: bytes, mode: int | None, temporary: str) -> None:
    """Write a file to be put in its place, over what is left of an earlier attempt."""
    with _refusals(temporary):
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        _write(folder, temporary, data, mode)


def put(folder: int, name: str, temporary: str) -> None:
    """Give a staged file its name, in the place of what has it."""
    with _refusals(name):
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)


def put_new(folder: int, name: str, temporary: str) -> bool:
    """Give a staged file its name; False where something has it already, which stays as it is."""
    with _refusals(name):
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return False
        os.unlink(temporary, dir_fd=folder)
        os.fsync(folder)
    return True


def move(source: int, target: int, name: str) -> None:
    """Move a file from one folder to another, in the place of what has its name there."""
    with _refusals(name):
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        os.fsync(target)
        os.fsync(source)


def remove(folder: int, name: str) -> None:
    """Remove a file, if there is one."""
    with _refusals(name):
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return
        os.fsync(folder)


@contextmanager
def _refusals(name: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise Unavailable(f"{name} cannot be written") from None


def _write(folder: int, name: str, data: bytes, mode: int | None) -> None:
    """Write a new file; nothing of it stays where that fails."""
    descriptor = os.open(name, NEW_FILE, FILE_MODE if mode is None else mode, dir_fd=folder)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if mode is not None:
            os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(descriptor)


def _create_folders(tree: Tree, path: str) -> None:
    """Create a folder and those above, and see to it that they last, whoever created them."""
    above = ROOT
    for name in [] if path == ROOT else path.split("/"):
        with opened(tree, above) as descriptor:
            if descriptor is None:
                raise Unavailable(f"{above} is no folder")
            _create_folder(name, descriptor)
        above = joined(above, name)


def _create_folder(name: str, above: int) -> None:
    with _refusals(name):
        with suppress(FileExistsError):
            os.mkdir(name, FOLDER_MODE, dir_fd=above)
        os.fsync(above)


def _open_folder(path: str, descriptor: int) -> int:
    try:
        return os.open(".", LIST, dir_fd=descriptor)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise Unavailable(f"{path} vanished") from None
        raise Unavailable(f"{path} cannot be listed") from None
