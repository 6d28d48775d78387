"""The shared intents of the last day: their store on every database, and their copy in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Outcome, Stakes, Visibility
from cstp_grpc.core.intents.model import (
    Intent,
    IntentClosing,
    IntentFilter,
    IntentId,
    IntentKey,
    IntentVector,
    SharedIntent,
    SharedIntentChange,
)
from cstp_grpc.core.intents.related_intents import RECENT_TIME, RecentIntents
from cstp_grpc.core.intents.sql_shared_intents import SqlSharedIntentStore
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import ServerWriter
from tests.paging import walk

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
MODEL = "model-1"
DIMENSIONS = 4
LONG_AGO = NOON - timedelta(days=400)
DONE = IntentClosing(NOON + timedelta(hours=1), Outcome.SUCCESS, "It took an hour", "dec-1")


def vector(*numbers: float) -> IntentVector:
    return np.array(numbers, np.float32)


UP, SIDEWAYS = vector(1, 0, 0, 0), vector(0, 1, 0, 0)


def intent(agent: str = "ada", correlation_id: str = "c-1", content: str = "A", **changed: object) -> Intent:
    made = Intent(
        agent=agent,
        correlation_id=correlation_id,
        content_hash=content,
        received_at=NOON,
        intent=f"Do {content}",
        category="database",
        stakes=Stakes.HIGH,
        project="shop",
        paths=("src/orders",),
        visibility=Visibility.SHARED,
    )
    return replace(made, **changed)  # type: ignore[arg-type]


@dataclass
class Kit:
    """Both stores of intents on a database, written as announcements do."""

    database: Database
    writer: GroupCommitWriter
    now: datetime = NOON
    intents: SqlIntentStore = field(init=False)
    shared: SqlSharedIntentStore = field(init=False)

    def __post_init__(self) -> None:
        self.intents, self.shared = SqlIntentStore(self.database), SqlSharedIntentStore(self.database)

    def recent(self, limit: int = 100) -> RecentIntents:
        return RecentIntents(self.shared, MODEL, DIMENSIONS, lambda: self.now, limit)

    def announce(
        self, announced: Intent, embedded: IntentVector = UP, allowed: bool | None = True, model: str = MODEL
    ) -> SharedIntent:
        def job(unit_of_work: UnitOfWork) -> SharedIntent:
            shared = SharedIntent(self.intents.insert_or_get(unit_of_work, announced), embedded, allowed)
            if announced.visibility is Visibility.SHARED:
                self.shared.put(unit_of_work, model, shared, self.now)
            else:
                self.shared.note_change(unit_of_work, (announced.agent, announced.correlation_id), self.now)
            return shared

        return self.writer.run(job)

    def close(self, key: IntentKey, how: IntentClosing = DONE) -> Intent | None:
        def job(unit_of_work: UnitOfWork) -> Intent | None:
            found = self.intents.find_to_close(unit_of_work, key.agent, key.correlation_id, key.revision)
            if found is not None:
                self.intents.close(unit_of_work, found.key, how)
                self.shared.note_change(unit_of_work, (key.agent, key.correlation_id), self.now)
            return found

        return self.writer.run(job)

    def latest(self, of: Intent) -> Intent | None:
        def job(unit_of_work: UnitOfWork) -> Intent | None:
            return self.intents.find_to_close(unit_of_work, of.agent, of.correlation_id, None)

        return self.writer.run(job)

    def keys(self) -> list[IntentKey]:
        return [shared.intent.key for shared in self.shared.load_recent(MODEL, LONG_AGO, 100)]

    def changes(self, after: int = 0) -> list[str]:
        """The correlation ids of what changed."""
        return [change.intent_id[1] for change in self.shared.changes_after(after, 100)]


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> Kit:
    return Kit(database, writer)


@pytest.mark.contract(
    "SqlSharedIntentStore.put", "SqlSharedIntentStore.load_recent", "SqlSharedIntentStore.load_latest"
)
def test_a_shared_intent_comes_back_with_its_vector_and_verdict_but_not_its_private_parts(kit: Kit) -> None:
    stored = kit.announce(
        intent(context="private", metadata={"private": True}), vector(0.5, 0.25, -1, 0), allowed=False
    )
    (recent,) = kit.shared.load_recent(MODEL, NOON, 10)
    (loaded,) = kit.shared.load_latest(MODEL, [("ada", stored.intent.correlation_id), ("ada", "unknown")])
    for found in (recent, loaded):
        assert (found.intent, found.allowed) == (intent(), False)
        assert found.vector.tolist() == [0.5, 0.25, -1, 0]


def test_a_repetition_replaces_the_verdict(kit: Kit) -> None:
    kit.announce(intent(), allowed=False)
    kit.announce(intent(), allowed=True)
    assert [shared.allowed for shared in kit.shared.load_recent(MODEL, NOON, 10)] == [True]


def test_recent_ones_are_the_latest_shared_revisions_of_a_time_and_a_model(kit: Kit) -> None:
    kit.announce(intent(correlation_id="old", received_at=NOON - timedelta(seconds=1)))
    kit.announce(intent(correlation_id="other model"), model="model-2")
    kit.announce(intent(correlation_id="private", visibility=Visibility.PRIVATE))
    kit.announce(intent(correlation_id="taken back"))
    kit.announce(intent(correlation_id="taken back", content="B", visibility=Visibility.PRIVATE))
    kit.announce(intent(correlation_id="revised"))
    kit.announce(intent(correlation_id="revised", content="B", received_at=NOON + timedelta(seconds=1)))
    kit.announce(intent(correlation_id="latest", received_at=NOON + timedelta(seconds=2)))
    keys = [shared.intent.key for shared in kit.shared.load_recent(MODEL, NOON, 10)]
    assert keys == [IntentKey("ada", "latest", 1), IntentKey("ada", "revised", 2)]
    assert [shared.intent.key for shared in kit.shared.load_recent(MODEL, NOON, 1)] == keys[:1]
    every = [("ada", key) for key in ("private", "taken back", "other model", "revised", "latest", "old")]
    latest = {shared.intent.key for shared in kit.shared.load_latest(MODEL, every)}
    assert latest == {*keys, IntentKey("ada", "old", 1)}


@pytest.mark.contract(
    "SqlSharedIntentStore.note_change", "SqlSharedIntentStore.changes_after", "SqlSharedIntentStore.settled_change"
)
def test_each_change_of_a_shared_intent_is_listed_after_those_before_it(kit: Kit) -> None:
    stored = kit.announce(intent(correlation_id="a"))
    kit.announce(intent(correlation_id="private", visibility=Visibility.PRIVATE))
    kit.announce(intent(correlation_id="b"))
    assert kit.changes() == ["a", "b"]
    reached = kit.shared.settled_change()
    assert kit.changes(reached) == []
    kit.close(stored.intent.key)
    kit.announce(intent(correlation_id="b", content="B", visibility=Visibility.PRIVATE))
    kit.close(IntentKey("ada", "private", 1))
    assert kit.changes(reached) == ["a", "b"]
    assert len(kit.shared.changes_after(0, 3)) == 3


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_change_that_is_committed_late_is_read_all_the_same(kit: Kit) -> None:
    recent = kit.recent()
    recent.refresh()
    with kit.database.open_write_connection() as slow, slow.begin() as transaction:
        unit_of_work = UnitOfWork(slow)
        stored = kit.intents.insert_or_get(unit_of_work, intent(correlation_id="slow"))
        kit.shared.put(unit_of_work, MODEL, SharedIntent(stored, UP, allowed=True), kit.now)
        for number in range(3):
            kit.announce(intent(correlation_id=f"quick-{number}"))
            recent.refresh()
            assert len(recent) == number + 1
        transaction.commit()
    recent.refresh()
    assert len(recent) == 4


@pytest.mark.contract("SqlSharedIntentStore.remove_before")
def test_what_is_not_told_any_more_is_removed_from_memory_and_from_the_database(kit: Kit) -> None:
    recent = kit.recent()
    recent.add(kit.announce(intent(correlation_id="old")))
    kit.now += RECENT_TIME
    recent.add(kit.announce(intent(correlation_id="new", received_at=kit.now)))
    assert not recent.remove_expired(kit.writer)
    assert (len(recent), kit.changes()) == (2, ["old", "new"])
    kit.now += timedelta(seconds=1)
    assert not recent.remove_expired(kit.writer)
    assert (len(recent), kit.changes()) == (1, ["new"])
    assert kit.keys() == [IntentKey("ada", "new", 1)]
    # What follows has greater numbers, also when nothing was left.
    kit.now += 2 * RECENT_TIME
    recent.remove_expired(kit.writer)
    reached = kit.shared.settled_change()
    recent.refresh()
    kit.announce(intent(correlation_id="later", received_at=kit.now))
    recent.refresh()
    assert (len(recent), kit.changes(reached)) == (1, ["later"])


def test_more_than_a_batch_is_removed_in_several_transactions(kit: Kit) -> None:
    for number in range(5):
        kit.announce(intent(correlation_id=f"c-{number}"))

    def remove() -> bool:
        later = NOON + timedelta(days=2)
        return kit.writer.run(lambda unit_of_work: kit.shared.remove_before(unit_of_work, later, 2))

    assert [remove(), remove(), remove()] == [True, True, False]
    assert (kit.keys(), kit.changes()) == ([], [])


def test_only_what_changed_is_read_again(kit: Kit) -> None:
    stored = [kit.announce(intent(correlation_id=f"c-{number}")) for number in range(5)]
    store = Counting(kit.shared)
    recent = RecentIntents(store, MODEL, DIMENSIONS, lambda: kit.now)
    recent.refresh()
    kit.announce(intent(correlation_id="new"))
    kit.close(stored[2].intent.key)
    recent.refresh()
    recent.refresh()
    assert store.loaded == [5, ["c-2", "new"]]
    for number in range(20):
        kit.announce(intent(correlation_id=f"more-{number}"))
    small = RecentIntents(store, MODEL, DIMENSIONS, lambda: kit.now, limit=10)
    small.refresh()
    for number in range(20):
        kit.announce(intent(correlation_id=f"even-more-{number}", received_at=NOON + timedelta(seconds=number)))
    store.loaded.clear()
    small.refresh()
    assert store.loaded == [10]


@pytest.mark.contract("SqlIntentStore.find_to_close", "SqlIntentStore.close")
def test_a_revision_is_found_to_be_closed_and_stays_closed(kit: Kit) -> None:
    first = kit.announce(intent()).intent
    second = kit.announce(intent(content="B")).intent
    assert kit.close(first.key) == first
    assert kit.close(first.key) == replace(first, closing=DONE)
    assert kit.latest(second) == second
    assert kit.close(IntentKey("bob", "c-1", 1)) is None
    assert kit.close(IntentKey("ada", "c-1", 3)) is None


def test_closed_and_open_intents_are_listed_apart(kit: Kit) -> None:
    for number in range(5):
        stored = kit.announce(intent(correlation_id=f"c-{number}"))
        if number % 2:
            kit.close(stored.intent.key)

    def listed(closed: bool | None) -> list[str]:
        found = walk(lambda request: kit.intents.page(IntentFilter(closed=closed), request), [1, 2])
        return [each.correlation_id for each in found]

    assert listed(closed=True) == ["c-3", "c-1"]
    assert listed(closed=False) == ["c-4", "c-2", "c-0"]
    assert len(listed(closed=None)) == 5


def test_closing_is_seen_in_the_states_and_by_a_refresh(kit: Kit) -> None:
    stored = kit.announce(intent())
    recent = kit.recent()
    recent.refresh()
    kit.close(stored.intent.key)
    assert [shared.intent.closing for shared in kit.shared.load_recent(MODEL, NOON, 10)] == [DONE]
    recent.refresh()
    assert [found.intent.closing for found, _ in recent.find_similar(UP, 0.5)] == [DONE]


def test_similar_intents_of_the_last_day_are_found(kit: Kit) -> None:
    kit.announce(intent(correlation_id="alike"), vector(0.6, 0.8, 0, 0))
    kit.announce(intent(correlation_id="same"), UP)
    kit.announce(intent(correlation_id="other"), SIDEWAYS)
    kit.announce(intent(correlation_id="yesterday", received_at=NOON - RECENT_TIME), UP)
    recent = kit.recent()
    recent.refresh()

    def found() -> dict[str, float]:
        return {shared.intent.correlation_id: round(score, 6) for shared, score in recent.find_similar(UP, 0.5)}

    assert found() == {"alike": 0.6, "same": 1.0, "yesterday": 1.0}
    kit.now += timedelta(seconds=1)
    assert found() == {"alike": 0.6, "same": 1.0}


def test_the_oldest_gives_way_to_the_latest(kit: Kit) -> None:
    recent = kit.recent(limit=3)
    for number in range(5):
        recent.add(kit.announce(intent(correlation_id=f"c-{number}", received_at=NOON + timedelta(seconds=number))))
    held = {shared.intent.correlation_id for shared, _ in recent.find_similar(UP, 0.5)}
    recent.refresh()
    assert held == {shared.intent.correlation_id for shared, _ in recent.find_similar(UP, 0.5)} == {"c-2", "c-3", "c-4"}


def test_a_change_of_one_that_has_given_way_does_not_bring_it_back(kit: Kit) -> None:
    recent = kit.recent(limit=2)
    recent.refresh()
    for number in range(3):
        kit.announce(intent(correlation_id=f"c-{number}", received_at=NOON + timedelta(seconds=number)))
        recent.refresh()
    kit.close(intent(correlation_id="c-0").key)
    recent.refresh()
    assert {shared.intent.correlation_id for shared, _ in recent.find_similar(UP, 0.5)} == {"c-1", "c-2"}


@dataclass
class Interrupted(SqlSharedIntentStore):
    """A store during whose reads something else happens."""

    inner: SqlSharedIntentStore
    meanwhile: list[Callable[[], object]]

    def put(self, unit_of_work: UnitOfWork, model: str, shared: SharedIntent, at: datetime) -> None:
        self.inner.put(unit_of_work, model, shared, at)

    def note_change(self, unit_of_work: UnitOfWork, intent_id: IntentId, at: datetime) -> None:
        self.inner.note_change(unit_of_work, intent_id, at)

    def load_recent(self, model: str, since: datetime, limit: int) -> Sequence[SharedIntent]:
        return self._interrupted(self.inner.load_recent(model, since, limit))

    def load_latest(self, model: str, ids: Sequence[IntentId]) -> Sequence[SharedIntent]:
        return self._interrupted(self.inner.load_latest(model, ids))

    def settled_change(self) -> int:
        return self.inner.settled_change()

    def changes_after(self, number: int, limit: int) -> Sequence[SharedIntentChange]:
        return self.inner.changes_after(number, limit)

    def remove_before(self, unit_of_work: UnitOfWork, instant: datetime, limit: int) -> bool:
        return self.inner.remove_before(unit_of_work, instant, limit)

    def _interrupted(self, found: Sequence[SharedIntent]) -> Sequence[SharedIntent]:
        for act in self.meanwhile:
            act()
        return found


class Counting(Interrupted):
    """A store that remembers how many intents it loaded, and those that it was asked for."""

    def __init__(self, inner: SqlSharedIntentStore) -> None:
        super().__init__(inner, [])
        self.loaded: list[int | list[str]] = []

    def load_recent(self, model: str, since: datetime, limit: int) -> Sequence[SharedIntent]:
        found = super().load_recent(model, since, limit)
        self.loaded.append(len(found))
        return found

    def load_latest(self, model: str, ids: Sequence[IntentId]) -> Sequence[SharedIntent]:
        self.loaded.append([correlation_id for _, correlation_id in ids])
        return super().load_latest(model, ids)


@pytest.mark.parametrize("begun", [False, True])
def test_what_is_committed_during_a_refresh_is_not_lost(kit: Kit, *, begun: bool) -> None:
    meanwhile: list[Callable[[], object]] = []
    recent = RecentIntents(Interrupted(kit.shared, meanwhile), MODEL, DIMENSIONS, lambda: NOON)
    if begun:
        recent.refresh()
    first, second = kit.announce(intent(correlation_id="first")), kit.announce(intent(correlation_id="second"))
    meanwhile += [
        lambda: recent.add(kit.announce(intent(correlation_id="third"))),
        lambda: recent.close(first.intent.key, DONE),
        lambda: recent.withdraw(second.intent.key._replace(revision=2)),
    ]
    recent.refresh()
    held = {found.intent.correlation_id: found.intent.closing for found, _ in recent.find_similar(UP, 0.5)}
    assert held == {"first": DONE, "third": None}


CHANGES = st.tuples(
    st.sampled_from(["ada", "bob"]), st.sampled_from(["c-1", "c-2"]), st.sampled_from(["share", "hide", "close"])
)


def test_the_copy_of_the_process_that_writes_is_what_others_refresh_to(kit: Kit) -> None:
    """After any announcements and closings, on the server that took them and on any other."""
    numbers, moments = count(), count()

    @given(st.lists(CHANGES, max_size=12))
    def check(changes: list[tuple[str, str, str]]) -> None:
        run = next(numbers)
        own, other, following = kit.recent(), kit.recent(), kit.recent()
        own.refresh()
        for agent, key, change in changes:
            moment = next(moments)
            kit.now = NOON + timedelta(seconds=moment)
            made = intent(f"{agent} {run}", key, f"{moment}", received_at=kit.now)
            if change == "share":
                own.add(kit.announce(made))
            elif change == "hide":
                own.withdraw(kit.announce(replace(made, visibility=Visibility.PRIVATE)).intent.key)
            else:
                found = kit.latest(made)
                if found is not None:
                    kit.close(found.key)
                    own.close(found.key, DONE)
            if moment % 3 == 0:
                following.refresh()
        other.refresh()
        following.refresh()

        def held(recent: RecentIntents) -> dict[IntentKey, IntentClosing | None]:
            found = (shared.intent for shared, _ in recent.find_similar(UP, 0.5))
            return {each.key: each.closing for each in found if each.agent.endswith(f" {run}")}

        assert held(own) == held(other) == held(following)

    check()


@contextmanager
def another_server(database: Database) -> Iterator[ServerWriter]:
    with closing(ServerWriter(database)) as writer:
        yield writer


def test_servers_that_repeat_the_same_shared_intents_do_not_block_each_other(kit: Kit) -> None:
    with another_server(kit.database) as writer:
        other = Kit(kit.database, writer)
        for number in range(20):
            kit.announce(intent(content=f"{number % 2}"), allowed=number % 3 == 0)
            other.announce(intent(content=f"{number % 2}"), allowed=number % 3 == 1)
    assert kit.keys() == [IntentKey("ada", "c-1", 20)]
