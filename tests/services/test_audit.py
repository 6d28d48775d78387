"""Reading the trail and the intents, from message to message."""

from __future__ import annotations

import pytest

from cstp_grpc.gen.cstp.v1 import audit_pb2, cstp_pb2, journal_pb2, types_pb2
from tests.services.served import CALLER, Served, absent


@pytest.fixture
def recorded(served: Served) -> journal_pb2.Decision:
    """A decision, after an announcement that is blocked."""
    request = cstp_pb2.AnnounceIntentRequest(intent="Drop the table", correlation_id="c-1")
    request.metadata.update({"drops": True})
    served.call("AnnounceIntent", request, cstp_pb2.AnnounceIntentResponse)
    (decision,) = served.record([journal_pb2.DecisionContent(title="Use Redis")])
    return decision


def test_an_entry_tells_what_there_is_to_tell_of_its_event(served: Served, recorded: journal_pb2.Decision) -> None:
    decision, announcement = served.entries()

    assert announcement.event == audit_pb2.AUDIT_EVENT_INTENT_ANNOUNCED
    assert announcement.HasField("allowed")
    assert not announcement.allowed
    assert (list(announcement.violations), list(announcement.warnings)) == (["no-drop"], ["only-medium"])
    assert (announcement.action, announcement.correlation_id) == ("Drop the table", "c-1")
    assert absent(announcement, "claimed_agent", "decision_id", "error")
    assert decision.event == audit_pb2.AUDIT_EVENT_DECISION_RECORDED
    assert (decision.decision_id, decision.request_id) == (recorded.id, CALLER.request_id)
    assert absent(decision, "claimed_agent", "allowed", "rule_set_version", "correlation_id", "error")


@pytest.mark.parametrize(
    ("conditions", "titles"),
    [
        ({"event": audit_pb2.AUDIT_EVENT_DECISION_RECORDED}, ["Use Redis"]),
        ({"allowed": False}, ["Drop the table"]),
        ({"allowed": True}, []),
        ({"guardrail_id": "no-drop"}, ["Drop the table"]),
        ({"correlation_id": "c-1"}, ["Drop the table"]),
        ({"requesting_agent": CALLER.agent, "request_id": CALLER.request_id}, ["Use Redis", "Drop the table"]),
        ({"requesting_agent": ""}, []),
    ],
)
@pytest.mark.usefixtures("recorded")
def test_entries_are_listed_by_conditions(served: Served, conditions: dict[str, object], titles: list[str]) -> None:
    assert [entry.action for entry in served.entries(**conditions)] == titles


def test_instants_bound_a_listing(served: Served, recorded: journal_pb2.Decision) -> None:
    decision, announcement = served.entries()

    assert served.entries(after=decision.timestamp) == [decision]
    assert served.entries(before=announcement.timestamp) == [announcement]
    assert served.entries(decision_id=recorded.id) == [decision]


def test_intents_are_listed_by_conditions_and_in_pages(served: Served) -> None:
    for number, stakes in enumerate([types_pb2.STAKES_HIGH, types_pb2.STAKES_LOW, types_pb2.STAKES_HIGH]):
        announced = cstp_pb2.AnnounceIntentRequest(intent="Deploy", correlation_id=f"c-{number}", stakes=stakes)
        served.call("AnnounceIntent", announced, cstp_pb2.AnnounceIntentResponse)
    request = audit_pb2.ListIntentsRequest(stakes=[types_pb2.STAKES_HIGH], page_size=1)

    page = served.call("ListIntents", request, audit_pb2.ListIntentsResponse)
    request.page_token = page.next_page_token
    rest = served.call("ListIntents", request, audit_pb2.ListIntentsResponse)

    assert [item.correlation_id for item in (*page.intents, *rest.intents)] == ["c-2", "c-0"]
    assert rest.next_page_token == ""
