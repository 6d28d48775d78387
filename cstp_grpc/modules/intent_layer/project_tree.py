"""The nodes of a project on disk: path containment, bounded reads, and a cache of parsed files.

A path is resolved once, symbolic links included, and then opened folder by folder without following a link, so that a
link swapped in between cannot redirect the read.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from cachetools import LRUCache

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.token_estimate import count_tokens
from cstp_grpc.contract.errors import CstpError, InvalidArgument, Unavailable
from cstp_grpc.modules.intent_layer import project_files
from cstp_grpc.modules.intent_layer.model import ROOT, Node, NodeFile
from cstp_grpc.modules.intent_layer.node_document import NodeDocument, parse_node
from cstp_grpc.modules.intent_layer.node_imports import ImportFollower, ParsedFile, find_imports

NODE_FILES = ("CLAUDE.md", "AGENTS.md")
"""The files of a node, in the order in which they are read; the first is for the root."""
MAX_FILE_BYTES = 262_144
"""Maximum bytes of a node's file: 256 KiB. Chosen: it bounds what one request makes the server read and parse."""
MAX_DEPTH = 128
"""Levels of folders that are walked. Chosen: each keeps a descriptor open, and 1024 is a common limit of a process."""
CACHED_CHARACTERS = 67_108_864
"""Characters in the cache: 64 Mi. Chosen: the nodes of large projects fit."""
CACHED_OVERHEAD = 2048
"""Characters that a cached file counts in addition to its text, for its parsed form."""
SECOND_NS = 1_000_000_000
SETTLING_NS = 100_000_000
"""A file that changed less than this before it was read is not cached, because a second change in the same tick of the
file system's clock would leave its stamp unchanged. Linux ticks every 1 to 10 ms; chosen: ten times the longest.
"""
COARSE_SETTLING_NS = 2 * SECOND_NS
"""The same for a change at a whole second: the file system may store whole seconds, or on FAT every second one."""


@dataclass(frozen=True, slots=True)
class UnreadableFolder:
    """A folder that cannot be listed, or whose node cannot be read, and why."""

    folder: str
    error: CstpError


@dataclass(frozen=True, slots=True)
class _CachedFile(ParsedFile):
    stamp: project_files.FileStamp
    linked: bool


class ProjectTree:
    """Reads the folders and nodes of a project; thread-safe.

    Paths are relative to the root, with `/`, and `.` for the root itself. Only `locate` validates a caller's path; the
    other methods take its results, and find nothing at any other path.
    """

    def __init__(
        self,
        root: Path,
        cached_characters: int = CACHED_CHARACTERS,
        clock: Callable[[], int] = time.time_ns,
        read_ignored: Callable[[Path], project_files.IgnoredFolders] = project_files.read_ignored_folders,
    ) -> None:
        """Set the project's folder, the size of the cache in characters, and the clock in ns since 1970.

        `read_ignored` returns the folders that a walk skips.
        """
        self._root = root.absolute()
        self._read_ignored = read_ignored
        self._clock = clock
        # Guards the cache only. Files are read and parsed without it: two threads may parse the same file, and the
        # later result replaces an equal one.
        self._lock = threading.Lock()
        self._cache: LRUCache[str, _CachedFile] = LRUCache(cached_characters, _cached_characters)

    @property
    def root(self) -> Path:
        return self._root

    def ignored_folders(self) -> project_files.IgnoredFolders:
        return self._read_ignored(self._root)

    def locate(self, path: str, field: str = "path") -> str:
        """Return a path without symbolic links, `.`, `..` and redundant slashes; it need not exist.

        `..` is resolved as written, before symbolic links are. Raises InvalidArgument, which names `field`, for a path
        that leaves the project or that no file can have; Unavailable if the project cannot be read.
        """
        parts = project_files.parse_path(path, field)
        try:
            real = self._real_path("/".join(parts))
        except OSError:
            raise InvalidArgument.field(field, "contains links that form a cycle") from None
        if real is None:
            raise InvalidArgument.field(field, "leads out of the project by a link")
        if not project_files.is_utf8(real):
            raise InvalidArgument.field(field, "leads to a name that is not UTF-8")
        return real

    def exists(self, path: str) -> bool:
        """Return whether a path exists; a symbolic link counts, wherever it leads."""
        return self._lstat(path) is not None

    def is_folder(self, path: str) -> bool:
        status = self._lstat(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def nearest_folder(self, path: str) -> str:
        """Return the folder that a path is or lies in; for a missing path, the nearest existing one above."""
        reached = ROOT
        for folder, _ in self._descend(path):
            reached = folder
        return reached

    def nodes_to_path(self, path: str) -> tuple[Node, ...]:
        """Return the nodes from the root down to a path, the root's first.

        Raises InvalidArgument for a node that is too large, no regular file or a symbolic link out of the project;
        Unavailable for one that cannot be read.
        """
        found = (self._read_node(folder, descriptor) for folder, descriptor in self._descend(path))
        return tuple(node for node in found if node)

    def node(self, folder: str) -> Node | None:
        """Return the node of a folder, or None. Raises as `nodes_to_path` does."""
        with self.open_folder(folder) as descriptor:
            return None if descriptor is None else self._read_node(folder, descriptor)

    def document(self, file: str) -> NodeDocument | None:
        """Return a node's file with the offsets of its sections, or None if it is missing.

        Raises as `nodes_to_path` does.
        """
        with self._open_parent(file) as descriptor:
            read = None if descriptor is None else self._read_node_file(file, descriptor)
        return read.document if read else None

    def nodes(self) -> Iterator[Node]:
        """Yield all readable nodes, a parent before its children, in name order."""
        return (found for found in self.walk() if isinstance(found, Node))

    def walk(self) -> Iterator[Node | UnreadableFolder]:
        """Yield all nodes as `nodes` does, with unreadable files and folders in their places.

        Symbolic links to folders are not followed. `ignored_folders`, names that are not UTF-8, and folders deeper than
        `MAX_DEPTH` are skipped.
        """
        with self.open_folder(ROOT) as descriptor:
            if descriptor is not None:
                yield from self._walk(ROOT, descriptor, 0, self.ignored_folders())

    def listing(self, folder: str) -> project_files.FolderListing | None:
        """Return the names in a folder, or None if it is missing. Raises Unavailable."""
        with self.open_folder(folder) as descriptor:
            return None if descriptor is None else project_files.list_folder_at(folder, descriptor)

    def read(self, file: str, limit: int = MAX_FILE_BYTES) -> bytes | None:
        """Return a file's content, or None if it is not a regular file.

        Links are not followed, nothing is cached. Raises InvalidArgument if it exceeds `limit` bytes, Unavailable if it
        cannot be read.
        """
        with self._open_parent(file) as descriptor:
            status = None if descriptor is None else project_files.stat_at(file, descriptor)
            if descriptor is None or status is None or not stat.S_ISREG(status.st_mode):
                return None
            content = project_files.read_at(file, descriptor, limit)
            return content and content[1]

    @contextmanager
    def open_folder(self, folder: str) -> Iterator[int | None]:
        """Open a folder for use as `dir_fd` without following links; yield None if it is missing.

        Raises Unavailable.
        """
        # Closing the generator closes its descriptor, which must live until the caller's block ends.
        with closing(self._descend(folder)) as descent:
            yield next((descriptor for at, descriptor in descent if at == folder), None)

    @contextmanager
    def _open_parent(self, path: str) -> Iterator[int | None]:
        """Open the parent folder of a path; yield None if it is missing or the path is not well-formed."""
        if project_files.located_names(path) is None:
            yield None
            return
        with self.open_folder(project_files.parent_of(path)) as descriptor:
            yield descriptor

    def _real_root(self) -> str:
        try:
            return os.path.realpath(self._root, strict=True)
        except OSError:
            raise Unavailable("the project's folder cannot be read") from None

    def _real_path(self, path: str) -> str | None:
        """Return the real path relative to the root, or None if it is outside.

        Raises OSError for a loop of symbolic links.
        """
        root = self._real_root()
        joined = os.path.join(root, path)  # noqa: PTH118
        try:
            real = os.path.realpath(joined, strict=True)
        except OSError as error:
            # Only strict mode reports a loop; anything else, such as a missing file, is resolved as far as it exists.
            if error.errno == errno.ELOOP:
                raise
            real = os.path.realpath(joined)
        if real == root:
            return ROOT
        # With the slash, so that `/srv/shop-old` is not below `/srv/shop`.
        prefix = root.rstrip("/") + "/"
        return real.removeprefix(prefix) if real.startswith(prefix) else None

    def _lstat(self, path: str) -> os.stat_result | None:
        with self._open_parent(path) as descriptor:
            return None if descriptor is None else project_files.stat_at(path, descriptor)

    def _descend(self, path: str) -> Generator[tuple[str, int], None, None]:
        """Yield the existing folders from the root down to a path, each open until the next one is."""
        names = project_files.located_names(path)
        if names is None:
            return
        try:
            # The root itself may be a link: the operator configured it. Nothing below it is followed.
            descriptor = os.open(self._root, project_files.TRAVERSE_FLAGS & ~os.O_NOFOLLOW)
        except OSError:
            raise Unavailable("the project's folder cannot be read") from None
        try:
            yield ROOT, descriptor
            for count in range(1, len(names) + 1):
                folder = "/".join(names[:count])
                below = project_files.open_at(folder, project_files.TRAVERSE_FLAGS, descriptor)
                if below is None:
                    return
                os.close(descriptor)
                descriptor = below
                yield folder, descriptor
        finally:
            os.close(descriptor)

    def _walk(
        self, folder: str, descriptor: int, depth: int, ignored: project_files.IgnoredFolders
    ) -> Iterator[Node | UnreadableFolder]:
        try:
            listing = project_files.list_folder_at(folder, descriptor)
        except Unavailable as error:
            yield UnreadableFolder(folder, error)
            return
        if not set(NODE_FILES).isdisjoint(listing.files):
            try:
                node = self._read_node(folder, descriptor)
            except (InvalidArgument, Unavailable) as error:
                yield UnreadableFolder(folder, error)
            else:
                yield from [node] if node else []
        if folder != ROOT and ".git" in {*listing.folders, *listing.files}:
            # A repository of its own, such as a submodule, of which git was not asked.
            ignored = project_files.IgnoredFolders(None)
        for name in listing.folders if depth < MAX_DEPTH else ():
            below = project_files.join_path(folder, name)
            if not ignored.skips(below):
                yield from self._walk_below(below, descriptor, depth + 1, ignored)

    def _walk_below(
        self, folder: str, above: int, depth: int, ignored: project_files.IgnoredFolders
    ) -> Iterator[Node | UnreadableFolder]:
        try:
            descriptor = project_files.open_at(folder, project_files.TRAVERSE_FLAGS, above)
        except Unavailable as error:
            yield UnreadableFolder(folder, error)
            return
        if descriptor is not None:
            try:
                yield from self._walk(folder, descriptor, depth, ignored)
            finally:
                os.close(descriptor)

    def _read_node(self, folder: str, descriptor: int) -> Node | None:
        first, second = (self._read_node_file(project_files.join_path(folder, name), descriptor) for name in NODE_FILES)
        if first and second and first.file.text == second.file.text:
            # Two names of one text are one file: the target of a link, or of two copies the name proper to the folder.
            chosen = second if first.linked or (folder != ROOT and not second.linked) else first
            return self._with_imports(folder, [chosen])
        reads = [read for read in (first, second) if read]
        if first and second:
            # A file that only imports the other one, such as a CLAUDE.md with `@AGENTS.md`, is not counted.
            reads = [second] if self._only_imports(first, second) else reads
            reads = [first] if self._only_imports(second, first) and len(reads) > 1 else reads
        return self._with_imports(folder, reads) if reads else None

    def _only_imports(self, read: _CachedFile, other: _CachedFile) -> bool:
        if len(read.imports) != 1 or read.document.sections({read.imports[0].line}):
            return False
        try:
            return self.locate(
                project_files.join_path(project_files.parent_of(read.file.path), read.imports[0].path)
            ) == self.locate(other.file.path)
        except InvalidArgument:
            return False

    def _with_imports(self, folder: str, reads: Sequence[_CachedFile]) -> Node:
        if not any(read.imports for read in reads):
            return Node(folder, tuple(read.file for read in reads))
        own = frozenset(self.locate(read.file.path) for read in reads)
        follower = ImportFollower(self.locate, self._read_imported_file, own)
        files = tuple(follower.follow(read) for read in reads)
        return Node(folder, files, follower.imported, tuple(follower.broken), follower.imports_own)

    def _read_imported_file(self, path: str) -> _CachedFile | None:
        """Return a located file that a node imports."""
        with self._open_parent(path) as descriptor:
            status = None if descriptor is None else project_files.stat_at(path, descriptor)
            if descriptor is None or status is None or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode):
                return None
            return self._read_regular_file(path, path, status, descriptor)

    def _read_node_file(self, path: str, descriptor: int) -> _CachedFile | None:
        status = project_files.stat_at(path, descriptor)
        if status is None or stat.S_ISDIR(status.st_mode):
            return None
        if stat.S_ISLNK(status.st_mode):
            return self._read_linked_file(path)
        return self._read_regular_file(path, path, status, descriptor)

    def _read_linked_file(self, path: str) -> _CachedFile | None:
        """Return a file of a node that is a symbolic link; a dangling link counts as missing."""
        try:
            target = self._real_path(path)
        except OSError:
            return None
        if target is None:
            raise project_files.invalid_path_error(path, "leads out of the project by a link")
        if project_files.is_in_repository(target):
            raise project_files.invalid_path_error(path, "leads into a folder of version control by a link")
        with self._open_parent(target) as descriptor:
            status = None if descriptor is None else project_files.stat_at(target, descriptor)
            # A link here was put in place after the path was resolved, and could lead anywhere: it is not followed.
            if descriptor is None or status is None or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode):
                return None
            return self._read_regular_file(path, target, status, descriptor)

    def _read_regular_file(self, path: str, target: str, status: os.stat_result, descriptor: int) -> _CachedFile | None:
        """Return the file at `target`, which is reached by `path`."""
        if not stat.S_ISREG(status.st_mode):
            raise project_files.invalid_path_error(path, "is not a regular file")
        linked = path != target
        with self._lock:
            cached = self._cache.get(path)
        if cached and (cached.stamp, cached.linked) == (project_files.stamp_of(status), linked):
            return cached
        # Before the file is read: a change during the reading must count as one after it.
        begun = self._clock()
        content = project_files.read_at(target, descriptor, MAX_FILE_BYTES)
        if content is None:
            return None
        read = _parse_file(path, linked, *content)
        # The cache raises ValueError for an entry larger than itself.
        if _is_cacheable(read.stamp, begun) and _cached_characters(read) <= self._cache.maxsize:
            with self._lock:
                self._cache[path] = read
        return read


def _cached_characters(read: _CachedFile) -> int:
    return len(read.file.text) + CACHED_OVERHEAD


def _is_cacheable(stamp: project_files.FileStamp, begun: int) -> bool:
    """Return whether any later change must alter the stamp: a change in the same clock tick would not."""
    changed = stamp[-1]
    return begun - changed >= (SETTLING_NS if changed % SECOND_NS else COARSE_SETTLING_NS)


def _parse_file(path: str, linked: bool, stamp: project_files.FileStamp, content: bytes) -> _CachedFile:
    text = content.decode(errors="replace")
    document = parse_node(text, path)
    # The text may hold replacement characters of its own, in which case it encodes to the same bytes.
    decoded = "\ufffd" not in text or text.encode() == content
    file = NodeFile(path, text, document.sections(), count_tokens(text), decoded)
    return _CachedFile(document, file, find_imports(text), stamp, linked)
