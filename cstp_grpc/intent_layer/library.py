"""Everything that can be done with a project's nodes and learnings, and the record of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from cstp_grpc.errors import NotFound, reason_of
from cstp_grpc.intent_layer.model import (
    ROOT,
    ContextRequest,
    Finding,
    FindingSeverity,
    Learning,
    NewLearning,
    Node,
    PendingReports,
    Placement,
    Resolution,
    ReviewOutcome,
    ReviewRequest,
    Skeleton,
)
from cstp_grpc.intent_layer.paths import names_in, upwards
from cstp_grpc.intent_layer.pending import LearningPage, LearningQuery, Learnings
from cstp_grpc.intent_layer.placement import place
from cstp_grpc.intent_layer.resolution import resolve
from cstp_grpc.intent_layer.reviewing import Reviewer
from cstp_grpc.intent_layer.rule_severities import Severities
from cstp_grpc.intent_layer.skeleton import create, skeleton
from cstp_grpc.intent_layer.tree import NODE_FILES, Tree
from cstp_grpc.intent_layer.validation import DEFAULT_SEVERITIES, History, judge, select
from cstp_grpc.storage.page_token import read_token, write_token
from cstp_grpc.storage.paging import Page, PageRequest, estimated_size, fitting


class ActKind(StrEnum):
    """What kind of thing was done."""

    CONTEXT_READ = "context_read"
    LEARNING_REPORTED = "learning_reported"
    LEARNING_REVIEWED = "learning_reviewed"
    NODE_CREATED = "node_created"


@dataclass(frozen=True, slots=True)
class Call:
    """A request: the authenticated agent that makes it, and which request it is.

    `claimed_agent` is the one that the request names, never trusted.
    """

    caller: str
    request_id: str
    claimed_agent: str | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """Something that is done in a project, or failed with `error`, a reason as in `errors.CstpError`.

    `name` says what in a word or two, `paths` are as the caller wrote them, `at` is aware, in UTC.
    """

    kind: ActKind
    name: str
    project: str
    paths: tuple[str, ...]
    call: Call
    at: datetime
    learning_id: str | None = None
    error: str | None = None


class ActTrail(Protocol):
    """Keeps what was done."""

    def record(self, act: Act) -> None:
        """Return when the act is safe. Raises Unavailable where it cannot be kept."""


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A node in a listing; `parent` is the file of the nearest node above it."""

    node: Node
    parent: str | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is wrong with nodes, by file and line, and how many were judged."""

    findings: tuple[Finding, ...]
    nodes: int

    @property
    def valid(self) -> bool:
        """Whether nothing is an error."""
        return all(finding.severity is not FindingSeverity.ERROR for finding in self.findings)


class _Attempt:
    """An act that changes something, with what is known of it so far."""

    def __init__(self, act: Act, trail: ActTrail) -> None:
        self.act = act
        self._trail = trail

    def begin(self, *, learning_id: str | None = None, paths: tuple[str, ...] | None = None) -> None:
        """Return when the act is on record, with what has become known of it. Raises Unavailable."""
        known = self.act
        self.act = replace(
            known, learning_id=learning_id or known.learning_id, paths=known.paths if paths is None else paths
        )
        self._trail.record(self.act)


class IntentLayer:
    """The nodes and learnings of one project.

    Every act is on record before it is answered, also one that fails, and one that changes something before it changes
    anything. Paths are as `Tree.locate` takes them; each method raises InvalidArgument for one that leaves the project,
    and Unavailable where the project cannot be read or the act not be kept.
    """

    def __init__(
        self,
        project: str,
        tree: Tree,
        learnings: Learnings,
        reviewer: Reviewer,
        history: History | None,
        trail: ActTrail,
        clock: Callable[[], datetime],
        changed: Callable[[], None],
        severities: Severities = DEFAULT_SEVERITIES,
    ) -> None:
        """Serve a project; `changed` is called after a node was, and must not take long.

        `severities` of rules go before those that the project's own file sets.
        """
        self._project = project
        self._tree = tree
        self._learnings = learnings
        self._reviewer = reviewer
        self._history = history
        self._trail = trail
        self._clock = clock
        self._changed = changed
        self._severities = severities

    def resolve(self, request: ContextRequest, call: Call) -> Resolution:
        """Return what governs a path."""
        with self._reading("resolve", [request.path], call):
            path = self._tree.locate(request.path)
            pending = self._learnings.governing(path) if request.with_pending else PendingReports()
            return resolve(self._tree, request, pending)

    def nodes(self, page: PageRequest, call: Call) -> Page[ListedNode]:
        """Return a page of the nodes, a parent before its children. Raises InvalidArgument for another's token."""
        with self._reading("list nodes", [], call):
            found = list(listed(self._tree.nodes()))
            conditions = ("nodes", self._project)
            if page.token:
                (last,) = read_token(page.token, conditions, (str,))
                found = [each for each in found if names_in(each.node.folder) > names_in(str(last))]
            kept = found[: page.limit]
            kept = kept[: fitting(kept, _size)]
            token = write_token(conditions, (kept[-1].node.folder,)) if len(kept) < len(found) else ""
            return Page(tuple(kept), token)

    def node(self, path: str, call: Call) -> ListedNode:
        """Return the node of a folder, which may also be named by its file. Raises NotFound."""
        with self._reading("get node", [path], call):
            folder = self._folder(path)
            *above, found = [None, *self._tree.chain(folder)]
            if found is None or found.folder != folder:
                raise NotFound(f"{path} has no node")
            return ListedNode(found, above[-1].path if above[-1] else None)

    def validate(self, paths: Sequence[str], call: Call) -> Judgement:
        """Judge the nodes that files or folders stand for; all of them where none are given."""
        with self._reading("validate", paths, call):
            found = select(self._tree, paths)
            return Judgement(judge(self._tree, found, self._history, self._severities), len(found))

    def place(self, paths: Sequence[str], call: Call) -> Placement:
        """Return where a fact about paths belongs."""
        with self._reading("place", paths, call):
            return place(self._tree, paths)

    def init(self, path: str, call: Call, *, dry_run: bool = False) -> Skeleton:
        """Write a skeleton of a folder's node and return it; a dry run only shows it.

        Raises NotFound where there is no such folder, Conflict where it has a node.
        """
        if dry_run:
            with self._reading("show skeleton", [path], call):
                return skeleton(self._tree, path)
        with self._attempt(self._act(ActKind.NODE_CREATED, "create node", [path], call)) as attempt:
            made = create(self._tree, path, attempt.begin)
        self._changed()
        return made

    def report(self, new: NewLearning, call: Call) -> Learning:
        """File a learning for review and return it."""
        act = self._act(ActKind.LEARNING_REPORTED, f"report {new.type}", new.paths, call)
        with self._attempt(act) as attempt:
            for number, path in enumerate(new.paths):
                # Whoever files it gave one path, and others beside it.
                self._tree.locate(path, f"also_paths[{number - 1}]" if number else "path")
            return self._learnings.file(new, lambda learning: attempt.begin(learning_id=learning.id))

    def learnings(self, query: LearningQuery, page: PageRequest, call: Call) -> LearningPage:
        """Return a page of learnings, latest first. Raises InvalidArgument for another listing's token."""
        with self._reading("list learnings", [] if query.path is None else [query.path], call):
            return self._learnings.page(query, page)

    def review(self, request: ReviewRequest, call: Call) -> ReviewOutcome:
        """Accept, reject or defer a learning; a dry run only shows what that does.

        Raises NotFound, Conflict where it was reviewed already, and LikelyDuplicate.
        """
        name = f"{request.verdict} learning"
        if request.dry_run:
            return self._shown(request, self._act(ActKind.CONTEXT_READ, f"show {name}", [], call))
        act = replace(self._act(ActKind.LEARNING_REVIEWED, name, [], call), learning_id=request.id)
        with self._attempt(act) as attempt:
            outcome = self._reviewer.review(request, lambda learning: attempt.begin(paths=learning.paths))
        if outcome.node:
            self._changed()
        return outcome

    def _shown(self, request: ReviewRequest, act: Act) -> ReviewOutcome:
        """Return what a review would do."""
        act = replace(act, learning_id=request.id)
        with self._failing(act):
            outcome = self._reviewer.review(request)
        self._trail.record(replace(act, paths=outcome.learning.paths))
        return outcome

    def _folder(self, path: str) -> str:
        """Return the folder of a node that is named by its folder or by its file."""
        located = self._tree.locate(path)
        above, _, name = path.rstrip("/").rpartition("/")
        if name in NODE_FILES and not self._tree.is_folder(located):
            # Not the parent of what was located: the file may be a link to elsewhere.
            return self._tree.locate(above or ROOT)
        return located

    def _act(self, kind: ActKind, name: str, paths: Iterable[str], call: Call) -> Act:
        return Act(kind, name, self._project, tuple(paths), call, self._clock())

    @contextmanager
    def _reading(self, name: str, paths: Iterable[str], call: Call) -> Iterator[None]:
        act = self._act(ActKind.CONTEXT_READ, name, paths, call)
        with self._failing(act):
            yield
        self._trail.record(act)

    @contextmanager
    def _attempt(self, act: Act) -> Iterator[_Attempt]:
        """Give what takes an act down when it begins; where it fails, before or after, take that down too."""
        attempt = _Attempt(act, self._trail)
        try:
            yield attempt
        except Exception as error:
            self._trail.record(replace(attempt.act, error=reason_of(error)))
            raise

    @contextmanager
    def _failing(self, act: Act) -> Iterator[None]:
        """Take an act down where it fails, with the reason."""
        try:
            yield
        except Exception as error:
            self._trail.record(replace(act, error=reason_of(error)))
            raise


class Projects:
    """The projects that are served, by name."""

    def __init__(self, projects: Mapping[str, IntentLayer]) -> None:
        self._projects = dict(projects)

    def get(self, name: str) -> IntentLayer:
        """Return a project. Raises NotFound, which tells nothing of others."""
        if name not in self._projects:
            raise NotFound(f"there is no project {name}")
        return self._projects[name]


def listed(nodes: Iterable[Node]) -> Iterator[ListedNode]:
    """Yield nodes, a parent before its children, each with the nearest one above it."""
    files: dict[str, str] = {}
    for node in nodes:
        yield ListedNode(node, next((files[above] for above in upwards(node.folder) if above in files), None))
        files[node.folder] = node.path


def _size(item: ListedNode) -> int:
    node = item.node
    return estimated_size((node.path, node.folder, item.parent, *(section.name for section in node.sections)))
