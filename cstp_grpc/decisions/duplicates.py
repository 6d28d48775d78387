"""Finding decisions of an agent that say nearly the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from cstp_grpc.decisions.model import Decision, DecisionFilter, DuplicateGroup, DuplicateReport
from cstp_grpc.decisions.store import DecisionStore, Vector
from cstp_grpc.enums import DecisionStatus
from cstp_grpc.storage.pagination import MAX_SIZE, PageRequest

MAX_COMPARED = 2000
"""Decisions compared with each other, the latest. Measured: 0.1 s of a processor, 1.6 s if all are alike."""

SIMILARITY_DECIMALS = 6
"""Decimals of a similarity; float32 vectors do not carry more."""

CURRENT_STATUSES = tuple(status for status in DecisionStatus if status is not DecisionStatus.SUPERSEDED)
"""What is superseded may say the same as its successor."""


def find_duplicates(
    store: DecisionStore, model: str, caller: str, filters: DecisionFilter, min_similarity: float, limit: int
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
    known = [item for item in decisions if item.id in vectors]
    groups = group_similar(known, [vectors[item.id] for item in known], min_similarity)
    return DuplicateReport(tuple(groups[:limit]), len(known), more or len(groups) > limit)


def own_decisions(store: DecisionStore, caller: str, filters: DecisionFilter) -> Iterator[Decision]:
    """Yield the decisions that pass the filters, latest first."""
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
    """Yield the pairs of places whose vectors are similar, with their similarity."""
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
