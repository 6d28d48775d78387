"""Chat sessions and their messages on every database."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given

from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.modules.liaison.model import (
    GUIDE,
    Session,
    SessionFilter,
    SessionStatus,
)
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import POOL_SIZE, ServerWriter
from tests.modules.liaison.stored_sessions import (
    ALL,
    HELLO,
    NOON,
    SESSION,
    active,
    add,
    claim,
    history,
    read,
    say,
    swap,
)
from tests.modules.liaison.strategies import SESSIONS, TENANT

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


@pytest.mark.contract("SqlSessionStore.count_active")
def test_active_sessions_of_all_tenants_are_counted(sessions: SqlSessionStore, writer: GroupCommitWriter) -> None:
    def count_active() -> int:
        with sessions.read_snapshot() as unit_of_work:
            return sessions.count_active(unit_of_work)

    assert count_active() == 0
    add(sessions, writer)
    add(sessions, writer, replace(SESSION, tenant="other"))
    add(sessions, writer, replace(SESSION, id="closed", status=SessionStatus.CLOSED, closed_at=NOON))
    assert count_active() == 2


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


def test_a_database_that_does_not_answer_is_told_without_its_reasons(empty_database_url: str) -> None:
    database = open_database(empty_database_url, POOL_SIZE)
    with pytest.raises(QueryFailed, match=r"^the journal cannot be read now; try again$"):
        read(SqlSessionStore(database))
    database.close()
