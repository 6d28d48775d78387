"""The operations on a project's nodes and learnings, each with its audit record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.errors import NotFound, error_reason
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink, truncate_action
from cstp_grpc.modules.intent_layer import model
from cstp_grpc.modules.intent_layer.context_resolution import resolve_context
from cstp_grpc.modules.intent_layer.learning_merge import place_fact
from cstp_grpc.modules.intent_layer.learning_review import Reviewer
from cstp_grpc.modules.intent_layer.learning_store import LearningPage, LearningQuery, ProjectSources
from cstp_grpc.modules.intent_layer.node_skeleton import create_node, node_skeleton
from cstp_grpc.modules.intent_layer.node_staleness import GitHistory
from cstp_grpc.modules.intent_layer.project_files import iter_ancestors, names_in
from cstp_grpc.modules.intent_layer.project_tree import NODE_FILES
from cstp_grpc.modules.intent_layer.validation import DEFAULT_SEVERITIES, select_nodes, validate_selected
from cstp_grpc.modules.intent_layer.validation_rules import RuleSeverities
from cstp_grpc.platform.storage import pagination


@dataclass(frozen=True, slots=True)
class ProjectCall:
    """The caller of an operation: the authenticated agent and its request id.

    `claimed_agent` is the name that the request claims; it is never trusted.
    """

    caller: str
    request_id: str
    claimed_agent: str | None = None


@dataclass(frozen=True, slots=True)
class ProjectOperation:
    """An operation on a project, for the audit trail.

    `error` is a reason as in `errors.CstpError` if it failed. `name` names the operation, `paths` are as the caller
    wrote them, `at` is aware, in UTC.
    """

    event: AuditEvent
    name: str
    project: str
    paths: tuple[str, ...]
    call: ProjectCall
    at: datetime
    learning_id: str | None = None
    error: str | None = None

    def to_audit_entry(self) -> AuditEntry:
        """Return the audit entry, whose action is for instance `resolve in shop: src/api/handlers.ts`."""
        about = [self.learning_id] if self.learning_id else []
        return AuditEntry(
            timestamp=self.at,
            event=self.event,
            requesting_agent=self.call.caller,
            request_id=self.call.request_id,
            claimed_agent=self.call.claimed_agent,
            action=truncate_action(f"{self.name} in {self.project}: {', '.join([*about, *self.paths]) or model.ROOT}"),
            error=self.error,
        )


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A node in a listing; `parent` is the file of the nearest node above it."""

    node: model.Node
    parent: str | None


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """The findings about nodes, by file and line, and how many nodes were validated."""

    findings: tuple[model.ValidationFinding, ...]
    nodes: int

    @property
    def valid(self) -> bool:
        return all(finding.severity is not model.FindingSeverity.ERROR for finding in self.findings)


class _AuditedChange:
    """A change to be audited; details are added to its record as they become known."""

    def __init__(self, operation: ProjectOperation, audit: AuditSink) -> None:
        self.operation = operation
        self._audit = audit

    def begin(self, *, learning_id: str | None = None, paths: tuple[str, ...] | None = None) -> None:
        """Store the record with the given details and return when it is on disk. Raises Unavailable."""
        known = self.operation
        self.operation = replace(
            known, learning_id=learning_id or known.learning_id, paths=known.paths if paths is None else paths
        )
        self._audit.record(self.operation.to_audit_entry())


class ProjectService:
    """The operations on the nodes and learnings of one project.

    Every operation has an audit record on disk before its result is returned, also if it fails; a change has it before
    anything is changed. Paths are as `ProjectTree.locate` takes them. Each method raises InvalidArgument for a path
    that leaves the project, and Unavailable if the project cannot be read or the record cannot be stored.
    """

    def __init__(
        self,
        project: str,
        sources: ProjectSources,
        reviewer: Reviewer,
        history: GitHistory | None,
        audit: AuditSink,
        clock: Callable[[], datetime],
        changed: Callable[[], None],
        severities: RuleSeverities = DEFAULT_SEVERITIES,
    ) -> None:
        """Set up the service of a project; `changed` is called after a node changed, and must return quickly.

        `severities` override those in the project's own file.
        """
        self._project = project
        self._tree = sources.tree
        self._learnings = sources.learnings
        self._reviewer = reviewer
        self._history = history
        self._audit = audit
        self._clock = clock
        self._changed = changed
        self._severities = severities

    def resolve(self, request: model.ContextRequest, call: ProjectCall) -> model.ResolvedContext:
        with self._audit_read("resolve", [request.path], call):
            path = self._tree.locate(request.path)
            pending = self._learnings.pending_for_paths(path) if request.with_pending else model.PendingReports()
            return resolve_context(self._tree, request, pending)

    def nodes(self, page: pagination.PageRequest, call: ProjectCall) -> pagination.Page[ListedNode]:
        """Return a page of the nodes, a parent before its children. Raises InvalidArgument for a foreign page token."""
        with self._audit_read("list nodes", [], call):
            found = list(with_parents(self._tree.nodes()))
            conditions = ("nodes", self._project)
            if page.token:
                (last,) = pagination.decode_page_token(page.token, conditions, (str,))
                # In the order of the walk, which is that of the segments and not of the texts.
                found = [each for each in found if names_in(each.node.folder) > names_in(str(last))]
            kept = found[: page.limit]
            kept = kept[: pagination.count_within_budget(kept, _estimate_size)]
            token = pagination.encode_page_token(conditions, (kept[-1].node.folder,)) if len(kept) < len(found) else ""
            return pagination.Page(tuple(kept), token)

    def node(self, path: str, call: ProjectCall) -> ListedNode:
        """Return the node of a folder, named by the folder or by the node's file. Raises NotFound."""
        with self._audit_read("get node", [path], call):
            folder = self._folder(path)
            *above, found = [None, *self._tree.nodes_to_path(folder)]
            if found is None or found.folder != folder:
                raise NotFound(f"{path} has no node")
            return ListedNode(found, above[-1].path if above[-1] else None)

    def validate(self, paths: Sequence[str], call: ProjectCall) -> ValidationReport:
        """Validate the nodes that the given files or folders select; all nodes if none are given."""
        with self._audit_read("validate", paths, call):
            found = select_nodes(self._tree, paths)
            return ValidationReport(validate_selected(self._tree, found, self._history, self._severities), len(found))

    def place(self, paths: Sequence[str], call: ProjectCall) -> model.FactPlacement:
        with self._audit_read("place", paths, call):
            return place_fact(self._tree, paths)

    def init(self, path: str, call: ProjectCall, *, dry_run: bool = False) -> model.NodeSkeleton:
        """Write a skeleton of a folder's node and return it; a dry run writes nothing.

        Raises NotFound if the folder is missing, Conflict if it has a node.
        """
        if dry_run:
            with self._audit_read("show skeleton", [path], call):
                return node_skeleton(self._tree, path)
        with self._audit_change(self._new_record(AuditEvent.NODE_CREATED, "create node", [path], call)) as attempt:
            # `begin` stores the audit record when only the writing is left, so that an attempt that fails before has
            # one record and not two.
            made = create_node(self._tree, path, attempt.begin)
        self._changed()
        return made

    def report(self, new: model.NewLearning, call: ProjectCall) -> model.Learning:
        operation = self._new_record(AuditEvent.LEARNING_REPORTED, f"report {new.type}", new.paths, call)
        with self._audit_change(operation) as attempt:
            for number, path in enumerate(new.paths):
                # A request has one `path` and further `also_paths`; the error names the one that is invalid.
                self._tree.locate(path, f"also_paths[{number - 1}]" if number else "path")
            return self._learnings.file(new, lambda learning: attempt.begin(learning_id=learning.id))

    def learnings(self, query: LearningQuery, page: pagination.PageRequest, call: ProjectCall) -> LearningPage:
        """Return a page of learnings, latest first. Raises InvalidArgument for a foreign page token."""
        with self._audit_read("list learnings", [] if query.path is None else [query.path], call):
            return self._learnings.page(query, page)

    def review(self, request: model.ReviewRequest, call: ProjectCall) -> model.ReviewOutcome:
        """Accept, reject or defer a learning; a dry run changes nothing.

        Raises NotFound, Conflict if it was reviewed already, and LikelyDuplicate.
        """
        name = f"{request.verdict} learning"
        if request.dry_run:
            return self._preview_review(request, self._new_record(AuditEvent.CONTEXT_READ, f"show {name}", [], call))
        operation = replace(self._new_record(AuditEvent.LEARNING_REVIEWED, name, [], call), learning_id=request.id)
        with self._audit_change(operation) as attempt:
            outcome = self._reviewer.review(request, lambda learning: attempt.begin(paths=learning.paths))
        # A rejected or deferred learning changes no node.
        if outcome.node:
            self._changed()
        return outcome

    def _preview_review(self, request: model.ReviewRequest, operation: ProjectOperation) -> model.ReviewOutcome:
        operation = replace(operation, learning_id=request.id)
        with self._audit_change(operation) as attempt:
            outcome = self._reviewer.review(request)
        attempt.begin(paths=outcome.learning.paths)
        return outcome

    def _folder(self, path: str) -> str:
        located = self._tree.locate(path)
        above, _, name = path.rstrip("/").rpartition("/")
        if name in NODE_FILES and not self._tree.is_folder(located):
            # Not the parent of the located path: the file may be a link to elsewhere.
            return self._tree.locate(above or model.ROOT)
        return located

    def _new_record(self, event: AuditEvent, name: str, paths: Iterable[str], call: ProjectCall) -> ProjectOperation:
        return ProjectOperation(event, name, self._project, tuple(paths), call, self._clock())

    @contextmanager
    def _audit_read(self, name: str, paths: Iterable[str], call: ProjectCall) -> Iterator[None]:
        operation = self._new_record(AuditEvent.CONTEXT_READ, name, paths, call)
        with self._audit_change(operation) as attempt:
            yield
        # Before the result is returned: a read whose record cannot be stored fails.
        attempt.begin()

    @contextmanager
    def _audit_change(self, operation: ProjectOperation) -> Iterator[_AuditedChange]:
        """Yield the object that stores the record before the change, and store a second one if it fails."""
        attempt = _AuditedChange(operation, self._audit)
        try:
            yield attempt
        except Exception as error:
            self._audit.record(replace(attempt.operation, error=error_reason(error)).to_audit_entry())
            raise


class ProjectRegistry(dict[str, ProjectService]):
    """The projects of a server, by name."""

    def __missing__(self, name: str) -> ProjectService:
        """Raise NotFound, whose message reveals no other project."""
        raise NotFound(f"there is no project {name}")


def with_parents(nodes: Iterable[model.Node]) -> Iterator[ListedNode]:
    """Yield nodes, a parent before its children, each with the nearest node above it."""
    files: dict[str, str] = {}
    for node in nodes:
        yield ListedNode(node, next((files[above] for above in iter_ancestors(node.folder) if above in files), None))
        files[node.folder] = node.path


def _estimate_size(item: ListedNode) -> int:
    node = item.node
    return pagination.estimate_message_bytes(
        (node.path, node.folder, item.parent, *(section.name for section in node.sections))
    )
