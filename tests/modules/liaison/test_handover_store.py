"""Sessions that change hands, and claims on them, on every database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from cstp_grpc.modules.liaison.model import (
    GUIDE,
    Session,
    SessionStatus,
)
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import ServerWriter
from tests.modules.liaison.stored_sessions import MINUTE, NOON, ROUTED, SESSION, add, claim, read, say, swap

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


CLAIMED = replace(ROUTED, claimed_by="first", claimed_until=NOON + MINUTE)


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
