"""Sessions under random interleavings of calls and crashes: nothing is lost, doubled or half done."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import Connection, Engine

from cstp_grpc.errors import SessionWithAnotherAgent
from cstp_grpc.liaison.model import (
    GUIDE,
    Activation,
    Caller,
    EventFilter,
    EventType,
    MessageContent,
    MessageRole,
    SessionFilter,
    SessionStatus,
    liaison_agent,
)
from cstp_grpc.liaison.routing import RoutingRequest
from cstp_grpc.liaison.sharing import ShareRequest
from cstp_grpc.storage.paging import PageRequest
from cstp_grpc.storage.writer import Writer
from tests.liaison.room import Room, build_room

TENANTS = itertools.count()
PILLARS = ("content", "insights")
USERS = ("ada", "ben")
CONTEXTS: tuple[dict[str, Any] | None, ...] = (None, {}, {"topic": "files"}, {"topic": "charts"})


class Killed(Exception):
    """The server died before it could answer."""


class MortalWriter:
    """A writer whose server may be killed during the next transaction: before it is committed, or right after."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.death: str | None = None

    def run(self, job: Callable[[Connection], Any]) -> Any:
        death, self.death = self.death, None

        def doomed(connection: Connection) -> Any:
            result = job(connection)
            if death == "before":
                raise Killed
            return result

        result = self._writer.run(doomed)
        if death == "after":
            raise Killed
        return result


@dataclass
class Expected:
    """What a session must look like."""

    id: str
    agent: str = GUIDE
    epoch: int = 0
    said: list[str] = field(default_factory=list)
    context: dict[str, Any] = field(default_factory=dict)
    activations: dict[str, Activation] = field(default_factory=dict)
    last: tuple[RoutingRequest, Activation] | None = None


class Conversations(RuleBasedStateMachine):
    """Two users of a tenant, and one of another, in every order of calls."""

    engine: Engine
    writer: Writer

    def __init__(self) -> None:
        super().__init__()
        self.mortal = MortalWriter(self.writer)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.tenant = f"tenant-{next(TENANTS)}-{id(self)}"
        self.open: dict[str, Expected] = {}
        self.closed: list[Expected] = []
        self.numbers = itertools.count()
        self.shares: dict[str, str] = {}
        self.room: Room
        self.restart()

    def restart(self) -> None:
        self.room = build_room(self.engine, self.mortal, self.tick, PILLARS)
        for pillar in PILLARS:
            self.room.presence.heartbeat(Caller(liaison_agent(pillar), self.tenant, "beat"), pillar, leaving=False)

    def tick(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now

    @property
    def caller(self) -> Caller:
        return Caller("guide-agent", self.tenant, f"request-{next(self.numbers)}")

    def perform(self, act: Callable[[], Any], death: str | None) -> Any:
        """Perform a call; where the server is killed during it, start it again and repeat the call."""
        self.mortal.death = death
        try:
            return act()
        except Killed:
            self.mortal.death = None
            self.restart()
            return act()
        finally:
            self.mortal.death = None

    deaths = st.sampled_from([None, None, None, "before", "after"])
    users = st.sampled_from(USERS)

    @rule(user=users, death=deaths)
    def open_session(self, user: str, death: str | None) -> None:
        session, _ = self.perform(lambda: self.room.sessions.open(self.caller, user, None, {}), death)
        if user in self.open:
            assert session.id == self.open[user].id
        else:
            self.open[user] = Expected(session.id)

    @precondition(lambda self: self.open)
    @rule(
        user=users,
        text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
        death=deaths,
    )
    def append(self, user: str, text: str, death: str | None) -> None:
        if user not in self.open:
            return
        expected = self.open[user]
        said = MessageContent(MessageRole.USER, text, message_id=f"m-{next(self.numbers)}")
        message = self.perform(lambda: self.room.sessions.append(self.caller, expected.id, said), death)
        expected.said.append(text)
        assert (message.sequence, message.active_agent) == (len(expected.said), expected.agent)

    @precondition(lambda self: self.open)
    @rule(user=users, value=st.sampled_from(["a", "b", None]), death=deaths)
    def update(self, user: str, value: str | None, death: str | None) -> None:
        if user not in self.open:
            return
        expected = self.open[user]
        changes = {"shared_intent": value}
        session = self.perform(
            lambda: self.room.sessions.update_context(self.caller, expected.id, changes, None), death
        )
        expected.context = {key: item for key, item in changes.items() if item is not None}
        assert session.context == expected.context

    @precondition(lambda self: self.open)
    @rule(user=users, pillar=st.sampled_from(PILLARS), context=st.sampled_from(CONTEXTS), death=deaths)
    def route(self, user: str, pillar: str, context: dict[str, Any] | None, death: str | None) -> None:
        if user not in self.open:
            return
        expected = self.open[user]
        request = RoutingRequest(pillar, user, expected.id, "because", context)
        try:
            activation = self.perform(lambda: self.room.router.route(self.caller, request), death)
        except SessionWithAnotherAgent:
            assert expected.agent != GUIDE
            return
        if expected.agent == GUIDE:
            assert activation.key not in expected.activations
            assert (activation.decision.from_agent, activation.session.message_count) == (GUIDE, len(expected.said))
            expected.agent = liaison_agent(pillar)
            expected.activations[activation.key] = activation
            expected.last = (request, activation)
        assert expected.activations[activation.key] == activation
        assert activation.decision.to_agent == expected.agent == liaison_agent(pillar)

    @precondition(lambda self: any(expected.last for expected in self.open.values()))
    @rule(user=users)
    def route_again(self, user: str) -> None:
        expected = self.open.get(user)
        if expected is None or expected.last is None or expected.agent == GUIDE or expected.last[0].context is None:
            return
        request, activation = expected.last
        assert self.room.router.route(self.caller, request) == activation

    @precondition(lambda self: self.open)
    @rule(user=users, death=deaths)
    def give_back(self, user: str, death: str | None) -> None:
        if user not in self.open:
            return
        expected = self.open[user]
        session, _ = self.perform(lambda: self.room.router.return_to_guide(self.caller, expected.id, "", None), death)
        if expected.agent != GUIDE:
            expected.agent, expected.epoch, expected.last = GUIDE, expected.epoch + 1, None
        assert (session.active_agent, session.routing_epoch) == (GUIDE, expected.epoch)

    @rule(pillar=st.sampled_from(PILLARS), topic=st.sampled_from(["x", "y"]), death=deaths)
    def share(self, pillar: str, topic: str, death: str | None) -> None:
        request = ShareRequest(GUIDE, liaison_agent(pillar), {"topic": topic})
        share = self.perform(lambda: self.room.sharing.share(self.caller, request), death)
        assert self.shares.setdefault(f"{pillar} {topic}", share.id) == share.id

    @precondition(lambda self: self.open)
    @rule(user=users, death=deaths)
    def close(self, user: str, death: str | None) -> None:
        if user not in self.open:
            return
        expected = self.open.pop(user)
        self.perform(lambda: self.room.sessions.close(self.caller, expected.id, None), death)
        self.closed.append(expected)

    @rule()
    def crash(self) -> None:
        self.restart()

    @invariant()
    def sessions_are_as_expected(self) -> None:
        for user, expected in self.open.items():
            session = self.room.sessions.get(self.caller, None, user)
            assert (session.id, session.active_agent, session.routing_epoch) == (
                expected.id,
                expected.agent,
                expected.epoch,
            )
            assert session.context == expected.context
        active = self.room.sessions.page(SessionFilter(self.tenant, status=SessionStatus.ACTIVE), PageRequest())
        assert sorted(session.id for session in active.items) == sorted(expected.id for expected in self.open.values())

    @invariant()
    def no_message_is_lost(self) -> None:
        for expected in [*self.open.values(), *self.closed[-1:]]:
            page = self.room.sessions.messages(self.caller, expected.id, PageRequest(100))
            assert [message.said.content for message in page.items] == expected.said[:100]
            assert [message.sequence for message in page.items] == list(range(1, len(page.items) + 1))

    @invariant()
    def every_activation_happened_once(self) -> None:
        wanted = EventFilter(self.tenant, types=(EventType.LIAISON_AGENT_ACTIVATED.value,))
        events = self.room.history.events(wanted, 0, 100).events
        keys = [event.data["routing_decision"]["idempotency_key"] for event in events]
        known = [key for expected in [*self.open.values(), *self.closed] for key in expected.activations]
        assert len(keys) == len(set(keys))
        assert sorted(keys) == sorted(known)[:100]


def test_conversations(engine: Engine, writer: Writer, database_kind: str) -> None:
    machine = type("Machine", (Conversations,), {"engine": engine, "writer": writer})
    examples = 40 if database_kind == "sqlite" else 15
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
