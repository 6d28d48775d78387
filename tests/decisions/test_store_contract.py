"""What every store of decisions does, on each kind of database."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from cstp_grpc.decisions.decision_terms import SearchedContent, analyze_content
from cstp_grpc.decisions.lifecycle import new_entry
from cstp_grpc.decisions.model import (
    Decision,
    DecisionContent,
    DecisionFilter,
    DecisionHistory,
    DecisionLink,
    DecisionReview,
    DeletedDecision,
    FormerContent,
    JournalChange,
    Links,
    LinkType,
    Reason,
)
from cstp_grpc.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.decisions.sql_history import SqlHistoryStore
from cstp_grpc.decisions.sql_store import SqlDecisionStore
from cstp_grpc.decisions.store import DecisionStore, DeclaredLinks, ErasedRow, JournalEntry, PassageVectors
from cstp_grpc.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.errors import InvalidArgument, QueryFailed
from cstp_grpc.storage.database import Database
from cstp_grpc.storage.pagination import PageRequest
from cstp_grpc.storage.unit_of_work import UnitOfWork
from cstp_grpc.storage.writer import GroupCommitWriter
from tests.decisions.journals import plain
from tests.decisions.strategies import any_text, contents, dates, filters, fractions, sharings
from tests.example_counts import examples

MODEL = "model-a"
NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
EVERYTHING = DecisionFilter()

# Examples share a database; each brings agents of its own, so that none sees another's private decisions.
slow = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Shelf:
    """A store beside what writes to it."""

    def __init__(
        self, open_store: Callable[[ReadPolicy], DecisionStore], writer: GroupCommitWriter, outbox: SqlChangeLog
    ) -> None:
        self.open_store = open_store
        self.store = open_store(SHARE_WITH_ALL)
        self._writer = writer
        self._outbox = outbox

    def add(self, *entries: JournalEntry, vectors: bool = True) -> None:
        """Add decisions, with a vector each."""

        def job(unit_of_work: UnitOfWork) -> None:
            self.store.insert(unit_of_work, self._revised(unit_of_work, entries), NOW)
            if vectors:
                ids = [entry.decision.id for entry in entries]
                self.store.put_vectors(unit_of_work, MODEL, [(key, passages_of(key)) for key in ids])

        self._writer.run(job)

    def replace(self, *entries: JournalEntry) -> None:
        """Replace decisions."""
        self._writer.run(
            lambda unit_of_work: self.store.update(unit_of_work, self._revised(unit_of_work, entries), NOW)
        )

    def declare(self, *declarations: DeclaredLinks) -> set[str]:
        """Replace the links that decisions declare."""
        return self._writer.run(lambda unit_of_work: self.store.declare(unit_of_work, declarations))

    def superseded(self, ids: Sequence[str]) -> set[str]:
        """Return those that are superseded."""
        return self._writer.run(lambda unit_of_work: self.store.find_superseded(unit_of_work, ids))

    def load(self, ids: Sequence[str]) -> dict[str, JournalEntry]:
        """Return entries by id."""
        return self._writer.run(lambda unit_of_work: self.store.load(unit_of_work, ids))

    def find_recorded(self, agent: str, key: str) -> JournalEntry | None:
        """Return what an agent recorded under a key."""
        return self._writer.run(lambda unit_of_work: self.store.find_recorded(unit_of_work, agent, key))

    def put_vectors(self, model: str, *ids: str) -> None:
        """Set vectors."""
        pairs = [(key, passages_of(key)) for key in ids]
        self._writer.run(lambda unit_of_work: self.store.put_vectors(unit_of_work, model, pairs))

    def run(self, statement: str) -> None:
        """Run a statement of SQL."""
        self._writer.run(lambda unit_of_work: unit_of_work.execute(text(statement)))

    def _revised(self, unit_of_work: UnitOfWork, entries: Sequence[JournalEntry]) -> list[tuple[JournalEntry, int]]:
        return [(entry, self._outbox.append(unit_of_work, entry.decision.id)) for entry in entries]


@pytest.fixture
def shelf(database: Database, writer: GroupCommitWriter) -> Shelf:
    outbox = SqlChangeLog(database, writer)
    return Shelf(lambda sharing: SqlDecisionStore(database, sharing), writer, outbox)


def vector_of(key: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(len(key)).random(8, dtype=np.float32)


def passages_of(key: str) -> PassageVectors:
    """Two passages, the second of the lesson."""
    return PassageVectors(np.stack([vector_of(key), -vector_of(key)]), has_lesson=True)


def entry(agent: str = "alice", content: DecisionContent | None = None, **changes: Any) -> JournalEntry:
    """A new decision of an agent; `changes` are fields of its content."""
    said = replace(content or DecisionContent(title="use a queue"), **changes)
    return new_entry(f"dec-{uuid.uuid4().hex[:20]}", said, "hash", agent, NOW)


def shared(decision: Decision) -> bool:
    return decision.visibility is Visibility.SHARED


def all_pages(store: DecisionStore, caller: str, wanted: DecisionFilter, size: int) -> list[Decision]:
    """Every decision of a listing, page by page."""
    found: list[Decision] = []
    token = ""
    while True:
        page = store.page(caller, wanted, PageRequest(size, token))
        assert len(page.items) <= size
        found += page.items
        assert len({item.id for item in found}) == len(found)
        token = page.next_token
        if not token:
            return found
        assert len(page.items) == size


def without_private(decision: Decision, *, source: bool) -> Decision:
    reasons = tuple(replace(reason, text="") for reason in decision.reasons)
    if not source:
        decision = replace(decision, source=None, review_by=None)
    return replace(decision, context=None, reasons=reasons)


def meets(decision: Decision, wanted: DecisionFilter) -> bool:
    """The contract's words on filters, one by one."""
    rules: Iterable[bool] = (
        wanted.category is None or decision.category == wanted.category,
        wanted.project is None or decision.project == wanted.project,
        wanted.agent is None or decision.agent == wanted.agent,
        wanted.without_agent is None or decision.agent != wanted.without_agent,
        wanted.min_confidence is None
        or (decision.confidence is not None and decision.confidence >= wanted.min_confidence),
        wanted.max_confidence is None
        or (decision.confidence is not None and decision.confidence <= wanted.max_confidence),
        wanted.date_after is None or decision.date >= wanted.date_after,
        wanted.date_before is None or decision.date <= wanted.date_before,
        not wanted.stakes or decision.stakes in wanted.stakes,
        not wanted.status or decision.status in wanted.status,
        not wanted.outcome or decision.outcome in wanted.outcome,
        set(wanted.tags) <= set(decision.tags),
    )
    return all(rules)


@slow
@given(content=contents)
@example(content=DecisionContent(title="t", date=datetime.min.replace(tzinfo=UTC)))
@example(content=DecisionContent(title="t", date=datetime.max.replace(tzinfo=UTC), tags=("b", "a")))
@pytest.mark.contract(
    "SqlChangeLog.append",
    "SqlChangeLog.hold",
    "SqlDecisionStore.get",
    "SqlDecisionStore.insert",
    "SqlDecisionStore.load",
    "SqlDecisionStore.put_vectors",
)
def test_a_decision_comes_back_as_it_was_stored(shelf: Shelf, content: DecisionContent) -> None:
    stored = entry(content=content)
    stored = replace(stored, decision=replace(stored.decision, source=stored.decision.id, reviewed_date=NOW))
    shelf.add(stored)
    assert shelf.store.get(stored.decision.id) == stored.decision
    assert shelf.load([stored.decision.id, "dec-none"]) == {stored.decision.id: stored}


@slow
@given(before=contents, after=contents)
def test_an_update_replaces_everything(shelf: Shelf, before: DecisionContent, after: DecisionContent) -> None:
    first = entry(content=before)
    shelf.add(first)
    second = new_entry(first.decision.id, after, "another", "alice", NOW)
    shelf.replace(second)
    assert shelf.load([first.decision.id]) == {first.decision.id: second}
    for tag in {*before.tags, *after.tags}:
        found = all_pages(shelf.store, "alice", DecisionFilter(tags=(tag,)), 1000)
        assert (first.decision.id in [item.id for item in found]) == (tag in after.tags)


def test_what_is_not_there_is_none(shelf: Shelf) -> None:
    assert shelf.store.get("dec-none") is None
    assert shelf.store.get("dec-\0") is None
    assert shelf.store.get_readable([], "alice", EVERYTHING) == {}
    assert shelf.store.get_readable(["dec-none"], "alice", EVERYTHING) == {}
    assert shelf.store.index_rows_of(MODEL, ["dec-none"]) == []
    assert shelf.find_recorded("alice", "key") is None


@slow
@given(data=st.data())
@pytest.mark.contract("SqlDecisionStore.page")
def test_readable_and_pages_hold_what_an_agent_may_read_and_wants(shelf: Shelf, data: st.DataObject) -> None:
    mark = uuid.uuid4().hex
    agents = [f"{name}-{mark}" for name in ("alice", "bob")]
    drawn = data.draw(st.lists(st.tuples(st.sampled_from(agents), contents), max_size=8))
    entries = [entry(agent, content) for agent, content in drawn]
    if entries:
        shelf.add(*entries)
    wanted = data.draw(filters(st.sampled_from(agents)))
    caller = data.draw(st.sampled_from(agents))
    expected = {
        item.decision.id: without_private(item.decision, source=False)
        for item in entries
        if (item.decision.agent == caller or shared(item.decision)) and meets(item.decision, wanted)
    }
    ids = [item.decision.id for item in entries]
    assert shelf.store.get_readable(ids, caller, wanted) == expected
    # A listing shows the caller's own with their dates of review.
    own = {item.decision.id: without_private(item.decision, source=True) for item in entries}
    expected = {key: own[key] if item.agent == caller else item for key, item in expected.items()}
    listed = all_pages(shelf.store, caller, wanted, data.draw(st.integers(1, 4)))
    ours = [item for item in listed if item.agent in agents]
    assert {item.id: item for item in ours} == expected
    assert len(ours) == len(expected)


@pytest.mark.contract("SqlDecisionStore.read_state")
@pytest.mark.parametrize("is_sole_writer", [False, True])
def test_the_state_is_another_one_after_each_change(
    database: Database, writer: GroupCommitWriter, is_sole_writer: bool
) -> None:
    outbox, history = SqlChangeLog(database, writer), SqlHistoryStore(database)
    shelf = Shelf(lambda sharing: SqlDecisionStore(database, sharing, is_sole_writer=is_sole_writer), writer, outbox)
    item = entry()
    key = item.decision.id
    during: list[int] = []

    def delete(unit_of_work: UnitOfWork) -> None:
        shelf.store.delete(unit_of_work, key)
        deleted = DeletedDecision(key, "alice", NOW)
        history.add_deleted(unit_of_work, deleted, outbox.append(unit_of_work, key))
        during.append(shelf.store.read_state())

    states = [shelf.store.read_state()]
    for change, expected in (
        (lambda: shelf.add(item), {key: item.decision.title}),
        (lambda: shelf.replace(renamed(item, "use a cache")), {key: "use a cache"}),
        (lambda: writer.run(delete), {}),
    ):
        change()
        states.append(shelf.store.read_state())
        assert shelf.store.read_state() == states[-1]
        found = shelf.store.get_readable([key], "alice", EVERYTHING)
        assert {each.id: each.title for each in found.values()} == expected
    assert states == sorted(set(states))
    assert during == [states[-2]], "what is not committed yet is no change"


def renamed(item: JournalEntry, title: str) -> JournalEntry:
    """An entry with another title."""
    return replace(item, decision=replace(item.decision, title=title))


@slow
@given(data=st.data())
@pytest.mark.contract("SqlDecisionStore.get_readable", "SqlDecisionStore.update")
def test_readable_shows_every_decision_as_it_is_now(shelf: Shelf, data: st.DataObject) -> None:
    """Another server may have changed it, so that a store must not trust what it read before."""
    known = {item.decision.id: item for item in (entry("alice", data.draw(contents)) for _ in range(3))}
    shelf.add(*known.values())
    reader = shelf.open_store(SHARE_WITH_ALL)
    for caller, changed in data.draw(st.lists(st.tuples(st.sampled_from(["alice", "bob"]), contents), max_size=5)):
        key = data.draw(st.sampled_from(sorted(known)))
        known[key] = new_entry(key, changed, "hash", "alice", NOW)
        shelf.replace(known[key])
        asked = data.draw(st.lists(st.sampled_from(sorted(known)), min_size=1))
        assert reader.get_readable(asked, caller, EVERYTHING) == {
            key: without_private(known[key].decision, source=False)
            for key in asked
            if caller == "alice" or shared(known[key].decision)
        }


@slow
@given(data=st.data())
@pytest.mark.contract("SqlDecisionStore.may_read")
def test_a_peer_reads_its_own_and_what_is_shared_with_peers(shelf: Shelf, data: st.DataObject) -> None:
    mark = uuid.uuid4().hex
    peer, other = (f"{name}-{mark}" for name in ("peer", "alice"))
    drawn = data.draw(st.lists(st.tuples(st.sampled_from([peer, other]), contents), max_size=8))
    entries = [entry(agent, content) for agent, content in drawn]
    if entries:
        shelf.add(*entries)
    sharing = data.draw(sharings(peer))
    wanted = data.draw(filters(st.sampled_from([peer, other])))
    caller = data.draw(st.sampled_from([peer, other]))
    store = shelf.open_store(sharing)

    def read_by_caller(decision: Decision) -> bool:
        if decision.agent == caller:
            return True
        of_category = not sharing.categories or decision.category in sharing.categories
        with_tag = not sharing.tags or any(tag in decision.tags for tag in sharing.tags)
        return shared(decision) and (caller == other or (of_category and with_tag))

    readable = {item.decision.id: item.decision for item in entries if read_by_caller(item.decision)}
    assert [store.may_read(item.decision, caller) for item in entries] == [
        item.decision.id in readable for item in entries
    ]
    expected = {key for key, decision in readable.items() if meets(decision, wanted)}
    assert set(store.get_readable([item.decision.id for item in entries], caller, wanted)) == expected
    listed = all_pages(store, caller, wanted, data.draw(st.integers(1, 4)))
    assert {item.id for item in listed if item.agent in (peer, other)} == expected


def test_texts_that_no_database_keeps_are_shared_as_they_are_kept(shelf: Shelf) -> None:
    item = entry(category="a\ufffdb", tags=("c\ufffdd",), visibility=Visibility.SHARED)
    shelf.add(item)
    store = shelf.open_store(ReadPolicy.of(["bob"], ["a\0b"], ["c\0d"]))
    assert list(store.get_readable([item.decision.id], "bob", EVERYTHING)) == [item.decision.id]


@slow
@given(data=st.data())
def test_paging_returns_each_readable_decision_once_and_the_latest_first(shelf: Shelf, data: st.DataObject) -> None:
    agent = f"alice-{uuid.uuid4().hex}"
    days = data.draw(st.lists(dates, max_size=12))
    entries = [entry(agent, date=day) for day in days]
    if entries:
        shelf.add(*entries)
    listed = all_pages(shelf.store, agent, DecisionFilter(agent=agent), data.draw(st.integers(1, 5)))
    expected = sorted((item.decision for item in entries), key=lambda item: item.id)
    expected.sort(key=lambda item: item.date, reverse=True)
    assert listed == expected


def test_a_listing_tells_the_source_to_the_owner_alone(shelf: Shelf) -> None:
    item = entry(context="private", reasons=(Reason("analysis", "private", 0.5),), visibility=Visibility.SHARED)
    item = replace(item, decision=replace(item.decision, source="docs/0001.md"))
    shelf.add(item)
    own = shelf.store.page("alice", EVERYTHING, PageRequest()).items
    assert own == (without_private(item.decision, source=True),)
    others = shelf.store.page("bob", EVERYTHING, PageRequest()).items
    assert others == (without_private(item.decision, source=False),)


def test_a_page_token_belongs_to_its_listing(shelf: Shelf) -> None:
    shelf.add(*(entry(category="process") for _ in range(3)))
    token = shelf.store.page("alice", EVERYTHING, PageRequest(1)).next_token
    for caller, wanted in (("alice", DecisionFilter(category="process")), ("bob", EVERYTHING)):
        with pytest.raises(InvalidArgument) as raised:
            shelf.store.page(caller, wanted, PageRequest(1, token))
        assert raised.value.violations[0].field == "page_token"


@pytest.mark.parametrize("token", ["x", "====", "ä", "eyJhIjoxfQ", "W10="])
def test_a_page_token_that_nobody_gave_out_is_refused(shelf: Shelf, token: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        shelf.store.page("alice", EVERYTHING, PageRequest(1, token))
    assert raised.value.violations[0].field == "page_token"


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


@pytest.mark.contract("SqlDecisionStore.find_recorded")
def test_a_recorded_decision_is_found_by_agent_and_key(shelf: Shelf) -> None:
    item = replace(entry("alice"), idempotency_key="key")
    other = replace(entry("bob"), idempotency_key="key")
    shelf.add(item, other)
    assert shelf.find_recorded("alice", "key") == item
    assert shelf.find_recorded("bob", "key") == other
    assert shelf.find_recorded("alice", "another") is None


@pytest.mark.contract("SqlDecisionStore.declare")
def test_links_are_those_that_any_decision_declares_of_another(shelf: Shelf) -> None:
    first, second = entry(), entry()
    shelf.add(first, second)
    a, b = first.decision.id, second.decision.id
    shelf.declare(
        DeclaredLinks(a, Links(supersedes=("dec-y", "dec-x"), depends_on=(b,), relates_to=("dec-x",))),
        DeclaredLinks(b, Links(), superseded_by=(a,)),
    )
    stored = shelf.store.get(a)
    assert stored is not None
    assert stored.links.depends_on == (b,)
    assert stored.links.relates_to == ("dec-x",)
    assert stored.links.supersedes == tuple(sorted((b, "dec-x", "dec-y")))
    (shown,) = (item for item in shelf.store.page("alice", EVERYTHING, PageRequest()).items if item.id == a)
    assert shown.links == stored.links


@pytest.mark.contract("SqlDecisionStore.find_successors")
def test_successors_are_those_that_links_of_the_same_agent_name(shelf: Shelf) -> None:
    old, new, newer, foreign = entry(), entry(), entry(), entry("bob")
    shelf.add(old, new, newer, foreign)
    a, b, c, d = (item.decision.id for item in (old, new, newer, foreign))
    shelf.declare(DeclaredLinks(b, Links(supersedes=(a,))), DeclaredLinks(a, Links(), superseded_by=(b, c)))
    shelf.declare(DeclaredLinks(d, Links(supersedes=(a, b))))
    assert shelf.store.find_successors([a, b, "dec-none"]) == {a: sorted([b, c])}


@pytest.mark.contract("SqlDecisionStore.find_superseded")
def test_declaring_again_replaces_only_what_the_decision_declared(shelf: Shelf) -> None:
    first, second = entry(), entry()
    shelf.add(first, second)
    a, b = first.decision.id, second.decision.id
    assert shelf.declare(DeclaredLinks(a, Links(supersedes=(b,)))) == {b}
    assert shelf.declare(DeclaredLinks(b, Links(), superseded_by=(a,))) == {b}
    assert shelf.declare(DeclaredLinks(a, Links(supersedes=("dec-x",)))) == {b, "dec-x"}
    stored = shelf.store.get(a)
    assert stored is not None
    assert stored.links.supersedes == tuple(sorted((b, "dec-x")))
    assert shelf.superseded([a, b, "dec-x"]) == {b}
    assert shelf.declare(DeclaredLinks(b, Links())) == {b}
    assert shelf.superseded([a, b, "dec-x"]) == set()


def test_nobody_supersedes_the_decision_of_another_agent(shelf: Shelf) -> None:
    mine, theirs = entry("alice"), entry("bob")
    shelf.add(mine, theirs)
    shelf.declare(DeclaredLinks(mine.decision.id, Links(supersedes=(theirs.decision.id,))))
    assert shelf.superseded([theirs.decision.id]) == set()


def test_a_database_that_does_not_answer_is_query_failed_without_its_words(shelf: Shelf, database: Database) -> None:
    with database.engine.connect() as connection:
        connection.execute(text("ALTER TABLE decision_vectors RENAME TO hidden_vectors"))
        connection.execute(text("ALTER TABLE decisions RENAME TO hidden_decisions"))
        connection.commit()
    reads = (
        lambda: shelf.store.get("dec-none"),
        lambda: shelf.store.get_readable(["dec-none"], "alice", EVERYTHING),
        lambda: shelf.store.page("alice", EVERYTHING, PageRequest()),
        lambda: list(shelf.store.index_rows(MODEL)),
        lambda: shelf.store.index_rows_of(MODEL, ["dec-none"]),
        lambda: shelf.store.unembedded_decisions(MODEL, 1),
        lambda: shelf.store.embedded_decisions(MODEL, ["dec-none"]),
    )
    for read in reads:
        with pytest.raises(QueryFailed) as raised:
            read()
        assert "decisions" not in raised.value.message


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


@pytest.mark.contract("SqlDecisionStore.restore_links")
def test_links_to_what_was_imported_and_deleted_are_restored(shelf: Shelf, writer: GroupCommitWriter) -> None:
    new, recorded, later = entry(), entry(), entry()
    imported = replace(new, decision=replace(new.decision, source="adr/1"))
    shelf.add(imported, recorded, later)
    first, second, third = (item.decision.id for item in (imported, recorded, later))
    links = Links(supersedes=(first,), depends_on=(second,))
    shelf.declare(DeclaredLinks(third, links, superseded_by=(first,)))

    def delete_and_restore(key: str) -> set[str]:
        writer.run(lambda unit_of_work: shelf.store.delete(unit_of_work, key))
        return writer.run(lambda unit_of_work: shelf.store.restore_links(unit_of_work, [key]))

    assert delete_and_restore(second) == set()
    assert shelf.load([third])[third].decision.links == Links(supersedes=(first,))
    assert delete_and_restore(first) == {first, third}
    assert shelf.load([third])[third].decision.links == Links(supersedes=(first,))
    shelf.add(imported)
    assert shelf.load([first])[first].decision.links == Links(supersedes=(third,))
    # Links of what is deleted itself do not come back: its import declares them.
    assert delete_and_restore(third) == set()
    assert shelf.load([first])[first].decision.links == Links()


@pytest.mark.contract("SqlDecisionStore.delete", "SqlDecisionStore.erased_rows")
def test_what_is_deleted_is_gone_with_its_links(shelf: Shelf, database: Database, writer: GroupCommitWriter) -> None:
    old, middle, new = entry(tags=("api",), review_by=NOW), entry(tags=("api",), review_by=NOW), entry()
    shelf.add(old, middle, new)
    ids = [item.decision.id for item in (old, middle, new)]
    shelf.declare(
        DeclaredLinks(ids[1], Links(supersedes=(ids[0],))), DeclaredLinks(ids[2], Links(depends_on=(ids[1], ids[0])))
    )
    outbox, history = SqlChangeLog(database, writer), SqlHistoryStore(database)

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


@pytest.mark.contract("SqlDecisionStore.add_links", "SqlDecisionStore.remove_links", "SqlDecisionStore.touching_links")
def test_links_are_added_removed_and_found_from_both_ends(shelf: Shelf, writer: GroupCommitWriter) -> None:
    one, two, foreign = entry(), entry(), entry("bob")
    shelf.add(one, two, foreign)
    first, second, third = (item.decision.id for item in (one, two, foreign))
    links = sorted(
        [
            DecisionLink(first, LinkType.SUPERSEDES, second),
            DecisionLink(first, LinkType.RELATES_TO, third),
            DecisionLink(third, LinkType.DEPENDS_ON, second),
        ]
    )
    shelf.declare(DeclaredLinks(second, Links(), superseded_by=(first,)))
    for _ in range(2):
        writer.run(partial(shelf.store.add_links, links=links))
    assert shelf.store.touching_links([first, second, third], 10) == links
    assert shelf.store.touching_links([second], 10) == [link for link in links if link.to_id == second]
    assert shelf.store.touching_links([first], 1) == [link for link in links if link.from_id == first][:1]
    writer.run(partial(shelf.store.remove_links, agent="alice", links=links))
    assert shelf.store.touching_links([second], 10) == [DecisionLink(third, LinkType.DEPENDS_ON, second)]
    assert shelf.store.touching_links(["dec-none"], 10) == []


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
    outbox, history = SqlChangeLog(database, writer), SqlHistoryStore(database)
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
