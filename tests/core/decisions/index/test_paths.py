"""Exact search, and search by way of a real index."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.decisions.model import DecisionContent, DecisionFilter, Links, Match
from cstp_grpc.core.decisions.search.chroma_index import ChromaIndex
from cstp_grpc.core.decisions.search.chroma_process import ChildChromaServer
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch, IndexUse
from cstp_grpc.core.decisions.search.index_supervisor import IndexFeeder
from cstp_grpc.core.decisions.store import Vector
from tests.core.decisions.index.indexed import IndexedJournal, SpreadEmbedder
from tests.core.decisions.strategies import categories
from tests.example_counts import examples

EXAMPLES = 30

titles = st.lists(st.sampled_from(["queue", "cache", "shard", "token", "ledger", "proxy"]), min_size=1, max_size=3).map(
    " ".join
)
contents = st.builds(
    DecisionContent, title=titles, category=st.none() | categories, visibility=st.sampled_from(Visibility)
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChromaIndex]:
    server = ChildChromaServer(tmp_path_factory.mktemp("paths") / "index")
    url = server.start(threading.Event())
    with closing(ChromaIndex.open(url, SpreadEmbedder.model, SpreadEmbedder.dimensions)) as index:
        yield index
    server.stop()


def recall_is_full(journal: IndexedJournal, index: ChromaIndex, query: Vector, count: int) -> bool:
    """Whether no decision is more similar than what the index proposes."""
    rows = {row.decision_id: row.vector for row in journal.store.index_rows(journal.embedder.model)}
    proposed = [float(rows[decision_id] @ query) for decision_id in index.propose(query, count)]
    all_scores = sorted((float(vector @ query) for vector in rows.values()), reverse=True)
    return len(proposed) == min(count, len(rows)) and np.allclose(
        sorted(proposed, reverse=True), all_scores[: len(proposed)], atol=1e-5
    )


@settings(max_examples=examples(EXAMPLES), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    recorded=st.lists(contents, max_size=8),
    query=titles,
    category=st.none() | categories,
    limit=st.integers(1, 8),
    min_score=st.sampled_from([-1.0, 0.3, 0.7, 1.0]),
    overfetch=st.integers(1, 40),
)
def test_they_give_the_same_answers_where_recall_is_full(  # type: ignore[no-untyped-def]
    journal: IndexedJournal, index: ChromaIndex, recorded, query, category, limit, min_score, overfetch
) -> None:
    for content in recorded:
        journal.journal.record(content, Links(), "alice", "req-1")
    index.reset()
    IndexFeeder(journal.store, journal.outbox, journal.embedder.model).feed(index, lambda: False)
    assume(recall_is_full(journal, index, journal.embedder.embed([query])[0], overfetch))

    def search(exact_limit: int) -> list[Match]:
        plan = DecisionSearch(journal.store, journal.matrix, journal.embedder, IndexUse(index, exact_limit, overfetch))
        return plan.search(query, DecisionFilter(category=category), "bob", limit, min_score)

    assert search(exact_limit=0) == search(exact_limit=1_000_000)
