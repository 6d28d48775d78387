"""Sessions that several callers change at the same time, on one server and on two of the same database."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy import text

from cstp_grpc.errors import (
    Conflict,
    ContextSharingFailed,
    InvalidPillar,
    LiaisonAgentUnavailable,
    PermissionDenied,
    SessionNotFound,
    SessionUpdateFailed,
    SessionWithAnotherAgent,
)
from cstp_grpc.liaison.agents import DeliveryReceipt, DeliveryRejected, DeliveryRequest
from cstp_grpc.liaison.canonical_json import hash_canonical_json
from cstp_grpc.liaison.context_sharing import ShareRequest
from cstp_grpc.liaison.model import (
    GUIDE,
    Activation,
    ChatMessage,
    Event,
    EventFilter,
    EventType,
    MessageContent,
    MessageRole,
    Session,
    SessionStatus,
    TenantCaller,
    liaison_agent,
)
from cstp_grpc.liaison.routing import RoutingRequest, routing_key
from cstp_grpc.storage.database import Database
from cstp_grpc.storage.pagination import PageRequest
from cstp_grpc.storage.unit_of_work import UnitOfWork
from cstp_grpc.storage.writer import GroupCommitWriter
from tests.liaison.room import REMEMBERED, Room, build_room
from tests.liaison.servers import PILLARS, Clock, two_rooms
from tests.waiting import wait_until

TENANT = "acme"
GUIDES = TenantCaller("alice", TENANT, "request-1")
CONTEXT = {"topic": "files"}
SECONDS = 60.0


@pytest.fixture(params=[False, True], ids=["by_the_guide", "directly"])
def directly(request: pytest.FixtureRequest) -> bool:
    """Whether a liaison agent's session may go to another one without the guide."""
    handover: bool = request.param
    return handover


@pytest.fixture
def rooms(database: Database, writer: GroupCommitWriter, clock: Clock, directly: bool) -> Iterator[list[Room]]:
    with two_rooms(database, writer, clock, direct_handover=directly) as made:
        for pillar in PILLARS:
            made[0].presence.heartbeat(serving(pillar), pillar, leaving=False)
        yield made


def serving(pillar: str) -> TenantCaller:
    """Return the local agent of a pillar."""
    return TenantCaller(liaison_agent(pillar), TENANT, "request-2")


def opened(room: Room) -> Session:
    """Return a session with a message."""
    session, _ = room.sessions.open(GUIDES, "ada", "s-1", {"shared_intent": "move"})
    room.sessions.append(GUIDES, "s-1", MessageContent(MessageRole.USER, "Hello"))
    return session


def asked(pillar: str = "content", context: Mapping[str, Any] | None = None) -> RoutingRequest:
    """Return a request to route the session."""
    return RoutingRequest(pillar, "ada", "s-1", "because", context)


def state(room: Room) -> tuple[Session, Sequence[Event]]:
    """Return what everybody sees of the session."""
    return room.sessions.get(GUIDES, "s-1", "ada"), room.history.events(EventFilter(TENANT), 0, 100).events


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

    def __init__(self, answer: DeliveryReceipt | DeliveryRejected) -> None:
        self.may_answer = threading.Event()
        self.parcels: list[DeliveryRequest] = []
        self._answer = answer

    def check(self, tenant: str) -> None:
        """It is there."""

    def deliver(self, parcel: DeliveryRequest) -> DeliveryReceipt:
        self.parcels.append(parcel)
        assert self.may_answer.wait(SECONDS)
        if isinstance(self._answer, DeliveryRejected):
            raise self._answer
        return self._answer


def routed_at_once(room: Room, agent: Confirming) -> list[Activation | str]:
    """Return what becomes of identical routings of which one is with its agent when the others come."""

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
    agent = Confirming(DeliveryReceipt("task-1"))
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


USERS = ("ada", "ben")
THREADS = 6
CALLS = 100
CALLS_ON_POSTGRESQL = 60
EXPECTED = (Conflict, PermissionDenied, SessionNotFound, SessionUpdateFailed, SessionWithAnotherAgent)


@dataclass
class Told:
    """What callers were told is done."""

    messages: list[tuple[str, ChatMessage]] = field(default_factory=list)
    activations: list[Activation] = field(default_factory=list)
    returned: list[Event] = field(default_factory=list)


class Chatter:
    """Does anything at all with the sessions of all users."""

    def __init__(self, room: Room, number: int, told: Told) -> None:
        self._room = room
        self._random = random.Random(number)
        self._name = f"chatter-{number}"
        self._told = told
        self._calls = 0

    def run(self, calls: int) -> None:
        acts = [self.say, self.say, self.say, self.route, self.route, self.give_back, self.claim, self.update]
        for _ in range(calls):
            self._calls += 1
            try:
                self._random.choice([*acts, self.open, self.open, self.close])(self._random.choice(USERS))
            except EXPECTED:
                continue

    @property
    def _caller(self) -> TenantCaller:
        return TenantCaller("alice", TENANT, f"{self._name}-{self._calls}")

    def _session(self, user: str) -> Session:
        return self._room.sessions.get(self._caller, None, user)

    def open(self, user: str) -> None:
        self._room.sessions.open(self._caller, user, None, {})

    def say(self, user: str) -> None:
        session = self._session(user)
        said = MessageContent(MessageRole.USER, f"{self._name} {self._calls}")
        self._told.messages.append((session.id, self._room.sessions.append(self._caller, session.id, said)))

    def update(self, user: str) -> None:
        changes = {"shared_intent": self._random.choice(["move", "stay"])}
        self._room.sessions.update_context(self._caller, self._session(user).id, changes, None)

    def route(self, user: str) -> None:
        context = self._random.choice([None, {}, CONTEXT])
        request = RoutingRequest(self._random.choice(PILLARS), user, None, self._name, context)
        self._told.activations.append(self._room.router.route(self._caller, request))

    def give_back(self, user: str) -> None:
        _, event = self._room.router.return_to_guide(self._caller, self._session(user).id, "", None)
        self._told.returned += [event] if event else []

    def claim(self, user: str) -> None:
        session = self._session(user)
        pillar = session.active_agent.removeprefix("liaison_")
        self._room.presence.claim(serving(pillar), session.id, self._name)

    def close(self, user: str) -> None:
        self._room.sessions.close(self._caller, self._session(user).id, None)


class Follower:
    """Reads events as they come, like a watch."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._ended = threading.Event()
        self.seen: list[Event] = []

    def run(self) -> None:
        while True:
            ended = self._ended.is_set()
            after = self.seen[-1].sequence if self.seen else 0
            found = self._room.history.events(EventFilter(TENANT), after or 0, 100)
            self.seen += found.events
            if ended and not found.events:
                return

    def end(self) -> None:
        self._ended.set()


@dataclass
class Past:
    """A session as its events tell it."""

    user: str
    agent: str = GUIDE
    said: list[str] = field(default_factory=list)
    """Who had the session when each message was appended."""
    epoch: int = 0
    keys: list[str] = field(default_factory=list)
    claimed: bool = False
    is_open: bool = True


class Chronicle:
    """Makes sure that events, one after the other, are what may happen."""

    def __init__(self, directly: bool) -> None:
        self._directly = directly
        self.counts: dict[str, int] = {}
        """How many messages there were when a session was handed over, by the keys."""
        self.sessions: dict[str, Past] = {}

    def tell(self, event: Event) -> None:
        assert event.session_id is not None
        assert event.user_id is not None
        if event.type is EventType.SESSION_OPENED:
            assert all(past.user != event.user_id for past in self.sessions.values() if past.is_open)
            assert event.session_id not in self.sessions
            self.sessions[event.session_id] = Past(event.user_id)
            return
        past = self.sessions[event.session_id]
        assert past.is_open
        if event.type is EventType.LIAISON_AGENT_ACTIVATED:
            self._activated(past, event.data["routing_decision"])
        assert event.agent == (GUIDE if event.type is EventType.RETURNED_TO_GUIDE else past.agent)
        if event.type is EventType.MESSAGE_APPENDED:
            past.said.append(past.agent)
            assert event.data["sequence"] == len(past.said)
        elif event.type is EventType.RETURNED_TO_GUIDE:
            assert event.data["from"] == past.agent != GUIDE
            past.agent, past.claimed = GUIDE, False
            past.epoch += 1
        elif event.type is EventType.SESSION_CLAIMED:
            assert past.agent != GUIDE
            assert not past.claimed
            past.claimed = True
        elif event.type is EventType.SESSION_CLOSED:
            past.is_open, past.claimed = False, False

    def _activated(self, past: Past, decision: Mapping[str, str]) -> None:
        assert decision["from"] == past.agent
        assert self._directly or past.agent == GUIDE
        assert decision["idempotency_key"] not in past.keys
        past.epoch += past.agent != GUIDE
        past.agent, past.claimed = decision["to"], False
        past.keys.append(decision["idempotency_key"])
        self.counts[decision["idempotency_key"]] = len(past.said)


def messages_of(room: Room, session_id: str) -> list[ChatMessage]:
    """Return all messages of a session."""
    found: list[ChatMessage] = []
    token = ""
    while True:
        page = room.sessions.messages(GUIDES, session_id, PageRequest(100, token))
        found += page.items
        token = page.next_token
        if not token:
            return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_whatever_callers_do_at_once_might_have_been_done_one_after_the_other(
    rooms: list[Room], seed: int, directly: bool, database_kind: str
) -> None:
    told = Told()
    chatters = [Chatter(rooms[number % 2], seed * THREADS + number, told) for number in range(THREADS)]
    followers = [Follower(room) for room in rooms]
    calls = CALLS if database_kind == "sqlite" else CALLS_ON_POSTGRESQL
    with ThreadPoolExecutor(THREADS + len(followers)) as pool:
        following = [pool.submit(follower.run) for follower in followers]
        try:
            for chat in [pool.submit(chatter.run, calls) for chatter in chatters]:
                chat.result(SECONDS)
        finally:
            for follower in followers:
                follower.end()
        for each in following:
            each.result(SECONDS)
    events = followers[0].seen
    assert events == followers[1].seen
    assert sorted(events, key=lambda event: event.sequence or 0) == events
    chronicle = Chronicle(directly)
    for event in events:
        if event.type is not EventType.AGENT_PRESENT:
            chronicle.tell(event)
    for session_id, past in chronicle.sessions.items():
        session = rooms[0].sessions.get(GUIDES, session_id, "")
        assert (session.active_agent, session.routing_epoch, session.message_count) == (
            past.agent,
            past.epoch,
            len(past.said),
        )
        assert (session.status is SessionStatus.ACTIVE, session.claimed_by is not None) == (past.is_open, past.claimed)
        assert [message.active_agent for message in messages_of(rooms[1], session_id)] == past.said
    assert_kept(rooms[0], told, events, chronicle.counts)


def assert_kept(room: Room, told: Told, events: Sequence[Event], counts: Mapping[str, int]) -> None:
    """Make sure that everything that callers were told is done."""
    kept = {session_id: messages_of(room, session_id) for session_id, _ in told.messages}
    assert all(message in kept[session_id] for session_id, message in told.messages)
    assert len(told.messages) == sum(len(messages) for messages in kept.values())
    answers: dict[str, Activation] = {}
    for activation in told.activations:
        assert answers.setdefault(activation.key, activation) == activation
        assert activation.event in events
        session, history = activation.session, activation.shared_context.get("conversation_history")
        assert session.message_count == counts[activation.key]
        if history is not None:
            assert [entry["sequence"] for entry in history] == list(range(1, session.message_count + 1))
    activated = [event for event in events if event.type is EventType.LIAISON_AGENT_ACTIVATED]
    assert len(activated) == len(answers)
    assert all(event in events for event in told.returned)
