"""Whatever callers do to sessions at the same time might have been done one after the other."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from cstp_grpc.contract.errors import (
    Conflict,
    PermissionDenied,
    SessionNotFound,
    SessionUpdateFailed,
    SessionWithAnotherAgent,
)
from cstp_grpc.modules.liaison.model import (
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
)
from cstp_grpc.modules.liaison.routing import RoutingRequest
from cstp_grpc.platform.storage.pagination import PageRequest
from tests.modules.liaison.callers import CONTEXT, GUIDES, SECONDS, TENANT, THREADS, serving
from tests.modules.liaison.room import Room
from tests.modules.liaison.servers import PILLARS

USERS = ("ada", "ben")
CALLS = 100
FEW_CALLS = 30
"""Where time is short."""
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


@pytest.mark.parametrize(
    ("seed", "calls"), [(0, FEW_CALLS), *(pytest.param(seed, CALLS, marks=pytest.mark.slow) for seed in range(3))]
)
def test_whatever_callers_do_at_once_might_have_been_done_one_after_the_other(
    rooms: list[Room], seed: int, calls: int, directly: bool
) -> None:
    told = Told()
    chatters = [Chatter(rooms[number % 2], seed * THREADS + number, told) for number in range(THREADS)]
    followers = [Follower(room) for room in rooms]
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
