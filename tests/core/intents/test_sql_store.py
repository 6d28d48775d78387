"""Announced intents on every database."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count, groupby, pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Outcome, Stakes, Visibility
from cstp_grpc.contract.errors import InvalidArgument, QueryFailed
from cstp_grpc.core.intents.model import Intent, IntentClosing, IntentContended, IntentFilter, IntentKey
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import POOL_SIZE, ServerWriter
from tests.paging import walk

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
ALL = PageRequest(1000)
INTENT = Intent(
    agent="emerson",
    correlation_id="550e8400",
    content_hash="hash",
    received_at=NOON,
    claimed_id="emerson-2",
    claimed_url="https://emerson.example/agent.json",
    intent="Move the sessions to Redis",
    context="The table grows by a million rows a day",
    category="architecture",
    stakes=Stakes.HIGH,
    confidence=0.85,
    metadata={"affectsProduction": True, "rolloutPercent": 12.5, "regions": ["eu", None]},
    project="shop",
    paths=("src/sessions", "docs/sessions.md"),
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
INTENTS = st.builds(
    Intent,
    agent=TEXTS,
    correlation_id=st.just(""),
    content_hash=TEXTS,
    received_at=st.datetimes(timezones=st.just(UTC)),
    claimed_id=st.none() | TEXTS,
    claimed_url=st.none() | TEXTS,
    intent=st.none() | TEXTS,
    context=st.none() | TEXTS,
    category=st.none() | TEXTS,
    stakes=st.sampled_from(Stakes),
    confidence=st.none() | st.floats(0, 1),
    metadata=st.none() | st.dictionaries(TEXTS, JSON, max_size=3),
    project=st.none() | TEXTS,
    paths=st.lists(TEXTS, max_size=3).map(tuple),
)

Remember = Callable[[Intent], Intent]


def remember_on(store: SqlIntentStore, writer: GroupCommitWriter) -> Remember:
    """Return a function that stores intents as a server does."""

    def waiting(unit_of_work: UnitOfWork, intent: Intent) -> Intent:
        store.hold(unit_of_work, intent.agent, intent.correlation_id)
        return store.insert_or_get(unit_of_work, intent)

    def remember(intent: Intent) -> Intent:
        try:
            return writer.run(lambda unit_of_work: store.insert_or_get(unit_of_work, intent))
        except IntentContended:
            return writer.run(lambda unit_of_work: waiting(unit_of_work, intent), alone=True)

    return remember


@pytest.fixture
def store(database: Database) -> SqlIntentStore:
    return SqlIntentStore(database)


@pytest.fixture
def remember(store: SqlIntentStore, writer: GroupCommitWriter) -> Remember:
    return remember_on(store, writer)


@pytest.mark.contract("SqlIntentStore.insert_or_get")
def test_every_intent_comes_back_as_it_was(store: SqlIntentStore, remember: Remember) -> None:
    numbers = count()

    @given(INTENTS)
    def check(drawn: Intent) -> None:
        intent = replace(drawn, correlation_id=f"c-{next(numbers)}")
        assert remember(intent) == intent
        assert store.page(IntentFilter(correlation_id=intent.correlation_id), ALL).items == (intent,)

    check()


def test_a_repetition_gets_what_was_stored_first(store: SqlIntentStore, remember: Remember) -> None:
    remember(INTENT)
    again = replace(INTENT, received_at=NOON + timedelta(hours=1), claimed_id="another name")
    assert remember(again) == INTENT
    assert store.page(IntentFilter(), ALL).items == (INTENT,)


def test_another_content_under_the_same_id_is_the_next_revision(store: SqlIntentStore, remember: Remember) -> None:
    first = remember(INTENT)
    second = remember(replace(INTENT, content_hash="other", intent="Move them to Valkey"))
    assert [(intent.revision, intent.previous_revision) for intent in (first, second)] == [(1, None), (2, 1)]
    assert store.page(IntentFilter(), ALL).items == (second, first)


def test_every_change_of_content_is_a_revision(store: SqlIntentStore, remember: Remember) -> None:
    """Whoever announces, in whatever order: also a content that was announced before another one."""
    numbers = count()

    @given(st.lists(st.tuples(st.sampled_from(["ada", "bob"]), st.sampled_from("ABC")), max_size=12))
    def check(announced: list[tuple[str, str]]) -> None:
        key = f"c-{next(numbers)}"
        expected: dict[str, list[str]] = {"ada": [], "bob": []}
        for agent, content in announced:
            if expected[agent][-1:] != [content]:
                expected[agent].append(content)
            stored = remember(replace(INTENT, agent=agent, correlation_id=key, content_hash=content))
            assert (stored.revision, stored.content_hash) == (len(expected[agent]), content)
        for agent, contents in expected.items():
            listed = reversed(store.page(IntentFilter(agent=agent, correlation_id=key), ALL).items)
            assert [(each.revision, each.content_hash) for each in listed] == list(enumerate(contents, start=1))

    check()


def test_agents_do_not_share_correlation_ids(store: SqlIntentStore, remember: Remember) -> None:
    remember(INTENT)
    other = replace(INTENT, agent="other", content_hash="other")
    assert remember(other) == other
    assert set(map(id_of, store.page(IntentFilter(correlation_id="550e8400"), ALL).items)) == {
        ("emerson", "550e8400"),
        ("other", "550e8400"),
    }


def remember_at_once(
    store: SqlIntentStore, database: Database, remember: Remember, wanted: list[Intent]
) -> list[Intent]:
    """Return the intents stored when some reach two servers at the same time."""
    with closing(ServerWriter(database)) as other_server, ThreadPoolExecutor(8) as callers:
        ways = [remember, remember_on(store, other_server)]
        return list(callers.map(lambda pair: ways[pair[0] % 2](pair[1]), enumerate(wanted)))


def test_of_many_repetitions_at_once_one_is_stored(
    store: SqlIntentStore, database: Database, remember: Remember
) -> None:
    wanted = [replace(INTENT, received_at=NOON + timedelta(seconds=second)) for second in range(16)]
    stored = remember_at_once(store, database, remember, wanted)
    assert set(map(id_of, stored)) == {id_of(INTENT)}
    assert len({intent.received_at for intent in stored}) == 1
    assert store.page(IntentFilter(), ALL).items == (stored[0],)


def test_of_many_repetitions_of_a_revision_at_once_one_is_stored(
    store: SqlIntentStore, database: Database, remember: Remember
) -> None:
    remember(INTENT)
    stored = remember_at_once(store, database, remember, [replace(INTENT, content_hash="other")] * 16)
    assert [intent.revision for intent in stored] == [2] * 16
    assert [intent.revision for intent in store.page(IntentFilter(), ALL).items] == [2, 1]


def test_other_contents_at_once_get_other_numbers_without_a_gap(
    store: SqlIntentStore, database: Database, remember: Remember
) -> None:
    wanted = [replace(INTENT, content_hash=f"content {number}") for number in range(32)]
    stored = remember_at_once(store, database, remember, wanted)
    assert sorted(intent.revision for intent in stored) == list(range(1, 33))
    assert [intent.content_hash for intent in stored] == [intent.content_hash for intent in wanted]
    assert set(map(revision_of, store.page(IntentFilter(), ALL).items)) == set(map(revision_of, stored))


def test_mixed_announcements_at_once_leave_chains_in_which_each_changes_something(
    store: SqlIntentStore, database: Database, remember: Remember
) -> None:
    wanted = [
        replace(INTENT, agent=agent, content_hash=content)
        for content, agent, _ in product("ABC", ("ada", "bob"), range(8))
    ]
    stored = remember_at_once(store, database, remember, wanted)
    listed = sorted(store.page(IntentFilter(), ALL).items, key=lambda intent: (intent.agent, intent.revision))
    assert set(map(revision_of, listed)) == set(map(revision_of, stored))
    for _, chain in groupby(listed, key=lambda intent: intent.agent):
        revisions = list(chain)
        assert [intent.revision for intent in revisions] == list(range(1, len(revisions) + 1))
        assert all(before.content_hash != after.content_hash for before, after in pairwise(revisions))


@pytest.mark.contract("SqlIntentStore.hold")
def test_revisions_are_held_before_one_is_added(store: SqlIntentStore, writer: GroupCommitWriter) -> None:
    def add(unit_of_work: UnitOfWork) -> Intent:
        store.hold(unit_of_work, INTENT.agent, INTENT.correlation_id)
        return store.insert_or_get(unit_of_work, INTENT)

    assert [writer.run(add), writer.run(add)] == [INTENT, INTENT]


def test_servers_that_add_to_the_same_intents_in_other_orders_do_not_wait_for_each_other(
    store: SqlIntentStore, database: Database, remember: Remember
) -> None:
    """Each transaction holds several intents, so waiting for one of them could be a deadlock."""
    numbers = random.Random(12)
    wanted = [
        replace(INTENT, correlation_id=f"c-{numbers.randrange(4)}", content_hash=f"{numbers.randrange(3)}")
        for _ in range(400)
    ]
    stored = remember_at_once(store, database, remember, wanted)
    assert [intent.content_hash for intent in stored] == [intent.content_hash for intent in wanted]
    listed = store.page(IntentFilter(), ALL).items
    for key in {intent.correlation_id for intent in wanted}:
        chain = sorted(intent.revision for intent in listed if intent.correlation_id == key)
        assert chain == list(range(1, len(chain) + 1))


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_an_intent_that_another_transaction_adds_is_contended_until_that_ends(
    store: SqlIntentStore, database: Database, remember: Remember
) -> None:
    with database.open_write_connection() as other:
        with other.begin() as transaction:
            store.insert_or_get(UnitOfWork(other), INTENT)
            with database.open_write_connection() as connection, connection.begin():
                with pytest.raises(IntentContended):
                    store.insert_or_get(UnitOfWork(connection), replace(INTENT, content_hash="other"))
                assert store.insert_or_get(UnitOfWork(connection), replace(INTENT, correlation_id="c-2")).revision == 1
            transaction.rollback()
        # Nothing was stored, so there is nothing to revise.
        assert remember(replace(INTENT, content_hash="other")).revision == 1


def revision_of(intent: Intent) -> tuple[str, int, str]:
    return intent.agent, intent.revision, intent.content_hash


def id_of(intent: Intent) -> tuple[str, str]:
    return intent.agent, intent.correlation_id


def test_an_intent_shares_the_fate_of_its_transaction(store: SqlIntentStore, writer: GroupCommitWriter) -> None:
    def job(unit_of_work: UnitOfWork) -> None:
        store.insert_or_get(unit_of_work, INTENT)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        writer.run(job)
    assert store.page(IntentFilter(), ALL).items == ()


def test_text_that_a_database_cannot_keep_is_replaced(store: SqlIntentStore, remember: Remember) -> None:
    remember(replace(INTENT, intent="a\0b", context="\ud800", project="a\0b", paths=("\0", "\ud800/a")))
    (stored,) = store.page(IntentFilter(), ALL).items
    assert (stored.intent, stored.context) == ("a\ufffdb", "\ufffd")
    assert (stored.project, stored.paths) == ("a\ufffdb", ("\ufffd", "\ufffd/a"))


@pytest.mark.contract("SqlIntentStore.page")
def test_large_paths_make_short_pages(store: SqlIntentStore, remember: Remember) -> None:
    paths = tuple(f"{number}/" + "a" * 4000 for number in range(100))
    for number in range(5):
        remember(replace(INTENT, correlation_id=f"c-{number}", paths=paths))
    page = store.page(IntentFilter(), ALL)
    assert 0 < len(page.items) < 5
    assert page.next_token


# Paging


def sample() -> list[Intent]:
    """Return intents of every kind, several at each instant, not in the order of their instants."""
    kinds = product(("ada", "bob"), (None, "security", "data"), sorted(Stakes), range(4))
    return [
        Intent(
            agent=agent,
            correlation_id=f"c-{number // 2}" if agent == "ada" else f"c-{number % 48}-{turn}",
            content_hash="hash",
            received_at=NOON + timedelta(microseconds=number * 7 % 5),
            category=category,
            stakes=stakes,
        )
        for number, (agent, category, stakes, turn) in enumerate(kinds)
        if agent == "bob" or number % 2 == 0
    ]


MOMENTS = st.none() | st.integers(-1, 5).map(lambda distance: NOON + timedelta(microseconds=distance))
FILTERS = st.builds(
    IntentFilter,
    agent=st.sampled_from([None, "ada", "bob", "eve"]),
    correlation_id=st.sampled_from([None, None, None, "c-1", "c-1-1"]),
    category=st.sampled_from([None, None, "security", "data", "none"]),
    stakes=st.lists(st.sampled_from(Stakes), max_size=2).map(tuple),
    after=MOMENTS,
    before=MOMENTS,
)


def meets(intent: Intent, conditions: IntentFilter) -> bool:
    """Say in plain Python what a filter means."""
    wanted = (
        (conditions.agent, intent.agent),
        (conditions.correlation_id, intent.correlation_id),
        (conditions.category, intent.category),
    )
    return (
        all(value is None or value == present for value, present in wanted)
        and (not conditions.stakes or intent.stakes in conditions.stakes)
        and (conditions.after is None or intent.received_at >= conditions.after)
        and (conditions.before is None or intent.received_at <= conditions.before)
    )


def test_pages_hold_every_intent_that_meets_the_conditions_once_and_in_order(
    store: SqlIntentStore, writer: GroupCommitWriter
) -> None:
    writer.run(lambda unit_of_work: [store.insert_or_get(unit_of_work, intent) for intent in sample()])
    stored_last_first = list(reversed(sample()))
    latest_first = sorted(stored_last_first, key=lambda intent: intent.received_at, reverse=True)

    @given(FILTERS, st.lists(st.integers(1, 40), min_size=1, max_size=4))
    def check(conditions: IntentFilter, sizes: list[int]) -> None:
        expected = [intent for intent in latest_first if meets(intent, conditions)]
        assert walk(lambda request: store.page(conditions, request), sizes) == expected

    check()


def test_a_token_is_bound_to_its_conditions(store: SqlIntentStore, remember: Remember) -> None:
    remember(INTENT)
    remember(replace(INTENT, correlation_id="other"))
    token = store.page(IntentFilter(), PageRequest(1)).next_token
    with pytest.raises(InvalidArgument, match="page_token"):
        store.page(IntentFilter(agent="emerson"), PageRequest(1, token))
    with pytest.raises(InvalidArgument, match="page_token"):
        store.page(IntentFilter(), PageRequest(1, "nonsense"))


def test_a_database_that_does_not_answer_is_told_without_its_reasons(empty_database_url: str) -> None:
    database = open_database(empty_database_url, POOL_SIZE)
    with pytest.raises(QueryFailed, match=r"^the journal cannot be read now; try again$"):
        SqlIntentStore(database).page(IntentFilter(), ALL)
    database.close()


@pytest.mark.contract("SqlIntentStore.announced", "SqlIntentStore.settled_number")
def test_announced_intents_are_own_and_shared_ones_in_order(database: Database, writer: GroupCommitWriter) -> None:
    store = SqlIntentStore(database)

    def announce(agent: str, second: int, **fields: Any) -> Intent:
        received = NOON + timedelta(seconds=second)
        new = replace(INTENT, agent=agent, correlation_id=f"c-{second}", received_at=received, **fields)
        return writer.run(lambda unit_of_work: store.insert_or_get(unit_of_work, new))

    start = store.settled_number()
    own = announce("emerson", 1)
    hidden = announce("ada", 2)
    shared = announce("ada", 3, visibility=Visibility.SHARED, stakes=Stakes.LOW)
    found = store.announced("emerson", IntentFilter(), start, None)
    assert [item.intent for item in found] == [own, shared]
    numbers = [item.number for item in found]
    assert [item.intent for item in store.announced("ada", IntentFilter(), start, 1)] == [hidden]
    assert [item.intent for item in store.announced("emerson", IntentFilter(), numbers[0], 9)] == [shared]
    assert store.announced("emerson", IntentFilter(stakes=(Stakes.CRITICAL,)), start, 9) == []
    assert store.settled_number() == store.newest_number() == numbers[1]


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_intents_behind_one_that_is_not_committed_are_not_settled(
    store: SqlIntentStore, database: Database, remember: Remember
) -> None:
    remember(INTENT)
    settled = store.settled_number()
    with database.open_write_connection() as slow, slow.begin() as transaction:
        store.insert_or_get(UnitOfWork(slow), replace(INTENT, correlation_id="slow"))
        # The order of numbers says when a transaction took one, not when the announcement was received.
        remember(replace(INTENT, correlation_id="quick", received_at=NOON + timedelta(days=1)))
        assert store.newest_number() > store.settled_number() >= settled - 1
        transaction.commit()
    assert store.settled_number() == store.newest_number()
    found = store.announced(INTENT.agent, IntentFilter(), settled, None)
    assert [item.intent.correlation_id for item in found] == ["slow", "quick"]


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_transaction_that_adds_nothing_after_all_holds_nothing_up(
    store: SqlIntentStore, database: Database, remember: Remember
) -> None:
    with database.open_write_connection() as other, other.begin() as transaction:
        store.insert_or_get(UnitOfWork(other), INTENT)
        transaction.rollback()
    remember(replace(INTENT, correlation_id="next"))
    assert store.settled_number() == store.newest_number() > 0


@pytest.mark.contract("SqlIntentStore.newest_number")
def test_what_was_taken_back_is_not_told_to_others(store: SqlIntentStore, remember: Remember) -> None:
    assert store.newest_number() == 0
    remember(replace(INTENT, visibility=Visibility.SHARED))
    assert [item.intent.revision for item in store.announced("bob", IntentFilter(), 0, None)] == [1]
    remember(replace(INTENT, content_hash="other", visibility=Visibility.PRIVATE))
    assert store.announced("bob", IntentFilter(), 0, None) == []
    told = store.announced(INTENT.agent, IntentFilter(), 0, None)
    assert [item.intent.revision for item in told] == [1, 2]
    assert store.newest_number() == told[-1].number


@pytest.mark.contract("SqlIntentStore.remove_before")
def test_old_intents_go_batch_by_batch_and_no_number_is_given_again(
    store: SqlIntentStore, writer: GroupCommitWriter, remember: Remember
) -> None:
    intents = [replace(INTENT, correlation_id=f"c-{n}", received_at=NOON + timedelta(days=n)) for n in range(5)]
    for intent in intents:
        remember(intent)
    closing = IntentClosing(NOON, Outcome.SUCCESS, None, None)
    writer.run(lambda unit_of_work: store.close(unit_of_work, IntentKey(INTENT.agent, "c-1", 1), closing))
    newest = store.newest_number()

    def remove(limit: int, days: float) -> int:
        before = NOON + timedelta(days=days)
        return writer.run(lambda unit_of_work: store.remove_before(unit_of_work, before, limit))

    assert remove(10, 0) == 0
    assert remove(1, 2.5) == 1
    # The one that was closed last stays, and so does the newest of all.
    assert remove(10, 2.5) == 1
    assert remove(10, 100) == 1
    left = {intent.correlation_id for intent in store.page(IntentFilter(), ALL).items}
    assert left == {"c-1", "c-4"}
    remember(replace(INTENT, correlation_id="c-5", received_at=NOON))
    assert store.newest_number() > newest
