"""What every store of decisions does, on each kind of database: reading, listing, and finding."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import Phase, example, find, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from cstp_grpc.contract.enums import Visibility
from cstp_grpc.contract.errors import InvalidArgument, QueryFailed
from cstp_grpc.core.decisions.lifecycle import new_entry
from cstp_grpc.core.decisions.model import (
    Decision,
    DecisionContent,
    DecisionFilter,
    DeletedDecision,
    Links,
    Reason,
)
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_history import SqlHistoryStore
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import DeclaredLinks, JournalEntry
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.shelves import (
    EVERYTHING,
    MODEL,
    NOW,
    Shelf,
    all_pages,
    entry,
    meets,
    shared,
    slow,
    without_private,
)
from tests.core.decisions.strategies import CONTENT_FIELDS, contents, dates, filter_fields, filters, sharings


def test_properties_try_every_field_and_know_what_each_condition_leaves_out() -> None:
    """A new field that no strategy draws, or a condition that `meets` does not know, would be tried in vain."""
    conditions = filter_fields(st.just("alice"))
    drawn_from = "tests/core/decisions/strategies.py: list the fields of the class in their order, in"
    assert list(CONTENT_FIELDS) == [field.name for field in fields(DecisionContent)], f"{drawn_from} CONTENT_FIELDS"
    assert list(conditions) == [field.name for field in fields(DecisionFilter)], f"{drawn_from} filter_fields"
    decisions = st.builds(entry, st.sampled_from(["alice", "bob"]), contents).map(lambda item: item.decision)

    def meets_drawn(drawn: tuple[str, Any, Decision]) -> bool:
        name, value, decision = drawn
        return meets(decision, DecisionFilter(**{name: value}))

    once = settings(max_examples=1000, database=None, phases=[Phase.generate])
    for name, values in conditions.items():
        tried = st.tuples(st.just(name), values, decisions)
        assert meets_drawn(find(tried, meets_drawn, settings=once))
        assert not meets_drawn(find(tried, lambda drawn: not meets_drawn(drawn), settings=once))


@slow
@given(content=contents)
@example(content=DecisionContent(title="t", date=datetime.min.replace(tzinfo=UTC)))
@example(content=DecisionContent(title="t", date=datetime.max.replace(tzinfo=UTC), tags=("b", "a")))
@pytest.mark.contract(
    "SqlChangeLog.append",
    "SqlChangeLog.hold",
    "SqlDecisionStore.count",
    "SqlDecisionStore.get",
    "SqlDecisionStore.insert",
    "SqlDecisionStore.load",
    "SqlDecisionStore.put_vectors",
)
def test_a_decision_comes_back_as_it_was_stored(shelf: Shelf, content: DecisionContent) -> None:
    stored = entry(content=content)
    stored = replace(stored, decision=replace(stored.decision, source=stored.decision.id, reviewed_date=NOW))
    count = shelf.store.count()
    shelf.add(stored)
    assert shelf.store.count() == count + 1
    assert shelf.store.get(stored.decision.id) == stored.decision
    assert shelf.load([stored.decision.id, "dec-none"]) == {stored.decision.id: stored}


@pytest.mark.contract("SqlDecisionStore.get_entries", "SqlDecisionStore.insert", "SqlDecisionStore.update")
def test_an_entry_comes_back_with_the_instants_of_its_row(shelf: Shelf) -> None:
    then = NOW - timedelta(days=7, microseconds=1)
    plain, dated = entry(), replace(entry(), recorded_at=then, changed_at=NOW + timedelta(seconds=1))
    shelf.add(plain, dated)
    keys = [plain.decision.id, dated.decision.id]
    found = shelf.store.get_entries([*keys, "dec-none"])
    assert [(found[key].recorded_at, found[key].changed_at) for key in keys] == [
        (NOW, NOW),
        (then, NOW + timedelta(seconds=1)),
    ]
    shelf.replace(replace(found[keys[0]], recorded_at=NOW, changed_at=then), replace(found[keys[1]], changed_at=None))
    found = shelf.store.get_entries(keys)
    assert [(found[key].recorded_at, found[key].changed_at) for key in keys] == [(NOW, then), (then, NOW)]


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


@pytest.mark.contract("SqlDecisionStore.page")
def test_the_bounds_of_a_filter_are_included(shelf: Shelf) -> None:
    item = entry(f"alice-{uuid.uuid4().hex}", date=NOW, confidence=0.5)
    shelf.add(item)
    decision, little = item.decision, timedelta(microseconds=1)
    for wanted, is_found in (
        (DecisionFilter(date_after=NOW, date_before=NOW, min_confidence=0.5, max_confidence=0.5), True),
        (DecisionFilter(date_after=NOW + little), False),
        (DecisionFilter(date_before=NOW - little), False),
        (DecisionFilter(min_confidence=0.51), False),
        (DecisionFilter(max_confidence=0.49), False),
    ):
        assert (decision.id in shelf.store.get_readable([decision.id], decision.agent, wanted)) is is_found
        listed = all_pages(shelf.store, decision.agent, replace(wanted, agent=decision.agent), 10)
        assert [item.id for item in listed] == [decision.id] * is_found


@pytest.mark.contract("SqlDecisionStore.page")
def test_decisions_are_listed_by_the_beginning_of_their_ids(shelf: Shelf) -> None:
    agent = f"alice-{uuid.uuid4().hex}"
    items = [entry(agent) for _ in range(3)]
    shelf.add(*items)

    def listed(prefix: str) -> list[str]:
        page = shelf.store.page(agent, DecisionFilter(agent=agent), PageRequest(1000), None, prefix)
        return sorted(found.id for found in page.items)

    ids = sorted(item.decision.id for item in items)
    assert listed("dec-") == ids
    assert listed(ids[0]) == [ids[0]]
    assert listed(ids[0].upper()) == []


@pytest.mark.contract("SqlDecisionStore.read_state")
@pytest.mark.parametrize("is_sole_writer", [False, True])
def test_the_state_is_another_one_after_each_change(
    database: Database, writer: GroupCommitWriter, is_sole_writer: bool
) -> None:
    outbox, history = SqlChangeLog(database), SqlHistoryStore(database)
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
    peer, other = agents = peer_and_other()
    drawn = data.draw(st.lists(st.tuples(st.sampled_from([peer, other]), contents), min_size=1, max_size=8))
    entries = [entry(agent, content) for agent, content in drawn]
    shelf.add(*entries)
    sharing = data.draw(sharings(peer))
    # Each caller, with a filter and without: of one caller and one filter, a leak is seldom visible.
    for caller, wanted in itertools.product((peer, other), (EVERYTHING, data.draw(filters(st.sampled_from(agents))))):
        assert_reads(shelf.open_store(sharing), sharing, caller, entries, wanted)


@pytest.mark.parametrize("tags", [[], ["api"]])
@pytest.mark.parametrize("categories", [[], ["process"]])
def test_a_peer_reads_nothing_private_whatever_is_shared(shelf: Shelf, categories: list[str], tags: list[str]) -> None:
    peer, other = peer_and_other()
    kinds = itertools.product((peer, other), Visibility, ("process", "architecture"), (("api", "data"), ("data",)))
    entries = [
        entry(agent, visibility=visibility, category=category, tags=tags) for agent, visibility, category, tags in kinds
    ]
    shelf.add(*entries)
    sharing = ReadPolicy.of([peer], categories, tags)
    for caller in (peer, other):
        assert_reads(shelf.open_store(sharing), sharing, caller, entries, EVERYTHING)


def peer_and_other() -> tuple[str, str]:
    """Two agents of their own."""
    mark = uuid.uuid4().hex
    return f"peer-{mark}", f"alice-{mark}"


def assert_reads(
    store: SqlDecisionStore, sharing: ReadPolicy, caller: str, entries: list[JournalEntry], wanted: DecisionFilter
) -> None:
    """Assert that a caller reads its own of the entries, and the shared ones that a peer may read if it is one."""

    def read_by_caller(decision: Decision) -> bool:
        if decision.agent == caller:
            return True
        of_category = not sharing.categories or decision.category in sharing.categories
        with_tag = not sharing.tags or any(tag in decision.tags for tag in sharing.tags)
        return shared(decision) and (caller not in sharing.peers or (of_category and with_tag))

    readable = [item.decision.id for item in entries if read_by_caller(item.decision)]
    assert [item.decision.id for item in entries if store.may_read(item.decision, caller)] == readable
    expected = {item.decision.id for item in entries if item.decision.id in readable and meets(item.decision, wanted)}
    ids = {item.decision.id for item in entries}
    assert set(store.get_readable(sorted(ids), caller, wanted)) == expected
    assert {item.id for item in all_pages(store, caller, wanted, 100) if item.id in ids} == expected


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


@pytest.mark.contract("SqlDecisionStore.find_recorded")
def test_a_recorded_decision_is_found_by_agent_and_key(shelf: Shelf) -> None:
    item = replace(entry("alice"), idempotency_key="key")
    other = replace(entry("bob"), idempotency_key="key")
    shelf.add(item, other)
    assert shelf.find_recorded("alice", "key") == item
    assert shelf.find_recorded("bob", "key") == other
    assert shelf.find_recorded("alice", "another") is None


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
