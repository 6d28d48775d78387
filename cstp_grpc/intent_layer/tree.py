"""The nodes of a project on disk: paths that stay inside it, bounded reads, and a cache of what was read.

A path is resolved once, links and all, and from then on opened folder by folder without following a link, so that a
link swapped in between leads nowhere.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cachetools import LRUCache

from cstp_grpc.errors import CstpError, InvalidArgument, Unavailable
from cstp_grpc.intent_layer.files import (
    PASS,
    Listing,
    Stamp,
    listing_at,
    open_at,
    read_at,
    refused,
    stamp_of,
    status_at,
)
from cstp_grpc.intent_layer.imports import ImportFollower, ReadFile, find_imports
from cstp_grpc.intent_layer.markdown import Document, parse
from cstp_grpc.intent_layer.model import ROOT, Node, NodeFile
from cstp_grpc.intent_layer.paths import in_repository, is_utf8, joined, located_names, parent_of, parts_of
from cstp_grpc.intent_layer.tokens import count_tokens

NODE_FILES = ("CLAUDE.md", "AGENTS.md")
"""The files of a node, in the order in which they are read; the first is for the root."""
MAX_FILE_BYTES = 262_144
"""How large a file may be."""
MAX_DEPTH = 128
"""How deep folders are walked; each level keeps a descriptor open."""
SKIPPED = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".intent-layer",
        ".venv",
        "__pycache__",
        "build",
        "dist",
        "node_modules",
        "target",
        "venv",
    }
)
"""Folders that a walk passes over."""
CACHED_CHARACTERS = 67_108_864
"""How much text the cache keeps; each file counts as somewhat more than its text."""
CACHED_OVERHEAD = 2048
SECOND_NS = 1_000_000_000
SETTLING_NS = 100_000_000
"""A file that changed less than this before it was read is read again: the clocks of file systems tick coarsely."""
COARSE_SETTLING_NS = 2 * SECOND_NS
"""The same for a file that changed at a whole second, since its file system may count only those."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A folder that cannot be listed, or whose node cannot be read, and why."""

    folder: str
    error: CstpError


@dataclass(frozen=True, slots=True)
class _Read(ReadFile):
    stamp: Stamp
    linked: bool


class Tree:
    """A project's folders and nodes; may be used by several threads.

    What it takes and returns are paths relative to the root, with `/`, `.` for the root itself. Only `locate` judges
    what a caller wrote; the other methods take what it returned, and find nothing at any other path.
    """

    def __init__(
        self, root: Path, cached_characters: int = CACHED_CHARACTERS, clock: Callable[[], int] = time.time_ns
    ) -> None:
        """Take the project's folder, how much text to keep, and what tells the time in ns since 1970."""
        self._root = root.absolute()
        self._clock = clock
        self._lock = threading.Lock()
        self._cache: LRUCache[str, _Read] = LRUCache(cached_characters, _weight)

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self._root

    def locate(self, path: str, field: str = "path") -> str:
        """Return where a path is, without links, `.`, `..` and needless slashes; it need not exist.

        `..` goes back in what is written, before links are resolved. Raises InvalidArgument, which names `field`, for
        a path that leaves the project or that no file can have; Unavailable where the project cannot be read.
        """
        parts = parts_of(path, field)
        try:
            real = self._real("/".join(parts))
        except OSError:
            raise InvalidArgument.field(field, "holds links that lead in a circle") from None
        if real is None:
            raise InvalidArgument.field(field, "leads out of the project by a link")
        if not is_utf8(real):
            raise InvalidArgument.field(field, "leads to a name that is not UTF-8")
        return real

    def exists(self, path: str) -> bool:
        """Return whether there is anything at a path; a link counts, wherever it leads."""
        return self._lstat(path) is not None

    def is_folder(self, path: str) -> bool:
        """Return whether there is a folder at a path."""
        status = self._lstat(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def folder_of(self, path: str) -> str:
        """Return the folder that a path is or lies in; where it does not exist, the nearest one above that does."""
        reached = ROOT
        for folder, _ in self._descend(path):
            reached = folder
        return reached

    def chain(self, path: str) -> tuple[Node, ...]:
        """Return the nodes from the root down to a path, the root's first.

        Raises InvalidArgument for a node that is too large, no regular file or a link out of the project; Unavailable
        for one that cannot be read.
        """
        found = (self._node(folder, descriptor) for folder, descriptor in self._descend(path))
        return tuple(node for node in found if node)

    def node(self, folder: str) -> Node | None:
        """Return the node of a folder, or None where it has none. Raises as `chain` does."""
        with self.opened(folder) as descriptor:
            return None if descriptor is None else self._node(folder, descriptor)

    def document(self, file: str) -> Document | None:
        """Return a node's file with the places of its sections, or None where there is none. Raises as `chain` does."""
        with self._beside(file) as descriptor:
            read = None if descriptor is None else self._file(file, descriptor)
        return read.document if read else None

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes that can be read, a parent before its children, names in their order."""
        return (found for found in self.walk() if isinstance(found, Node))

    def walk(self) -> Iterator[Node | Unreadable]:
        """Yield all nodes as `nodes` does, and in their places the files and folders that cannot be read.

        No link to a folder is followed, and `SKIPPED` ones are passed over, as are names that are no UTF-8 and what
        lies deeper than `MAX_DEPTH`.
        """
        with self.opened(ROOT) as descriptor:
            if descriptor is not None:
                yield from self._walk(ROOT, descriptor, 0)

    def listing(self, folder: str) -> Listing | None:
        """Return what is in a folder, or None where there is no such folder. Raises Unavailable."""
        with self.opened(folder) as descriptor:
            return None if descriptor is None else listing_at(folder, descriptor)

    def read(self, file: str, limit: int = MAX_FILE_BYTES) -> bytes | None:
        """Return a file's content, or None where there is no regular file; links are not followed, nothing is cached.

        Raises InvalidArgument for one of more than `limit` bytes, Unavailable for one that cannot be read.
        """
        with self._beside(file) as descriptor:
            status = None if descriptor is None else status_at(file, descriptor)
            if descriptor is None or status is None or not stat.S_ISREG(status.st_mode):
                return None
            content = read_at(file, descriptor, limit)
            return content and content[1]

    @contextmanager
    def opened(self, folder: str) -> Iterator[int | None]:
        """Open a folder for use as `dir_fd`, following no link; None where there is none. Raises Unavailable."""
        with closing(self._descend(folder)) as descent:
            yield next((descriptor for at, descriptor in descent if at == folder), None)

    @contextmanager
    def _beside(self, path: str) -> Iterator[int | None]:
        """Open the folder that a path lies in; None where there is none, or where nothing can be at the path."""
        if located_names(path) is None:
            yield None
            return
        with self.opened(parent_of(path)) as descriptor:
            yield descriptor

    def _real_root(self) -> str:
        try:
            return os.path.realpath(self._root, strict=True)
        except OSError:
            raise Unavailable("the project's folder cannot be read") from None

    def _real(self, path: str) -> str | None:
        """Return where a path is without links, relative to the root; None where that is outside.

        Raises OSError for links that lead in a circle.
        """
        root = self._real_root()
        joined = os.path.join(root, path)  # noqa: PTH118
        try:
            real = os.path.realpath(joined, strict=True)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise
            real = os.path.realpath(joined)
        if real == root:
            return ROOT
        prefix = root.rstrip("/") + "/"
        return real.removeprefix(prefix) if real.startswith(prefix) else None

    def _lstat(self, path: str) -> os.stat_result | None:
        with self._beside(path) as descriptor:
            return None if descriptor is None else status_at(path, descriptor)

    def _descend(self, path: str) -> Generator[tuple[str, int], None, None]:
        """Yield the folders from the root down to a path, as far as they exist, each open until the next one is."""
        names = located_names(path)
        if names is None:
            return
        try:
            descriptor = os.open(self._root, PASS & ~os.O_NOFOLLOW)
        except OSError:
            raise Unavailable("the project's folder cannot be read") from None
        try:
            yield ROOT, descriptor
            for count in range(1, len(names) + 1):
                folder = "/".join(names[:count])
                below = open_at(folder, PASS, descriptor)
                if below is None:
                    return
                os.close(descriptor)
                descriptor = below
                yield folder, descriptor
        finally:
            os.close(descriptor)

    def _walk(self, folder: str, descriptor: int, depth: int) -> Iterator[Node | Unreadable]:
        try:
            listing = listing_at(folder, descriptor)
        except Unavailable as error:
            yield Unreadable(folder, error)
            return
        if not set(NODE_FILES).isdisjoint(listing.files):
            try:
                node = self._node(folder, descriptor)
            except (InvalidArgument, Unavailable) as error:
                yield Unreadable(folder, error)
            else:
                yield from [node] if node else []
        for name in listing.folders if depth < MAX_DEPTH else ():
            if name not in SKIPPED:
                yield from self._walk_below(joined(folder, name), descriptor, depth + 1)

    def _walk_below(self, folder: str, above: int, depth: int) -> Iterator[Node | Unreadable]:
        try:
            descriptor = open_at(folder, PASS, above)
        except Unavailable as error:
            yield Unreadable(folder, error)
            return
        if descriptor is not None:
            try:
                yield from self._walk(folder, descriptor, depth)
            finally:
                os.close(descriptor)

    def _node(self, folder: str, descriptor: int) -> Node | None:
        first, second = (self._file(joined(folder, name), descriptor) for name in NODE_FILES)
        if first and second and first.file.text == second.file.text:
            # A link gives way to the file it leads to, a copy to the one that belongs in the folder.
            chosen = second if first.linked or (folder != ROOT and not second.linked) else first
            return self._with_imports(folder, [chosen])
        reads = [read for read in (first, second) if read]
        if first and second:
            # A file that says nothing but where to read is no second one.
            reads = [second] if self._only_imports(first, second) else reads
            reads = [first] if self._only_imports(second, first) and len(reads) > 1 else reads
        return self._with_imports(folder, reads) if reads else None

    def _only_imports(self, read: _Read, other: _Read) -> bool:
        """Return whether a file says nothing but that another one is to be read."""
        if len(read.imports) != 1 or read.document.sections({read.imports[0].line}):
            return False
        try:
            return self.locate(joined(parent_of(read.file.path), read.imports[0].path)) == self.locate(other.file.path)
        except InvalidArgument:
            return False

    def _with_imports(self, folder: str, reads: Sequence[_Read]) -> Node:
        """Return a node with what its files import."""
        if not any(read.imports for read in reads):
            return Node(folder, tuple(read.file for read in reads))
        own = frozenset(self.locate(read.file.path) for read in reads)
        follower = ImportFollower(self.locate, self._imported, own)
        files = tuple(follower.follow(read) for read in reads)
        return Node(folder, files, follower.imported, tuple(follower.broken), follower.imports_own)

    def _imported(self, path: str) -> _Read | None:
        """Return a located file that a node imports."""
        with self._beside(path) as descriptor:
            status = None if descriptor is None else status_at(path, descriptor)
            if descriptor is None or status is None or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode):
                return None
            return self._regular(path, path, status, descriptor)

    def _file(self, path: str, descriptor: int) -> _Read | None:
        """Return a file of a node, from the cache where it is as it was."""
        status = status_at(path, descriptor)
        if status is None or stat.S_ISDIR(status.st_mode):
            return None
        if stat.S_ISLNK(status.st_mode):
            return self._linked(path)
        return self._regular(path, path, status, descriptor)

    def _linked(self, path: str) -> _Read | None:
        """Return a file of a node that is a link; one that leads nowhere counts as absent."""
        try:
            target = self._real(path)
        except OSError:
            return None
        if target is None:
            raise refused(path, "leads out of the project by a link")
        if in_repository(target):
            raise refused(path, "leads into a folder of version control by a link")
        with self._beside(target) as descriptor:
            status = None if descriptor is None else status_at(target, descriptor)
            if descriptor is None or status is None or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode):
                return None
            return self._regular(path, target, status, descriptor)

    def _regular(self, path: str, target: str, status: os.stat_result, descriptor: int) -> _Read | None:
        """Return the file `target`, which is found at `path`."""
        if not stat.S_ISREG(status.st_mode):
            raise refused(path, "is no regular file")
        linked = path != target
        with self._lock:
            cached = self._cache.get(path)
        if cached and (cached.stamp, cached.linked) == (stamp_of(status), linked):
            return cached
        begun = self._clock()
        content = read_at(target, descriptor, MAX_FILE_BYTES)
        if content is None:
            return None
        read = _parsed(path, linked, *content)
        if _settled(read.stamp, begun) and _weight(read) <= self._cache.maxsize:
            with self._lock:
                self._cache[path] = read
        return read


def _weight(read: _Read) -> int:
    return len(read.file.text) + CACHED_OVERHEAD


def _settled(stamp: Stamp, begun: int) -> bool:
    """Return whether every later change shows in the stamp: a change in the same tick of the clock would not."""
    changed = stamp[-1]
    return begun - changed >= (SETTLING_NS if changed % SECOND_NS else COARSE_SETTLING_NS)


def _parsed(path: str, linked: bool, stamp: Stamp, content: bytes) -> _Read:
    text = content.decode(errors="replace")
    document = parse(text, path)
    decoded = "\ufffd" not in text or text.encode() == content
    file = NodeFile(path, text, document.sections(), count_tokens(text), decoded)
    return _Read(document, file, find_imports(text), stamp, linked)
