"""What nodes say, taken over into the journal, so that a search finds it beside decisions.

Each entry is a shared decision of an agent of its own. It is the nodes that count: an accepted learning is found
because a node says it. What no node says any more stays on record, as everything does, but it is unshared, so that
nobody finds it; when it is said again, it is shared again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from cstp_grpc.decisions.journal import Journal
from cstp_grpc.decisions.model import DecisionFilter, ImportAction, ImportRecord
from cstp_grpc.errors import CstpError
from cstp_grpc.intent_layer.model import Node
from cstp_grpc.intent_layer.paths import parent_of, upwards
from cstp_grpc.intent_layer.searchable import file_of, records, source_prefix
from cstp_grpc.intent_layer.tree import Tree, Unreadable
from cstp_grpc.storage.paging import MAX_SIZE, PageRequest
from cstp_grpc.storage.periodic import Periodic
from cstp_grpc.vocabulary import INTENT_LAYER_AGENT, Visibility

logger = logging.getLogger(__name__)

BATCH = 32
"""How many entries are embedded and stored together; a stop waits for no more than these."""
MAX_RECORDS = 20_000
"""How many entries of a project are taken over; searches do not find what comes after them."""
COMPLAINT = "searches do not see what changed in nodes"


@dataclass(slots=True)
class _Known:
    """A decision in the journal; `record` is the one that it is known to agree with."""

    decision_id: str
    shared: bool
    record: ImportRecord | None = None


class NodeMirror:
    """Keeps the journal abreast of the nodes of one project; for one thread at a time."""

    def __init__(self, project: str, tree: Tree, journal: Journal, max_records: int = MAX_RECORDS) -> None:
        self._project = project
        self._tree = tree
        self._journal = journal
        self._max_records = max_records
        self._known: dict[str, _Known] | None = None
        self._read: dict[str, tuple[Node, tuple[ImportRecord, ...]]] = {}
        self._overflowing = False

    def refresh(self, stopping: Callable[[], bool] = lambda: False) -> int:
        """Take over what changed since the last time and return how many decisions that changed.

        Once `stopping`, it goes no further. Raises CstpError where the project or the journal cannot be used; the next
        time goes on from there.
        """
        known = self._read_known()
        walked = tuple(self._tree.walk())
        said = {record.source: record for record in self._records(walked)}
        request_id = str(uuid.uuid4())
        changed = (record for record in said.values() if not _is_kept(record, known.get(record.source)))
        count = 0
        while not stopping() and (batch := list(islice(changed, BATCH))):
            count += self._take_over(batch, known, request_id)
        # What cannot be read now may still say what it said.
        unreadable = {each.folder for each in walked if isinstance(each, Unreadable)}
        for source, decision in known.items():
            gone = decision.shared and source not in said
            if gone and not stopping() and not _lies_in(file_of(source, self._project), unreadable):
                self._journal.unshare(decision.decision_id, INTENT_LAYER_AGENT, request_id)
                decision.shared = False
                count += 1
        return count

    def _take_over(self, batch: Sequence[ImportRecord], known: dict[str, _Known], request_id: str) -> int:
        count = 0
        results = self._journal.import_batch(batch, INTENT_LAYER_AGENT, request_id)
        for record, result in zip(batch, results, strict=True):
            decision = known.setdefault(record.source, _Known(result.decision_id, shared=True))
            if not decision.shared:
                # An import leaves the visibility as it is.
                self._journal.share(decision.decision_id, INTENT_LAYER_AGENT, request_id)
            count += result.action is not ImportAction.UNCHANGED or not decision.shared
            decision.shared = True
            decision.record = record
        return count

    def _read_known(self) -> dict[str, _Known]:
        """Return what the journal has of the project; it is asked once."""
        if self._known is None:
            self._known = {source: _Known(decision_id, shared) for source, decision_id, shared in self._listed()}
        return self._known

    def _listed(self) -> Iterator[tuple[str, str, bool]]:
        filters = DecisionFilter(agent=INTENT_LAYER_AGENT, project=self._project)
        request = PageRequest(MAX_SIZE)
        while True:
            page = self._journal.list(INTENT_LAYER_AGENT, filters, request)
            for decision in page.items:
                if decision.source and decision.source.startswith(source_prefix(self._project)):
                    yield decision.source, decision.id, decision.visibility is Visibility.SHARED
            if not page.next_token:
                return
            request = PageRequest(MAX_SIZE, page.next_token)

    def _records(self, walked: Iterable[Node | Unreadable]) -> Iterator[ImportRecord]:
        """Yield what all nodes say, each parsed only where it is not as it was the last time."""
        read = {}
        for node in walked:
            if isinstance(node, Node):
                before = self._read.get(node.folder)
                same = before is not None and before[0] == node
                read[node.folder] = before if before and same else (node, tuple(records(self._project, node)))
        self._read = read
        said = (record for _, of_node in read.values() for record in of_node)
        yield from islice(said, self._max_records)
        overflowing = next(said, None) is not None
        if overflowing and not self._overflowing:
            logger.warning("searches find the first %d entries of the project %s", self._max_records, self._project)
        self._overflowing = overflowing


class NodeMirrorRefresher:
    """Refreshes the mirrors of all projects in a thread: at once, when it is woken, and every now and then."""

    def __init__(self, mirrors: Sequence[NodeMirror], interval: float) -> None:
        """Prepare to refresh every `interval` seconds."""
        self._mirrors = mirrors
        self._interval = interval
        self._refreshing = Periodic("node-mirror", self._refresh_all, interval, logger, COMPLAINT)
        self._failing: set[NodeMirror] = set()

    def start(self) -> None:
        """Begin."""
        self._refreshing.start()

    def wake(self) -> None:
        """Have the nodes read soon, because some changed."""
        self._refreshing.wake()

    def stop(self) -> None:
        """End, and wait for the entries that are being taken over."""
        self._refreshing.stop()

    def _refresh_all(self) -> float:
        for mirror in self._mirrors:
            self._refresh(mirror)
        return self._interval

    def _refresh(self, mirror: NodeMirror) -> None:
        try:
            mirror.refresh(self._refreshing.is_stopping)
        except CstpError as error:
            if mirror not in self._failing:
                logger.warning("%s: %s", COMPLAINT, error)
            self._failing.add(mirror)
        except Exception:
            # Whatever it is, it must not keep what is to come from being found.
            if mirror not in self._failing:
                logger.exception(COMPLAINT)
            self._failing.add(mirror)
        else:
            self._failing.discard(mirror)


def _is_kept(record: ImportRecord, decision: _Known | None) -> bool:
    return decision is not None and decision.shared and decision.record == record


def _lies_in(file: str, folders: set[str]) -> bool:
    return not folders.isdisjoint(upwards(parent_of(file)))
