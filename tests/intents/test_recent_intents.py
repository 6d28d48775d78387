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

from cstp_grpc.enums import Outcome, Stakes, Visibility
from cstp_grpc.intents.model import (
    Intent,
    IntentClosing,
    IntentFilter,
    IntentKey,
    IntentVector,
    SharedIntent,
    SharedIntentState,
)
from cstp_grpc.intents.recent_intents import RECENT_TIME, RecentIntents
from cstp_grpc.intents.sql_shared_intents import SqlSharedIntentStore
from cstp_grpc.intents.sql_store import SqlIntentStore
from cstp_grpc.storage.database import Database
from cstp_grpc.storage.unit_of_work import UnitOfWork
from cstp_grpc.storage.writer import GroupCommitWriter
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
                self.shared.put(unit_of_work, model, shared)
            return shared

        return self.writer.run(job)

    def close(self, key: IntentKey, how: IntentClosing = DONE) -> Intent | None:
        def job(unit_of_work: UnitOfWork) -> Intent | None:
            found = self.intents.find_to_close(unit_of_work, key.agent, key.correlation_id, key.revision)
            if found is not None:
                self.intents.close(unit_of_work, found.key, how)
            return found

        return self.writer.run(job)

    def latest(self, of: Intent) -> Intent | None:
        def job(unit_of_work: UnitOfWork) -> Intent | None:
            return self.intents.find_to_close(unit_of_work, of.agent, of.correlation_id, None)

        return self.writer.run(job)

    def keys(self) -> list[IntentKey]:
        return [state.key for state in self.shared.states(MODEL, LONG_AGO, 100)]


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> Kit:
    return Kit(database, writer)


@pytest.mark.contract("SqlSharedIntentStore.put", "SqlSharedIntentStore.load", "SqlSharedIntentStore.states")
def test_a_shared_intent_comes_back_with_its_vector_and_verdict_but_not_its_private_parts(kit: Kit) -> None:
    stored = kit.announce(
        intent(context="private", metadata={"private": True}), vector(0.5, 0.25, -1, 0), allowed=False
    )
    (state,) = kit.shared.states(MODEL, NOON, 10)
    (loaded,) = kit.shared.load(MODEL, [state.key, IntentKey("ada", "unknown", 1)])
    assert state == SharedIntentState(stored.intent.key, allowed=False, closing=None)
    assert (loaded.intent, loaded.allowed) == (intent(), False)
    assert loaded.vector.tolist() == [0.5, 0.25, -1, 0]


def test_a_repetition_replaces_the_verdict(kit: Kit) -> None:
    kit.announce(intent(), allowed=False)
    kit.announce(intent(), allowed=True)
    assert [state.allowed for state in kit.shared.states(MODEL, NOON, 10)] == [True]


def test_states_are_the_latest_shared_revisions_of_a_time_and_a_model(kit: Kit) -> None:
    kit.announce(intent(correlation_id="old", received_at=NOON - timedelta(seconds=1)))
    kit.announce(intent(correlation_id="other model"), model="model-2")
    kit.announce(intent(correlation_id="private", visibility=Visibility.PRIVATE))
    kit.announce(intent(correlation_id="taken back"))
    kit.announce(intent(correlation_id="taken back", content="B", visibility=Visibility.PRIVATE))
    kit.announce(intent(correlation_id="revised"))
    kit.announce(intent(correlation_id="revised", content="B", received_at=NOON + timedelta(seconds=1)))
    kit.announce(intent(correlation_id="latest", received_at=NOON + timedelta(seconds=2)))
    keys = [state.key for state in kit.shared.states(MODEL, NOON, 10)]
    assert keys == [IntentKey("ada", "latest", 1), IntentKey("ada", "revised", 2)]
    assert [state.key for state in kit.shared.states(MODEL, NOON, 1)] == keys[:1]


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
    assert [state.closing for state in kit.shared.states(MODEL, NOON, 10)] == [DONE]
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


@dataclass
class Interrupted:
    """A store during whose reads something else happens."""

    inner: SqlSharedIntentStore
    meanwhile: list[Callable[[], object]]

    def put(self, unit_of_work: UnitOfWork, model: str, shared: SharedIntent) -> None:
        self.inner.put(unit_of_work, model, shared)

    def states(self, model: str, since: datetime, limit: int) -> Sequence[SharedIntentState]:
        states = self.inner.states(model, since, limit)
        for act in self.meanwhile:
            act()
        return states

    def load(self, model: str, keys: Sequence[IntentKey]) -> Sequence[SharedIntent]:
        return self.inner.load(model, keys)


def test_what_is_committed_during_a_refresh_is_not_lost(kit: Kit) -> None:
    first, second = kit.announce(intent(correlation_id="first")), kit.announce(intent(correlation_id="second"))
    meanwhile: list[Callable[[], object]] = []
    recent = RecentIntents(Interrupted(kit.shared, meanwhile), MODEL, DIMENSIONS, lambda: NOON)
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
        own, other = kit.recent(), kit.recent()
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
        other.refresh()

        def held(recent: RecentIntents) -> dict[IntentKey, IntentClosing | None]:
            found = (shared.intent for shared, _ in recent.find_similar(UP, 0.5))
            return {each.key: each.closing for each in found if each.agent.endswith(f" {run}")}

        assert held(own) == held(other)

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
