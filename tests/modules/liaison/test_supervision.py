"""Sessions that liaison agents leave alone are told of once, and fall back, whichever servers look at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from cstp_grpc.contract.errors import LiaisonAgentUnavailable
from cstp_grpc.modules.liaison.model import (
    GUIDE,
    AlarmKind,
    Event,
    EventFilter,
    MessageContent,
    MessageRole,
    Session,
    TenantCaller,
    liaison_agent,
)
from cstp_grpc.modules.liaison.routing import RoutingRequest
from cstp_grpc.modules.liaison.sql_routing import SqlPresenceStore
from cstp_grpc.modules.liaison.supervision import AlarmLimits, Fallback
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.liaison.room import ABSENT, CLAIM, HEARTBEAT, LEASE, Room
from tests.modules.liaison.servers import PILLARS, Clock, two_rooms
from tests.waiting import SECONDS

pytestmark = pytest.mark.above_stores

TENANT = "acme"
THE_GUIDE = TenantCaller("guide-agent", TENANT, "request-1", may_route=True)
MINUTE = timedelta(minutes=1)
LIMITS = AlarmLimits(unclaimed=2 * MINUTE, silent=5 * MINUTE, absent=ABSENT)
ALL = frozenset(AlarmKind)
MOVES = ("liaison_agent_activated", "returned_to_guide")

Rooms = Callable[..., Any]


@pytest.fixture
def serve(database: Database, writer: GroupCommitWriter, clock: Clock) -> Rooms:
    """Return a factory of two servers with some options, after a session was handed to the agent of content."""

    @contextmanager
    def given(**options: Any) -> Iterator[list[Room]]:
        with two_rooms(database, writer, clock, **{"limits": LIMITS, **options}) as made:
            made[0].sessions.open(THE_GUIDE, "ada", "s-1", {"shared_intent": "move"})
            beat(made[0])
            route(made[0])
            sweep(*made)
            yield made

    return given


def serving(pillar: str) -> TenantCaller:
    return TenantCaller(liaison_agent(pillar), TENANT, "request-2")


def beat(room: Room, *pillars: str) -> None:
    for pillar in pillars or PILLARS:
        room.presence.heartbeat(serving(pillar), pillar, leaving=False)


def leave(room: Room, pillar: str = "content") -> None:
    room.presence.heartbeat(serving(pillar), pillar, leaving=True)


def route(room: Room, pillar: str = "content") -> None:
    room.router.route(THE_GUIDE, RoutingRequest(pillar, "ada", "s-1", "because", {"topic": "files"}))


def claim(room: Room) -> int:
    return room.presence.claim(serving("content"), "s-1", "one")[0].claim_number


def say(room: Room) -> None:
    room.sessions.append(THE_GUIDE, "s-1", MessageContent(MessageRole.USER, "Hello?"))


def sweep(*rooms: Room) -> None:
    for room in rooms:
        room.supervisor.sweep()


def wait(clock: Clock, room: Room, time: timedelta, *beating: str) -> None:
    """Let time pass in which agents go on telling that they are there."""
    left = time
    while left > timedelta(0):
        step = min(left, HEARTBEAT / 2)
        clock.wait(step)
        left -= step
        beat(room, *beating)


def session(room: Room) -> Session:
    return room.sessions.get(THE_GUIDE, "s-1", "ada")


def events(room: Room, *types: str) -> list[Event]:
    return list(room.history.events(EventFilter(TENANT, types=types), 0, 100).events)


def alarms(room: Room) -> list[str]:
    """Return which alarms were told, in their order."""
    return [event.type.value for event in events(room, *(kind.value for kind in AlarmKind))]


def test_a_session_that_nobody_claims_is_told_of_once(serve: Rooms, clock: Clock) -> None:
    with serve() as (here, there):
        handed = session(here).updated_at
        wait(clock, here, 2 * MINUTE - HEARTBEAT)
        sweep(here, there)
        assert alarms(here) == []
        wait(clock, here, HEARTBEAT)
        sweep(here, there, here)
        (told,) = events(there, "session_unclaimed")
        assert (told.session_id, told.user_id, told.agent) == ("s-1", "ada", "liaison_content")
        assert told.data == {"since": handed.isoformat().replace("+00:00", "Z"), "target_pillar": "content"}
        assert session(here).active_agent == "liaison_content"


def test_a_claim_that_ends_counts_as_no_claim_again(serve: Rooms, clock: Clock) -> None:
    with serve() as (here, there):
        claim(there)
        wait(clock, here, CLAIM + 2 * MINUTE - HEARTBEAT)
        sweep(here, there)
        assert alarms(here) == []
        wait(clock, here, HEARTBEAT)
        sweep(here, there)
        claim(here)
        wait(clock, here, CLAIM + 2 * MINUTE)
        sweep(there, here)
        assert alarms(here) == ["session_unclaimed", "session_unclaimed"]


@pytest.mark.parametrize("happens", [say, claim], ids=["message", "claim"])
def test_a_session_in_which_nothing_happens_is_told_of_once_until_something_does(
    serve: Rooms, clock: Clock, happens: Callable[[Room], object]
) -> None:
    with serve(limits=replace(LIMITS, unclaimed=None)) as (here, there):
        wait(clock, here, 4 * MINUTE)
        happens(there)
        wait(clock, here, 4 * MINUTE)
        sweep(here, there)
        assert alarms(here) == []
        wait(clock, here, 2 * MINUTE)
        sweep(here, there, here)
        assert alarms(here) == ["session_silent"]
        happens(here)
        wait(clock, here, 6 * MINUTE)
        sweep(there, here)
        assert alarms(here) == ["session_silent"] * 2


def test_what_changes_in_a_silent_session_is_no_silence(serve: Rooms, clock: Clock) -> None:
    with serve(limits=replace(LIMITS, unclaimed=None)) as (here, there):
        wait(clock, here, 6 * MINUTE)
        sweep(here)
        there.sessions.update_context(THE_GUIDE, "s-1", {"draft": 1}, None)
        wait(clock, here, 6 * MINUTE)
        sweep(there)
        assert alarms(here) == ["session_silent"] * 2


def test_an_agent_that_leaves_is_told_of_with_each_session_that_it_has(serve: Rooms, clock: Clock) -> None:
    with serve() as (here, there):
        leave(there)
        sweep(here, there)
        assert alarms(here) == []
        clock.wait(ABSENT)
        sweep(here, there, here)
        assert alarms(here) == ["session_agent_absent"]
        told = [(event.type.value, event.agent, event.data.get("reason")) for event in events(here)]
        assert ("agent_absent", "liaison_content", "it left") in told
        beat(there, "content")
        leave(here)
        clock.wait(ABSENT)
        sweep(there, here)
        assert alarms(here) == ["session_agent_absent"] * 2


@pytest.mark.contract(
    "SqlPresenceStore.due_holds",
    "SqlPresenceStore.lapsed_agents",
    "SqlPresenceStore.lock_order",
    "SqlPresenceStore.next_due",
    "SqlPresenceStore.presence",
    "SqlPresenceStore.update_hold",
    "SqlPresenceStore.write_presence",
)
def test_an_agent_that_comes_back_in_time_is_not_told_of_with_its_sessions(serve: Rooms, clock: Clock) -> None:
    with serve() as (here, there):
        leave(there)
        sweep(there)
        beat(there, "content")
        clock.wait(ABSENT)
        sweep(here, there)
        assert alarms(here) == []


def test_an_agent_whose_heartbeats_end_is_told_of_once(serve: Rooms, clock: Clock) -> None:
    with serve() as (here, there):
        wait(clock, here, HEARTBEAT, "insights")
        sweep(here, there)
        (gone,) = events(here, "agent_absent")
        assert gone.data == {"target_pillar": "content", "served_by": "liaison_content", "reason": "no heartbeat"}
        assert alarms(here) == []
        clock.wait(ABSENT)
        sweep(there, here)
        assert alarms(here) == ["session_agent_absent"]
        beat(here, "content")
        beat(there, "content")
        assert [event.agent for event in events(here, "agent_present")].count("liaison_content") == 2


def test_an_absence_that_no_sweep_noticed_is_told_of_with_the_return(serve: Rooms, clock: Clock) -> None:
    with serve() as (here, there):
        clock.wait(HEARTBEAT)
        beat(there, "content")
        types = [event.type.value for event in events(here) if event.agent == "liaison_content"]
        assert types == ["agent_present", "liaison_agent_activated", "agent_absent", "agent_present"]


def test_sessions_go_back_to_the_guide(serve: Rooms, clock: Clock) -> None:
    with serve(fallbacks={"content": Fallback((), ALL)}) as (here, there):
        late = claim(here)
        leave(here)
        clock.wait(ABSENT)
        sweep(there, here)
        moved = session(here)
        assert (moved.active_agent, moved.routing_epoch, moved.activation_key) == (GUIDE, 1, None)
        (alarm,) = events(here, "session_agent_absent")
        assert alarm.data["fallback"] == GUIDE
        (returned,) = events(here, "returned_to_guide")
        assert returned.data == {
            "from": "liaison_content",
            "reason": "fallback from liaison_content: session_agent_absent",
        }
        entry = next(entry for entry in there.trail.entries if entry.event == "session_returned")
        assert entry.requesting_agent == "liaison-supervisor"
        with pytest.raises(Exception, match="it is with guide"):
            there.sessions.append(serving("content"), "s-1", MessageContent(MessageRole.ASSISTANT, "late"), late)


def test_sessions_go_to_another_pillar_with_their_conversation(serve: Rooms, clock: Clock) -> None:
    with serve(fallbacks={"content": Fallback(("insights",), ALL)}) as (here, there):
        say(here)
        wait(clock, here, 2 * MINUTE)
        sweep(there, here, there)
        moved = session(here)
        assert (moved.active_agent, moved.routing_epoch) == ("liaison_insights", 1)
        activated = events(here, "liaison_agent_activated")
        assert [event.agent for event in activated] == ["liaison_content", "liaison_insights"]
        assert activated[1].data["routing_reason"] == "fallback from liaison_content: session_unclaimed"
        _, activation = there.presence.claim(serving("insights"), "s-1", "one")
        assert [entry["content"] for entry in activation.shared_context["conversation_history"]] == ["Hello?"]
        assert alarms(here) == ["session_unclaimed"]


def test_a_pillar_that_cannot_take_sessions_leaves_them_to_the_guide(serve: Rooms, clock: Clock) -> None:
    with serve(fallbacks={"content": Fallback(("insights",), ALL)}) as (here, there):
        leave(here, "insights")
        clock.wait(HEARTBEAT)
        sweep(there)
        clock.wait(ABSENT)
        sweep(there, here)
        assert session(here).active_agent == GUIDE
        assert [event.type.value for event in events(here, *MOVES)] == list(MOVES)


def test_only_the_alarms_that_are_named_move_sessions(serve: Rooms, clock: Clock) -> None:
    fallback = Fallback((), frozenset({AlarmKind.SILENT}))
    with serve(fallbacks={"content": fallback}) as (here, there):
        wait(clock, here, 2 * MINUTE)
        sweep(here)
        assert session(here).active_agent == "liaison_content"
        wait(clock, here, 3 * MINUTE)
        sweep(here, there)
        assert session(here).active_agent == GUIDE
        assert alarms(here) == ["session_unclaimed", "session_silent"]


class Killed(Exception):
    """The server died."""


@pytest.mark.both_databases
def test_another_server_goes_on_where_one_was_killed_before_it_moved_a_session(serve: Rooms, clock: Clock) -> None:
    with serve(fallbacks={"content": Fallback(("insights",), ALL)}) as (here, there):

        def die() -> None:
            raise Killed

        wait(clock, here, 2 * MINUTE)
        here.judge.meanwhile = die
        with pytest.raises(Killed):
            sweep(here)
        assert (session(there).active_agent, alarms(there)) == ("liaison_content", ["session_unclaimed"])
        sweep(there)
        assert session(there).active_agent == "liaison_content"
        wait(clock, there, LEASE)
        sweep(there)
        assert (session(there).active_agent, alarms(there)) == ("liaison_insights", ["session_unclaimed"])


@pytest.mark.both_databases
def test_a_session_that_goes_on_while_it_is_moved_stays_where_it_is(serve: Rooms, clock: Clock) -> None:
    with serve(fallbacks={"content": Fallback(("insights",), ALL)}) as (here, there):
        wait(clock, here, 2 * MINUTE)

        def give_back_and_route_again() -> None:
            there.router.return_to_guide(THE_GUIDE, "s-1", "", None)
            route(there)

        here.judge.meanwhile = give_back_and_route_again
        sweep(here, there)
        assert (session(there).active_agent, session(there).routing_epoch) == ("liaison_content", 1)
        claim(there)


def test_what_is_closed_or_returned_is_not_told_of(serve: Rooms, clock: Clock) -> None:
    with serve() as (here, there):
        there.router.return_to_guide(THE_GUIDE, "s-1", "", None)
        wait(clock, here, 6 * MINUTE)
        route(here)
        there.sessions.close(THE_GUIDE, "s-1", None)
        wait(clock, here, 6 * MINUTE)
        sweep(here, there)
        assert alarms(here) == []


def test_remote_agents_are_silent_but_neither_unclaimed_nor_absent(
    database: Database, writer: GroupCommitWriter, clock: Clock
) -> None:
    with two_rooms(database, writer, clock, limits=LIMITS, remote={"journey": Remote()}) as (here, there):
        here.sessions.open(THE_GUIDE, "ada", "s-1", {})
        route(here, "journey")
        wait(clock, here, 6 * MINUTE)
        sweep(there, here)
        assert alarms(here) == ["session_silent"]


class Remote:
    """A remote agent that is there until it is not."""

    confirms = False

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason

    def check(self, tenant: str) -> None:
        if self.reason:
            raise LiaisonAgentUnavailable(f"not available: {self.reason}", metadata={"reason": self.reason})


@pytest.mark.contract("SqlPresenceStore.held_sessions", "SqlPresenceStore.presences")
def test_agents_are_listed_with_what_they_have(database: Database, writer: GroupCommitWriter, clock: Clock) -> None:
    remote = {"journey": Remote(), "solution": Remote("not reachable")}
    with two_rooms(database, writer, clock, remote=remote) as (here, there):
        here.sessions.open(THE_GUIDE, "ada", "s-1", {})
        beat(here, "content")
        since = listed(there)["content"].since
        route(here)
        beat(here, "content")
        found = listed(there)
        assert list(found) == ["content", "insights", "journey", "solution"]
        assert [agent.kind for agent in found.values()] == ["local", "local", "a2a", "a2a"]
        reasons = {pillar: agent.reason for pillar, agent in found.items()}
        assert reasons == {"content": None, "insights": "no heartbeat", "journey": None, "solution": "not reachable"}
        assert {pillar: agent.sessions for pillar, agent in found.items() if agent.sessions} == {"content": 1}
        content = found["content"]
        assert content.presence
        assert (content.presence.agent, content.since) == ("liaison_content", since)
        assert isinstance(content.presence.beaten_at, datetime)
        assert isinstance(since, datetime)
        assert content.presence.beaten_at > since
        other = TenantCaller("carol", "other", "request-3")
        assert all(agent.presence is None and not agent.sessions for agent in here.directory.list_agents(other, None))
        until = content.presence.available_until
        clock.wait(HEARTBEAT)
        assert (listed(there)["content"].reason, listed(there)["content"].since) == ("no heartbeat", until)


def listed(room: Room) -> dict[str, Any]:
    return {agent.pillar: agent for agent in room.directory.list_agents(THE_GUIDE, None)}


@contextmanager
def routed(database: Database, writer: GroupCommitWriter, clock: Clock) -> Iterator[Room]:
    """Yield a server with a session that an agent has."""
    with two_rooms(database, writer, clock, limits=LIMITS) as (here, _):
        beat(here)
        here.sessions.open(THE_GUIDE, "ada", "s-1", {})
        route(here)
        yield here


def test_a_session_is_not_looked_at_before_its_first_alarm_may_come(
    database: Database, writer: GroupCommitWriter, clock: Clock
) -> None:
    with routed(database, writer, clock) as here:
        store, first = SqlPresenceStore(database), session(here).updated_at + ABSENT
        with database.read_snapshot() as unit_of_work:
            assert store.due_holds(unit_of_work, first - timedelta(microseconds=1), 10) == []
            assert [hold.session_id for hold in store.due_holds(unit_of_work, first, 10)] == ["s-1"]


@pytest.mark.contract("SqlPresenceStore.delete_hold")
def test_a_session_that_no_agent_has_is_not_looked_at(
    database: Database, writer: GroupCommitWriter, clock: Clock
) -> None:
    with routed(database, writer, clock) as here:
        store, at = SqlPresenceStore(database), session(here).updated_at + ABSENT
        with database.read_snapshot() as unit_of_work:
            (hold,) = store.due_holds(unit_of_work, at, 10)
        writer.run(lambda unit_of_work: store.delete_hold(unit_of_work, hold))
        with database.read_snapshot() as unit_of_work:
            assert store.due_holds(unit_of_work, at, 10) == []


@pytest.mark.both_databases
def test_servers_that_look_at_the_same_time_tell_and_move_each_session_once(
    database: Database, writer: GroupCommitWriter, clock: Clock
) -> None:
    fallbacks = {"content": Fallback(("insights",), ALL)}
    with two_rooms(database, writer, clock, limits=LIMITS, fallbacks=fallbacks) as rooms:
        here = rooms[0]
        beat(here)
        for number in range(12):
            here.sessions.open(THE_GUIDE, f"user-{number}", f"s-{number}", {})
            here.router.route(THE_GUIDE, RoutingRequest("content", f"user-{number}", f"s-{number}", "because"))
        sweep(here)
        wait(clock, here, 2 * MINUTE)
        with ThreadPoolExecutor(4) as pool:
            for swept in [pool.submit(room.supervisor.sweep) for room in [*rooms, *rooms]]:
                swept.result(SECONDS)
        told = Counter(event.session_id for event in events(here, "session_unclaimed"))
        moved = Counter(
            event.session_id for event in events(here, *MOVES) if event.data.get("target_pillar") == "insights"
        )
        assert told == moved == Counter({f"s-{number}": 1 for number in range(12)})
