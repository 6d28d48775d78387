"""Sessions that several callers change at the same time, on one server and on two of the same database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from cstp_grpc.common.canonical_json import hash_canonical_json
from cstp_grpc.contract.errors import (
    Conflict,
    ContextSharingFailed,
    InvalidPillar,
    LiaisonAgentUnavailable,
    SessionNotFound,
    SessionUpdateFailed,
    SessionWithAnotherAgent,
)
from cstp_grpc.modules.liaison.agents import DeliveryRequest
from cstp_grpc.modules.liaison.context_sharing import ShareRequest
from cstp_grpc.modules.liaison.model import (
    GUIDE,
    Activation,
    EventType,
    MessageContent,
    MessageRole,
)
from cstp_grpc.modules.liaison.routing import routing_key
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.delivery_queue import DeliveryRejected
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.liaison.callers import CONTEXT, GUIDES, SECONDS, TENANT, THREADS, asked, opened, serving, state
from tests.modules.liaison.room import REMEMBERED, Room, build_room
from tests.modules.liaison.servers import PILLARS, Clock
from tests.waiting import wait_until


def say(room: Room) -> None:
    room.sessions.append(GUIDES, "s-1", MessageContent(MessageRole.USER, "One more thing"))


def update(room: Room) -> None:
    room.sessions.update_context(GUIDES, "s-1", {"shared_intent": "stay"}, None)


def close(room: Room) -> None:
    room.sessions.close(GUIDES, "s-1", None)


def route_elsewhere(room: Room) -> None:
    room.router.route(GUIDES, asked("insights", CONTEXT))


def route_elsewhere_and_return(room: Room) -> None:
    route_elsewhere(room)
    room.router.return_to_guide(GUIDES, "s-1", "", None)


@pytest.mark.parametrize("context", [None, CONTEXT], ids=["whole", "given"])
def test_what_was_routed_meanwhile_is_the_answer(rooms: list[Room], context: dict[str, Any] | None) -> None:
    here, there = rooms
    opened(here)
    made: list[Activation] = []
    here.judge.meanwhile = lambda: made.append(there.router.route(GUIDES, asked(context=context)))
    assert here.router.route(GUIDES, asked(context=context)) == made[0]
    session, events = state(here)
    assert (session.version, session.activation_key) == (2, made[0].key)
    assert [event.type for event in events].count(EventType.LIAISON_AGENT_ACTIVATED) == 1


@pytest.mark.parametrize(
    ("change", "context"),
    [
        (say, None),
        (update, None),
        (update, CONTEXT),
        (close, CONTEXT),
        (route_elsewhere, None),
        (route_elsewhere, {"topic": "charts"}),
        (route_elsewhere_and_return, CONTEXT),
    ],
)
def test_what_was_changed_meanwhile_is_not_routed(
    rooms: list[Room], change: Callable[[Room], None], context: dict[str, Any] | None
) -> None:
    here, there = rooms
    opened(here)
    seen: list[Any] = []

    def meanwhile() -> None:
        change(there)
        seen.append(state(there))

    here.judge.meanwhile = meanwhile
    with pytest.raises(SessionUpdateFailed):
        here.router.route(GUIDES, asked(context=context))
    assert [state(here)] == seen


def test_what_is_about_to_be_said_is_waited_for(
    rooms: list[Room], database: Database, clock: Clock, database_kind: str
) -> None:
    if database_kind == "sqlite":
        pytest.skip("SQLite has one transaction that writes at a time")
    here, there = rooms
    opened(here)
    with ThreadPoolExecutor(1) as pool, database.open_write_connection() as saying:
        saying.begin()
        said = MessageContent(MessageRole.USER, "One more thing")

        def begin_to_say() -> None:
            there.session_store.append(UnitOfWork(saying), TENANT, "s-1", said, "alice", clock())
            pool.submit(finish)

        def finish() -> None:
            try:
                wait_until(lambda: someone_waits(database), "the routing waits for the message")
            finally:
                saying.commit()

        here.judge.meanwhile = begin_to_say
        with pytest.raises(SessionUpdateFailed):
            here.router.route(GUIDES, asked())
    session = state(there)[0]
    assert (session.active_agent, session.message_count) == (GUIDE, 2)


def someone_waits(database: Database) -> bool:
    """Whether a transaction waits for another one."""
    with database.engine.connect() as connection:
        return bool(connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar())


def test_a_message_does_not_keep_a_given_context_from_being_routed(rooms: list[Room]) -> None:
    here, there = rooms
    opened(here)
    here.judge.meanwhile = lambda: say(there)
    activation = here.router.route(GUIDES, asked(context=CONTEXT))
    assert activation.session == state(there)[0]
    assert activation.session.message_count == 2


@pytest.mark.parametrize("directly", [True], indirect=True)
def test_a_session_that_is_handed_back_and_forth_is_never_in_an_epoch_twice(rooms: list[Room]) -> None:
    here, there = rooms
    opened(here)
    made = []
    for turn, pillar in enumerate(["content", "insights", "content", "insights"]):
        activation = rooms[turn % 2].router.route(GUIDES, asked(pillar, CONTEXT))
        assert (activation.session.routing_epoch, activation.session) == (turn, state(here)[0])
        assert there.router.route(GUIDES, asked(pillar, CONTEXT)) == activation
        made.append(activation)
    assert len({activation.key for activation in made}) == 4
    assert [activation.decision.from_agent for activation in made] == [
        GUIDE,
        *(activation.decision.to_agent for activation in made[:-1]),
    ]


@pytest.mark.parametrize("directly", [True], indirect=True)
def test_an_agent_that_is_handed_its_session_anew_must_claim_it_anew(rooms: list[Room]) -> None:
    here, there = rooms
    opened(here)
    here.router.route(GUIDES, asked(context=CONTEXT))
    here.presence.claim(serving("content"), "s-1", "instance-1")
    activation = there.router.route(GUIDES, asked(context={"topic": "charts"}))
    assert activation.session == state(here)[0]
    assert there.presence.claim(serving("content"), "s-1", "instance-2")[1] == activation


def test_an_agent_that_leaves_one_server_is_soon_gone_from_all(rooms: list[Room], clock: Clock) -> None:
    here, there = rooms
    opened(here)
    there.presence.heartbeat(serving("content"), "content", leaving=True)
    clock.wait(REMEMBERED)
    before = state(here)
    with pytest.raises(LiaisonAgentUnavailable):
        here.router.route(GUIDES, asked())
    assert state(here) == before


def test_true_is_another_value_than_one(rooms: list[Room]) -> None:
    here = rooms[0]
    here.sessions.open(GUIDES, "ada", "s-1", {"count": 1})
    session = here.sessions.update_context(GUIDES, "s-1", {"count": True}, None)
    assert (session.context["count"] is True, session.version) == (True, 2)
    here.sessions.append(GUIDES, "s-1", MessageContent(MessageRole.USER, "Hello", {"count": 1}, "m-1"))
    with pytest.raises(Conflict):
        here.sessions.append(GUIDES, "s-1", MessageContent(MessageRole.USER, "Hello", {"count": True}, "m-1"))


def test_who_has_a_session_is_told_before_that_its_context_is_too_large(rooms: list[Room], directly: bool) -> None:
    here = rooms[0]
    opened(here)
    here.router.route(GUIDES, asked(context=CONTEXT))
    huge = asked("insights", {"topic": "x" * 300_000})
    with pytest.raises(ContextSharingFailed if directly else SessionWithAnotherAgent):
        here.router.route(GUIDES, huge)
    close(here)
    with pytest.raises(SessionNotFound):
        here.router.route(GUIDES, huge)


def test_a_key_that_shared_something_else_routes_nothing(rooms: list[Room]) -> None:
    here = rooms[0]
    opened(here)
    key = routing_key("s-1", "content", hash_canonical_json(CONTEXT), 0)
    here.sharing.share(GUIDES, ShareRequest("alice", "liaison_content", {"topic": "charts"}, idempotency_key=key))
    before = state(here)
    with pytest.raises(ContextSharingFailed):
        here.router.route(GUIDES, asked(context=CONTEXT))
    assert state(here) == before


def test_a_session_outlives_its_pillar(
    rooms: list[Room], database: Database, writer: GroupCommitWriter, clock: Clock
) -> None:
    opened(rooms[0])
    rooms[0].router.route(GUIDES, asked(context=CONTEXT))
    configured_anew = build_room(database, writer, clock, ["insights"])
    with pytest.raises(InvalidPillar):
        configured_anew.router.route(GUIDES, asked(context=CONTEXT))
    with pytest.raises(SessionWithAnotherAgent):
        configured_anew.presence.claim(serving("content"), "s-1", "instance-1")
    say(configured_anew)
    session, _ = configured_anew.router.return_to_guide(GUIDES, "s-1", "", None)
    assert (session.active_agent, session.routing_epoch, session.message_count) == (GUIDE, 1, 2)
    route_elsewhere(configured_anew)
    assert state(rooms[0])[0].active_agent == "liaison_insights"


class Confirming:
    """A remote agent that must accept a context first, and answers when it may."""

    confirms = True

    def __init__(self, answer: str | DeliveryRejected | None) -> None:
        self.may_answer = threading.Event()
        self.parcels: list[DeliveryRequest] = []
        self._answer = answer

    def check(self, tenant: str) -> None:
        """It is there."""

    def deliver(self, parcel: DeliveryRequest) -> str | None:
        self.parcels.append(parcel)
        assert self.may_answer.wait(SECONDS)
        if isinstance(self._answer, DeliveryRejected):
            raise self._answer
        return self._answer


def routed_at_once(room: Room, agent: Confirming) -> list[Activation | str]:
    """Return the results of identical routings of which one is with its agent when the others come."""

    def route(number: int) -> Activation | str:
        try:
            return room.router.route(replace(GUIDES, request_id=f"request-{number}"), asked("files", CONTEXT))
        except ContextSharingFailed as error:
            return error.reason

    with ThreadPoolExecutor(THREADS) as pool:
        waiting = [pool.submit(route, number) for number in range(THREADS)]
        wait_until(lambda: len(room.judge.judged) == THREADS, "all are about to ask")
        agent.may_answer.set()
        return [each.result(SECONDS) for each in waiting]


def test_an_agent_that_must_accept_first_is_asked_once(
    database: Database, writer: GroupCommitWriter, clock: Clock
) -> None:
    agent = Confirming("task-1")
    room = build_room(database, writer, clock, PILLARS, remote={"files": agent})
    opened(room)
    answers = routed_at_once(room, agent)
    assert isinstance(answers[0], Activation)
    assert answers == [answers[0]] * THREADS
    assert [parcel.share.id for parcel in agent.parcels] == [answers[0].key]


def test_of_routings_that_an_agent_refuses_few_ask_it(
    database: Database, writer: GroupCommitWriter, clock: Clock
) -> None:
    agent = Confirming(DeliveryRejected("not mine"))
    room = build_room(database, writer, clock, PILLARS, remote={"files": agent})
    opened(room)
    before = state(room)
    assert routed_at_once(room, agent) == ["CONTEXT_SHARING_FAILED"] * THREADS
    assert len(agent.parcels) < THREADS
    assert state(room) == before
