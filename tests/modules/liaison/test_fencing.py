"""Agents that no longer have a session cannot act in it, whichever of two servers of a database they call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cstp_grpc.contract.errors import Conflict, SessionWithAnotherAgent
from cstp_grpc.modules.liaison.model import (
    GUIDE,
    EventFilter,
    EventType,
    MessageContent,
    MessageRole,
    Session,
    TenantCaller,
    liaison_agent,
)
from cstp_grpc.modules.liaison.routing import RoutingRequest
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.liaison.room import CLAIM, Room
from tests.modules.liaison.servers import PILLARS, Clock, two_rooms

TENANT = "acme"
THE_GUIDE = TenantCaller("guide-agent", TENANT, "request-1", may_route=True)
CONTENT = TenantCaller("liaison_content", TENANT, "request-2")
INSIGHTS = TenantCaller("liaison_insights", TENANT, "request-3")

Act = Callable[[Room, TenantCaller, int | None], object]


@pytest.fixture
def rooms(database: Database, writer: GroupCommitWriter, clock: Clock) -> Iterator[list[Room]]:
    with two_rooms(database, writer, clock) as made:
        made[0].sessions.open(THE_GUIDE, "ada", "s-1", {})
        beat(made[0])
        route(made[0])
        yield made


def beat(room: Room) -> None:
    for pillar in PILLARS:
        room.presence.heartbeat(TenantCaller(liaison_agent(pillar), TENANT, "request-4"), pillar, leaving=False)


def route(room: Room, pillar: str = "content") -> None:
    room.router.route(THE_GUIDE, RoutingRequest(pillar, "ada", "s-1", "because", {"topic": "files"}))


def claim(room: Room, claimant: str, caller: TenantCaller = CONTENT) -> int:
    """Return the number of a claim."""
    return room.presence.claim(caller, "s-1", claimant)[0].claim_number


def read(room: Room) -> tuple[Session, int]:
    """Return the session, and how many events there are."""
    return room.sessions.get(THE_GUIDE, "s-1", "ada"), len(room.history.events(EventFilter(TENANT), 0, 100).events)


def answer(room: Room, caller: TenantCaller, number: int | None) -> object:
    return room.sessions.append(caller, "s-1", MessageContent(MessageRole.ASSISTANT, "Here"), number)


def note(room: Room, caller: TenantCaller, number: int | None) -> object:
    return room.sessions.append(caller, "s-1", MessageContent(MessageRole.SYSTEM, "Noted"), number)


def update(room: Room, caller: TenantCaller, number: int | None) -> object:
    return room.sessions.update_context(caller, "s-1", {"draft": number or 0}, None, number)


def give_back(room: Room, caller: TenantCaller, number: int | None) -> object:
    return room.router.return_to_guide(caller, "s-1", "done", None, number)


def refused(act: Act, room: Room, caller: TenantCaller, number: int | None) -> str:
    """Return why an act is refused, which changes nothing."""
    before = read(room)
    with pytest.raises(SessionWithAnotherAgent) as raised:
        act(room, caller, number)
    assert read(room) == before
    return raised.value.metadata["reason"]


every_act = pytest.mark.parametrize("act", [answer, note, update, give_back])
as_the_agent = pytest.mark.parametrize("act", [answer, give_back])


@every_act
def test_the_holder_acts_by_the_number_of_its_claim(rooms: list[Room], act: Act) -> None:
    here, there = rooms
    number = claim(here, "one")
    act(there, CONTENT, number)
    assert read(here) == read(there)


def test_the_number_grows_with_each_claim_but_that_which_renews_a_live_one(rooms: list[Room], clock: Clock) -> None:
    here, there = rooms
    assert [claim(here, "one"), claim(there, "one")] == [1, 1]
    clock.wait(CLAIM)
    assert [claim(there, "one"), claim(here, "one")] == [2, 2]
    clock.wait(CLAIM)
    assert claim(here, "two") == 3
    give_back(there, CONTENT, 3)
    beat(here)
    route(here)
    assert claim(there, "two") == 4
    types = (EventType.SESSION_CLAIMED.value,)
    events = there.history.events(EventFilter(TENANT, types=types), 0, 100).events
    numbers = [(event.data["claimant"], event.data["claim_number"]) for event in events]
    assert numbers == [("one", 1), ("one", 2), ("two", 3), ("two", 4)]


@every_act
def test_a_claim_that_has_ended_is_refused_though_nobody_else_has_it(rooms: list[Room], clock: Clock, act: Act) -> None:
    here, there = rooms
    number = claim(here, "one")
    clock.wait(CLAIM)
    assert refused(act, there, CONTENT, number) == "the claim has ended"


@every_act
def test_an_instance_that_another_one_replaced_is_refused_by_its_number(
    rooms: list[Room], clock: Clock, act: Act
) -> None:
    here, there = rooms
    late = claim(here, "one")
    clock.wait(CLAIM)
    number = claim(there, "two")
    assert refused(act, here, CONTENT, late) == "the claim number is not the current one"
    act(here, CONTENT, number)


@every_act
def test_a_claim_on_an_earlier_activation_of_the_same_pillar_is_refused(rooms: list[Room], act: Act) -> None:
    here, there = rooms
    late = claim(here, "one")
    give_back(here, CONTENT, late)
    route(here)
    assert refused(act, there, CONTENT, late) == "the claim has ended"
    claim(here, "one")
    assert refused(act, there, CONTENT, late) == "the claim number is not the current one"


@pytest.mark.parametrize("act", [answer, note, update])
def test_a_claim_on_a_session_that_the_guide_has_is_refused(rooms: list[Room], act: Act) -> None:
    here, there = rooms
    number = claim(here, "one")
    give_back(here, CONTENT, number)
    assert refused(act, there, CONTENT, number) == "the session is with another agent"
    # As before, what is returned stays returned.
    give_back(there, CONTENT, number)


@as_the_agent
@pytest.mark.parametrize("number", [None, 1])
def test_the_agent_of_a_pillar_that_the_session_has_left_is_refused(
    rooms: list[Room], act: Act, number: int | None
) -> None:
    here, there = rooms
    assert claim(here, "one") == 1
    give_back(here, THE_GUIDE, None)
    route(here, "insights")
    assert refused(act, there, CONTENT, number) == "the session is with another agent"
    claim(there, "one", INSIGHTS)
    assert refused(act, here, CONTENT, number) == "the session is with another agent"


def test_an_agent_does_not_speak_for_the_guide(rooms: list[Room]) -> None:
    give_back(rooms[0], CONTENT, None)
    assert refused(answer, rooms[1], CONTENT, None) == "the session is with another agent"
    answer(rooms[1], THE_GUIDE, None)


@as_the_agent
def test_without_a_number_an_agent_acts_by_its_own_name(rooms: list[Room], clock: Clock, act: Act) -> None:
    here, there = rooms
    claim(here, CONTENT.agent)
    act(there, CONTENT, None)


@as_the_agent
def test_without_a_number_a_claim_by_another_name_is_refused(rooms: list[Room], act: Act) -> None:
    claim(rooms[0], "one")
    assert refused(act, rooms[1], CONTENT, None) == "the claim number is missing"


@as_the_agent
def test_without_a_number_a_claim_that_has_ended_is_refused(rooms: list[Room], clock: Clock, act: Act) -> None:
    claim(rooms[0], CONTENT.agent)
    clock.wait(CLAIM)
    assert refused(act, rooms[1], CONTENT, None) == "the claim has ended"


@as_the_agent
def test_an_agent_that_never_claims_acts_in_what_nobody_claimed(rooms: list[Room], act: Act) -> None:
    act(rooms[1], CONTENT, None)


def test_the_guide_takes_back_what_an_agent_holds(rooms: list[Room]) -> None:
    claim(rooms[0], "one")
    give_back(rooms[1], THE_GUIDE, None)
    assert read(rooms[0])[0].active_agent == GUIDE


def test_a_repetition_of_what_was_said_in_time_is_answered_when_the_claim_has_ended(
    rooms: list[Room], clock: Clock
) -> None:
    here, there = rooms
    said = MessageContent(MessageRole.ASSISTANT, "Here", message_id="m-1")
    number = claim(here, "one")
    first = here.sessions.append(CONTENT, "s-1", said, number)
    clock.wait(CLAIM)
    assert there.sessions.append(CONTENT, "s-1", said, number) == first
    assert len(there.sessions.messages(CONTENT, "s-1", PageRequest(10)).items) == 1


def test_a_claim_that_is_refused_has_no_number(rooms: list[Room], clock: Clock) -> None:
    claim(rooms[0], "one")
    with pytest.raises(Conflict):
        claim(rooms[1], "two")
    clock.wait(CLAIM)
    assert claim(rooms[1], "two") == 2
