"""The entries of nodes as shared decisions in the journal, so that searches find them with decisions.

Each entry is a shared decision of the agent `INTENT_LAYER_AGENT`. The nodes are the source of truth. An entry that no
node contains any more stays in the journal but is unshared, so that no search finds it; it is shared again when a node
contains it again.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from markdown_it.tree import SyntaxTreeNode

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import truncate_text
from cstp_grpc.contract.enums import INTENT_LAYER_AGENT, Visibility
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.model import DecisionContent, DecisionFilter, ImportAction, ImportRecord
from cstp_grpc.modules.intent_layer.model import ROOT, Node
from cstp_grpc.modules.intent_layer.node_document import SOURCE_LINE_PATTERN, parse_block_tree, section_key
from cstp_grpc.modules.intent_layer.project_files import iter_ancestors, name_of, parent_of
from cstp_grpc.modules.intent_layer.project_tree import NODE_FILES, ProjectTree, UnreadableFolder
from cstp_grpc.platform.storage.background_work import PeriodicTask
from cstp_grpc.platform.storage.pagination import MAX_SIZE, PageRequest

logger = logging.getLogger(__name__)

ENTRY_CATEGORIES = {
    "contracts": "contract",
    "pitfalls": "pitfall",
    "checks": "check",
    "patterns": "pattern",
    "context": "insight",
}
"""The category of the entries of each section that is split into entries; other sections become one record each."""
SECTION_CATEGORIES = {"boundaries": "boundary"}
SKIPPED_SECTIONS = frozenset({"downlinks"})
"""Sections that consist of links only."""
MAX_TITLE = 200
MAX_CONTEXT = 20_000
MAX_CATEGORY = 100
MAX_SLUG = 80
"""Maximum characters of a section or title in a source. Chosen: a source stays short enough for an index.
"""
SLUG_BREAKS = re.compile(r"[\W_]+")
MARK_AT_END = re.compile(rf"{SOURCE_LINE_PATTERN}\s*\Z")
"""The last line of a merged learning, which names its report and does not belong to the statement."""
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CHECKBOX = re.compile(r"\[[ xX]\][ \t]+")
LISTS = frozenset({"bullet_list", "ordered_list"})


def source_prefix(project: str) -> str:
    return f"{INTENT_LAYER_AGENT}:{project}:"


def file_of_source(source: str, project: str) -> str:
    return source.removeprefix(source_prefix(project)).rpartition("#")[0]


def import_records(project: str, node: Node) -> Iterator[ImportRecord]:
    """Yield a record for each entry of a node, or for each section without entries.

    Its source names the project, file, section and title, so it stays the same if only the text changes.
    """
    used: dict[str, int] = {}
    # A file of another node is recorded with that node, not once more for each node that imports it.
    imported = [file for file in node.imported if name_of(file.path) not in NODE_FILES]
    for section in (section for file in (*node.files, *imported) for section in file.sections):
        key = section_key(section.name)
        if key in SKIPPED_SECTIONS or not COMMENT.sub("", section.text).strip():
            continue
        subject = project if node.folder == ROOT else node.folder
        whole = [(f"{section.name} of {subject}", section.text)]
        for title, text in (split_entries(section.text) or whole) if key in ENTRY_CATEGORIES else whole:
            source = _unused_source(
                f"{source_prefix(project)}{section.file}#{_to_slug(section.name)}/{_to_slug(title)}", used
            )
            content = DecisionContent(
                title=truncate_text(title, MAX_TITLE),
                context=truncate_text(text, MAX_CONTEXT),
                category=ENTRY_CATEGORIES.get(key)
                or SECTION_CATEGORIES.get(key)
                or _to_slug(section.name)[:MAX_CATEGORY],
                notes=f"See {section.name} in {section.file}",
                tags=(INTENT_LAYER_AGENT,),
                project=project,
                visibility=Visibility.SHARED,
            )
            yield ImportRecord(source, content)


def split_entries(text: str) -> list[tuple[str, str]]:
    """Return the entries of a section: title and text of each.

    A heading begins an entry; before the first heading, list items and paragraphs do.
    """
    starts: list[tuple[int, str]] = []
    headed = False
    for block in parse_block_tree(text).children:
        headed = headed or block.type == "heading"
        for begin in block.children if block.type in LISTS else [block]:
            title = _entry_title(begin)
            # Below a heading, lists and paragraphs are the text of its entry.
            if title and (block.type == "heading" or not headed):
                starts.append((begin.map[0] if begin.map else 0, title))
    lines = text.split("\n")
    bounds = [*(start for start, _ in starts), len(lines)]
    return [
        (title, MARK_AT_END.sub("", "\n".join(lines[start:end])).strip())
        for (start, title), end in zip(starts, bounds[1:], strict=True)
    ]


def _entry_title(block: SyntaxTreeNode) -> str:
    """Return the title of an entry that begins with a block, or empty if the block begins none."""
    while block.type == "list_item" and block.children:
        block = block.children[0]
    if block.type not in ("heading", "paragraph"):
        return ""
    content = CHECKBOX.sub("", block.children[0].content, count=1)
    first = content if block.type == "heading" else content.partition("\n")[0]
    # To this parser a table is a paragraph.
    return "" if first.startswith("|") else " ".join(first.split())


def _to_slug(text: str) -> str:
    return SLUG_BREAKS.sub("-", text.casefold()).strip("-")[:MAX_SLUG] or "-"


def _unused_source(source: str, used: dict[str, int]) -> str:
    """Return a source that is unique, with a number if needed; `used` has the last number of each."""
    number = used.get(source, 0) + 1
    while (unused := source if number == 1 else f"{source}-{number}") in used:
        number += 1
    used[source] = number
    used.setdefault(unused, 1)
    return unused


BATCH_SIZE = 32
"""Records that are embedded and stored in one transaction. Chosen: stopping the server waits for one batch at most."""
MAX_RECORDS = 20_000
"""Records of a project at most; searches do not find further ones. Chosen: it bounds the memory of a sync."""
FAILURE_MESSAGE = "searches do not see the changes in nodes"


@dataclass(slots=True)
class _KnownDecision:
    """A decision in the journal; `record` is the import record it equals, None if that is not known."""

    decision_id: str
    shared: bool
    record: ImportRecord | None = None


class NodeJournalSync:
    """Synchronizes the journal with the nodes of one project, whose decisions it reads by pages; not thread-safe."""

    def __init__(
        self,
        project: str,
        tree: ProjectTree,
        journal: Journal,
        max_records: int = MAX_RECORDS,
        page_size: int = MAX_SIZE,
    ) -> None:
        self._project = project
        self._tree = tree
        self._journal = journal
        self._max_records = max_records
        self._page_size = page_size
        # What the journal has, by source, read once. After a restart every record is imported again, which changes
        # nothing where the journal has it already; so a batch that a crash interrupted is repeated.
        self._known: dict[str, _KnownDecision] | None = None
        self._read: dict[str, tuple[Node, tuple[ImportRecord, ...]]] = {}
        self._overflowing = False

    def refresh(self, stopping: Callable[[], bool] = lambda: False) -> int:
        """Import the changes since the last call and return the number of changed decisions.

        Stops early once `stopping` returns True. Raises CstpError if the project or the journal cannot be used; the
        next call continues from there.
        """
        if self._known is None:
            self._known = {
                source: _KnownDecision(decision_id, shared) for source, decision_id, shared in self._iter_known()
            }
        known = self._known
        walked = tuple(self._tree.walk())
        records = {record.source: record for record in self._records(walked)}
        request_id = str(uuid.uuid4())
        # Lazily, so that a stop leaves the rest unread, and each batch sees what the one before has stored.
        changed = (record for record in records.values() if not _is_up_to_date(record, known.get(record.source)))
        count = 0
        while not stopping() and (batch := list(islice(changed, BATCH_SIZE))):
            count += self._import_batch(batch, known, request_id)
        # Decisions of nodes that cannot be read now stay shared: the nodes may be unchanged.
        unreadable = {each.folder for each in walked if isinstance(each, UnreadableFolder)}
        for source, decision in known.items():
            gone = decision.shared and source not in records
            folder = parent_of(file_of_source(source, self._project))
            if gone and not stopping() and unreadable.isdisjoint(iter_ancestors(folder)):
                self._journal.unshare(decision.decision_id, INTENT_LAYER_AGENT, request_id)
                decision.shared = False
                count += 1
        return count

    def _import_batch(self, batch: Sequence[ImportRecord], known: dict[str, _KnownDecision], request_id: str) -> int:
        count = 0
        results = self._journal.import_batch(batch, INTENT_LAYER_AGENT, request_id)
        for record, result in zip(batch, results, strict=True):
            decision = known.setdefault(record.source, _KnownDecision(result.decision_id, shared=True))
            if not decision.shared:
                # An import leaves the visibility as it is.
                self._journal.share(decision.decision_id, INTENT_LAYER_AGENT, request_id)
            # Before the next line sets it.
            count += result.action is not ImportAction.UNCHANGED or not decision.shared
            decision.shared = True
            decision.record = record
        return count

    def _iter_known(self) -> Iterator[tuple[str, str, bool]]:
        filters = DecisionFilter(agent=INTENT_LAYER_AGENT, project=self._project)
        request = PageRequest(self._page_size)
        while True:
            page = self._journal.page(INTENT_LAYER_AGENT, filters, request)
            for decision in page.items:
                if decision.source and decision.source.startswith(source_prefix(self._project)):
                    yield decision.source, decision.id, decision.visibility is Visibility.SHARED
            if not page.next_token:
                return
            request = PageRequest(self._page_size, page.next_token)

    def _records(self, walked: Iterable[Node | UnreadableFolder]) -> Iterator[ImportRecord]:
        """Yield the import records of all nodes; a node is parsed only if it changed."""
        read = {}
        for node in walked:
            if isinstance(node, Node):
                known = self._read.get(node.folder)
                # Equal content, not equal stamps: the tree may have read an unchanged file again.
                unchanged = known is not None and known[0] == node
                read[node.folder] = known if known and unchanged else (node, tuple(import_records(self._project, node)))
        # Replaced as a whole, so that nodes that were removed are forgotten.
        self._read = read
        records = (record for _, of_node in read.values() for record in of_node)
        yield from islice(records, self._max_records)
        # One record beyond the limit is enough to know; logged once, until it fits again.
        overflowing = next(records, None) is not None
        if overflowing and not self._overflowing:
            logger.warning("searches find the first %d entries of the project %s", self._max_records, self._project)
        self._overflowing = overflowing


class NodeJournalSyncWorker(PeriodicTask):
    """Runs the synchronization of all projects in a thread: at the start, when woken, and periodically."""

    def __init__(self, syncs: Sequence[NodeJournalSync], interval: float) -> None:
        super().__init__("node-mirror", self._refresh_all, interval, logger, FAILURE_MESSAGE)
        self._syncs = syncs
        self._failed: set[NodeJournalSync] = set()

    def _refresh_all(self) -> None:
        for sync in self._syncs:
            self._refresh(sync)

    def _refresh(self, sync: NodeJournalSync) -> None:
        try:
            sync.refresh(self.is_stopping)
        except CstpError as error:
            if sync not in self._failed:
                logger.warning("%s: %s", FAILURE_MESSAGE, error)
            self._failed.add(sync)
        except Exception:
            # An error of one project must end neither the thread nor the synchronization of the others.
            if sync not in self._failed:
                logger.exception(FAILURE_MESSAGE)
            self._failed.add(sync)
        else:
            self._failed.discard(sync)


def _is_up_to_date(record: ImportRecord, decision: _KnownDecision | None) -> bool:
    return decision is not None and decision.shared and decision.record == record
