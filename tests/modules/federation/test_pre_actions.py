"""Announcing and recording at once where peers decide too."""

from __future__ import annotations

import uuid
from typing import Any

from tests.modules.federation.house import House, brief, given, result_of


def act(house: House, identifier: str, scope: str | None = "federated", **metadata: bool) -> dict[str, Any]:
    announcement = {"intent": f"Ship {identifier}", "correlationId": identifier, "metadata": metadata, **given(scope)}
    return result_of(house.a, "cstp.preAction", {"announcement": announcement})


def recorded(house: House, identifier: str) -> list[str]:
    """Return the ids of the decisions of an action that are on record."""
    found = result_of(house.a, "cstp.listDecisions", {"pageSize": 1000})["decisions"]
    return [each["id"] for each in found if each["title"] == f"Ship {identifier}"]


def test_what_all_agents_allow_is_recorded(house: House) -> None:
    identifier = uuid.uuid4().hex
    answer = act(house, identifier)
    assert {each["agent"] for each in answer["feedback"]["responses"]} == {"b"}
    assert recorded(house, identifier) == [answer["decision"]["id"]]
    assert act(house, identifier)["decision"]["id"] == answer["decision"]["id"]


def test_what_a_required_peer_blocks_is_not_recorded(house: House) -> None:
    identifier = uuid.uuid4().hex
    answer = act(house, identifier, production=True)
    assert brief(answer["feedback"]["guardrailStatus"])[:2] == (False, ["b/no-production"])
    assert "decision" not in answer
    assert recorded(house, identifier) == []


def test_an_announcement_whose_decision_was_not_recorded_yet_is_completed_by_a_repetition(house: House) -> None:
    identifier = uuid.uuid4().hex
    # What a server leaves that is killed after its peers have answered.
    announcement = {"intent": f"Ship {identifier}", "correlationId": identifier, "metadata": {}, **given("federated")}
    assert result_of(house.a, "cstp.announceIntent", announcement)["revision"] == 1
    answer = act(house, identifier)
    assert answer["feedback"]["revision"] == 1
    assert recorded(house, identifier) == [answer["decision"]["id"]]


def test_in_the_local_scope_peers_have_no_say(house: House) -> None:
    answer = act(house, uuid.uuid4().hex, "local", production=True)
    assert answer["feedback"]["responses"] == []
    assert "decision" in answer


def test_who_is_asked_must_make_sense(house: House) -> None:
    announcement = {"intent": "Ship it", "scope": "local", "agents": ["b"]}
    outcome = house.a.call("cstp.preAction", {"announcement": announcement})
    assert outcome.reason == "INVALID_ARGUMENT"
