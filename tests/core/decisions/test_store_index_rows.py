"""What every store of decisions tells searches: index rows, vectors and terms, on each kind of database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.decisions.decision_terms import SearchedContent, analyze_content
from tests.core.decisions.journals import plain
from tests.core.decisions.shelves import (
    MODEL,
    Shelf,
    entry,
    passages_of,
)


@pytest.mark.contract("SqlDecisionStore.index_rows")
def test_index_rows_hold_what_a_search_must_know(shelf: Shelf) -> None:
    item = entry(
        category="process",
        confidence=0.75,
        date=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=250_000),
        stakes=Stakes.HIGH,
        outcome=Outcome.PARTIAL,
        tags=("b", "a"),
        project="atlas",
        visibility=Visibility.SHARED,
    )
    shelf.add(item)
    (row,) = shelf.store.index_rows(MODEL)
    assert (row.decision_id, row.agent, row.visibility) == (item.decision.id, "alice", Visibility.SHARED)
    assert (row.category, row.confidence, row.date) == ("process", 0.75, 1767225600.25)
    assert (row.stakes, row.status, row.outcome) == (Stakes.HIGH, DecisionStatus.REVIEWED, Outcome.PARTIAL)
    assert (row.tags, row.project) == (("b", "a"), "atlas")
    assert row.passages.vectors.dtype == np.float32
    np.testing.assert_array_equal(row.passages.vectors, passages_of(item.decision.id).vectors)
    assert row.passages.has_lesson


def test_index_rows_come_in_the_order_of_changes(shelf: Shelf) -> None:
    items = [entry() for _ in range(5)]
    shelf.add(*items)
    before = [row.decision_id for row in shelf.store.index_rows(MODEL)]
    assert before == [item.decision.id for item in items]
    seen = max(row.revision for row in shelf.store.index_rows(MODEL))
    shelf.replace(items[3], items[1])
    changed = list(shelf.store.index_rows(MODEL, after_revision=seen))
    assert [row.decision_id for row in changed] == [items[3].decision.id, items[1].decision.id]
    ids = [item.decision.id for item in items]
    everything = [plain(row) for row in shelf.store.index_rows(MODEL)]
    assert [plain(row) for row in shelf.store.index_rows_of(MODEL, ids)] == everything


@pytest.mark.contract("SqlDecisionStore.changed_rows", "SqlDecisionStore.index_rows_of")
def test_index_rows_of_more_ids_than_one_statement_takes(shelf: Shelf) -> None:
    items = [entry() for _ in range(1203)]
    shelf.add(*items)
    ids = [item.decision.id for item in items]
    assert [row.decision_id for row in shelf.store.index_rows_of(MODEL, ids[::-1])] == ids
    assert list(shelf.load(ids)) != []
    assert set(shelf.load(ids)) == set(ids)


@pytest.mark.contract("SqlDecisionStore.changed_ids")
def test_the_decisions_that_changed_after_a_revision_come_by_revision(shelf: Shelf) -> None:
    items = [entry() for _ in range(4)]
    shelf.add(*items)
    ids = [item.decision.id for item in items]
    revisions = {row.decision_id: row.revision for row in shelf.store.index_rows_of(MODEL, ids)}
    shelf.replace(items[0])

    assert shelf.store.changed_ids(-1, 10) == [*ids[1:], ids[0]]
    assert shelf.store.changed_ids(-1, 2) == ids[1:3]
    assert shelf.store.changed_ids(revisions[ids[2]], 10) == [ids[3], ids[0]]
    assert shelf.store.changed_ids(shelf.store.newest_revision(), 10) == []


@pytest.mark.contract("SqlDecisionStore.embedded_decisions", "SqlDecisionStore.unembedded_decisions")
def test_decisions_without_vectors_of_the_model_are_found(shelf: Shelf) -> None:
    items = [entry(title="title", context="c" * 5000), entry(title="brief")]
    expected = {item.decision.id: item.decision for item in items}
    shelf.add(*items, vectors=False)
    assert {item.id: item for item in shelf.store.unembedded_decisions(MODEL, 10)} == expected
    assert len(shelf.store.unembedded_decisions(MODEL, 1)) == 1
    assert list(shelf.store.index_rows(MODEL)) == []
    shelf.put_vectors(MODEL, *expected)
    assert shelf.store.unembedded_decisions(MODEL, 10) == []
    assert shelf.store.embedded_decisions(MODEL, [*expected, "dec-none"]) == expected


@pytest.mark.contract("SqlDecisionStore.outdated_decisions")
@pytest.mark.parametrize(
    "change",
    ["UPDATE decision_vectors SET format = 0", "UPDATE decision_terms SET version = 0", "DELETE FROM decision_terms"],
)
def test_what_older_rules_made_is_outdated_and_serves_until_it_is_made_anew(shelf: Shelf, change: str) -> None:
    item = entry()
    shelf.add(item)
    assert shelf.store.outdated_decisions(MODEL, 10) == []
    shelf.run(change)
    assert shelf.store.outdated_decisions(MODEL, 10) == [item.decision]
    assert [row.decision_id for row in shelf.store.index_rows(MODEL)] == [item.decision.id]
    shelf.replace(item)
    shelf.put_vectors(MODEL, item.decision.id)
    assert shelf.store.outdated_decisions(MODEL, 10) == []


def test_rows_have_the_terms_of_the_content_as_it_is(shelf: Shelf) -> None:
    item = entry(title="INC-2041: raise the limit", notes="fix the pool")
    shelf.add(item)
    for stored in (item, replace(item, decision=replace(item.decision, notes=None))):
        shelf.replace(stored)
        (row,) = shelf.store.index_rows(MODEL)
        np.testing.assert_array_equal(row.terms, analyze_content(SearchedContent.of(stored.decision)))


def test_a_vector_of_another_model_replaces_the_present_one(shelf: Shelf) -> None:
    item = entry()
    shelf.add(item)
    shelf.put_vectors("model-b", item.decision.id)
    assert [row.decision_id for row in shelf.store.index_rows("model-b")] == [item.decision.id]
    assert list(shelf.store.index_rows(MODEL)) == []
    assert shelf.store.embedded_decisions(MODEL, [item.decision.id]) == {}
    assert shelf.store.unembedded_decisions(MODEL, 10) == [item.decision]
