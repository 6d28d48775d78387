"""How far a call between agents has come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.call_scope import MAX_HOP_METADATA_CHARACTERS, MAX_HOPS, MAX_PATH_AGENTS, HopContext
from tests.named_case import named_case

SHOWN = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
"""What can be printed, without a filter: with one, long lists fail a health check of Hypothesis now and then."""
IDS = st.text(SHOWN, max_size=40)
NAMES = st.text(SHOWN, min_size=1, max_size=12)
JOURNEYS = st.builds(HopContext, IDS, st.integers(0, MAX_HOPS), st.lists(NAMES, max_size=MAX_PATH_AGENTS).map(tuple))


@given(JOURNEYS)
def test_what_is_sent_is_what_arrives_or_ends(journey: HopContext) -> None:
    text = journey.encode()
    arrived = HopContext.decode(text)
    assert arrived is not None
    assert arrived == journey if len(text) <= MAX_HOP_METADATA_CHARACTERS else arrived.hops == 0


@given(JOURNEYS)
def test_metadata_can_carry_it(journey: HopContext) -> None:
    assert all("!" <= character <= "~" for character in journey.encode())


@given(st.text())
def test_what_is_not_understood_ends(text: str) -> None:
    arrived = HopContext.decode(text)
    assert arrived is not None
    assert arrived.hops == 0


@given(JOURNEYS, NAMES)
def test_every_agent_is_one_hop_less_and_tells_of_itself(journey: HopContext, agent: str) -> None:
    further = journey.next_hop(agent)
    if further.hops:
        assert further == HopContext(journey.id, journey.hops - 1, (*journey.path, agent))
        assert HopContext.decode(further.encode()) == further
    else:
        assert further.id == journey.id


@given(JOURNEYS, st.lists(NAMES, min_size=MAX_HOPS, max_size=MAX_HOPS))
def test_no_journey_is_without_an_end(journey: HopContext, agents: list[str]) -> None:
    for agent in agents:
        journey = journey.next_hop(agent)
    assert journey.hops == 0


def test_a_call_without_the_metadata_is_on_no_journey() -> None:
    assert HopContext.decode(None) is None


def test_a_hostile_value_ends() -> None:
    for text in [
        "",
        "?",
        "id=a;hops=1",
        "id=a;hops=-1;path=",
        "id=a;hops=+1;path=",
        "id=a;hops=1.5;path=",
        "id=a;hops=1e1;path=",
        "id=a;hops=٣;path=",
        "id=a;hops=65;path=",
        "id=a;hops=999999999999;path=",
        "id=a;hops=1;path=,",
        "id=a;hops=1;path=b;path=c",
        "id=a;hops=1;path=\n",
        "id=a\x00;hops=1;path=",
        "id=%00;hops=1;path=",
        "id=%1B%5B31m;hops=1;path=",
        "id=a;hops=1;path=%E2%80%AEb",
        "id=%ff;hops=1;path=",
        "id=%FF;hops=1;path=",
        "id=%E;hops=1;path=",
        f"id={'a' * MAX_HOP_METADATA_CHARACTERS};hops=1;path=",
        f"id=a;hops=1;path={','.join('b' * 65)}",
        " id=a;hops=1;path=",
    ]:
        with named_case(text):
            assert HopContext.decode(text) == HopContext("", 0)
