"""Sessions under random interleavings of calls, of servers and of crashes: nothing is lost, doubled or half done."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from cstp_grpc.contract.errors import Conflict, SessionUpdateFailed, SessionWithAnotherAgent
from cstp_grpc.modules.liaison.context_sharing import ShareRequest
from cstp_grpc.modules.liaison.model import (
    GUIDE,
    Activation,
    EventFilter,
    EventType,
    MessageContent,
    MessageRole,
    Session,
    SessionFilter,
    SessionStatus,
    TenantCaller,
    liaison_agent,
)
from cstp_grpc.modules.liaison.routing import RoutingRequest
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.example_counts import examples
from tests.modules.liaison.room import CLAIM, HEARTBEAT, Room, build_room
from tests.modules.liaison.servers import PILLARS, second_server

NUMBERS = itertools.count()
PEOPLE = (("acme", "ada"), ("acme", "ben"), ("\u00fc '\"%;", "ada"))
"""Tenants and their users; the sessions of the two called ada have the same identifiers."""
CONTEXTS: tuple[dict[str, Any] | None, ...] = (None, {}, {"topic": "files"}, {"topic": True})

Person = tuple[str, str]


class Killed(Exception):
    """The server died before it could answer."""


class MortalWriter:
    """A writer whose server may be killed during the next transaction: before it is committed, or right after."""

    def __init__(self, writer: GroupCommitWriter) -> None:
        self._writer = writer
        self.death: str | None = None

    def run(self, job: Callable[[UnitOfWork], Any]) -> Any:
        death, self.death = self.death, None

        def doomed(unit_of_work: UnitOfWork) -> Any:
            result = job(unit_of_work)
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
    version: int = 1
    said: list[str] = field(default_factory=list)
    had_by: list[str] = field(default_factory=list)
    """Who had the session when each message was said."""
    context: dict[str, Any] = field(default_factory=dict)
    activations: dict[str, Activation] = field(default_factory=dict)
    routed: tuple[str, Any] | None = None
    """Pillar and context of the routing by which its agent has it."""
    latest: Activation | None = None
    claimed_by: str | None = None
    claimed_until: datetime | None = None
    claim_number: int = 0
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    """The number of the last claim of each instance of an agent."""

    def move(self, agent: str, epoch: int) -> None:
        self.agent, self.epoch, self.version = agent, epoch, self.version + 1
        self.claimed_by = self.claimed_until = self.routed = self.latest = None

    def shared(self, context: dict[str, Any] | None) -> str:
        """Return a value that distinguishes the context of a routing from every other."""
        return repr(context if context is not None else (self.said, self.context))


class Conversations(RuleBasedStateMachine):
    """Two users of a tenant and one of another, on two servers of a database, in every order of calls."""

    database: Database
    servers: list[tuple[Database, GroupCommitWriter]]
    directly: bool

    def __init__(self) -> None:
        super().__init__()
        self.suffix = f" {next(NUMBERS)}"
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.open: dict[Person, Expected] = {}
        self.closed: list[tuple[str, Expected]] = []
        self.numbers = itertools.count()
        self.shares: dict[tuple[str, ...], str] = {}
        self.writers = [MortalWriter(writer) for _, writer in self.servers]
        self.rooms: list[Room] = [self.room(number) for number in range(len(self.servers))]
        self.beat()

    def room(self, number: int) -> Room:
        database = self.servers[number][0]
        return build_room(database, self.writers[number], self.tick, PILLARS, direct_handover=self.directly)

    def beat(self) -> None:
        for tenant in {tenant for tenant, _ in PEOPLE}:
            for pillar in PILLARS:
                self.rooms[0].presence.heartbeat(self.caller(tenant, liaison_agent(pillar)), pillar, leaving=False)

    def tick(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now

    def caller(self, tenant: str, agent: str = "guide-agent") -> TenantCaller:
        return TenantCaller(agent, tenant + self.suffix, f"request-{next(self.numbers)}")

    def perform(self, server: int, act: Callable[[Room], Any], death: str | None = None) -> Any:
        """Perform a call; where the server is killed during it, start it again and repeat the call."""
        self.writers[server].death = death
        try:
            return act(self.rooms[server])
        except Killed:
            self.writers[server].death = None
            self.rooms[server] = self.room(server)
            return act(self.rooms[server])
        finally:
            self.writers[server].death = None

    deaths = st.sampled_from([None, None, None, "before", "after"])
    people = st.sampled_from(PEOPLE)
    on = st.integers(0, 1)
    pillars = st.sampled_from(PILLARS)
    contexts = st.sampled_from(CONTEXTS)
    texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
    values = st.sampled_from([1, True, "b", None])

    @rule(person=people, server=on, death=deaths)
    def open_session(self, person: Person, server: int, death: str | None) -> None:
        tenant, user = person
        before = sum(each == tenant and user in past.id for each, past in self.closed)
        session_id = f"session {before} of {user}"
        session, _ = self.perform(
            server, lambda room: room.sessions.open(self.caller(tenant), user, session_id, {}), death
        )
        self.open.setdefault(person, Expected(session_id))
        self.check(session, self.open[person])

    @rule(person=people, server=on, text=texts, death=deaths)
    def append(self, person: Person, server: int, text: str, death: str | None = None) -> None:
        if (expected := self.open.get(person)) is None:
            return
        caller = self.caller(person[0])
        said = MessageContent(MessageRole.USER, text, {"one": 1}, message_id=f"m-{next(self.numbers)}")
        message = self.perform(server, lambda room: room.sessions.append(caller, expected.id, said), death)
        expected.said.append(text)
        expected.had_by.append(expected.agent)
        assert (message.sequence, message.active_agent) == (len(expected.said), expected.agent)

    @rule(person=people, server=on, value=values, death=deaths)
    def update(self, person: Person, server: int, value: Any, death: str | None = None) -> None:
        if (expected := self.open.get(person)) is None:
            return
        caller, changes = self.caller(person[0]), {"shared_intent": value}
        session = self.perform(
            server, lambda room: room.sessions.update_context(caller, expected.id, changes, None), death
        )
        context = {} if value is None else changes
        expected.version += repr(context) != repr(expected.context)
        expected.context = context
        self.check(session, expected)

    @rule(person=people, server=on, pillar=pillars, context=contexts, death=deaths)
    def route(
        self, person: Person, server: int, pillar: str, context: dict[str, Any] | None, death: str | None = None
    ) -> None:
        if (expected := self.open.get(person)) is None:
            return
        caller, request = self.caller(person[0]), RoutingRequest(pillar, person[1], expected.id, "because", context)
        known = expected.latest if expected.routed == (pillar, expected.shared(context)) else None
        try:
            activation = self.perform(server, lambda room: room.router.route(caller, request), death)
        except SessionWithAnotherAgent:
            assert expected.agent != GUIDE
            assert known is None
            assert not self.directly
            return
        if known is not None:
            assert activation == known
        else:
            self.activated(expected, pillar, context, activation)

    def activated(
        self, expected: Expected, pillar: str, context: dict[str, Any] | None, activation: Activation
    ) -> None:
        """Expect what a new activation makes of a session."""
        assert self.directly or expected.agent == GUIDE
        assert activation.key not in expected.activations
        assert activation.decision.from_agent == expected.agent
        expected.move(liaison_agent(pillar), expected.epoch + (expected.agent != GUIDE))
        expected.activations[activation.key] = activation
        expected.routed, expected.latest = (pillar, expected.shared(context)), activation
        self.check(activation.session, expected)
        history = activation.shared_context.get("conversation_history", [])
        assert [entry["content"] for entry in history] == ([] if context is not None else expected.said)

    @rule(
        person=people,
        server=on,
        pillar=pillars,
        context=contexts,
        what=st.sampled_from(["append", "update", "give_back", "close", "same", "elsewhere"]),
        other=on,
        value=values,
    )
    def route_while_something_happens(
        self,
        person: Person,
        server: int,
        pillar: str,
        context: dict[str, Any] | None,
        what: str,
        other: int,
        value: Any,
    ) -> None:
        expected = self.open.get(person)
        if expected is None or (expected.agent != GUIDE and not self.directly):
            return
        if expected.routed == (pillar, expected.shared(context)):
            return
        caller, request = self.caller(person[0]), RoutingRequest(pillar, person[1], expected.id, "because", context)
        before = (expected.version, expected.shared(context))
        acts: dict[str, Callable[[], None]] = {
            "append": lambda: self.append(person, other, "meanwhile"),
            "update": lambda: self.update(person, other, value),
            "give_back": lambda: self.give_back(person, other),
            "close": lambda: self.close(person, other),
            "same": lambda: self.route(person, other, pillar, context),
            "elsewhere": lambda: self.route(person, other, pillar, {"topic": "elsewhere"}),
        }
        self.rooms[server].judge.meanwhile = acts[what]
        try:
            activation = self.rooms[server].router.route(caller, request)
        except SessionUpdateFailed:
            assert what != "same"
            assert (expected.version, expected.shared(context)) != before
            return
        if what == "same":
            assert activation == expected.latest
            return
        assert (expected.version, expected.shared(context)) == before
        self.activated(expected, pillar, context, activation)

    @rule(person=people, server=on, death=deaths)
    def give_back(self, person: Person, server: int, death: str | None = None) -> None:
        if (expected := self.open.get(person)) is None:
            return
        caller = self.caller(person[0])
        session, _ = self.perform(
            server, lambda room: room.router.return_to_guide(caller, expected.id, "", None), death
        )
        if expected.agent != GUIDE:
            expected.move(GUIDE, expected.epoch + 1)
        self.check(session, expected)

    @rule(person=people, server=on, instance=st.sampled_from(["one", "two"]), death=deaths)
    def claim(self, person: Person, server: int, instance: str, death: str | None) -> None:
        if (expected := self.open.get(person)) is None:
            return
        caller = self.caller(person[0], expected.agent)
        free = expected.claimed_until is None or expected.claimed_until <= self.now
        try:
            session, activation = self.perform(
                server, lambda room: room.presence.claim(caller, expected.id, instance), death
            )
        except SessionWithAnotherAgent:
            assert expected.agent == GUIDE
            return
        except Conflict:
            assert not free
            assert expected.claimed_by != instance
            return
        assert free or expected.claimed_by == instance
        # A claim that is repeated after a crash renews the one that was made.
        expected.claim_number += free or expected.claimed_by != instance
        expected.numbers[expected.agent, instance] = expected.claim_number
        expected.claimed_by, expected.claimed_until = instance, session.claimed_until
        assert activation == expected.latest
        self.check(session, expected)

    def has(self, expected: Expected, pillar: str, instance: str) -> bool:
        """Whether an instance of a pillar's agent has a session by the last claim that it knows of."""
        number = expected.numbers[liaison_agent(pillar), instance]
        is_live = expected.claimed_until is not None and expected.claimed_until > self.now + timedelta(milliseconds=1)
        return expected.agent == liaison_agent(pillar) and number == expected.claim_number and is_live

    @rule(person=people, server=on, pillar=pillars, instance=st.sampled_from(["one", "two"]), death=deaths)
    def answer(self, person: Person, server: int, pillar: str, instance: str, death: str | None) -> None:
        agent, expected = liaison_agent(pillar), self.open.get(person)
        if expected is None or (agent, instance) not in expected.numbers:
            return
        may, number = self.has(expected, pillar, instance), expected.numbers[agent, instance]
        said = MessageContent(MessageRole.ASSISTANT, "answer", message_id=f"m-{next(self.numbers)}")
        caller = self.caller(person[0], agent)
        try:
            self.perform(server, lambda room: room.sessions.append(caller, expected.id, said, number), death)
        except SessionWithAnotherAgent:
            assert not may
            return
        assert may
        expected.said.append(said.content)
        expected.had_by.append(agent)

    @rule(person=people, server=on, pillar=pillars, instance=st.sampled_from(["one", "two"]), death=deaths)
    def give_back_by_claim(self, person: Person, server: int, pillar: str, instance: str, death: str | None) -> None:
        agent, expected = liaison_agent(pillar), self.open.get(person)
        if expected is None or (agent, instance) not in expected.numbers or expected.agent == GUIDE:
            return
        may, number = self.has(expected, pillar, instance), expected.numbers[agent, instance]
        caller = self.caller(person[0], agent)
        try:
            self.perform(server, lambda room: room.router.return_to_guide(caller, expected.id, "", None, number), death)
        except SessionWithAnotherAgent:
            assert not may
            return
        assert may
        expected.move(GUIDE, expected.epoch + 1)

    @rule(time=st.sampled_from([HEARTBEAT, CLAIM]))
    def wait(self, time: timedelta) -> None:
        self.now += time
        self.beat()

    @rule(person=people, server=on, pillar=pillars, topic=st.sampled_from(["x", "y"]), death=deaths)
    def share(self, person: Person, server: int, pillar: str, topic: str, death: str | None) -> None:
        caller, request = self.caller(person[0]), ShareRequest(GUIDE, liaison_agent(pillar), {"topic": topic})
        share = self.perform(server, lambda room: room.sharing.share(caller, request), death)
        assert self.shares.setdefault((person[0], pillar, topic), share.id) == share.id

    @rule(person=people, server=on, death=deaths)
    def close(self, person: Person, server: int, death: str | None = None) -> None:
        if (expected := self.open.pop(person, None)) is None:
            return
        caller = self.caller(person[0])
        self.perform(server, lambda room: room.sessions.close(caller, expected.id, None), death)
        expected.version += 1
        self.closed.append((person[0], expected))

    @rule(server=on)
    def crash(self, server: int) -> None:
        self.rooms[server] = self.room(server)

    def check(self, session: Session, expected: Expected) -> None:
        """Compare a session with what it must look like."""
        assert (session.id, session.active_agent, session.routing_epoch, session.version, session.message_count) == (
            expected.id,
            expected.agent,
            expected.epoch,
            expected.version,
            len(expected.said),
        )
        assert repr(session.context) == repr(expected.context)
        claim = (session.claimed_by, session.claimed_until, session.claim_number)
        assert claim == (expected.claimed_by, expected.claimed_until, expected.claim_number)
        assert session.activation_key == (expected.latest.key if expected.latest else None)

    @invariant()
    def sessions_are_as_expected(self) -> None:
        for (tenant, user), expected in self.open.items():
            self.check(self.rooms[1].sessions.get(self.caller(tenant), None, user), expected)
        for tenant in {tenant for tenant, _ in PEOPLE}:
            wanted = SessionFilter(tenant + self.suffix, status=SessionStatus.ACTIVE)
            active = self.rooms[0].sessions.page(wanted, PageRequest())
            expected_ids = [expected.id for (each, _), expected in self.open.items() if each == tenant]
            assert sorted(session.id for session in active.items) == sorted(expected_ids)

    @invariant()
    def no_message_is_lost(self) -> None:
        ended = [(tenant, expected) for tenant, expected in self.closed[-1:]]
        for tenant, expected in [*((tenant, expected) for (tenant, _), expected in self.open.items()), *ended]:
            page = self.rooms[0].sessions.messages(self.caller(tenant), expected.id, PageRequest(100))
            assert [message.body.content for message in page.items] == expected.said
            assert [message.active_agent for message in page.items] == expected.had_by
            assert [message.sequence for message in page.items] == list(range(1, len(expected.said) + 1))

    @invariant()
    def every_activation_happened_once(self) -> None:
        every = [*((tenant, expected) for (tenant, _), expected in self.open.items()), *self.closed]
        for tenant in {tenant for tenant, _ in PEOPLE}:
            wanted = EventFilter(tenant + self.suffix, types=(EventType.LIAISON_AGENT_ACTIVATED.value,))
            events = self.rooms[1].history.events(wanted, 0, 100).events
            keys = [event.data["routing_decision"]["idempotency_key"] for event in events]
            assert len(keys) == len(set(keys))
            assert sorted(keys) == sorted(key for each, past in every if each == tenant for key in past.activations)


@pytest.mark.hypothesis
@pytest.mark.parametrize("directly", [False, True], ids=["by_the_guide", "directly"])
def test_conversations(database: Database, writer: GroupCommitWriter, database_kind: str, directly: bool) -> None:
    number = 40 if database_kind == "sqlite" else 15
    with second_server(database) as other:
        members = {"database": database, "servers": [(database, writer), other], "directly": directly}
        run_state_machine_as_test(
            type("Machine", (Conversations,), members),
            settings=settings(
                max_examples=examples(number, least=2),
                stateful_step_count=40,
                deadline=None,
                phases=[phase for phase in Phase if phase is not Phase.explain],
                suppress_health_check=list(HealthCheck),
            ),
        )
