"""The journal's methods, from message to message."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.core.decisions.servicer import IMPORT_BATCH
from cstp_grpc.gen.cstp.v1 import audit_pb2, journal_pb2, types_pb2
from tests.services.served import CALLER, Served, absent, answer
from tests.waiting import wait_until


def listed(served: Served, request: journal_pb2.ListDecisionsRequest) -> journal_pb2.ListDecisionsResponse:
    return served.call("ListDecisions", request, journal_pb2.ListDecisionsResponse)


def test_all_of_a_decision_comes_back(served: Served) -> None:
    (other,) = served.record([journal_pb2.DecisionContent(title="Use Memcached")])
    content = journal_pb2.DecisionContent(
        title="Use Redis",
        context="Sessions are slow",
        category="architecture",
        stakes=types_pb2.STAKES_HIGH,
        confidence=0.0,
        status=types_pb2.DECISION_STATUS_REVIEWED,
        outcome=types_pb2.OUTCOME_PARTIAL,
        date=Timestamp(seconds=1_700_000_000, nanos=123_456_000),
        notes="Size it first",
        reasons=[journal_pb2.Reason(type="analysis", text="fast", strength=0.0), journal_pb2.Reason(type="habit")],
        tags=["cache", "redis"],
        project="shop",
        visibility=types_pb2.VISIBILITY_SHARED,
        review_by=Timestamp(seconds=1_800_000_000),
    )
    links = journal_pb2.Links(relates_to=[other.id])
    request = journal_pb2.RecordDecisionRequest(decision=content, links=links)

    recorded = served.call("RecordDecision", request, journal_pb2.RecordDecisionResponse).decision

    names = [field.name for field in content.DESCRIPTOR.fields]
    assert {name: getattr(recorded, name) for name in names} == {name: getattr(content, name) for name in names}
    assert recorded.HasField("confidence")
    assert [reason.HasField("strength") for reason in recorded.reasons] == [True, False]
    assert (recorded.agent, recorded.links) == (CALLER.agent, links)
    read = served.call("GetDecision", journal_pb2.GetDecisionRequest(id=recorded.id), journal_pb2.GetDecisionResponse)
    assert read.decision.HasField("history")
    read.decision.ClearField("history")
    assert read.decision == unversioned(recorded)


def test_what_is_not_said_of_a_decision_stays_absent(served: Served) -> None:
    (recorded,) = served.record([journal_pb2.DecisionContent(title="Use Redis")])

    assert absent(recorded, "context", "category", "confidence", "reviewed_date", "notes", "project", "source")
    assert (recorded.stakes, recorded.outcome) == (types_pb2.STAKES_UNSPECIFIED, types_pb2.OUTCOME_UNSPECIFIED)
    assert recorded.status == types_pb2.DECISION_STATUS_DECIDED
    assert recorded.visibility == types_pb2.VISIBILITY_PRIVATE
    assert recorded.HasField("date")


def test_the_same_request_id_records_once(served: Served) -> None:
    content = journal_pb2.DecisionContent(title="Use Redis")
    request = journal_pb2.RecordDecisionRequest(decision=content, request_id="r-1")

    first, again = (served.call("RecordDecision", request, journal_pb2.RecordDecisionResponse) for _ in range(2))

    assert first == again
    assert first.decision.id not in {decision.id for decision in served.record([content])}


def test_decisions_are_listed_by_filters_and_in_pages(served: Served) -> None:
    low, high = types_pb2.STAKES_LOW, types_pb2.STAKES_HIGH
    contents = [
        journal_pb2.DecisionContent(title=f"Decision {number}", stakes=stakes, tags=["t"], date=Timestamp(seconds=day))
        for number, (stakes, day) in enumerate([(low, 1), (high, 2), (low, 3), (high, 9)])
    ]
    recorded = served.record(contents)
    filters = types_pb2.DecisionFilters(stakes=[low, high], tags=["t"], date_before=Timestamp(seconds=3))
    request = journal_pb2.ListDecisionsRequest(filters=filters, page_size=2)

    page = listed(served, request)
    request.page_token = page.next_page_token
    rest = listed(served, request)

    assert [item.id for item in page.decisions] == [recorded[2].id, recorded[1].id]
    assert ([item.id for item in rest.decisions], rest.next_page_token) == ([recorded[0].id], "")
    request = journal_pb2.ListDecisionsRequest(filters=types_pb2.DecisionFilters(stakes=[high]))
    assert [item.id for item in listed(served, request).decisions] == [recorded[3].id, recorded[1].id]


def test_a_review_without_notes_leaves_the_lesson(served: Served) -> None:
    (recorded,) = served.record([journal_pb2.DecisionContent(title="Use Redis", notes="Size it first")])
    request = journal_pb2.ReviewDecisionRequest(id=recorded.id, outcome=types_pb2.OUTCOME_ABANDONED)

    kept = served.call("ReviewDecision", request, journal_pb2.ReviewDecisionResponse).decision
    request.notes = ""
    cleared = served.call("ReviewDecision", request, journal_pb2.ReviewDecisionResponse).decision

    assert (kept.outcome, kept.status) == (types_pb2.OUTCOME_ABANDONED, types_pb2.DECISION_STATUS_REVIEWED)
    assert kept.HasField("reviewed_date")
    assert (kept.notes, cleared.notes) == ("Size it first", "")


def unversioned(decision: journal_pb2.Decision) -> journal_pb2.Decision:
    """Return a decision without the revision of the journal, which only answers to changes have."""
    copy = journal_pb2.Decision()
    copy.CopyFrom(decision)
    copy.ClearField("journal_revision")
    return copy


def test_sharing_can_be_taken_back(served: Served) -> None:
    (recorded,) = served.record([journal_pb2.DecisionContent(title="Use Redis")])

    shared = served.call(
        "ShareDecision", journal_pb2.ShareDecisionRequest(id=recorded.id), journal_pb2.ShareDecisionResponse
    )
    private = served.call(
        "UnshareDecision", journal_pb2.UnshareDecisionRequest(id=recorded.id), journal_pb2.UnshareDecisionResponse
    )

    assert shared.decision.visibility == types_pb2.VISIBILITY_SHARED
    assert unversioned(private.decision) == unversioned(recorded)


def test_an_import_is_stored_batch_by_batch_and_answered_in_order(served: Served) -> None:
    requests = [
        journal_pb2.ImportDecisionsRequest(
            source=f"adr/{number}.md", decision=journal_pb2.DecisionContent(title=f"Decision {number}")
        )
        for number in range(IMPORT_BATCH + 2)
    ]
    requests[-1].links.depends_on.append("adr/0.md")

    def imported() -> int:
        return len(served.entries(event=audit_pb2.AUDIT_EVENT_DECISION_IMPORTED, page_size=1000))

    with served.streaming("ImportDecisions") as rpc:
        for request in requests[: IMPORT_BATCH - 1]:
            rpc.send_request(request)
        assert imported() == 0
        rpc.send_request(requests[IMPORT_BATCH - 1])
        wait_until(lambda: imported() == IMPORT_BATCH, "the first batch is stored while the stream is open")
        for request in [*requests[IMPORT_BATCH:], requests[0]]:
            rpc.send_request(request)

    results = answer(rpc, journal_pb2.ImportDecisionsResponse).results
    assert [result.source for result in results] == [*(request.source for request in requests), "adr/0.md"]
    new, unchanged = journal_pb2.IMPORT_ACTION_IMPORTED, journal_pb2.IMPORT_ACTION_UNCHANGED
    assert [result.action for result in results] == [new] * len(requests) + [unchanged]
    reading = journal_pb2.GetDecisionRequest(id=results[-2].decision_id)
    last = served.call("GetDecision", reading, journal_pb2.GetDecisionResponse).decision
    assert (last.source, list(last.links.depends_on)) == (requests[-1].source, [results[0].decision_id])
