"""The reports of a project on disk: what waits for a review, what was integrated, what was rejected."""

from __future__ import annotations

import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from datetime import datetime

from cachetools import LRUCache

from cstp_grpc.errors import InvalidArgument, NotFound, Unavailable
from cstp_grpc.intent_layer import durable
from cstp_grpc.intent_layer.model import (
    ROOT,
    Learning,
    LearningState,
    LearningType,
    NewLearning,
    PendingReports,
    UnreadableReportFile,
)
from cstp_grpc.intent_layer.paths import common_folder, parent_of, upwards
from cstp_grpc.intent_layer.report_paths import place_reported_path
from cstp_grpc.intent_layer.reports import UnreadableReport, read, write
from cstp_grpc.intent_layer.tree import Tree
from cstp_grpc.storage.page_token import read_token, to_microseconds, write_token
from cstp_grpc.storage.paging import Page, PageRequest, estimated_size, fitting

MISTAKES = ".intent-layer/mistakes"
ENDING = ".md"
MAX_TITLE = 200
MAX_OPERATION = 200
MAX_AGENT_ID = 200
MAX_TEXT = 20_000
"""How long a detail may be, and evidence."""
MAX_PATHS = 101
MAX_REPORT_BYTES = 1_048_576
"""How large a report may be to be read; those that are filed have at most half of that, so that reviews find room."""
CACHED_CHARACTERS = 16_777_216
CACHED_OVERHEAD = 2048
ATTEMPTS = 16
"""How many identifiers are tried; two writers hardly ever choose the same."""

LEARNING_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,199}")
CONTROL = re.compile(r"[\0-\x1f\x7f]")
SURROGATE = re.compile("[\ud800-\udfff]")

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class LearningQuery:
    """Which learnings to list: of any state or type where none is given.

    `path` None means anywhere; otherwise they are about that file or folder, or something in it.
    """

    states: frozenset[LearningState] = frozenset()
    types: frozenset[LearningType] = frozenset()
    path: str | None = None


@dataclass(frozen=True, slots=True)
class LearningPage(Page[Learning]):
    """A page of learnings; with the first one comes what in the listed states cannot be read."""

    unreadable: tuple[UnreadableReportFile, ...] = ()


class Learnings:
    """Files learnings and finds them again; may be used by several threads and processes at once.

    Everything is below `.intent-layer/mistakes`, a folder for each state. Any of these folders may be a link, but not
    out of the project: then every method raises InvalidArgument.
    """

    def __init__(
        self, tree: Tree, clock: Callable[[], datetime], randomness: Callable[[], str] = lambda: secrets.token_hex(8)
    ) -> None:
        self._tree = tree
        self._clock = clock
        self._randomness = randomness
        self._lock = threading.Lock()
        self._cache: LRUCache[str, tuple[Stamp, Learning]] = LRUCache(
            CACHED_CHARACTERS, lambda cached: len(cached[1].detail) + len(cached[1].evidence or "") + CACHED_OVERHEAD
        )

    def file(self, new: NewLearning, before: Callable[[Learning], None] = lambda _: None) -> Learning:
        """Write a report; it is on disk before this returns, and complete from the moment it can be seen.

        Raises InvalidArgument for fields that are blank, too long or not on one line, and for paths as `Tree.locate`
        does; Unavailable where nothing can be written. `before` is called when only the writing is left; what it raises
        keeps that from happening.
        """
        located = tuple(dict.fromkeys(self._tree.locate(path, "paths") for path in new.paths))
        _check(new, located)
        directory = common_folder([folder_of(self._tree, path) for path in located])
        folder = self.folder(LearningState.PENDING)
        for _ in range(ATTEMPTS):
            learning = self._named(new, located)
            content = write(learning, directory)
            if len(content) > MAX_REPORT_BYTES // 2:
                raise InvalidArgument.field("paths", "are too long together")
            if self.find(learning.id):
                continue
            before(learning)
            with durable.created(self._tree, folder) as descriptor:
                if durable.create(descriptor, name_of_report(learning.id), content, f".{learning.id}.tmp"):
                    return learning
        raise Unavailable("no identifier could be found for the report")

    def get(self, learning_id: str) -> Learning:
        """Return a learning, in whichever state it is.

        Raises InvalidArgument for what is no identifier or whose report cannot be read, and NotFound.
        """
        check_id(learning_id)
        state = self.find(learning_id)
        found = None if state is None else self._get(state, learning_id)
        if found is None:
            raise not_found(learning_id)
        if isinstance(found, UnreadableReportFile):
            raise InvalidArgument.field("id", f"{found.file} cannot be read: {found.reason}")
        return found

    def page(self, query: LearningQuery, request: PageRequest) -> LearningPage:
        """Return a page of learnings, latest first. Raises InvalidArgument for a token of another listing."""
        states = frozenset(query.states or LearningState)
        types = frozenset(query.types or LearningType)
        path = None if query.path is None else self._tree.locate(query.path)
        conditions = ("learnings", sorted(states), sorted(types), path)
        after = _read_key(request.token, conditions) if request.token else None
        found = list(self._all(states))
        learnings = [each for each in found if isinstance(each, Learning) and each.type in types]
        if path is not None:
            learnings = [each for each in learnings if any(_within(about, path) for about in each.paths)]
        learnings.sort(key=_key, reverse=True)
        if after:
            learnings = [each for each in learnings if _key(each) < after]
        kept = learnings[: request.limit]
        kept = kept[: fitting(kept, _size)]
        token = write_token(conditions, _key(kept[-1])) if len(kept) < len(learnings) else ""
        unreadable = () if after else tuple(each for each in found if isinstance(each, UnreadableReportFile))
        return LearningPage(tuple(kept), token, unreadable)

    def governing(self, *paths: str) -> PendingReports:
        """Return the pending learnings that bear on located paths, and the pending reports that cannot be read.

        Those about a path itself or something below it, about a folder that it lies in, or about a file right in such
        a folder.
        """
        above = {folder for path in paths for folder in upwards(folder_of(self._tree, path))}
        pending = list(self._all([LearningState.PENDING]))
        bearing = [
            each
            for each in pending
            if isinstance(each, Learning) and any(self._bears(about, paths, above) for about in each.paths)
        ]
        unreadable = tuple(each for each in pending if isinstance(each, UnreadableReportFile))
        return PendingReports(tuple(sorted(bearing, key=_key, reverse=True)), unreadable)

    def folder(self, state: LearningState) -> str:
        """Return where the reports of a state are, links resolved. Raises InvalidArgument where that is outside."""
        return self._tree.locate(f"{MISTAKES}/{state}")

    def find(self, learning_id: str) -> LearningState | None:
        """Return the state that a report is in, also where it is moved to the next one meanwhile."""
        for state in LearningState:
            if self._tree.exists(f"{self.folder(state)}/{name_of_report(learning_id)}"):
                return state
        return None

    def _named(self, new: NewLearning, located: tuple[str, ...]) -> Learning:
        at = self._clock()
        learning_id = f"{new.type.upper()}-{at:%Y-%m-%d}-{self._randomness()}-{os.getpid()}"
        return Learning(
            id=learning_id,
            type=new.type,
            state=LearningState.PENDING,
            at=at,
            paths=located,
            title=new.title,
            detail=new.detail,
            agent_id=new.agent_id,
            file=report_file(LearningState.PENDING, learning_id),
            evidence=new.evidence,
            operation=new.operation or None,
        )

    def _bears(self, about: str, paths: Iterable[str], above: Set[str]) -> bool:
        """Return whether what a learning is about is below a path, is one of the folders, or a file right in one."""
        if about in above or any(_within(about, path) for path in paths):
            return True
        return parent_of(about) in above and not self._tree.is_folder(about)

    def _get(self, state: LearningState, learning_id: str) -> Learning | UnreadableReportFile | None:
        with durable.opened(self._tree, self.folder(state)) as descriptor:
            return None if descriptor is None else self._read(state, descriptor, name_of_report(learning_id))

    def _all(self, states: Iterable[LearningState]) -> Iterator[Learning | UnreadableReportFile]:
        """Yield each report once, also one that moves from one state to the next meanwhile."""
        seen: set[str] = set()
        for state in [state for state in LearningState if state in states]:
            with durable.opened(self._tree, self.folder(state)) as descriptor:
                for name in _names(state, descriptor):
                    found = None if descriptor is None or name in seen else self._read(state, descriptor, name)
                    if found is not None:
                        seen.add(name)
                        yield found

    def _read(self, state: LearningState, folder: int, name: str) -> Learning | UnreadableReportFile | None:
        """Return what is in a report; None where it has moved on."""
        file = f"{MISTAKES}/{state}/{name}"
        learning_id = name.removesuffix(ENDING)
        if not LEARNING_ID.fullmatch(learning_id):
            return UnreadableReportFile(file.encode(errors="replace").decode(), "its name is no identifier")
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError:
            return UnreadableReportFile(file, "it cannot be read")
        if not stat.S_ISREG(status.st_mode):
            return UnreadableReportFile(file, "it is no regular file")
        stamp = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        with self._lock:
            cached = self._cache.get(file)
        if cached and cached[0] == stamp:
            return cached[1]
        try:
            content = durable.read(folder, name, MAX_REPORT_BYTES)
            if content is None:
                return None
            learning = self._placed(read(content.data, learning_id, state, file))
        except UnreadableReport as error:
            return UnreadableReportFile(file, str(error))
        except InvalidArgument:
            return UnreadableReportFile(file, f"it is larger than {MAX_REPORT_BYTES} bytes")
        except Unavailable:
            return UnreadableReportFile(file, "it cannot be read")
        with self._lock:
            self._cache[file] = stamp, learning
        return learning

    def _placed(self, learning: Learning) -> Learning:
        """Return a learning with its paths as they are located; other tools write them as they like."""
        if len(learning.paths) > MAX_PATHS:
            raise UnreadableReport(f"it names more than {MAX_PATHS} paths")
        places = {path: place_reported_path(self._tree, path) for path in learning.paths}
        located = tuple(dict.fromkeys(place for place in places.values() if place is not None))
        unplaced = tuple(path for path, place in places.items() if place is None)
        return replace(learning, paths=located or (ROOT,), unplaced_paths=unplaced)


def check_id(learning_id: str) -> None:
    """Raise InvalidArgument for what cannot be the identifier of a learning."""
    if not LEARNING_ID.fullmatch(learning_id):
        raise InvalidArgument.field("id", "is no identifier of a learning")


def not_found(learning_id: str) -> NotFound:
    """Return the error for a learning that is in no state."""
    return NotFound(f"there is no learning {learning_id}")


def report_file(state: LearningState, learning_id: str) -> str:
    """Return the file of a report."""
    return f"{MISTAKES}/{state}/{name_of_report(learning_id)}"


def name_of_report(learning_id: str) -> str:
    """Return the name of a report's file, which is the same in every state."""
    return learning_id + ENDING


def folder_of(tree: Tree, path: str) -> str:
    """Return the folder that a located path is or would lie in; what does not exist is taken for a file."""
    return path if tree.is_folder(path) else parent_of(path)


def _within(path: str, folder: str) -> bool:
    return folder in (ROOT, path) or path.startswith(f"{folder}/")


def _key(learning: Learning) -> tuple[int, str]:
    return to_microseconds(learning.at), learning.id


def _read_key(token: str, conditions: object) -> tuple[int, str]:
    at, learning_id = read_token(token, conditions, (int, str))
    return int(at), str(learning_id)


def _size(learning: Learning) -> int:
    reviews = [text for review in learning.reviews for text in (review.reviewer, review.reason)]
    return estimated_size(
        [
            learning.id,
            learning.title,
            learning.detail,
            learning.evidence,
            learning.operation,
            learning.agent_id,
            learning.file,
            *learning.paths,
            *reviews,
        ]
    )


def _names(state: LearningState, folder: int | None) -> list[str]:
    """Return the names of reports; what begins with a dot is not complete yet, or none."""
    if folder is None:
        return []
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        raise Unavailable(f"{MISTAKES}/{state} cannot be listed") from None
    return sorted(name for name in names if name.endswith(ENDING) and not name.startswith("."))


def _check(new: NewLearning, located: tuple[str, ...]) -> None:
    if not 1 <= len(located) <= MAX_PATHS:
        raise InvalidArgument.field("paths", f"must be 1 to {MAX_PATHS}")
    check_line("title", new.title, MAX_TITLE)
    check_line("agent_id", new.agent_id, MAX_AGENT_ID)
    if new.operation:
        check_line("operation", new.operation, MAX_OPERATION)
    check_text("detail", new.detail, MAX_TEXT)
    check_text("evidence", new.evidence or "-", MAX_TEXT)


def check_line(field: str, text: str, longest: int) -> None:
    """Raise InvalidArgument for a text that is blank, too long or not on one line."""
    check_text(field, text, longest)
    if CONTROL.search(text):
        raise InvalidArgument.field(field, "must be one line")


def check_text(field: str, text: str, longest: int) -> None:
    """Raise InvalidArgument for a text that is blank, too long or no UTF-8."""
    if not text.strip():
        raise InvalidArgument.field(field, "must not be empty or blank")
    if len(text) > longest:
        raise InvalidArgument.field(field, f"must have at most {longest} characters")
    if SURROGATE.search(text):
        raise InvalidArgument.field(field, "must be UTF-8")
