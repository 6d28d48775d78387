"""Shares, activations, events and heartbeats on every database."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.errors import InternalError
from cstp_grpc.modules.liaison.model import (
    Activation,
    DeliveryState,
    Event,
    EventFilter,
    EventType,
    RoutingDecision,
    Session,
    Share,
)
from cstp_grpc.modules.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.delivery_queue import Backlog
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import ServerWriter
from tests.modules.liaison.strategies import ACTIVATIONS, EVENTS, SHARES, TENANT
from tests.waiting import wait_until

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
AGENT = "liaison_content"
SHARE = Share(
    tenant=TENANT,
    id="key",
    source_agent="guide",
    target_agent=AGENT,
    conversation_id="s-1",
    shared_context={"shared_intent": "migrate the reports", "draft": None},
    context_hash="hash",
    shared_by="emerson",
    shared_at=NOON,
    next_attempt_at=NOON,
)
EVENT = Event(TENANT, EventType.SESSION_OPENED, "guide", NOON, session_id="s-1", user_id="ada")
ACTIVATION = Activation(
    pillar="content",
    decision=RoutingDecision("guide", AGENT, "The user wants to upload files", NOON, "key"),
    shared_context=SHARE.shared_context,
    session=Session(TENANT, "s-1", "ada", {}, "hash", NOON, NOON, active_agent=AGENT, activation_key="key"),
    event=replace(EVENT, type=EventType.LIAISON_AGENT_ACTIVATED, sequence=1),
    execution_id="request",
)


@pytest.fixture
def reader(database: Database) -> SqlSessionStore:
    """What gives connections for reading."""
    return SqlSessionStore(database)


def share_of(routing: SqlRoutingStore, reader: SqlSessionStore, share_id: str = SHARE.id) -> Share | None:
    with reader.read_snapshot() as unit_of_work:
        return routing.share(unit_of_work, TENANT, share_id)


def activation_of(
    routing: SqlRoutingStore, reader: SqlSessionStore, key: str, tenant: str = TENANT
) -> Activation | None:
    with reader.read_snapshot() as unit_of_work:
        return routing.activation(unit_of_work, tenant, key)


def events_of(
    routing: SqlRoutingStore, reader: SqlSessionStore, conditions: EventFilter, after: int = 0, limit: int = 1000
) -> Sequence[Event]:
    with reader.read_snapshot() as unit_of_work:
        return routing.events(unit_of_work, conditions, after, limit)


def add_share(routing: SqlRoutingStore, writer: GroupCommitWriter, share: Share = SHARE) -> bool:
    return writer.run(lambda unit_of_work: routing.add_share(unit_of_work, share))


def add_event(routing: SqlRoutingStore, writer: GroupCommitWriter, event: Event = EVENT) -> Event:
    return writer.run(lambda unit_of_work: routing.add_event(unit_of_work, event))


def delivered(routing: SqlRoutingStore, writer: GroupCommitWriter, share: Share) -> bool:
    return writer.run(lambda unit_of_work: routing.update_delivery(unit_of_work, share))


def take_due(
    routing: SqlRoutingStore, writer: GroupCommitWriter, now: datetime = NOON, limit: int = 100
) -> list[Share]:
    return writer.run(lambda unit_of_work: routing.take_due(unit_of_work, now, now + MINUTE, limit))


def next_due(routing: SqlRoutingStore, reader: SqlSessionStore) -> datetime | None:
    with reader.read_snapshot() as unit_of_work:
        return routing.next_due(unit_of_work)


# Activations


def activate(routing: SqlRoutingStore, writer: GroupCommitWriter, tenant: str, activation: Activation) -> None:
    """Add an activation with its share, as a routing does."""
    share = replace(SHARE, tenant=tenant, id=activation.key, shared_context=activation.shared_context)

    def job(unit_of_work: UnitOfWork) -> None:
        routing.add_share(unit_of_work, share)
        routing.add_activation(unit_of_work, tenant, activation)

    writer.run(job)


@pytest.mark.contract("SqlRoutingStore.activation", "SqlRoutingStore.add_activation")
def test_every_activation_comes_back_as_it_was(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    numbers = count()

    @given(ACTIVATIONS)
    def check(drawn: Activation) -> None:
        key = f"{drawn.key}-{next(numbers)}"
        activation = replace(drawn, decision=replace(drawn.decision, idempotency_key=key))
        activate(routing, writer, TENANT, activation)
        assert activation_of(routing, reader, key) == activation

    check()


def test_a_key_activates_once_in_its_tenant(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    theirs = replace(ACTIVATION, execution_id="theirs")
    activate(routing, writer, TENANT, ACTIVATION)
    assert activation_of(routing, reader, "key", "other") is None
    activate(routing, writer, "other", theirs)
    with pytest.raises(InternalError):
        activate(routing, writer, TENANT, theirs)
    assert activation_of(routing, reader, "key") == ACTIVATION
    assert activation_of(routing, reader, "key", "other") == theirs
    assert activation_of(routing, reader, "another") is None


# Shares


@pytest.mark.contract("SqlRoutingStore.add_share", "SqlRoutingStore.share")
def test_every_share_comes_back_as_it_was(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    numbers = count()

    @given(SHARES)
    def check(drawn: Share) -> None:
        share = replace(drawn, id=f"{drawn.id}-{next(numbers)}")
        assert add_share(routing, writer, share)
        assert share_of(routing, reader, share.id) == share

    check()


def test_a_taken_identifier_is_not_given_again(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    assert add_share(routing, writer)
    assert not add_share(routing, writer, replace(SHARE, context_hash="other"))
    assert add_share(routing, writer, replace(SHARE, tenant="other", context_hash="other"))
    assert share_of(routing, reader) == SHARE
    assert share_of(routing, reader, "another") is None


def test_text_that_a_database_cannot_keep_is_replaced(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    add_share(routing, writer, replace(SHARE, id="a\0b", conversation_id="\ud800", source_agent="\0"))
    found = share_of(routing, reader, "a\0b")
    assert found is not None
    assert (found.id, found.conversation_id, found.source_agent) == ("a\ufffdb", "\ufffd", "\ufffd")
    done = replace(found, id="a\0b", task_id="\0", delivery=DeliveryState.DELIVERED)
    assert delivered(routing, writer, done)
    event = add_event(routing, writer, replace(EVENT, session_id="a\0b", agent="\0"))
    (stored,) = events_of(routing, reader, EventFilter(TENANT, session_id="a\0b", agent="\0"))
    assert stored == replace(event, session_id="a\ufffdb", agent="\ufffd")


# Deliveries


@pytest.mark.parametrize("state", [DeliveryState.DELIVERED, DeliveryState.FAILED])
def test_what_became_of_a_delivery_is_written_once(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter, state: DeliveryState
) -> None:
    add_share(routing, writer)
    tried = replace(SHARE, attempts=1, next_attempt_at=NOON + MINUTE)
    ended = replace(tried, delivery=state, attempts=2, next_attempt_at=None, task_id="task", delivered_at=NOON)
    for share in (tried, ended):
        assert delivered(routing, writer, share)
        assert share_of(routing, reader) == share
    assert not delivered(routing, writer, tried)
    assert not delivered(routing, writer, replace(ended, id="another"))
    assert share_of(routing, reader) == ended


@pytest.mark.contract("SqlRoutingStore.update_delivery")
def test_the_delivery_alone_is_written(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    add_share(routing, writer)
    other = replace(SHARE, target_agent="other", shared_context={}, context_hash="other", attempts=1)
    assert delivered(routing, writer, other)
    assert share_of(routing, reader) == replace(SHARE, attempts=1)


@pytest.mark.contract("SqlDeliveryQueue.take_due", "SqlRoutingStore.postpone")
def test_due_shares_are_taken_once_and_the_longest_due_first(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    waits = {"later": 1, "now": 0, "before": -2, "long": -3, "just": -1}
    for name, minutes in waits.items():
        add_share(routing, writer, replace(SHARE, id=name, next_attempt_at=NOON + minutes * MINUTE))
    add_share(routing, writer, replace(SHARE, id="nothing to do", next_attempt_at=None))
    add_share(routing, writer, replace(SHARE, tenant="other", next_attempt_at=NOON - 4 * MINUTE))
    first, second = take_due(routing, writer, limit=2), take_due(routing, writer, limit=2)
    assert [share.id for share in first + second] == ["key", "long", "before", "just"]
    assert first[1] == replace(SHARE, id="long", next_attempt_at=NOON + MINUTE)
    assert share_of(routing, reader, "long") == first[1]
    assert [share.id for share in take_due(routing, writer)] == ["now"]
    assert take_due(routing, writer) == []
    assert len(take_due(routing, writer, NOON + MINUTE)) == len(waits) + 1


@pytest.mark.contract("SqlDeliveryQueue.next_due")
def test_what_was_delivered_is_due_no_more(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    assert next_due(routing, reader) is None
    add_share(routing, writer, replace(SHARE, id="later", next_attempt_at=NOON + MINUTE))
    assert next_due(routing, reader) == NOON + MINUTE
    add_share(routing, writer)
    assert next_due(routing, reader) == NOON
    done = replace(SHARE, delivery=DeliveryState.DELIVERED, next_attempt_at=None, delivered_at=NOON)
    delivered(routing, writer, done)
    assert next_due(routing, reader) == NOON + MINUTE
    assert [share.id for share in take_due(routing, writer, NOON + MINUTE)] == ["later"]


@pytest.mark.contract("SqlDeliveryQueue.read_backlog")
def test_the_backlog_counts_what_waits_since_it_was_shared(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    def read() -> Backlog:
        with reader.read_snapshot() as unit_of_work:
            return routing.read_backlog(unit_of_work, NOON)

    assert read() == Backlog(0, None)
    add_share(routing, writer, replace(SHARE, id="nothing to do", next_attempt_at=None))
    add_share(routing, writer, replace(SHARE, id="later", shared_at=NOON - MINUTE, next_attempt_at=NOON + MINUTE))
    add_share(routing, writer, replace(SHARE, tenant="other"))
    assert read() == Backlog(2, NOON - MINUTE)


def test_servers_never_take_the_same_share(
    routing: SqlRoutingStore, database: Database, writer: GroupCommitWriter
) -> None:
    names = {f"share-{number}" for number in range(60)}

    def fill(unit_of_work: UnitOfWork) -> None:
        for name in names:
            routing.add_share(unit_of_work, replace(SHARE, id=name))

    def take_all(server: GroupCommitWriter) -> list[str]:
        taken: list[str] = []
        while batch := take_due(routing, server, limit=3):
            taken += [share.id for share in batch]
        return taken

    writer.run(fill)
    other = ServerWriter(database)
    with ThreadPoolExecutor(4) as servers:
        taken = [name for found in servers.map(take_all, (writer, other, writer, other)) for name in found]
    other.close()
    assert len(taken) == len(names)
    assert set(taken) == names


# Events


@pytest.mark.contract("SqlRoutingStore.add_event", "SqlRoutingStore.events", "SqlRoutingStore.last_sequence")
def test_every_event_comes_back_as_it_was(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    last = 0

    @given(EVENTS)
    def check(event: Event) -> None:
        nonlocal last
        stored = add_event(routing, writer, event)
        assert stored.sequence is not None
        assert stored.sequence == last + 1
        assert replace(stored, sequence=None) == event
        assert events_of(routing, reader, EventFilter(TENANT), last) == [stored]
        with reader.read_snapshot() as unit_of_work:
            assert routing.last_sequence(unit_of_work, TENANT) == stored.sequence
        last = stored.sequence

    with reader.read_snapshot() as unit_of_work:
        assert routing.last_sequence(unit_of_work, TENANT) == 0
    check()


def test_the_events_of_each_tenant_are_counted_by_themselves(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    mixed = [add_event(routing, writer, replace(EVENT, tenant=tenant)) for tenant in ("a", "b", "a", "a", "b")]
    assert [event.sequence for event in mixed] == [1, 1, 2, 3, 2]
    with reader.read_snapshot() as unit_of_work:
        last = [routing.last_sequence(unit_of_work, tenant) for tenant in ("a", "b", "c")]
    assert last == [3, 2, 0]
    assert events_of(routing, reader, EventFilter("a"), after=1) == [mixed[2], mixed[3]]


FILTERS = st.builds(
    EventFilter,
    tenant=st.sampled_from([TENANT, "other", "none"]),
    session_id=st.sampled_from([None, "s-0", "s-1", "s-9"]),
    agent=st.sampled_from([None, "guide", AGENT, "nobody"]),
    types=st.lists(st.sampled_from([*EventType, "unknown"]), max_size=3).map(tuple),
)


def meets(event: Event, conditions: EventFilter) -> bool:
    """Say in plain Python what a filter means."""
    return (
        event.tenant == conditions.tenant
        and conditions.session_id in (None, event.session_id)
        and conditions.agent in (None, event.agent)
        and (not conditions.types or event.type in conditions.types)
    )


def test_events_that_meet_the_conditions_come_in_their_order(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    kinds = list(EventType)
    drafts = [
        replace(
            EVENT,
            tenant=(TENANT, "other")[number % 5 == 0],
            type=kinds[number % len(kinds)],
            session_id=(None, "s-0", "s-1")[number % 3],
            agent=("guide", AGENT)[number % 2],
        )
        for number in range(60)
    ]
    stored = writer.run(lambda unit_of_work: [routing.add_event(unit_of_work, draft) for draft in drafts])

    @given(FILTERS, st.integers(0, 62), st.integers(1, 61))
    def check(conditions: EventFilter, after: int, limit: int) -> None:
        expected = [event for event in stored if meets(event, conditions) and (event.sequence or 0) > after]
        assert events_of(routing, reader, conditions, after, limit) == expected[:limit]

    check()


def test_a_sequence_is_never_used_again_and_an_undone_event_is_gone(
    routing: SqlRoutingStore, reader: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    def job(unit_of_work: UnitOfWork) -> None:
        routing.add_event(unit_of_work, EVENT)
        raise ValueError("no")

    first = add_event(routing, writer)
    with pytest.raises(ValueError, match="no"):
        writer.run(job)
    second = add_event(routing, writer)
    assert events_of(routing, reader, EventFilter(TENANT)) == [first, second]


def test_no_event_appears_before_one_that_was_read(
    routing: SqlRoutingStore, reader: SqlSessionStore, database: Database, writer: GroupCommitWriter
) -> None:
    """Who goes on from the last sequence that it saw misses nothing, whichever servers write."""
    other = ServerWriter(database)
    ended = threading.Event()
    seen: list[Event] = []

    def watch() -> None:
        while not ended.is_set():
            seen.extend(events_of(routing, reader, EventFilter(TENANT), seen[-1].sequence or 0 if seen else 0))

    with ThreadPoolExecutor(9) as threads:
        watching = threads.submit(watch)
        servers = (writer, other)
        try:
            added = list(threads.map(lambda number: add_event(routing, servers[number % 2]), range(100)))
            wait_until(lambda: len(seen) >= len(added) or watching.done(), "all events seen")
        finally:
            ended.set()
        watching.result()
    other.close()
    assert seen == sorted(added, key=lambda event: event.sequence or 0)


# Heartbeats
