"""The reviews, former contents, deletions and changes that stores keep, on each kind of database."""

from __future__ import annotations

import uuid
from datetime import timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Outcome, Visibility
from cstp_grpc.core.decisions.model import (
    DecisionContent,
    DecisionFilter,
    DecisionHistory,
    DecisionReview,
    DeletedDecision,
    FormerContent,
    JournalChange,
    Links,
)
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_history import SqlHistoryStore
from cstp_grpc.core.decisions.store import DeclaredLinks, ErasedRow
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.shelves import (
    EVERYTHING,
    MODEL,
    NOW,
    Shelf,
    entry,
    meets,
    shared,
    slow,
)
from tests.core.decisions.strategies import any_text, contents, filters, fractions


@slow
@given(reviews=st.lists(st.tuples(st.sampled_from(Outcome), st.none() | any_text, st.none() | fractions), max_size=4))
@pytest.mark.contract("SqlHistoryStore.add_review", "SqlHistoryStore.find_review", "SqlHistoryStore.read_history")
def test_reviews_come_back_latest_first(
    shelf: Shelf, database: Database, writer: GroupCommitWriter, reviews: list[tuple[Outcome, str | None, float | None]]
) -> None:
    history = SqlHistoryStore(database)
    reviewed, other = entry(), entry()
    shelf.add(reviewed, other)
    key = reviewed.decision.id
    made = [DecisionReview("alice", outcome, NOW, notes, confidence) for outcome, notes, confidence in reviews]
    for number, added in enumerate(made):
        writer.run(partial(history.add_review, decision_id=key, review=added, request_key=f"key-{number}"))
    for limit in (1, 3, 50):
        assert history.read_history(key, limit, 0) == DecisionHistory(tuple(made[::-1][:limit]), len(made))
    assert history.read_history(other.decision.id, 50, 50) == DecisionHistory((), 0)
    expected: list[DecisionReview | None] = [*made, None]
    for number, review in enumerate(expected):
        find = partial(history.find_review, decision_id=key, request_key=f"key-{number}")
        assert writer.run(partial(find, reviewer="alice")) == review
        assert writer.run(partial(find, reviewer="bob")) is None


@slow
@given(former=st.lists(contents, max_size=4))
@pytest.mark.contract("SqlHistoryStore.add_former", "SqlHistoryStore.erase", "SqlHistoryStore.read_revision")
def test_former_contents_come_back_with_their_numbers(
    shelf: Shelf, database: Database, writer: GroupCommitWriter, former: list[DecisionContent]
) -> None:
    history = SqlHistoryStore(database)
    changed = entry()
    shelf.add(changed)
    key = changed.decision.id
    for content in former:
        writer.run(partial(history.add_former, decision_id=key, content=content, at=NOW))
    expected = tuple(FormerContent(number, content, NOW) for number, content in enumerate(former, 1))[::-1]
    for limit in (0, 2, 10):
        found = history.read_history(key, 50, limit)
        assert (found.revision, found.former) == (len(former) + 1, expected[:limit])
    assert writer.run(partial(history.read_revision, decision_id=key)) == len(former) + 1
    writer.run(partial(history.erase, decision_id=key))
    assert history.read_history(key, 50, 50) == DecisionHistory()


@pytest.mark.contract("SqlDecisionStore.delete", "SqlDecisionStore.erased_rows")
def test_what_is_deleted_is_gone_with_its_links(shelf: Shelf, database: Database, writer: GroupCommitWriter) -> None:
    old, middle, new = entry(tags=("api",), review_by=NOW), entry(tags=("api",), review_by=NOW), entry()
    shelf.add(old, middle, new)
    ids = [item.decision.id for item in (old, middle, new)]
    shelf.declare(
        DeclaredLinks(ids[1], Links(supersedes=(ids[0],))), DeclaredLinks(ids[2], Links(depends_on=(ids[1], ids[0])))
    )
    outbox, history = SqlChangeLog(database), SqlHistoryStore(database)

    def delete(unit_of_work: UnitOfWork) -> tuple[set[str], int]:
        revision = outbox.append(unit_of_work, ids[1])
        targets = shelf.store.delete(unit_of_work, ids[1])
        history.add_deleted(unit_of_work, DeletedDecision(ids[1], "alice", NOW), revision)
        return targets, revision

    before = shelf.store.newest_revision()
    targets, revision = writer.run(delete)
    assert targets == {ids[0]}
    assert shelf.store.get(ids[1]) is None
    assert shelf.load(ids).keys() == {ids[0], ids[2]}
    assert shelf.load([ids[2]])[ids[2]].decision.links == Links(depends_on=(ids[0],))
    assert shelf.superseded(ids) == set()
    assert [row.decision_id for row in shelf.store.index_rows_of(MODEL, ids)] == [ids[0], ids[2]]
    assert shelf.store.erased_rows(before) == [ErasedRow(ids[1], revision)]
    assert shelf.store.erased_rows(revision) == []
    assert shelf.store.newest_revision() == revision
    shelf.add(middle)
    assert shelf.store.get(ids[1]) == middle.decision


@pytest.mark.contract(
    "SqlHistoryStore.add_deleted",
    "SqlHistoryStore.find_deleted",
    "SqlHistoryStore.remove_deleted",
    "SqlHistoryStore.was_deleted",
)
def test_deleted_decisions_are_known_by_id_and_key(database: Database, writer: GroupCommitWriter) -> None:
    history = SqlHistoryStore(database)
    gone = DeletedDecision("dec-1", "alice", NOW, "key")
    writer.run(partial(history.add_deleted, deleted=gone, revision=7))
    assert writer.run(partial(history.find_deleted, ids=["dec-1", "dec-2", "dec-\0"])) == {"dec-1": gone}
    keys = [("alice", "key"), ("alice", "other"), ("bob", "key")]
    found = [writer.run(partial(history.was_deleted, agent=agent, idempotency_key=key)) for agent, key in keys]
    assert found == [True, False, False]
    writer.run(partial(history.remove_deleted, ids=["dec-1", "dec-2"]))
    assert writer.run(partial(history.find_deleted, ids=["dec-1"])) == {}


@pytest.mark.contract("SqlHistoryStore.page_deleted")
def test_deleted_decisions_of_an_agent_come_in_pages_by_rising_id(
    database: Database, writer: GroupCommitWriter
) -> None:
    history = SqlHistoryStore(database)
    gone = [DeletedDecision(f"dec-{number}", "alice", NOW) for number in range(3)]
    for number, item in enumerate([*gone[::-1], DeletedDecision("dec-11", "bob", NOW)]):
        writer.run(partial(history.add_deleted, deleted=item, revision=number))
    assert history.page_deleted("alice", "", 2) == gone[:2]
    assert history.page_deleted("alice", gone[1].id, 2) == gone[2:]
    assert history.page_deleted("carol", "", 2) == []


@pytest.mark.contract("SqlHistoryStore.add_missing_reviews")
def test_each_review_is_added_once_the_earliest_first(
    shelf: Shelf, database: Database, writer: GroupCommitWriter
) -> None:
    history, reviewed, other = SqlHistoryStore(database), entry(), entry()
    shelf.add(reviewed, other)
    key = reviewed.decision.id
    first, second, third = (
        DecisionReview("bob", Outcome.SUCCESS, NOW + timedelta(seconds=number)) for number in range(3)
    )
    writer.run(partial(history.add_review, decision_id=key, review=first, request_key="key"))
    for _ in range(2):
        writer.run(partial(history.add_missing_reviews, decision_id=key, reviews=[third, second, first, second]))
    assert history.read_history(key, 50, 0).reviews == (third, second, first)
    assert writer.run(partial(history.find_review, decision_id=key, reviewer="bob", request_key="key")) == first
    assert history.read_history(other.decision.id, 50, 0).reviews == ()


@slow
@given(data=st.data())
@pytest.mark.contract("SqlDecisionStore.changes")
def test_changes_are_what_may_be_read_by_rising_revision(shelf: Shelf, data: st.DataObject) -> None:
    mark = uuid.uuid4().hex
    agents = [f"{name}-{mark}" for name in ("alice", "bob")]
    start = shelf.store.newest_revision()
    drawn = data.draw(st.lists(st.tuples(st.sampled_from(agents), contents), min_size=1, max_size=6))
    entries = [entry(agent, content) for agent, content in drawn]
    shelf.add(*entries)
    shelf.replace(entries[0])
    order = [*entries[1:], entries[0]]
    wanted, limit = data.draw(filters(st.sampled_from(agents))), data.draw(st.integers(1, 4))
    expected = [
        item.decision.id
        for item in order
        if (item.decision.agent == agents[0] or shared(item.decision)) and meets(item.decision, wanted)
    ]
    found: list[str] = []
    after, newest = start, shelf.store.newest_revision()
    while after < newest:
        changes, reached = shelf.store.changes(agents[0], wanted, after, limit)
        assert len(changes) <= limit
        assert [change.revision for change in changes] == sorted(change.revision for change in changes)
        assert all(after < change.revision <= reached for change in changes)
        found += [change.decision.id for change in changes if change.decision is not None]
        after = reached
    assert found == expected
    assert shelf.store.changes(agents[0], wanted, newest, limit) == ([], newest)


def test_deletions_are_changes_for_their_agent(shelf: Shelf, database: Database, writer: GroupCommitWriter) -> None:
    gone, kept = entry(visibility=Visibility.SHARED), entry()
    shelf.add(gone, kept)
    outbox, history = SqlChangeLog(database), SqlHistoryStore(database)
    key = gone.decision.id

    def delete(unit_of_work: UnitOfWork) -> int:
        revision = outbox.append(unit_of_work, key)
        shelf.store.delete(unit_of_work, key)
        history.add_deleted(unit_of_work, DeletedDecision(key, "alice", NOW), revision)
        return revision

    before = shelf.store.newest_revision()
    revision = writer.run(delete)
    shelf.replace(kept)
    newest = shelf.store.newest_revision()
    deletion = JournalChange(revision, deleted_id=key)
    changes, reached = shelf.store.changes("alice", EVERYTHING, before, 10)
    assert ([change.deleted_id for change in changes], changes[0], reached) == ([key, None], deletion, newest)
    assert shelf.store.changes("alice", DecisionFilter(project="none"), before, 10) == ([deletion], newest)
    assert shelf.store.changes("alice", EVERYTHING, before, 1) == ([deletion], revision)
    assert shelf.store.changes("bob", EVERYTHING, before, 10) == ([], newest)
