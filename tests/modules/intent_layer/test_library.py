"""Nothing is read, filed or reviewed that is not on record first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cstp_grpc.contract.errors import Conflict, CstpError, InvalidArgument, NotFound, Unavailable
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, NullAuditSink
from cstp_grpc.modules.intent_layer.learning_review import LOCK_FILE, Reviewer
from cstp_grpc.modules.intent_layer.learning_store import LearningQuery, LearningStore, ProjectSources
from cstp_grpc.modules.intent_layer.model import ContextRequest, LearningType, NewLearning, ReviewRequest, ReviewVerdict
from cstp_grpc.modules.intent_layer.project_service import (
    ProjectCall,
    ProjectOperation,
    ProjectRegistry,
    ProjectService,
)
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from cstp_grpc.platform.storage.pagination import PageRequest
from tests.modules.intent_layer.trees import write_tree

CALL = ProjectCall("alice", "req-1", "somebody")
NOW = datetime(2026, 2, 6, 10, tzinfo=UTC)
FILES = {
    "CLAUDE.md": "## Purpose\n\nA shop.\n",
    "src/AGENTS.md": "## Contracts\n\nImports go downwards.\n",
    "src/api/AGENTS.md": "## Pitfalls\n\n- Handlers are arrow functions.\n",
    "src/web/": "",
}
LEARNING = NewLearning(LearningType.PITFALL, ("src/api/users.ts", "src/api/"), "No bodies", "They are null", "worker-3")
FIRST = PageRequest()

Doing = Callable[[ProjectService], object]


@dataclass
class Trail(NullAuditSink):
    """Remembers entries, unless it fails; `recorded` is called after the first one."""

    entries: list[AuditEntry] = field(default_factory=list)
    failing: bool = False
    recorded: Callable[[], object] | None = None

    def record(self, entry: AuditEntry) -> None:
        if self.failing:
            raise Unavailable("the trail cannot be written")
        self.entries.append(entry)
        if self.recorded and len(self.entries) == 1:
            self.recorded()


class Shop:
    """A project with its trail, which counts how often nodes were said to have changed."""

    def __init__(self, root: Path) -> None:
        self.root = write_tree(root, FILES)
        self.trail = Trail()
        self.changes = 0
        tree = ProjectTree(root)
        self.layer = ProjectService(
            "shop",
            ProjectSources(tree, LearningStore(tree, self.now)),
            Reviewer(tree, self.now),
            None,
            self.trail,
            self.now,
            self.changed,
        )

    def now(self) -> datetime:
        return NOW

    def changed(self) -> None:
        self.changes += 1

    def filed(self) -> str:
        """File a learning, forget that, and return its identifier."""
        learning = self.layer.report(LEARNING, CALL)
        self.trail.entries.clear()
        return learning.id

    def files(self) -> dict[str, bytes]:
        """Return the files of the project without the lock file of reviews."""
        files = {path.relative_to(self.root).as_posix(): path for path in self.root.rglob("*") if path.is_file()}
        return {name: path.read_bytes() for name, path in files.items() if not name.endswith(LOCK_FILE)}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


READS: dict[str, tuple[Doing, str, tuple[str, ...]]] = {
    "resolve": (lambda layer: layer.resolve(ContextRequest("./src//api"), CALL), "resolve", ("./src//api",)),
    "nodes": (lambda layer: layer.nodes(FIRST, CALL), "list nodes", ()),
    "node": (lambda layer: layer.node("src/AGENTS.md", CALL), "get node", ("src/AGENTS.md",)),
    "validate": (lambda layer: layer.validate(["src", "."], CALL), "validate", ("src", ".")),
    "place": (lambda layer: layer.place(["src/api", "src/web"], CALL), "place", ("src/api", "src/web")),
    "init": (lambda layer: layer.init("src/web", CALL, dry_run=True), "show skeleton", ("src/web",)),
    "learnings": (
        lambda layer: layer.learnings(LearningQuery(path="src"), FIRST, CALL),
        "list learnings",
        ("src",),
    ),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_is_on_record(shop: Shop, name: str) -> None:
    doing, said, paths = READS[name]
    doing(shop.layer)
    assert shop.trail.entries == [
        ProjectOperation(AuditEvent.CONTEXT_READ, said, "shop", paths, CALL, NOW).to_audit_entry()
    ]
    assert shop.changes == 0


@pytest.mark.parametrize("name", READS)
def test_what_cannot_be_recorded_is_not_answered(shop: Shop, name: str) -> None:
    shop.trail.failing = True
    with pytest.raises(Unavailable):
        READS[name][0](shop.layer)


REFUSED: dict[str, tuple[Doing, type[CstpError], str]] = {
    "resolve": (lambda layer: layer.resolve(ContextRequest("../etc"), CALL), InvalidArgument, "context_read"),
    "nodes": (lambda layer: layer.nodes(PageRequest(token="x"), CALL), InvalidArgument, "context_read"),
    "node": (lambda layer: layer.node("src/web", CALL), NotFound, "context_read"),
    "validate": (lambda layer: layer.validate(["/"], CALL), InvalidArgument, "context_read"),
    "place": (lambda layer: layer.place(["a", "../b"], CALL), InvalidArgument, "context_read"),
    "show": (lambda layer: layer.init("lib", CALL, dry_run=True), NotFound, "context_read"),
    "init": (lambda layer: layer.init(".", CALL), Conflict, "node_created"),
    "learnings": (
        lambda layer: layer.learnings(LearningQuery(path="/etc"), FIRST, CALL),
        InvalidArgument,
        "context_read",
    ),
    "report": (
        lambda layer: layer.report(NewLearning(LearningType.CHECK, ("..",), "T", "D", "a"), CALL),
        InvalidArgument,
        "learning_reported",
    ),
    "review": (
        lambda layer: layer.review(ReviewRequest("PITFALL-1", ReviewVerdict.ACCEPT, "bob"), CALL),
        NotFound,
        "learning_reviewed",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_on_record_too(shop: Shop, name: str) -> None:
    doing, error, kind = REFUSED[name]
    with pytest.raises(error):
        doing(shop.layer)
    (entry,) = shop.trail.entries
    assert (entry.event, entry.error) == (kind, error.reason)
    assert (entry.requesting_agent, entry.request_id, entry.claimed_agent) == ("alice", "req-1", "somebody")
    assert shop.changes == 0


def test_a_report_is_on_record_with_its_identifier(shop: Shop) -> None:
    learning = shop.layer.report(LEARNING, CALL)
    assert learning.paths == ("src/api/users.ts", "src/api")
    paths = ("src/api/users.ts", "src/api/")
    assert shop.trail.entries == [
        ProjectOperation(
            AuditEvent.LEARNING_REPORTED, "report pitfall", "shop", paths, CALL, NOW, learning_id=learning.id
        ).to_audit_entry()
    ]
    assert shop.changes == 0


@pytest.mark.parametrize(
    ("paths", "field_name"),
    [(("..",), "path"), (("src", "tests", "/etc"), "also_paths[1]")],
)
def test_the_path_of_a_report_that_leads_out_is_named(shop: Shop, paths: tuple[str, ...], field_name: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        shop.layer.report(NewLearning(LearningType.CHECK, paths, "T", "D", "a"), CALL)
    assert [violation.field for violation in raised.value.violations] == [field_name]


@pytest.mark.parametrize(
    ("verdict", "changes"), [(ReviewVerdict.ACCEPT, 1), (ReviewVerdict.REJECT, 0), (ReviewVerdict.DEFER, 0)]
)
def test_a_review_is_on_record_and_tells_of_changed_nodes(shop: Shop, verdict: ReviewVerdict, changes: int) -> None:
    learning_id = shop.filed()
    shop.layer.review(ReviewRequest(learning_id, verdict, "bob"), CALL)
    (entry,) = shop.trail.entries
    assert entry.event == "learning_reviewed"
    assert entry.action == f"{verdict} learning in shop: {learning_id}, src/api/users.ts, src/api"
    assert shop.changes == changes


def test_a_dry_review_is_a_read(shop: Shop) -> None:
    learning_id = shop.filed()
    shop.layer.review(ReviewRequest(learning_id, ReviewVerdict.ACCEPT, "bob", dry_run=True), CALL)
    (entry,) = shop.trail.entries
    assert entry.event == "context_read"
    assert entry.action is not None
    assert entry.action.startswith("show accept learning in shop: ")
    assert shop.changes == 0


def test_a_new_node_is_on_record_and_told_of(shop: Shop) -> None:
    made = shop.layer.init("src/web", CALL)
    assert (shop.root / made.file).read_text() == made.content
    assert [(entry.event, entry.action) for entry in shop.trail.entries] == [
        ("node_created", "create node in shop: src/web")
    ]
    assert shop.changes == 1


WRITES: dict[str, Callable[[Shop, str], object]] = {
    "init": lambda shop, _: shop.layer.init("src/web", CALL),
    "report": lambda shop, _: shop.layer.report(LEARNING, CALL),
    "accept": lambda shop, filed: shop.layer.review(ReviewRequest(filed, ReviewVerdict.ACCEPT, "bob"), CALL),
    "reject": lambda shop, filed: shop.layer.review(ReviewRequest(filed, ReviewVerdict.REJECT, "bob"), CALL),
    "defer": lambda shop, filed: shop.layer.review(ReviewRequest(filed, ReviewVerdict.DEFER, "bob"), CALL),
}


@pytest.mark.parametrize("name", WRITES)
def test_an_act_is_on_record_before_anything_changes(shop: Shop, name: str) -> None:
    filed = shop.filed()
    before = shop.files()
    seen: list[dict[str, bytes]] = []
    shop.trail.recorded = lambda: seen.append(shop.files())
    WRITES[name](shop, filed)
    assert (seen, len(shop.trail.entries), shop.trail.entries[0].error) == ([before], 1, None)
    assert shop.files() != before


@pytest.mark.parametrize("name", WRITES)
def test_what_cannot_be_recorded_is_not_done(shop: Shop, name: str) -> None:
    filed = shop.filed()
    before = shop.files()
    shop.trail.failing = True
    with pytest.raises(Unavailable):
        WRITES[name](shop, filed)
    assert (shop.files(), shop.changes) == (before, 0)


def test_a_first_report_that_cannot_be_recorded_leaves_nothing(shop: Shop) -> None:
    shop.trail.failing = True
    with pytest.raises(Unavailable):
        shop.layer.report(LEARNING, CALL)
    assert not (shop.root / ".intent-layer").exists()


HINDERED: dict[str, tuple[str, type[CstpError]]] = {
    "init": ("src/web/AGENTS.md", Conflict),
    "report": (".intent-layer", Unavailable),
    "accept": ("src/api/AGENTS.md", Conflict),
}
"""What somebody else writes in the instant between the entry and the act, and how the act fails then."""


@pytest.mark.parametrize("name", HINDERED)
def test_an_act_that_fails_after_its_entry_has_a_second_one_with_the_reason(shop: Shop, name: str) -> None:
    file, error = HINDERED[name]
    filed = "" if name == "report" else shop.filed()
    shop.trail.recorded = lambda: (shop.root / file).write_text("Mine\n")
    with pytest.raises(error):
        WRITES[name](shop, filed)
    attempt, failure = shop.trail.entries
    assert failure == replace(attempt, error=error.reason)
    assert (attempt.error, "-" in str(attempt.action)) == (None, name != "init")
    assert ((shop.root / file).read_text(), shop.changes) == ("Mine\n", 0)


def test_nodes_come_page_by_page(shop: Shop) -> None:
    files = []
    page = shop.layer.nodes(PageRequest(2), CALL)
    while True:
        files += [(each.node.path, each.parent) for each in page.items]
        if not page.next_token:
            break
        page = shop.layer.nodes(PageRequest(2, page.next_token), CALL)
    assert files == [
        ("CLAUDE.md", None),
        ("src/AGENTS.md", "CLAUDE.md"),
        ("src/api/AGENTS.md", "src/AGENTS.md"),
    ]


def test_a_page_goes_on_where_nodes_came_and_went(shop: Shop) -> None:
    text = "## Purpose\n\nMore.\n"
    write_tree(shop.root, {"src/api/v1/AGENTS.md": text, "src/api-docs/AGENTS.md": text, "zoo/AGENTS.md": text})
    page = shop.layer.nodes(PageRequest(4), CALL)
    assert page.items[-1].node.folder == "src/api/v1"
    (shop.root / "src/api/v1/AGENTS.md").unlink()
    write_tree(shop.root, {"src/api/v2/AGENTS.md": text, "app/AGENTS.md": text})
    rest = shop.layer.nodes(PageRequest(4, page.next_token), CALL)
    assert [each.node.folder for each in rest.items] == ["src/api/v2", "src/api-docs", "zoo"]


def test_a_node_that_is_a_link_is_read_by_its_own_name(shop: Shop) -> None:
    write_tree(shop.root, {"docs/agents.md": "## Purpose\n\nFor the web.\n"})
    (shop.root / "src/web/AGENTS.md").symlink_to("../../docs/agents.md")
    listed = shop.layer.node("src/web/AGENTS.md", CALL)
    assert (listed.node.folder, listed.parent) == ("src/web", "src/AGENTS.md")


def test_an_unknown_project_tells_nothing_of_others(shop: Shop) -> None:
    projects = ProjectRegistry({"shop": shop.layer})
    assert projects["shop"] is shop.layer
    with pytest.raises(NotFound) as raised:
        projects["shed"]
    assert raised.value.message == "there is no project shed"
