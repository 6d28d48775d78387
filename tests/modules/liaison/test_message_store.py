"""The messages of chat sessions, and pages of both, on every database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.modules.liaison.model import (
    GUIDE,
    ChatMessage,
    MessageContent,
    MessageRole,
    Session,
    SessionFilter,
    SessionStatus,
)
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import ServerWriter
from tests.modules.liaison.stored_sessions import ALL, HELLO, MINUTE, NOON, SESSION, add, history, read, say, swap
from tests.modules.liaison.strategies import CONTENTS, TENANT
from tests.paging import walk

# Messages


@pytest.mark.contract("SqlSessionStore.append", "SqlSessionStore.history", "SqlSessionStore.message")
def test_every_message_comes_back_as_it_was(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    expected: list[ChatMessage] = []
    add(sessions, writer)

    @given(drawn=CONTENTS, named=st.booleans())
    @example(drawn=HELLO, named=True)
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
