"""What is left of chat sessions that are deleted, or that expire, on every database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from cstp_grpc.common.canonical_json import hash_canonical_json
from cstp_grpc.contract.errors import SessionNotFound, SessionUpdateFailed
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.modules.liaison.agents import DeliveryRequest, LiaisonAgent
from cstp_grpc.modules.liaison.audit import AuditedWriter
from cstp_grpc.modules.liaison.context_sharing import ShareRequest
from cstp_grpc.modules.liaison.erasure import ROWS_AT_ONCE, SESSIONS_AT_ONCE, Retention, RetentionPolicy, SessionEraser
from cstp_grpc.modules.liaison.model import EventFilter, MessageContent, MessageRole, TenantCaller
from cstp_grpc.modules.liaison.routing import RoutingRequest
from cstp_grpc.modules.liaison.sql_routing import SqlErasureStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import ALL_TABLES
from tests.harness import TOKENS, GrpcCaller, running, settings
from tests.modules.liaison.room import Room, build_room

pytestmark = pytest.mark.above_stores

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECRET = "the reports of Ada Lovelace"
CALLER = TenantCaller("alice", "acme", "request")


class Remote:
    """An agent that is there and whose context waits in the outbox."""

    confirms = False

    def check(self, tenant: str) -> None:
        """It is there."""

    def deliver(self, parcel: DeliveryRequest) -> str | None:
        raise AssertionError("nothing delivers in these tests")


class SlowRemote:
    """An agent that must accept first; `meanwhile` happens while it thinks."""

    confirms = True

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None

    def check(self, tenant: str) -> None:
        """It is there."""

    def deliver(self, parcel: DeliveryRequest) -> str | None:
        self.meanwhile()
        return None


@dataclass
class House:
    """A room whose clock a test sets, and what deletes from it."""

    database: Database
    writer: GroupCommitWriter
    now: datetime = NOON

    def __post_init__(self) -> None:
        self.slow = SlowRemote()
        remote: dict[str, LiaisonAgent] = {"insights": Remote(), "journey": self.slow}
        self.room: Room = build_room(self.database, self.writer, lambda: self.now, ["content"], remote=remote)
        store = SqlErasureStore(self.database)
        recorder = AuditedWriter(self.writer, self.room.store, self.room.trail, lambda: None)
        self.eraser = SessionEraser(store, recorder, lambda: self.now)
        self._retention = lambda policy: Retention(store, self.eraser, recorder, lambda: self.now, policy, "cstp")

    def fill(
        self, session: str = "s-1", user: str = "ada", pillar: str = "content", caller: TenantCaller = CALLER
    ) -> None:
        """Open a session, say something in it, hand it to a liaison agent, and share its context beside that."""
        room = self.room
        room.sessions.open(caller, user, session, {"about": SECRET})
        room.sessions.append(caller, session, MessageContent(MessageRole.USER, SECRET, message_id="m-1"))
        room.local["content"].record_heartbeat(caller)
        room.router.route(caller, RoutingRequest(pillar, user, session, reason=f"Because of {SECRET}"))
        room.sharing.share(caller, ShareRequest("guide", "liaison_content", {"about": SECRET}, conversation_id=session))

    def expire(self, **policy: timedelta) -> None:
        """Delete what has expired by a policy."""
        retention = self._retention(RetentionPolicy(**policy))
        while retention.delete_expired():
            pass

    def tables_with(self, text: str) -> set[str]:
        """Return the tables that hold a text anywhere."""
        with self.database.engine.connect() as connection:
            return {
                table.name
                for table in ALL_TABLES.sorted_tables
                for row in connection.execute(select(table))
                if any(text in str(value) for value in row)
            }

    def messages(self, session: str = "s-1") -> list[str]:
        page = self.room.sessions.messages(CALLER, session, PageRequest(100))
        return [message.body.content for message in page.items]

    def events(self, tenant: str = "acme") -> list[str]:
        page = self.room.history.events(EventFilter(tenant), 0, 100)
        return [event.type.value for event in page.events]


@pytest.fixture
def house(database: Database, writer: GroupCommitWriter) -> House:
    return House(database, writer)


@pytest.mark.parametrize("pillar", ["content", "insights"])
def test_nothing_of_a_deleted_session_is_left(house: House, pillar: str) -> None:
    house.fill(pillar=pillar)
    assert {"chat_sessions", "chat_messages", "liaison_shares", "liaison_events"} <= house.tables_with(SECRET)
    assert house.eraser.delete_session(CALLER, "s-1")
    assert house.tables_with(SECRET) == set()
    assert house.tables_with("ada") == set()
    # Only that something was deleted, and that something was shared, without what.
    assert house.tables_with("s-1") == {"liaison_events"}
    with pytest.raises(SessionNotFound):
        house.room.sessions.get(CALLER, "s-1", "ada")


def test_the_trail_says_who_deleted_what_by_its_hash(house: House) -> None:
    house.fill()
    house.eraser.delete_session(CALLER, "s-1")
    entry = house.room.trail.entries[-1]
    assert (entry.event, entry.requesting_agent) == (AuditEvent.SESSION_DELETED, CALLER.agent)
    assert (entry.request_id, entry.correlation_id) == (CALLER.request_id, "s-1")
    assert entry.action == f"delete session s-1; context sha256:{hash_canonical_json({'about': SECRET})}"


def test_other_sessions_and_other_tenants_keep_everything(house: House) -> None:
    stranger = TenantCaller("carol", "umbrella", "request")
    house.fill("s-1", "ada")
    house.fill("s-2", "bob")
    house.fill("s-1", "ada", caller=stranger)
    house.eraser.delete_session(CALLER, "s-1")
    assert house.messages("s-2") == [SECRET]
    assert house.room.sessions.get(stranger, "s-1", "ada").context == {"about": SECRET}
    assert "session_deleted" not in house.events("umbrella")


def test_a_session_can_be_opened_and_routed_again_after_its_deletion(house: House) -> None:
    house.fill()
    house.eraser.delete_session(CALLER, "s-1")
    house.fill()
    session = house.room.sessions.get(CALLER, "s-1", "ada")
    assert (session.active_agent, session.message_count) == ("liaison_content", 1)
    assert house.room.presence.claim(CALLER_OF_CONTENT, "s-1", "instance")[0].id == "s-1"


CALLER_OF_CONTENT = TenantCaller("liaison_content", "acme", "request")


@pytest.mark.parametrize("user", ["ada", "bob"])
def test_a_session_that_is_deleted_while_it_is_routed_leaves_nothing_to_its_successor(house: House, user: str) -> None:
    house.room.sessions.open(CALLER, "ada", "s-1", {"about": SECRET})

    def succeed() -> None:
        house.eraser.delete_session(CALLER, "s-1")
        house.now += DAY
        house.room.sessions.open(CALLER, user, "s-1", {})

    house.slow.meanwhile = succeed
    with pytest.raises(SessionUpdateFailed):
        house.room.router.route(CALLER, RoutingRequest("journey", "ada", "s-1"))
    assert house.room.sessions.get(CALLER, "s-1", user).active_agent == "guide"
    assert house.tables_with(SECRET) == set()


def test_what_was_shared_while_a_session_was_deleted_goes_with_the_next_call(house: House) -> None:
    house.room.sessions.open(CALLER, "ada", "s-1", {})
    house.slow.meanwhile = lambda: house.eraser.delete_session(CALLER, "s-1")
    shared = ShareRequest("guide", "liaison_journey", {"about": SECRET}, conversation_id="s-1")
    house.room.sharing.share(CALLER, shared)
    assert house.tables_with(SECRET) == {"liaison_shares"}
    assert not house.eraser.delete_session(CALLER, "s-1")
    assert house.tables_with(SECRET) == set()
    assert house.events().count("session_deleted") == 1


def test_a_deleted_sessions_delivery_is_not_tried_any_more(house: House) -> None:
    house.fill(pillar="insights")
    house.eraser.delete_session(CALLER, "s-1")
    with house.database.read_snapshot() as unit_of_work:
        assert house.room.store.next_due(unit_of_work) is None


@pytest.mark.contract("SqlErasureStore.delete_session", "SqlErasureStore.sessions_of_user")
def test_more_sessions_of_a_user_go_than_one_transaction_takes(house: House) -> None:
    for number in range(SESSIONS_AT_ONCE + 3):
        house.room.sessions.open(CALLER, "ada", f"s-{number}", {})
        house.room.sessions.close(CALLER, f"s-{number}", None)
    house.room.sessions.open(CALLER, "bob", "of-bob", {})
    assert house.eraser.delete_user_sessions(CALLER, "ada") == SESSIONS_AT_ONCE + 3
    assert house.eraser.delete_user_sessions(CALLER, "ada") == 0
    assert house.room.sessions.get(CALLER, "of-bob", "bob").is_open


@pytest.mark.contract("SqlErasureStore.expired_sessions")
def test_a_session_expires_after_its_last_change(house: House) -> None:
    house.fill("old", "ada")
    house.now += DAY / 2
    house.fill("new", "bob")
    house.now += DAY / 2
    house.expire(sessions=DAY)
    # Exactly a day is not more than a day.
    assert house.messages("old") == [SECRET]
    house.now += timedelta(seconds=1)
    house.expire(sessions=DAY)
    with pytest.raises(SessionNotFound):
        house.messages("old")
    assert house.messages("new") == [SECRET]
    entry = house.room.trail.entries[-1]
    assert (entry.event, entry.requesting_agent) == (AuditEvent.SESSION_DELETED, "cstp")
    assert entry.action is not None
    assert entry.action.startswith("delete session old: expired")


def test_messages_expire_and_the_rest_of_the_conversation_is_shared(house: House) -> None:
    house.room.sessions.open(CALLER, "ada", "s-1", {})
    house.room.local["content"].record_heartbeat(CALLER)
    for number in range(ROWS_AT_ONCE + 1):
        house.room.sessions.append(CALLER, "s-1", MessageContent(MessageRole.USER, f"old {number}"))
    house.now += DAY
    house.room.sessions.append(CALLER, "s-1", MessageContent(MessageRole.USER, "new"))
    house.now += timedelta(seconds=1)
    house.expire(messages=DAY)
    assert house.messages() == ["new"]
    house.room.local["content"].record_heartbeat(CALLER)
    activation = house.room.router.route(CALLER, RoutingRequest("content", "ada", "s-1"))
    history = activation.shared_context["conversation_history"]
    assert [(entry["sequence"], entry["content"]) for entry in history] == [(ROWS_AT_ONCE + 2, "new")]


@pytest.mark.contract("SqlErasureStore.delete_messages")
def test_a_conversation_whose_messages_have_all_expired_is_shared_without_any(house: House) -> None:
    house.room.sessions.open(CALLER, "ada", "s-1", {})
    house.room.sessions.append(CALLER, "s-1", MessageContent(MessageRole.USER, "old"))
    house.now += 2 * DAY
    house.expire(messages=DAY)
    house.room.local["content"].record_heartbeat(CALLER)
    activation = house.room.router.route(CALLER, RoutingRequest("content", "ada", "s-1"))
    assert activation.shared_context["conversation_history"] == []


@pytest.mark.contract("SqlErasureStore.delete_shares")
def test_a_share_expires_unless_somebody_still_needs_it(house: House) -> None:
    house.fill("with-agent", "ada", "content")
    house.fill("to-deliver", "bob", "insights")
    house.fill("returned", "cleo", "content")
    house.room.router.return_to_guide(CALLER, "returned", "done", None)
    house.now += 2 * DAY
    house.expire(shares=DAY)
    with house.database.engine.connect() as connection:
        kept = {row.conversation_id for row in connection.execute(select(ALL_TABLES.tables["liaison_shares"]))}
        activations = {row.session_id for row in connection.execute(select(ALL_TABLES.tables["liaison_activations"]))}
    assert kept == activations == {"with-agent", "to-deliver"}
    # The agent that has the session still gets its context.
    _, activation = house.room.presence.claim(CALLER_OF_CONTENT, "with-agent", "instance")
    assert activation.shared_context["about"] == SECRET


@pytest.mark.contract("SqlErasureStore.delete_events")
def test_events_expire_and_sequences_go_on(house: House) -> None:
    house.fill()
    last = len(house.events())
    house.now += 2 * DAY
    house.room.sessions.open(CALLER, "bob", "s-2", {})
    house.expire(events=DAY)
    page = house.room.history.events(EventFilter("acme"), 0, 100)
    assert [(event.type.value, event.sequence) for event in page.events] == [("session_opened", last + 1)]
    house.now += 2 * DAY
    house.expire(events=DAY)
    page = house.room.history.events(EventFilter("acme"), 0, 100)
    assert (list(page.events), page.newest) == ([], last + 1)
    house.room.sessions.close(CALLER, "s-2", None)
    page = house.room.history.events(EventFilter("acme"), 0, 100)
    assert [event.sequence for event in page.events] == [last + 2]


def test_what_has_no_limit_stays(house: House) -> None:
    house.fill()
    before = house.tables_with(SECRET)
    house.now += 10_000 * DAY
    house.expire()
    assert house.tables_with(SECRET) == before


def test_not_even_the_database_file_has_a_deleted_text(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {"liaison": {"pillars": {"content": {"agent": "alice"}}}}
    with running(settings(tmp_path, **wanted)) as app:
        caller = GrpcCaller(app.target)
        opened = {"user_id": "u-17", "chat_session_id": "s-1", "context": {"about": SECRET}}
        said = {"chat_session_id": "s-1", "role": "user", "content": SECRET * 100}
        for method, params in (
            ("openSession", opened),
            ("appendMessage", said),
            ("deleteSession", {"chat_session_id": "s-1"}),
        ):
            assert caller.call(f"liaison.{method}", params, TOKENS["alice"]).reason is None
        caller.close()
    # After a stop all of the log is in the file.
    kept = [path.name for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert kept == []
