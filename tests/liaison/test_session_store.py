"""Chat sessions and their messages on every database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.errors import InvalidArgument, QueryFailed
from cstp_grpc.liaison.model import (
    GUIDE,
    ChatMessage,
    MessageContent,
    MessageRole,
    Session,
    SessionFilter,
    SessionStatus,
)
from cstp_grpc.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.storage.database import Database, open_database
from cstp_grpc.storage.pagination import PageRequest
from cstp_grpc.storage.unit_of_work import UnitOfWork
from cstp_grpc.storage.writer import GroupCommitWriter
from tests.databases import POOL_SIZE, ServerWriter
from tests.liaison.strategies import CONTENTS, SESSIONS, TENANT
from tests.paging import walk

T = TypeVar("T")

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ALL = PageRequest(1000)
SESSION = Session(
    tenant=TENANT,
    id="s-1",
    user_id="ada",
    context={"shared_intent": "migrate the reports", "draft": None, "nested": {"é": [1, 2.5, True]}},
    opened_hash="hash",
    created_at=NOON,
    updated_at=NOON,
)
HELLO = MessageContent(MessageRole.USER, "Hello")

Write = Callable[[Callable[[UnitOfWork], T]], T]


def read(sessions: SqlSessionStore, session_id: str = SESSION.id, tenant: str = TENANT) -> Session | None:
    with sessions.read_snapshot() as unit_of_work:
        return sessions.get(unit_of_work, tenant, session_id)


def active(sessions: SqlSessionStore, user_id: str, tenant: str = TENANT) -> Session | None:
    with sessions.read_snapshot() as unit_of_work:
        return sessions.active(unit_of_work, tenant, user_id)


def history(sessions: SqlSessionStore, max_characters: int = 10**9) -> list[ChatMessage]:
    with sessions.read_snapshot() as unit_of_work:
        return sessions.history(unit_of_work, TENANT, SESSION.id, max_characters)


def add(sessions: SqlSessionStore, writer: GroupCommitWriter, session: Session = SESSION) -> bool:
    return writer.run(lambda unit_of_work: sessions.add(unit_of_work, session))


def swap(sessions: SqlSessionStore, writer: GroupCommitWriter, session: Session) -> bool:
    return writer.run(lambda unit_of_work: sessions.replace(unit_of_work, session))


def claim(sessions: SqlSessionStore, writer: GroupCommitWriter, session: Session, now: datetime = NOON) -> bool:
    return writer.run(lambda unit_of_work: sessions.claim(unit_of_work, session, now))


def say(
    sessions: SqlSessionStore, writer: GroupCommitWriter, said: MessageContent = HELLO, session_id: str = SESSION.id
) -> ChatMessage | None:
    return writer.run(lambda unit_of_work: sessions.append(unit_of_work, TENANT, session_id, said, "emerson", NOON))


# Sessions


@pytest.mark.contract(
    "SqlSessionStore.active", "SqlSessionStore.add", "SqlSessionStore.get", "SqlSessionStore.read_snapshot"
)
def test_every_session_comes_back_as_it_was(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    numbers = count()

    @given(SESSIONS)
    def check(drawn: Session) -> None:
        number = next(numbers)
        session = replace(drawn, id=f"{drawn.id}-{number}", user_id=f"{drawn.user_id}-{number}")
        assert add(sessions, writer, session)
        assert read(sessions, session.id) == session
        assert active(sessions, session.user_id) == (session if session.is_open else None)

    check()


@pytest.mark.contract("SqlSessionStore.get_small")
def test_a_session_with_a_large_context_is_not_small(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    add(sessions, writer)
    with sessions.read_snapshot() as unit_of_work:
        for session_id, user_id in ((SESSION.id, ""), (None, SESSION.user_id)):
            assert sessions.get_small(unit_of_work, TENANT, session_id, user_id, 1000) == SESSION
            assert sessions.get_small(unit_of_work, TENANT, session_id, user_id, 10) is None
        assert sessions.get_small(unit_of_work, TENANT, None, "nobody", 1000) is None


def test_what_is_not_there_is_none(sessions: SqlSessionStore) -> None:
    assert read(sessions) is None
    assert active(sessions, "ada") is None
    assert history(sessions) == []


def test_a_taken_identifier_is_not_given_again(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    assert add(sessions, writer)
    assert not add(sessions, writer, replace(SESSION, user_id="bob"))
    assert read(sessions) == SESSION
    assert active(sessions, "bob") is None


@pytest.mark.contract("SqlSessionStore.replace")
def test_a_user_has_one_active_session(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    assert add(sessions, writer)
    second = replace(SESSION, id="s-2")
    assert not add(sessions, writer, second)
    assert add(sessions, writer, replace(second, status=SessionStatus.CLOSED))
    assert active(sessions, "ada") == SESSION
    assert swap(sessions, writer, replace(SESSION, version=2, status=SessionStatus.CLOSED, closed_at=NOON))
    assert active(sessions, "ada") is None
    assert add(sessions, writer, replace(second, id="s-3"))


def test_of_many_openings_at_once_one_is_added(
    sessions: SqlSessionStore, database: Database, writer: GroupCommitWriter
) -> None:
    """Also where they reach different servers."""
    other = ServerWriter(database)
    wanted = [replace(SESSION, id=f"s-{number}") for number in range(16)]
    with ThreadPoolExecutor(8) as callers:
        added = list(callers.map(lambda pair: add(sessions, (writer, other)[pair[0] % 2], pair[1]), enumerate(wanted)))
    other.close()
    assert added.count(True) == 1
    assert active(sessions, "ada") == wanted[added.index(True)]


def test_tenants_do_not_see_each_other(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    theirs = replace(SESSION, tenant="other", context={})
    assert add(sessions, writer)
    assert add(sessions, writer, theirs)
    say(sessions, writer, replace(HELLO, message_id="m-1"))
    assert read(sessions, tenant="other") == theirs
    assert active(sessions, "ada", "other") == theirs
    with sessions.read_snapshot() as unit_of_work:
        assert sessions.message(unit_of_work, "other", SESSION.id, "m-1") is None
        assert sessions.history(unit_of_work, "other", SESSION.id, 1000) == []
        assert sessions.messages(unit_of_work, "other", SESSION.id, ALL).items == ()
        assert sessions.page(unit_of_work, SessionFilter("other"), ALL).items == (theirs,)
    assert swap(sessions, writer, replace(theirs, version=2, active_agent="liaison_content"))
    assert claim(sessions, writer, replace(theirs, version=2, active_agent="liaison_content", claimed_by="me"))
    mine = read(sessions)
    assert mine is not None
    assert (mine.active_agent, mine.claimed_by, mine.message_count) == (GUIDE, None, 1)


def test_text_that_a_database_cannot_keep_is_replaced(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    add(sessions, writer, replace(SESSION, id="a\0b", user_id="\ud800", context={"a\0": "\0"}))
    found = read(sessions, "a\0b")
    assert found is not None
    assert (found.id, found.user_id, found.context) == ("a\ufffdb", "\ufffd", {"a\0": "\0"})
    assert active(sessions, "\ud800") == found


# Changes


def test_a_session_takes_the_place_of_the_version_before_it_alone(
    sessions: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    add(sessions, writer)
    for version in (0, 1, 3):
        assert not swap(sessions, writer, replace(SESSION, version=version, context={}))
    assert read(sessions) == SESSION
    second = replace(SESSION, version=2, context={})
    assert swap(sessions, writer, second)
    assert not swap(sessions, writer, second)
    assert read(sessions) == second


def test_every_change_of_a_session_is_kept(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    versions = count(1)
    add(sessions, writer)

    @given(SESSIONS)
    def check(drawn: Session) -> None:
        before = read(sessions)
        assert before is not None
        after = replace(
            drawn,
            id=before.id,
            user_id=before.user_id,
            opened_hash=before.opened_hash,
            created_at=before.created_at,
            status=SessionStatus.ACTIVE,
            version=next(versions) + 1,
        )
        assert swap(sessions, writer, after)
        assert read(sessions) == replace(after, message_count=0, claimed_by=None, claimed_until=None)

    check()


def test_a_closed_session_is_not_changed(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    add(sessions, writer)
    closed = replace(SESSION, version=2, status=SessionStatus.CLOSED, closed_at=NOON)
    assert swap(sessions, writer, closed)
    assert not swap(sessions, writer, replace(closed, version=3))
    assert not claim(sessions, writer, replace(closed, claimed_by="me", claimed_until=NOON))
    assert say(sessions, writer) is None
    assert read(sessions) == closed
    assert history(sessions) == []


def test_what_a_transaction_does_is_undone_with_it(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    def job(unit_of_work: UnitOfWork) -> None:
        sessions.add(unit_of_work, SESSION)
        sessions.append(unit_of_work, TENANT, SESSION.id, HELLO, "emerson", NOON)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        writer.run(job)
    assert read(sessions) is None
    assert history(sessions) == []


def test_a_locked_session_waits_for_nobody_else(
    sessions: SqlSessionStore, database: Database, writer: GroupCommitWriter
) -> None:
    """Who reads it with the lock and changes it then is never overtaken, whichever server does it."""
    add(sessions, writer, replace(SESSION, context={"count": 0}))
    other = ServerWriter(database)

    def increase(unit_of_work: UnitOfWork) -> bool:
        session = sessions.get(unit_of_work, TENANT, SESSION.id, lock=True)
        assert session is not None
        changed = {"count": session.context["count"] + 1}
        return sessions.replace(unit_of_work, replace(session, version=session.version + 1, context=changed))

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(lambda number: (writer, other)[number % 2].run(increase), range(40)))
    other.close()
    found = read(sessions)
    assert found is not None
    assert (found.version, found.context) == (41, {"count": 40})


def test_servers_that_change_several_sessions_do_not_wait_for_each_other(
    sessions: SqlSessionStore, database: Database, writer: GroupCommitWriter
) -> None:
    """Whatever the order in which each does it within one transaction."""
    names = ["s-1", "s-2", "s-3"]
    for name in names:
        add(sessions, writer, replace(SESSION, id=name, user_id=name))
    together = threading.Barrier(2)

    def turns(order: list[str]) -> None:
        for _ in range(20):
            together.wait(20.0)
            with database.open_write_connection() as connection, connection.begin():
                for name in order:
                    assert sessions.append(UnitOfWork(connection), TENANT, name, HELLO, "emerson", NOON)

    with ThreadPoolExecutor(2) as servers:
        list(servers.map(turns, (names, names[::-1])))
    for name in names:
        found = read(sessions, name)
        assert found is not None
        assert found.message_count == 40


# Handing over


def hand_over(
    sessions: SqlSessionStore, writer: GroupCommitWriter, session: Session, *, with_messages: bool = False
) -> Session | None:
    return writer.run(lambda unit_of_work: sessions.hand_over(unit_of_work, session, with_messages=with_messages))


GIVEN = replace(
    SESSION,
    version=2,
    active_agent="liaison_content",
    routing_epoch=1,
    activation_key="key",
    updated_at=NOON + MINUTE,
)


@pytest.mark.parametrize("with_messages", [False, True])
@pytest.mark.contract("SqlSessionStore.hand_over")
def test_a_session_is_given_to_another_agent(
    sessions: SqlSessionStore, writer: GroupCommitWriter, with_messages: bool
) -> None:
    add(sessions, writer)
    assert hand_over(sessions, writer, GIVEN, with_messages=with_messages) == GIVEN
    assert read(sessions) == GIVEN


def test_the_claim_ends_and_its_number_and_the_messages_stay_when_a_session_is_given_away(
    sessions: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    add(sessions, writer)
    hand_over(sessions, writer, GIVEN)
    claim(sessions, writer, replace(GIVEN, claimed_by="first", claimed_until=NOON + MINUTE, claim_number=1))
    assert say(sessions, writer)
    wanted = replace(GIVEN, version=3, active_agent="liaison_insights", activation_key="other", context={"not": "kept"})
    given = hand_over(sessions, writer, wanted)
    assert given == replace(wanted, message_count=1, claim_number=1)
    assert read(sessions) == replace(given, context=SESSION.context)


@pytest.mark.parametrize(
    "other", [{"version": 1}, {"version": 3}, {"created_at": NOON + MINUTE}, {"user_id": "bob"}, {"id": "unknown"}]
)
def test_a_session_that_has_changed_is_not_given_away(
    sessions: SqlSessionStore, writer: GroupCommitWriter, other: dict[str, object]
) -> None:
    add(sessions, writer)
    assert hand_over(sessions, writer, replace(GIVEN, **other)) is None  # type: ignore[arg-type]
    assert read(sessions) == SESSION


def test_a_session_is_given_away_with_all_its_messages_or_not_at_all(
    sessions: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    add(sessions, writer)
    say(sessions, writer)
    said = read(sessions)
    assert hand_over(sessions, writer, GIVEN, with_messages=True) is None
    assert read(sessions) == said
    counted = replace(GIVEN, message_count=1)
    assert hand_over(sessions, writer, counted, with_messages=True) == counted


def test_a_closed_session_is_not_given_away(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    add(sessions, writer)
    closed = replace(SESSION, version=2, status=SessionStatus.CLOSED, closed_at=NOON)
    swap(sessions, writer, closed)
    assert hand_over(sessions, writer, replace(GIVEN, version=3)) is None
    assert read(sessions) == closed


# Claims

ROUTED = replace(SESSION, version=2, active_agent="liaison_content", routing_epoch=1, activation_key="key")
CLAIMED = replace(ROUTED, claimed_by="first", claimed_until=NOON + MINUTE)


@pytest.fixture
def routed(sessions: SqlSessionStore, writer: GroupCommitWriter) -> Session:
    """A session that a liaison agent has and nobody claimed."""
    add(sessions, writer)
    swap(sessions, writer, ROUTED)
    return ROUTED


def test_a_session_is_claimed_by_one_until_its_time_is_over(
    sessions: SqlSessionStore, writer: GroupCommitWriter, routed: Session
) -> None:
    second = replace(routed, claimed_by="second", claimed_until=NOON + 2 * MINUTE)
    assert claim(sessions, writer, CLAIMED)
    assert read(sessions) == CLAIMED
    assert not claim(sessions, writer, second, NOON + MINUTE - timedelta(microseconds=1))
    assert read(sessions) == CLAIMED
    assert claim(sessions, writer, second, NOON + MINUTE)
    assert read(sessions) == second


def test_who_has_a_session_keeps_it_by_claiming_again(
    sessions: SqlSessionStore, writer: GroupCommitWriter, routed: Session
) -> None:
    longer = replace(CLAIMED, claimed_until=NOON + 2 * MINUTE)
    assert claim(sessions, writer, CLAIMED)
    assert claim(sessions, writer, longer, NOON)
    assert read(sessions) == longer


@pytest.mark.parametrize("other", [{"version": 1}, {"version": 3}, {"active_agent": GUIDE}, {"routing_epoch": 0}])
@pytest.mark.contract("SqlSessionStore.claim")
def test_a_session_that_went_on_is_not_claimed(
    sessions: SqlSessionStore, writer: GroupCommitWriter, routed: Session, other: dict[str, object]
) -> None:
    assert not claim(sessions, writer, replace(CLAIMED, **other))  # type: ignore[arg-type]
    assert read(sessions) == routed


def test_a_claim_stays_while_the_context_changes_and_ends_with_the_hand_over(
    sessions: SqlSessionStore, writer: GroupCommitWriter, routed: Session
) -> None:
    claim(sessions, writer, CLAIMED)
    assert swap(sessions, writer, replace(routed, version=3, context={}))
    assert read(sessions) == replace(CLAIMED, version=3, context={})
    returned = replace(CLAIMED, version=4, active_agent=GUIDE, routing_epoch=2, activation_key=None)
    assert swap(sessions, writer, returned)
    assert read(sessions) == replace(returned, claimed_by=None, claimed_until=None)


def test_a_claim_ends_with_the_session(sessions: SqlSessionStore, writer: GroupCommitWriter, routed: Session) -> None:
    claim(sessions, writer, CLAIMED)
    closed = replace(CLAIMED, version=3, status=SessionStatus.CLOSED, closed_at=NOON)
    assert swap(sessions, writer, closed)
    assert read(sessions) == replace(closed, claimed_by=None, claimed_until=None)


def test_of_many_claimants_one_gets_the_session(
    sessions: SqlSessionStore, database: Database, writer: GroupCommitWriter, routed: Session
) -> None:
    other = ServerWriter(database)
    wanted = [replace(CLAIMED, claimed_by=f"instance-{number}") for number in range(12)]
    with ThreadPoolExecutor(6) as callers:
        got = list(callers.map(lambda pair: claim(sessions, (writer, other)[pair[0] % 2], pair[1]), enumerate(wanted)))
    other.close()
    assert got.count(True) == 1
    assert read(sessions) == wanted[got.index(True)]


# Messages


@pytest.mark.contract("SqlSessionStore.append", "SqlSessionStore.history", "SqlSessionStore.message")
def test_every_message_comes_back_as_it_was(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    expected: list[ChatMessage] = []
    add(sessions, writer)

    @given(CONTENTS, st.booleans())
    def check(drawn: MessageContent, named: bool) -> None:
        said = replace(drawn, message_id=f"m-{len(expected)}" if named else None)
        message = say(sessions, writer, said)
        assert message == ChatMessage(len(expected) + 1, said, GUIDE, "emerson", NOON)
        assert message is not None
        expected.append(message)
        if said.message_id is not None:
            with sessions.read_snapshot() as unit_of_work:
                assert sessions.message(unit_of_work, TENANT, SESSION.id, said.message_id) == message

    check()
    assert history(sessions) == expected


def test_a_message_is_counted_and_changes_no_version(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    add(sessions, writer)
    routed = replace(SESSION, version=2, active_agent="liaison_content")
    swap(sessions, writer, routed)
    later = NOON + MINUTE
    message = writer.run(lambda c: sessions.append(c, TENANT, SESSION.id, HELLO, "emerson", later))
    assert message == ChatMessage(1, HELLO, "liaison_content", "emerson", later)
    assert read(sessions) == replace(routed, message_count=1, updated_at=later)
    assert swap(sessions, writer, replace(routed, version=3, message_count=0))
    found = read(sessions)
    assert found is not None
    assert found.message_count == 1


def test_nothing_is_appended_to_what_is_not_there(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    assert say(sessions, writer) is None
    with sessions.read_snapshot() as unit_of_work:
        assert sessions.message(unit_of_work, TENANT, SESSION.id, "m-1") is None


def test_messages_of_many_at_once_leave_no_gap(
    sessions: SqlSessionStore, database: Database, writer: GroupCommitWriter
) -> None:
    """Also where they reach different servers, and where some are undone."""
    add(sessions, writer)
    other = ServerWriter(database)

    def send(number: int) -> int | None:
        def job(unit_of_work: UnitOfWork) -> int:
            said = MessageContent(MessageRole.USER, str(number))
            message = sessions.append(unit_of_work, TENANT, SESSION.id, said, "emerson", NOON)
            assert message is not None
            if number % 5 == 0:
                raise ValueError("no")
            return message.sequence

        try:
            return (writer, other)[number % 2].run(job)
        except ValueError:
            return None

    with ThreadPoolExecutor(8) as callers:
        sequences = list(callers.map(send, range(60)))
    other.close()
    by_sequence = {sequence: str(number) for number, sequence in enumerate(sequences) if sequence is not None}
    assert sorted(by_sequence) == list(range(1, 49))
    assert {message.sequence: message.body.content for message in history(sessions)} == by_sequence


def test_a_history_ends_with_the_message_that_makes_it_too_long(
    sessions: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    lengths = [3, 1, 4, 1, 5, 9]
    add(sessions, writer)
    for length in lengths:
        say(sessions, writer, MessageContent(MessageRole.USER, "é" * length))
    for limit in range(sum(lengths) + 2):
        contents = [len(message.body.content) for message in history(sessions, limit)]
        assert contents == lengths[: len(contents)]
        assert sum(contents[:-1]) <= limit
        assert sum(contents) > limit or contents == lengths


def test_a_long_history_is_whole(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    def job(unit_of_work: UnitOfWork) -> None:
        for number in range(450):
            said = MessageContent(MessageRole.USER, str(number))
            sessions.append(unit_of_work, TENANT, SESSION.id, said, "emerson", NOON)

    add(sessions, writer)
    writer.run(job)
    assert [message.body.content for message in history(sessions)] == [str(number) for number in range(450)]


def test_a_reader_sees_one_state(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    add(sessions, writer)
    with sessions.read_snapshot() as unit_of_work:
        before = sessions.get(unit_of_work, TENANT, SESSION.id)
        say(sessions, writer)
        assert sessions.history(unit_of_work, TENANT, SESSION.id, 1000) == []
        assert sessions.get(unit_of_work, TENANT, SESSION.id) == before
    assert len(history(sessions)) == 1


# Paging


def test_pages_hold_every_message_once_and_in_order(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    add(sessions, writer)
    add(sessions, writer, replace(SESSION, id="s-2", user_id="bob"))
    for number in range(30):
        say(sessions, writer, MessageContent(MessageRole.USER, str(number)))
        say(sessions, writer, HELLO, "s-2")
    expected = history(sessions)

    @given(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    def check(sizes: list[int]) -> None:
        with sessions.read_snapshot() as unit_of_work:
            listed = walk(lambda request: sessions.messages(unit_of_work, TENANT, SESSION.id, request), sizes)
        assert listed == expected

    check()


@pytest.mark.contract("SqlSessionStore.messages")
def test_large_messages_make_short_pages(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    add(sessions, writer)
    for _ in range(5):
        say(sessions, writer, MessageContent(MessageRole.USER, "a" * 400_000))
    with sessions.read_snapshot() as unit_of_work:
        page = sessions.messages(unit_of_work, TENANT, SESSION.id, ALL)
        assert 0 < len(page.items) < 5
        assert page.next_token
        assert len(walk(lambda request: sessions.messages(unit_of_work, TENANT, SESSION.id, request), [50])) == 5


@pytest.mark.contract("SqlSessionStore.page")
def test_large_contexts_make_short_pages(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    for number in range(5):
        add(sessions, writer, replace(SESSION, id=f"s-{number}", user_id=f"u-{number}", context={"a": "a" * 400_000}))
    with sessions.read_snapshot() as unit_of_work:
        page = sessions.page(unit_of_work, SessionFilter(TENANT), ALL)
        assert 0 < len(page.items) < 5
        assert page.next_token


def sample() -> list[Session]:
    """Return sessions of every kind, several opened at each instant, not in the order of their instants."""
    return [
        replace(
            SESSION,
            tenant=("acme", "other")[number % 7 == 0],
            id=f"s-{number}",
            user_id=("ada", "bob", f"u-{number}")[number % 3],
            active_agent=(GUIDE, "liaison_content")[number % 2],
            status=SessionStatus.ACTIVE if number % 3 == 2 else SessionStatus.CLOSED,
            created_at=NOON + timedelta(microseconds=number * 7 % 5),
        )
        for number in range(60)
    ]


FILTERS = st.builds(
    SessionFilter,
    tenant=st.sampled_from(["acme", "other", "none"]),
    user_id=st.sampled_from([None, None, "ada", "bob", "u-5", "eve"]),
    active_agent=st.sampled_from([None, None, GUIDE, "liaison_content", "liaison_insights"]),
    status=st.none() | st.sampled_from(SessionStatus),
)


def meets(session: Session, conditions: SessionFilter) -> bool:
    """Say in plain Python what a filter means."""
    wanted = (
        (conditions.tenant, session.tenant),
        (conditions.user_id, session.user_id),
        (conditions.active_agent, session.active_agent),
        (conditions.status, session.status),
    )
    return all(value is None or value == present for value, present in wanted)


def test_pages_hold_every_session_that_meets_the_conditions_once_and_in_order(
    sessions: SqlSessionStore, writer: GroupCommitWriter
) -> None:
    stored = sample()
    assert all(writer.run(lambda unit_of_work: [sessions.add(unit_of_work, session) for session in stored]))
    last_first = sorted(stored, key=lambda session: (session.created_at, session.id), reverse=True)

    @given(FILTERS, st.lists(st.integers(1, 20), min_size=1, max_size=4))
    def check(conditions: SessionFilter, sizes: list[int]) -> None:
        expected = [session for session in last_first if meets(session, conditions)]
        with sessions.read_snapshot() as unit_of_work:
            assert walk(lambda request: sessions.page(unit_of_work, conditions, request), sizes) == expected

    check()


def test_a_token_is_bound_to_its_listing(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    for number in range(2):
        add(sessions, writer, replace(SESSION, id=f"s-{number}", user_id=f"u-{number}"))
        for _ in range(2):
            say(sessions, writer, HELLO, f"s-{number}")
    with sessions.read_snapshot() as unit_of_work:
        of_sessions = sessions.page(unit_of_work, SessionFilter(TENANT), PageRequest(1)).next_token
        of_messages = sessions.messages(unit_of_work, TENANT, "s-0", PageRequest(1)).next_token
        assert of_sessions
        assert of_messages
        for token in (of_messages, "nonsense"):
            with pytest.raises(InvalidArgument, match="page_token"):
                sessions.page(unit_of_work, SessionFilter(TENANT), PageRequest(1, token))
        with pytest.raises(InvalidArgument, match="page_token"):
            sessions.page(unit_of_work, SessionFilter(TENANT, user_id="u-1"), PageRequest(1, of_sessions))
        for token in (of_sessions, "nonsense"):
            with pytest.raises(InvalidArgument, match="page_token"):
                sessions.messages(unit_of_work, TENANT, "s-0", PageRequest(1, token))
        for tenant, session_id in ((TENANT, "s-1"), ("other", "s-0")):
            with pytest.raises(InvalidArgument, match="page_token"):
                sessions.messages(unit_of_work, tenant, session_id, PageRequest(1, of_messages))


def test_a_database_that_does_not_answer_is_told_without_its_reasons(empty_database_url: str) -> None:
    database = open_database(empty_database_url, POOL_SIZE)
    with pytest.raises(QueryFailed, match=r"^the journal cannot be read now; try again$"):
        read(SqlSessionStore(database))
    database.close()
