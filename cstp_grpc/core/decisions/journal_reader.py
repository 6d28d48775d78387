"""Reading the journal: single decisions, listings, the graph of links, duplicates, and changes as they come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate, islice

import numpy as np

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.enums import DecisionStatus
from cstp_grpc.contract.errors import NotFound
from cstp_grpc.core.decisions.lifecycle import redact_decisions
from cstp_grpc.core.decisions.model import (
    Decision,
    DecisionFilter,
    DecisionGraph,
    DecisionHistory,
    DecisionLink,
    DecisionProvenance,
    DecisionReview,
    DeletedDecision,
    DuplicateGroup,
    DuplicateReport,
    JournalChange,
    LinkType,
    content_texts,
)
from cstp_grpc.core.decisions.sql_history import SqlHistoryStore
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import DeclaredLinks, JournalEntry, Vector
from cstp_grpc.platform.embedding.embedder import Embedder
from cstp_grpc.platform.storage.background_work import RunBlocking
from cstp_grpc.platform.storage.pagination import MAX_SIZE, Page, PageRequest, estimate_message_bytes
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens, future_token_error
from cstp_grpc.platform.storage.subscriptions import READ_BATCH, ChangeFeed, Subscription, WatchLimits

DUPLICATE_SIMILARITY = 0.9
"""Similarity of duplicates if none is given. Chosen: by all-MiniLM-L6-v2, pairs that are about the same have a median
of 0.5; from 0.9 on little but a number or a name is different."""
DUPLICATE_GROUPS = 20

EXPORT_BATCH = 16
"""Decisions that an export has in memory. Chosen: one may be as large as a message, though most are small."""

GRAPH_DEPTH = 2
GRAPH_NODES = 100
"""The default bounds of a graph. Chosen: it fits on a screen."""

MAX_SHOWN_FORMER = 10
"""Former contents that are returned with a decision at most, each of which may be as large as a message."""

MAX_FORMER_BYTES = 512 * 1024
"""Estimated bytes of the former contents that are returned. Chosen: an eighth of the largest message."""

MAX_SHOWN_REVIEWS = 50
"""Reviews that are returned with a decision. Chosen: with lessons of 5000 characters at most a quarter of a MB."""


class JournalReader:
    """Reads decisions, and shows each agent only what it may read.

    A decision is private to the agent that recorded it until that agent shares it; for others a private one does not
    exist, and for peers neither does a shared one that the read policy hides. All methods raise QueryFailed if the
    store does not respond.
    """

    def __init__(
        self, store: SqlDecisionStore, history: SqlHistoryStore, embedder: Embedder, clock: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._history = history
        self._embedder = embedder
        self._clock = clock

    def read_state(self) -> int:
        """Return a number that is a greater one after each change of a decision; see `SqlDecisionStore`."""
        return self._store.read_state()

    def get(self, decision_id: str, caller: str) -> Decision:
        """Return a decision: the caller's own as a whole, another's shared one without its private parts.

        Raises NotFound, also for another's private one.
        """
        decision = self._store.get(decision_id)
        if decision is None or not self._store.may_read(decision, caller):
            raise decision_not_found_error(decision_id)
        return redact_decisions(self._store, [decision], caller)[0]

    def get_with_history(self, decision_id: str, caller: str) -> tuple[Decision, DecisionHistory]:
        """Return a decision as `get` does, and its history. Raises NotFound."""
        decision = self.get(decision_id, caller)
        return decision, self._read_history(decision, caller)

    def page(
        self,
        caller: str,
        filters: DecisionFilter,
        page: PageRequest,
        *,
        review_due: bool = False,
        id_prefix: str | None = None,
    ) -> Page[Decision]:
        """Return a page of the readable decisions, latest first, without contexts and texts of reasons.

        With `review_due` only the caller's own whose review is due, with `id_prefix` only those whose ids begin so.
        Raises InvalidArgument for a page token of another
        listing.
        """
        found = self._store.page(caller, filters, page, self._clock() if review_due else None, id_prefix)
        return Page(redact_decisions(self._store, found.items, caller), found.next_token)

    def export_page(
        self, caller: str, filters: DecisionFilter, page_token: str
    ) -> Page[tuple[Decision, DecisionProvenance | None]]:
        """Return the next few of the readable decisions, latest first, as `get` does; own ones with provenance."""
        found = self._store.page(caller, filters, PageRequest(EXPORT_BATCH, page_token))
        # Listed ones lack their private parts. One that was deleted or unshared since then is left out.
        own_ids = [item.id for item in found.items if item.agent == caller]
        own, declared = self._store.get_entries(own_ids), self._store.get_declared_links(own_ids)
        others = redact_decisions(self._store, [item for item in found.items if item.agent != caller], caller)
        shared = {item.id: item for item in others}
        items: list[tuple[Decision, DecisionProvenance | None]] = [
            (own[item.id].decision, self._read_provenance(own[item.id], declared[item.id]))
            if item.id in own
            else (shared[item.id], None)
            for item in found.items
            if item.id in own or item.id in shared
        ]
        return Page(tuple(items), found.next_token)

    def export_deleted(self, caller: str, after: str) -> list[DeletedDecision]:
        """Return the next few deletions of the caller's decisions by rising id, from the one after an id."""
        return self._history.page_deleted(caller, after, MAX_SIZE)

    def _read_provenance(self, entry: JournalEntry, declared: DeclaredLinks) -> DecisionProvenance:
        assert entry.changed_at is not None, "it was loaded"
        reviews: tuple[DecisionReview, ...] = ()
        if entry.decision.reviewed_date is not None:
            reviews = self._history.read_history(entry.decision.id, MAX_SHOWN_REVIEWS, 0).reviews
        return DecisionProvenance(
            entry.changed_at,
            entry.recorded_at,
            entry.stated_status,
            entry.content_hash,
            reviews,
            declared.links,
            declared.superseded_by,
        )

    def read_graph(self, decision_id: str, caller: str, depth: int, max_nodes: int) -> DecisionGraph:
        """Return the graph of a readable decision; 0 stands for the usual bounds. Raises NotFound."""
        root = self.get(decision_id, caller)
        return read_graph(self._store, root, caller, depth or GRAPH_DEPTH, max_nodes or GRAPH_NODES)

    def find_duplicates(
        self, caller: str, filters: DecisionFilter, min_similarity: float | None, limit: int
    ) -> DuplicateReport:
        """Return groups of the caller's own decisions that say nearly the same; 0 is the usual number of groups."""
        least = DUPLICATE_SIMILARITY if min_similarity is None else min_similarity
        return find_duplicates(self._store, self._embedder.model, caller, filters, least, limit or DUPLICATE_GROUPS)

    def _read_history(self, decision: Decision, caller: str) -> DecisionHistory:
        own = decision.agent == caller
        history = self._history.read_history(decision.id, MAX_SHOWN_REVIEWS, MAX_SHOWN_FORMER if own else 0)
        # The latest ones that fit together.
        sizes = accumulate(estimate_message_bytes(content_texts(item.content)) for item in history.former)
        shown = sum(size <= MAX_FORMER_BYTES for size in sizes)
        return replace(history, former=history.former[:shown])


def decision_not_found_error(decision_id: str) -> NotFound:
    """Return the error for a decision that does not exist, or that the caller may not know of."""
    return NotFound(f"there is no decision {decision_id}")


MAX_LINKS = 5000
"""Links read for each step away from the first decision. Chosen: ten for each of as many nodes as may be asked for."""


def read_graph(store: SqlDecisionStore, root: Decision, caller: str, depth: int, max_nodes: int) -> DecisionGraph:
    """Return the decisions that links of either direction connect to a readable one, at most `depth` links away.

    Decisions that the caller may not read are left out, and links through them are not followed. Raises QueryFailed.
    """
    nodes: dict[str, tuple[Decision, int]] = {root.id: (root, 0)}
    links: set[DecisionLink] = set()
    frontier: Sequence[str] = [root.id]
    truncated = False
    # One step more than the depth: it adds no decisions, and tells whether there are any.
    for distance in range(1, depth + 2):
        found = store.touching_links(frontier, MAX_LINKS)
        truncated |= len(found) == MAX_LINKS
        links.update(found)
        ends = {key for link in found for key in (link.from_id, link.to_id)} - nodes.keys()
        readable = sorted(store.get_readable(sorted(ends), caller, DecisionFilter()).values(), key=graph_order)
        room = max_nodes - len(nodes) if distance <= depth else 0
        truncated |= len(readable) > room
        added = readable[:room]
        nodes.update((item.id, (item, distance)) for item in added)
        frontier = [item.id for item in added]
        if not frontier:
            break
    return DecisionGraph(tuple(nodes.values()), links_between(nodes.keys(), links), truncated)


def links_between(ids: Iterable[str], links: Iterable[DecisionLink]) -> tuple[DecisionLink, ...]:
    """Return the links whose ends are both among `ids`, in the order of these."""
    place = {key: position for position, key in enumerate(ids)}
    kinds = list(LinkType)
    inside = [link for link in links if link.from_id in place and link.to_id in place]
    return tuple(sorted(inside, key=lambda link: (place[link.from_id], kinds.index(link.type), place[link.to_id])))


def graph_order(decision: Decision) -> tuple[float, str]:
    """Return the key by which decisions at the same distance are ordered: the latest first, then by id."""
    return -decision.date.timestamp(), decision.id


MAX_COMPARED = 2000
"""Decisions compared with each other, the latest. Measured: 0.1 s of a processor, 1.6 s if all are alike."""

SIMILARITY_DECIMALS = 6
"""Decimals of a similarity; float32 vectors do not carry more."""

CURRENT_STATUSES = tuple(status for status in DecisionStatus if status is not DecisionStatus.SUPERSEDED)
"""Without superseded decisions, which may say the same as their successors."""


def find_duplicates(
    store: SqlDecisionStore, model: str, caller: str, filters: DecisionFilter, min_similarity: float, limit: int
) -> DuplicateReport:
    """Return groups of an agent's own decisions that are similar to each other by their vectors of a model.

    Those without a vector yet are left out. Raises QueryFailed.
    """
    wanted = filters.status or CURRENT_STATUSES
    statuses = tuple(status for status in wanted if status in CURRENT_STATUSES)
    if not statuses or filters.agent not in (None, caller):
        return DuplicateReport((), 0, truncated=False)
    own = own_decisions(store, caller, replace(filters, agent=caller, status=statuses))
    decisions = list(islice(own, MAX_COMPARED + 1))
    more, decisions = len(decisions) > MAX_COMPARED, decisions[:MAX_COMPARED]
    vectors = {row.decision_id: row.vector for row in store.index_rows_of(model, [item.id for item in decisions])}
    known = [item for item in decisions if item.id in vectors and not item.links.summarizes]
    groups = group_similar(known, [vectors[item.id] for item in known], min_similarity)
    return DuplicateReport(tuple(groups[:limit]), len(known), more or len(groups) > limit)


def own_decisions(store: SqlDecisionStore, caller: str, filters: DecisionFilter) -> Iterator[Decision]:
    token: str | None = ""
    while token is not None:
        page = store.page(caller, filters, PageRequest(MAX_SIZE, token))
        yield from page.items
        token = page.next_token or None


def group_similar(
    decisions: Sequence[Decision], vectors: Sequence[Vector], min_similarity: float
) -> list[DuplicateGroup]:
    """Return the groups of at least two decisions that similar pairs connect, the most similar first."""
    leaders = list(range(len(decisions)))
    best: dict[int, float] = {}
    for first, second, similarity in similar_pairs(vectors, min_similarity):
        one, other = sorted((leader_of(leaders, first), leader_of(leaders, second)))
        leaders[other] = one
        best[one] = max(similarity, best.get(one, -1.0), best.get(other, -1.0))
    members: dict[int, list[Decision]] = defaultdict(list)
    for place, decision in enumerate(decisions):
        members[leader_of(leaders, place)].append(decision)
    groups = [DuplicateGroup(tuple(members[leader]), best[leader]) for leader in members if len(members[leader]) > 1]
    return sorted(groups, key=lambda group: -group.similarity)


def similar_pairs(vectors: Sequence[Vector], min_similarity: float) -> Iterator[tuple[int, int, float]]:
    if not vectors:
        return
    matrix = np.stack(vectors)
    for place in range(len(matrix) - 1):
        # Row by row and not as one matrix product, for which BLAS would start threads that take others' time.
        products = np.vecdot(matrix[place + 1 :], matrix[place])
        similarities = products.astype(np.float64).round(SIMILARITY_DECIMALS)
        for offset in np.flatnonzero(similarities >= min_similarity).tolist():
            yield place, place + 1 + offset, float(similarities[offset])


def leader_of(leaders: list[int], place: int) -> int:
    """Return the first place of the group that a place belongs to."""
    while leaders[place] != place:
        # Halves the path, so that long chains are walked once.
        leaders[place] = leaders[leaders[place]]
        place = leaders[place]
    return place


@dataclass(frozen=True, slots=True)
class DecisionConditions:
    """Whose changes a subscription follows, and the filter that changed decisions pass."""

    caller: str
    filters: DecisionFilter


DecisionSubscription = Subscription[JournalChange, DecisionConditions]
"""A subscription to changes of decisions; its position is a revision of the journal."""


class JournalFeed(ChangeFeed[JournalChange, DecisionConditions]):
    """Notifies a bounded number of subscriptions of changed decisions, which they read from the store.

    Decisions carry the revision of their latest change, so that a reader that is behind gets each of them once, as it
    is now.
    """

    def __init__(
        self,
        store: SqlDecisionStore,
        tokens: RevisionTokens,
        limits: WatchLimits,
        refresh_seconds: float | None,
        run_blocking: RunBlocking,
    ) -> None:
        super().__init__(limits, refresh_seconds, run_blocking)
        self._store = store
        self._tokens = tokens

    def _newest_position(self) -> int:
        return self._store.newest_revision()

    def watch(
        self, caller: str, filters: DecisionFilter, after: str | None, reader: str | None = None
    ) -> DecisionSubscription:
        """Subscribe an agent to the changes after the revision of a token, or to those from now on.

        It reads by the name `reader`, its own unless given. Raises InvalidArgument for a token that the journal has not
        given out, RateLimited if no more subscriptions are allowed, Unavailable if the server stops, and QueryFailed if
        the database fails.
        """
        newest = self._store.newest_revision()
        start = newest if after is None else self._tokens.read(after, "after")
        # An empty journal has no revision, and gives out the token of 0.
        if start > max(newest, 0):
            raise future_token_error("after")
        subscription = self._open(caller, caller, DecisionConditions(reader or caller, filters), start)
        subscription.ready.append(JournalChange(start))
        return subscription

    def token_of(self, change: JournalChange) -> str:
        return self._tokens.write(max(change.revision, 0))

    def _read(self, subscription: DecisionSubscription) -> None:
        conditions = subscription.conditions
        found, reached = self._store.changes(conditions.caller, conditions.filters, subscription.after, READ_BATCH)
        changed = [change.decision for change in found if change.decision is not None]
        shown = iter(redact_decisions(self._store, changed, conditions.caller))
        subscription.ready.extend(
            change if change.decision is None else replace(change, decision=next(shown)) for change in found
        )
        # Changes that do not pass the filter are skipped for good, or each read would look at them again.
        subscription.after = max(subscription.after, reached)
