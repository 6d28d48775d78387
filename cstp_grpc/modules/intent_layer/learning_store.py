"""The reports of a project on disk by state (pending, integrated, rejected), and the paths that reports name."""

from __future__ import annotations

import os
import posixpath
import re
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Set
from datetime import datetime

from cachetools import LRUCache

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.errors import InvalidArgument, NotFound, Unavailable
from cstp_grpc.modules.intent_layer import durable_files, model
from cstp_grpc.modules.intent_layer.project_files import MAX_PATH_BYTES, common_folder, iter_ancestors, parent_of
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from cstp_grpc.modules.intent_layer.report_format import ReportFormatError, format_report, parse_report
from cstp_grpc.platform.storage import pagination

DRIVE = re.compile(r"[A-Za-z]:(?=[\\/])|\\\\")
"""How an absolute path begins on Windows."""
MAX_NAMES = 64
"""Trailing segments of an absolute path that are searched for in the project. Chosen: deeper than source trees are, and
each suffix costs a lookup on disk.
"""


def place_reported_path(tree: ProjectTree, written: str) -> str | None:
    """Return the located path that a report means, or None if it is not in the project.

    An absolute path is never opened as it is. Below the project's own root it is made relative; otherwise it is its
    longest suffix that exists in the project, or the root if it ends with the name of the project's folder.
    """
    drive = DRIVE.match(written)
    path = written[drive.end() :].replace("\\", "/") if drive else written
    if not (drive or path.startswith(("/", "~/"))):
        return _locate_relative(tree, path)
    if len(path) > MAX_PATH_BYTES:
        return None
    # `~` is no folder here: it is another user's home, of which the suffix is searched.
    path = posixpath.normpath(f"/{path.lstrip('~/')}")
    root = str(tree.root)
    if not drive and (path == root or path.startswith(f"{root}/")):
        return _locate_or_none(tree, path[len(root) + 1 :] or model.ROOT)
    names = [name for name in path.split("/") if name][-MAX_NAMES:]
    # The longest suffix first: shorter ones fit more places.
    for first in range(len(names)):
        located = _locate_or_none(tree, "/".join(names[first:]))
        if located is not None and tree.exists(located):
            return located
    return model.ROOT if names and names[-1] == tree.root.name else None


def _locate_relative(tree: ProjectTree, path: str) -> str | None:
    """Return a located path; backslashes are read as slashes if only then the path exists."""
    located = _locate_or_none(tree, path)
    if "\\" not in path or (located is not None and tree.exists(located)):
        return located
    other = _locate_or_none(tree, path.replace("\\", "/"))
    return other if other is not None and tree.exists(other) else located


def _locate_or_none(tree: ProjectTree, path: str) -> str | None:
    try:
        return tree.locate(path)
    except InvalidArgument:
        return None


REPORTS_FOLDER = ".intent-layer/mistakes"
REPORT_SUFFIX = ".md"
MAX_TITLE = 200
MAX_OPERATION = 200
MAX_AGENT_ID = 200
MAX_TEXT = 20_000
"""Maximum characters of a detail and of evidence."""
MAX_PATHS = 101
"""The path that the contract's ReportLearning takes, and its 100 others."""
MAX_REPORT_BYTES = 1_048_576
"""Maximum bytes of a report. A new one has at most half of that, so that the sections that reviews append fit."""
CACHED_CHARACTERS = 16_777_216
"""Characters of parsed reports in the cache: 16 Mi. Chosen: some thousands of typical reports."""
CACHED_OVERHEAD = 2048
"""Characters that a cached report counts in addition to its texts, for its objects; without it empty ones were free."""
MAX_ID_ATTEMPTS = 16
"""Attempts to find an unused identifier; a second one is needed only if 64 random bits collide within one process."""

LEARNING_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,199}")
CONTROL = re.compile(r"[\0-\x1f\x7f]")
SURROGATE = re.compile("[\ud800-\udfff]")

ReportStamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class LearningQuery:
    """Filters of a listing of learnings; empty sets match every state or type.

    `path` None matches anywhere; otherwise a learning must concern that file or folder, or something in it.
    """

    states: frozenset[model.LearningState] = frozenset()
    types: frozenset[model.LearningType] = frozenset()
    path: str | None = None


@dataclass(frozen=True, slots=True)
class LearningPage(pagination.Page[model.Learning]):
    """A page of learnings; the first page also names the reports in the listed states that cannot be read."""

    unreadable: tuple[model.UnreadableReportFile, ...] = ()


class LearningStore:
    """The store of learnings; safe for several threads and processes.

    Everything is below `.intent-layer/mistakes`, in a folder for each state. Any of these folders may be a symbolic
    link, but not out of the project: then every method raises InvalidArgument.
    """

    def __init__(
        self,
        tree: ProjectTree,
        clock: Callable[[], datetime],
        randomness: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._tree = tree
        self._clock = clock
        self._randomness = randomness
        # Guards the cache only, whose lookups reorder it. Reports are read and parsed without it: two threads may
        # parse the same one, and the later result replaces an equal one.
        self._lock = threading.Lock()
        self._cache: LRUCache[str, tuple[ReportStamp, model.Learning]] = LRUCache(
            CACHED_CHARACTERS, lambda cached: len(cached[1].detail) + len(cached[1].evidence or "") + CACHED_OVERHEAD
        )

    def file(self, new: model.NewLearning, before: Callable[[model.Learning], None] = lambda _: None) -> model.Learning:
        """Write a report and return the learning; the report is on disk, and never visible incomplete.

        Raises InvalidArgument for fields that are blank, too long or not on one line, and for paths as
        `ProjectTree.locate` does; Unavailable if nothing can be written. `before` is called when only the writing is
        left; an exception from it prevents the writing.
        """
        located = tuple(dict.fromkeys(self._tree.locate(path, "paths") for path in new.paths))
        _check_new_learning(new, located)
        directory = common_folder([containing_folder(self._tree, path) for path in located])
        folder = self.folder(model.LearningState.PENDING)
        for _ in range(MAX_ID_ATTEMPTS):
            learning = self._new_learning(new, located)
            content = format_report(learning, directory)
            if len(content) > MAX_REPORT_BYTES // 2:
                raise InvalidArgument.field("paths", "are too long together")
            # create_file sees only the folder of pending reports; a reviewed report may have the identifier too.
            if self.find(learning.id):
                continue
            before(learning)
            with durable_files.ensure_folder(self._tree, folder) as descriptor:
                if durable_files.create_file(descriptor, report_file_name(learning.id), content, f".{learning.id}.tmp"):
                    return learning
        raise Unavailable("no identifier could be found for the report")

    def get(self, learning_id: str) -> model.Learning:
        """Return a learning in any state.

        Raises InvalidArgument for an invalid identifier and for an unreadable report, and NotFound.
        """
        check_id(learning_id)
        state = self.find(learning_id)
        report = None if state is None else self._get(state, learning_id)
        if report is None:
            raise learning_not_found(learning_id)
        if isinstance(report, model.UnreadableReportFile):
            raise InvalidArgument.field("id", f"{report.file} cannot be read: {report.reason}")
        return report

    def page(self, query: LearningQuery, request: pagination.PageRequest) -> LearningPage:
        """Return a page of learnings, latest first. Raises InvalidArgument for a foreign page token."""
        states = frozenset(query.states or model.LearningState)
        types = frozenset(query.types or model.LearningType)
        path = None if query.path is None else self._tree.locate(query.path)
        conditions = ("learnings", sorted(states), sorted(types), path)
        after = _parse_sort_key(request.token, conditions) if request.token else None
        reports = list(self._iter_reports(states))
        learnings = [each for each in reports if isinstance(each, model.Learning) and each.type in types]
        if path is not None:
            learnings = [each for each in learnings if any(_is_inside(about, path) for about in each.paths)]
        learnings.sort(key=_sort_key, reverse=True)
        if after:
            # By key and not by position: learnings filed or reviewed meanwhile shift no page.
            learnings = [each for each in learnings if _sort_key(each) < after]
        kept = learnings[: request.limit]
        kept = kept[: pagination.count_within_budget(kept, _estimate_size)]
        token = pagination.encode_page_token(conditions, _sort_key(kept[-1])) if len(kept) < len(learnings) else ""
        unreadable = () if after else tuple(each for each in reports if isinstance(each, model.UnreadableReportFile))
        return LearningPage(tuple(kept), token, unreadable)

    def pending_for_paths(self, *paths: str) -> model.PendingReports:
        """Return the pending learnings that apply to located paths, and the unreadable pending reports.

        A learning applies if it is about a path itself or something below it, about a folder that contains it, or about
        a file directly in such a folder.
        """
        above = {folder for path in paths for folder in iter_ancestors(containing_folder(self._tree, path))}
        pending = list(self._iter_reports([model.LearningState.PENDING]))
        applying = [
            each
            for each in pending
            if isinstance(each, model.Learning) and any(self._concerns(about, paths, above) for about in each.paths)
        ]
        unreadable = tuple(each for each in pending if isinstance(each, model.UnreadableReportFile))
        return model.PendingReports(tuple(sorted(applying, key=_sort_key, reverse=True)), unreadable)

    def folder(self, state: model.LearningState) -> str:
        """Return the located folder of the reports in a state. Raises InvalidArgument if it is outside the project."""
        return self._tree.locate(f"{REPORTS_FOLDER}/{state}")

    def find(self, learning_id: str) -> model.LearningState | None:
        """Return the state of a report, also while it is being moved to the next state, or None."""
        # In the order in which a review moves a report, pending first: one that leaves a folder after it was searched
        # is then found in the next.
        for state in model.LearningState:
            if self._tree.exists(f"{self.folder(state)}/{report_file_name(learning_id)}"):
                return state
        return None

    def _new_learning(self, new: model.NewLearning, located: tuple[str, ...]) -> model.Learning:
        at = self._clock()
        # The process id keeps processes of one machine apart whatever their randomness, for instance after a fork.
        learning_id = f"{new.type.upper()}-{at:%Y-%m-%d}-{self._randomness()}-{os.getpid()}"
        return model.Learning(
            id=learning_id,
            type=new.type,
            state=model.LearningState.PENDING,
            at=at,
            paths=located,
            title=new.title,
            detail=new.detail,
            agent_id=new.agent_id,
            file=f"{REPORTS_FOLDER}/{model.LearningState.PENDING}/{report_file_name(learning_id)}",
            evidence=new.evidence,
            operation=new.operation or None,
        )

    def _concerns(self, about: str, paths: Iterable[str], above: Set[str]) -> bool:
        """Return whether the subject is below a path, is one of the folders, or is a file directly in one."""
        if about in above or any(_is_inside(about, path) for path in paths):
            return True
        return parent_of(about) in above and not self._tree.is_folder(about)

    def _get(self, state: model.LearningState, learning_id: str) -> model.Learning | model.UnreadableReportFile | None:
        with durable_files.open_folder(self._tree, self.folder(state)) as descriptor:
            return None if descriptor is None else self._read(state, descriptor, report_file_name(learning_id))

    def _iter_reports(
        self, states: Iterable[model.LearningState]
    ) -> Iterator[model.Learning | model.UnreadableReportFile]:
        """Yield each report once, also one that is moved to another state meanwhile."""
        # Folders in the order of LearningState, as in `find`.
        seen: set[str] = set()
        for state in [state for state in model.LearningState if state in states]:
            with durable_files.open_folder(self._tree, self.folder(state)) as descriptor:
                for name in _list_report_names(state, descriptor):
                    report = None if descriptor is None or name in seen else self._read(state, descriptor, name)
                    if report is not None:
                        seen.add(name)
                        yield report

    def _read(
        self, state: model.LearningState, folder: int, name: str
    ) -> model.Learning | model.UnreadableReportFile | None:
        """Return the learning in a report, or None if the report was moved meanwhile."""
        file = f"{REPORTS_FOLDER}/{state}/{name}"
        learning_id = name.removesuffix(REPORT_SUFFIX)
        if not LEARNING_ID.fullmatch(learning_id):
            return model.UnreadableReportFile(file.encode(errors="replace").decode(), "its name is not an identifier")
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError:
            return model.UnreadableReportFile(file, "it cannot be read")
        if not stat.S_ISREG(status.st_mode):
            return model.UnreadableReportFile(file, "it is not a regular file")
        # Taken before the file is read: if it changes in between, the cached stamp is out of date and it is read again.
        stamp = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        with self._lock:
            cached = self._cache.get(file)
        if cached and cached[0] == stamp:
            return cached[1]
        try:
            content = durable_files.read_file(folder, name, MAX_REPORT_BYTES)
            if content is None:
                return None
            learning = self._with_located_paths(parse_report(content.data, learning_id, state, file))
        except ReportFormatError as error:
            return model.UnreadableReportFile(file, str(error))
        except InvalidArgument:
            return model.UnreadableReportFile(file, f"it is larger than {MAX_REPORT_BYTES} bytes")
        except Unavailable:
            return model.UnreadableReportFile(file, "it cannot be read")
        with self._lock:
            self._cache[file] = stamp, learning
        return learning

    def _with_located_paths(self, learning: model.Learning) -> model.Learning:
        """Return a learning with its paths located; other tools write them in other forms."""
        if len(learning.paths) > MAX_PATHS:
            raise ReportFormatError(f"it names more than {MAX_PATHS} paths")
        located_paths = {path: place_reported_path(self._tree, path) for path in learning.paths}
        located = tuple(dict.fromkeys(path for path in located_paths.values() if path is not None))
        unplaced = tuple(path for path, located_path in located_paths.items() if located_path is None)
        return replace(learning, paths=located or (model.ROOT,), unplaced_paths=unplaced)


@dataclass(frozen=True, slots=True)
class ProjectSources:
    """The nodes and the learnings of a project."""

    tree: ProjectTree
    learnings: LearningStore


def check_id(learning_id: str) -> None:
    if not LEARNING_ID.fullmatch(learning_id):
        raise InvalidArgument.field("id", "is not the identifier of a learning")


def learning_not_found(learning_id: str) -> NotFound:
    return NotFound(f"there is no learning {learning_id}")


def report_file_name(learning_id: str) -> str:
    """Return the file name of a report, which is the same in every state."""
    return learning_id + REPORT_SUFFIX


def containing_folder(tree: ProjectTree, path: str) -> str:
    """Return the folder that a located path is or lies in; a missing path counts as a file."""
    return path if tree.is_folder(path) else parent_of(path)


def _is_inside(path: str, folder: str) -> bool:
    return folder in (model.ROOT, path) or path.startswith(f"{folder}/")


def _sort_key(learning: model.Learning) -> tuple[int, str]:
    return pagination.to_microseconds(learning.at), learning.id


def _parse_sort_key(token: str, conditions: object) -> tuple[int, str]:
    at, learning_id = pagination.decode_page_token(token, conditions, (int, str))
    return int(at), str(learning_id)


def _estimate_size(learning: model.Learning) -> int:
    reviews = [text for review in learning.reviews for text in (review.reviewer, review.reason)]
    return pagination.estimate_message_bytes(
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


def _list_report_names(state: model.LearningState, folder: int | None) -> list[str]:
    """Return the file names of reports; those that begin with a dot are incomplete or not reports."""
    if folder is None:
        return []
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        raise Unavailable(f"{REPORTS_FOLDER}/{state} cannot be listed") from None
    return sorted(name for name in names if name.endswith(REPORT_SUFFIX) and not name.startswith("."))


def _check_new_learning(new: model.NewLearning, located: tuple[str, ...]) -> None:
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
    """Raise InvalidArgument for a text that is blank, too long or not UTF-8."""
    if not text.strip():
        raise InvalidArgument.field(field, "must not be empty or blank")
    if len(text) > longest:
        raise InvalidArgument.field(field, f"must have at most {longest} characters")
    if SURROGATE.search(text):
        raise InvalidArgument.field(field, "must be UTF-8")
