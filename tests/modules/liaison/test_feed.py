from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest

from cstp_grpc.contract.errors import CstpError, QueryFailed, RateLimited, Unavailable
from cstp_grpc.modules.liaison.events import EventFeed, EventSubscription
from cstp_grpc.modules.liaison.model import Event, EventFilter, EventType
from cstp_grpc.modules.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.subscriptions import WatchLimits
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.waiting import SECONDS, wait_until

pytestmark = pytest.mark.above_stores

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
HAPPENED = Event("acme", EventType.MESSAGE_APPENDED, "guide", NOON, session_id="s-1", user_id="u-1")
ACME = EventFilter("acme")


@dataclass
class Watching:
    """A thread that watches, and what it saw."""

    watch: EventSubscription
    seen: list[int] = field(default_factory=list)
    error: CstpError | None = None

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._collect())
        except CstpError as error:
            self.error = error

    async def _collect(self) -> None:
        async for event in self.watch:
            self.seen.append(sequence(event))

    def ended(self) -> bool:
        """Whether the watch ends, at the latest in a while."""
        self._thread.join(SECONDS)
        return not self._thread.is_alive()


@dataclass
class Newsroom:
    """Events in a database, and feeds of them."""

    database: Database
    writer: GroupCommitWriter
    feeds: list[EventFeed] = field(default_factory=list)
    watchings: list[Watching] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = SqlRoutingStore(self.database)

    def feed(
        self,
        max_watchers: int = 10,
        per_agent: int = 10,
        refresh_seconds: float | None = None,
        read: Callable[[], AbstractContextManager[UnitOfWork]] | None = None,
    ) -> EventFeed:
        """Return another feed, as if of another server."""
        read = read or (lambda: self.database.read_snapshot())
        feed = EventFeed(
            self.store,
            read,
            WatchLimits(max_watchers, per_agent, "liaison.max_watchers", "liaison.watchers_per_agent"),
            refresh_seconds,
            asyncio.to_thread,
        )
        self.feeds.append(feed)
        return feed

    def watching(self, watch: EventSubscription) -> Watching:
        """Watch in a thread."""
        watching = Watching(watch)
        self.watchings.append(watching)
        return watching

    def add(self, *events: Event) -> list[int]:
        """Store events in one transaction, tell nobody, and return their sequences."""
        added = self.writer.run(lambda unit_of_work: [self.store.add_event(unit_of_work, event) for event in events])
        return [sequence(event) for event in added]

    def happen(self, feed: EventFeed, *events: Event) -> list[int]:
        """Store events, tell a feed, and return their sequences."""
        sequences = self.add(*events)
        feed.notify()
        return sequences


@pytest.fixture
def newsroom(database: Database, writer: GroupCommitWriter) -> Iterator[Newsroom]:
    newsroom = Newsroom(database, writer)
    yield newsroom
    for feed in newsroom.feeds:
        feed.close()
    assert all(watching.ended() for watching in newsroom.watchings)


def next_event(watch: EventSubscription) -> Event:
    """Wait for the next event of a watch."""

    async def wait() -> Event:
        return await anext(watch)

    return asyncio.run(wait())


def sequence(event: Event) -> int:
    """Return the place of a stored event."""
    assert event.sequence is not None
    return event.sequence


def test_what_happened_comes_first_and_then_what_happens(newsroom: Newsroom) -> None:
    feed = newsroom.feed()
    before = newsroom.happen(feed, HAPPENED, HAPPENED)
    watching = newsroom.watching(feed.watch(ACME, 0, "alice"))
    wait_until(lambda: watching.seen == before, "what happened before is seen")
    later = newsroom.happen(feed, HAPPENED) + newsroom.happen(feed, HAPPENED, HAPPENED)
    wait_until(lambda: watching.seen == before + later, "what happens is seen")


def test_an_event_comes_as_it_was_stored(newsroom: Newsroom) -> None:
    feed = newsroom.feed()
    told = replace(HAPPENED, type=EventType.SESSION_CLAIMED, agent="liaison_content", data={"claimant": "c-1"})
    (place,) = newsroom.happen(feed, told)
    assert next_event(feed.watch(ACME, 0, "alice")) == replace(told, sequence=place)


def test_a_watch_goes_on_after_the_sequence_that_it_is_given(newsroom: Newsroom) -> None:
    feed = newsroom.feed()
    sequences = newsroom.happen(feed, *[HAPPENED] * 5)
    watch = feed.watch(ACME, sequences[1], "alice")
    assert [sequence(next_event(watch)) for _ in range(3)] == sequences[2:]


def test_a_watch_whose_loop_has_ended_is_not_woken(newsroom: Newsroom) -> None:
    """It was notified while it read, so that it never waited."""
    happened: list[int] = []

    @contextmanager
    def read_before_it_happens() -> Iterator[UnitOfWork]:
        with newsroom.database.read_snapshot() as unit_of_work:
            yield unit_of_work
        if not happened:
            happened.extend(newsroom.happen(feed, HAPPENED))

    feed = newsroom.feed(read=read_before_it_happens)
    watch = feed.watch(ACME, 0, "alice")
    assert [sequence(next_event(watch))] == happened
    newsroom.happen(feed, HAPPENED)


def test_without_a_sequence_a_watch_begins_when_it_is_let_in(newsroom: Newsroom) -> None:
    feed = newsroom.feed()
    newsroom.happen(feed, HAPPENED)
    watch = feed.watch(ACME, None, "alice")
    (later,) = newsroom.happen(feed, HAPPENED)
    assert sequence(next_event(watch)) == later


def test_more_events_than_are_read_at_once_all_come_in_their_order(newsroom: Newsroom) -> None:
    feed = newsroom.feed()
    sequences = newsroom.happen(feed, *[HAPPENED] * 250)
    watching = newsroom.watching(feed.watch(ACME, 0, "alice"))
    sequences += newsroom.happen(feed, HAPPENED)
    wait_until(lambda: len(watching.seen) >= len(sequences), "all events are seen")
    assert watching.seen == sequences


@pytest.mark.parametrize(
    ("conditions", "other"),
    [
        (EventFilter("acme"), replace(HAPPENED, tenant="umbrella")),
        (EventFilter("acme", session_id="s-1"), replace(HAPPENED, session_id="s-2")),
        (EventFilter("acme", agent="guide"), replace(HAPPENED, agent="liaison_content")),
        (EventFilter("acme", types=("message_appended",)), replace(HAPPENED, type=EventType.SESSION_CLOSED)),
    ],
    ids=["tenant", "session", "agent", "type"],
)
def test_what_does_not_meet_the_conditions_is_not_seen(
    newsroom: Newsroom, conditions: EventFilter, other: Event
) -> None:
    feed = newsroom.feed()
    watching = newsroom.watching(feed.watch(conditions, 0, "alice"))
    _, first, _ = newsroom.happen(feed, other, HAPPENED, other)
    newsroom.happen(feed, other)
    (second,) = newsroom.happen(feed, HAPPENED)
    wait_until(lambda: len(watching.seen) >= 2, "two events are seen")
    assert watching.seen == [first, second]


@pytest.mark.both_databases
def test_every_watch_sees_all_that_threads_write_at_once_and_in_one_order(newsroom: Newsroom) -> None:
    feed = newsroom.feed()
    watchings = [newsroom.watching(feed.watch(ACME, 0, f"agent-{number}")) for number in range(4)]
    writers = [
        threading.Thread(target=lambda: [newsroom.happen(feed, HAPPENED, HAPPENED) for _ in range(25)])
        for _ in range(4)
    ]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join(SECONDS)
    for watching in watchings:
        wait_until(lambda watching=watching: len(watching.seen) >= 200, "all events are seen")  # type: ignore[misc]
        assert watching.seen == sorted(set(watching.seen))
        assert len(watching.seen) == 200


def test_no_more_watch_than_may_and_who_leaves_makes_room(newsroom: Newsroom) -> None:
    feed = newsroom.feed(max_watchers=2)
    first, second = feed.watch(ACME, 0, "alice"), feed.watch(ACME, 0, "bob")
    with pytest.raises(RateLimited, match="No more watches may be open: the limit is 2") as refused:
        feed.watch(ACME, 0, "carol")
    assert (refused.value.metadata["limit"], refused.value.retry_after) == ("2", None)
    first.cancel()
    third = feed.watch(ACME, 0, "carol")
    with pytest.raises(RateLimited):
        feed.watch(ACME, 0, "dora")
    for watch in (second, third):
        watch.cancel()


def test_an_agent_watches_no_more_than_it_may_and_keeps_nobody_else_from_watching(newsroom: Newsroom) -> None:
    feed = newsroom.feed(per_agent=2)
    held = [feed.watch(ACME, 0, "alice"), feed.watch(ACME, 0, "alice")]
    with pytest.raises(RateLimited, match="alice may open no more watches: the limit of an agent is 2") as refused:
        feed.watch(ACME, 0, "alice")
    assert (refused.value.metadata["limit"], refused.value.retry_after) == ("2", None)
    held += [feed.watch(ACME, 0, "bob"), feed.watch(EventFilter("umbrella"), 0, "alice")]
    held[0].cancel()
    held[0].cancel()
    held.append(feed.watch(ACME, 0, "alice"))
    with pytest.raises(RateLimited):
        feed.watch(ACME, 0, "alice")


def test_a_watch_that_nobody_holds_any_more_has_no_place(newsroom: Newsroom) -> None:
    feed = newsroom.feed(max_watchers=1)
    watch = feed.watch(ACME, 0, "alice")
    del watch
    gc.collect()
    assert feed.watch(ACME, 0, "alice")


def test_a_watch_that_is_cancelled_while_it_waits_ends(newsroom: Newsroom) -> None:
    feed = newsroom.feed()
    sequences = newsroom.happen(feed, HAPPENED)
    watching = newsroom.watching(feed.watch(ACME, 0, "alice"))
    wait_until(lambda: watching.seen == sequences, "the event is seen")
    watching.watch.cancel()
    assert watching.ended()
    assert watching.error is None


def test_a_cancelled_watch_gives_nothing_more_of_what_it_has_read(newsroom: Newsroom) -> None:
    feed = newsroom.feed()
    newsroom.happen(feed, HAPPENED, HAPPENED)
    watch = feed.watch(ACME, 0, "alice")
    next_event(watch)
    watch.cancel()
    with pytest.raises(StopAsyncIteration):
        next_event(watch)


def test_a_server_that_stops_ends_those_who_watch_and_says_why(newsroom: Newsroom) -> None:
    feed = newsroom.feed()
    watchings = [newsroom.watching(feed.watch(ACME, 0, "alice")) for _ in range(3)]
    feed.close()
    assert all(watching.ended() for watching in watchings)
    assert [(type(w.error), str(w.error)) for w in watchings] == [(Unavailable, "the server is stopping")] * 3
    with pytest.raises(Unavailable, match="the server is stopping"):
        feed.watch(ACME, 0, "alice")


@pytest.mark.both_databases
def test_what_another_server_wrote_is_seen_without_a_word(newsroom: Newsroom) -> None:
    watching = newsroom.watching(newsroom.feed(refresh_seconds=0.05).watch(ACME, None, "alice"))
    sequences = newsroom.happen(newsroom.feed(), HAPPENED) + newsroom.happen(newsroom.feed(), HAPPENED)
    wait_until(lambda: watching.seen == sequences, "the events of the other server are seen")


@pytest.mark.contract("SqlRoutingStore.count_events")
def test_a_look_wakes_watches_for_events_of_other_servers(newsroom: Newsroom) -> None:
    feed = newsroom.feed()
    watching = newsroom.watching(feed.watch(ACME, None, "alice"))
    sequences = newsroom.happen(newsroom.feed(), HAPPENED)
    feed.check_for_new()
    wait_until(lambda: watching.seen == sequences, "the event of the other server is seen")


def test_a_database_that_fails_ends_the_watch_and_frees_its_place(newsroom: Newsroom) -> None:
    broken = threading.Event()

    @contextmanager
    def read() -> Iterator[UnitOfWork]:
        with newsroom.database.read_snapshot() as unit_of_work:
            if broken.is_set():
                # What a lost connection looks like.
                unit_of_work.connection.exec_driver_sql("SELECT nothing FROM nowhere")
            yield unit_of_work

    feed = newsroom.feed(max_watchers=1, read=read)
    watching = newsroom.watching(feed.watch(ACME, 0, "alice"))
    broken.set()
    newsroom.happen(feed, HAPPENED)
    assert watching.ended()
    assert isinstance(watching.error, QueryFailed)
    assert "nowhere" not in str(watching.error)
    with pytest.raises(QueryFailed):
        feed.watch(ACME, None, "alice")
    broken.clear()
    assert next_event(feed.watch(ACME, 0, "alice"))
