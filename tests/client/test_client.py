"""What the client sends, and when it sends it again."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.message import Message

from cstp_grpc.client import CstpClient, RetryPolicy, decision_filters
from cstp_grpc.client.targets import grpc_address, target_scheme
from cstp_grpc.contract.errors import CstpError, InvalidArgument, MethodNotFound, NotFound, RateLimited, Unavailable
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import audit_pb2, cstp_pb2, journal_pb2, pre_actions_pb2, types_pb2
from tests.client.scripted import ScriptedServer, scripted_server

PASSING = (Unavailable("starting"), RateLimited("slower", retry_after=0.5))


def connect(server: ScriptedServer, **options: object) -> CstpClient:
    return CstpClient(server.target, sleep=lambda _: None, **options)  # type: ignore[arg-type]


def test_the_token_travels_with_every_call() -> None:
    with scripted_server(cstp_pb2.QueryDecisionsResponse()) as server, connect(server, token="secret-1") as client:
        client.query_decisions("anything")
    assert server.metadata[0]["authorization"] == "Bearer secret-1"


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "schlüssel"])
def test_a_token_that_no_header_can_carry_is_refused_at_once(token: str) -> None:
    with pytest.raises(InvalidArgument, match="token"):
        CstpClient("localhost:1", token)


def test_a_query_says_what_it_was_told() -> None:
    with scripted_server(cstp_pb2.QueryDecisionsResponse(total=3)) as server, connect(server) as client:
        filters = decision_filters(
            category="architecture",
            min_confidence=0.5,
            date_after=datetime(2026, 1, 1, tzinfo=UTC),
            stakes=["high", "critical"],
            status=["decided"],
            outcome=["failure"],
            tags=["auth"],
            project="web",
            agent="emerson",
        )
        answer = client.query_decisions("cache", filters=filters, limit=5, min_score=0.1, include_reasons=True)
    assert answer.total == 3
    expected = cstp_pb2.QueryDecisionsRequest(query="cache", limit=5, min_score=0.1, include_reasons=True)
    expected.filters.category = "architecture"
    expected.filters.min_confidence = 0.5
    expected.filters.date_after.FromDatetime(datetime(2026, 1, 1))
    expected.filters.stakes.extend([types_pb2.STAKES_HIGH, types_pb2.STAKES_CRITICAL])
    expected.filters.status.append(types_pb2.DECISION_STATUS_DECIDED)
    expected.filters.outcome.append(types_pb2.OUTCOME_FAILURE)
    expected.filters.tags.append("auth")
    expected.filters.project = "web"
    expected.filters.agent = "emerson"
    assert server.requests == [expected]


def test_a_check_carries_its_context_as_json() -> None:
    with scripted_server(cstp_pb2.CheckGuardrailsResponse(allowed=True)) as server, connect(server) as client:
        context: dict[str, Any] = {"affectsProduction": True, "steps": [1, "two", None]}
        assert client.check_guardrails("deploy", stakes="HIGH", confidence=0.9, context=context).allowed
    action = server.requests[0].action
    assert (action.description, action.stakes, action.confidence) == ("deploy", types_pb2.STAKES_HIGH, 0.9)
    assert action.context["affectsProduction"] is True
    assert list(action.context["steps"]) == [1, "two", None]


def test_what_cannot_be_sent_is_refused_by_field() -> None:
    with CstpClient("localhost:1") as client:
        with pytest.raises(InvalidArgument, match="'extreme' is not one of low, medium, high, critical"):
            client.check_guardrails("deploy", stakes="extreme")
        with pytest.raises(InvalidArgument, match="'unspecified' is not one of"):
            client.check_guardrails("deploy", stakes="unspecified")
        with pytest.raises(InvalidArgument, match="date: must be a datetime with a time zone"):
            client.record_decision("Use X", date=datetime(2026, 1, 1))
        with pytest.raises(InvalidArgument, match="context: is not a JSON object"):
            client.check_guardrails("deploy", context={"when": datetime(2026, 1, 1)})  # type: ignore[dict-item]


def test_a_decision_is_recorded_whole() -> None:
    answer = journal_pb2.RecordDecisionResponse(decision=journal_pb2.Decision(id="dec-1"))
    with scripted_server(answer) as server, connect(server) as client:
        decision = client.record_decision(
            "Use X",
            status="decided",
            outcome="success",
            reasons=[journal_pb2.Reason(type="analysis", text="measured")],
            tags=["a"],
            visibility="shared",
            links=journal_pb2.Links(supersedes=["dec-0"]),
            request_id="mine",
        )
    assert decision.id == "dec-1"
    sent = server.requests[0]
    assert (sent.request_id, sent.decision.title, sent.decision.visibility) == ("mine", "Use X", 2)
    assert (sent.decision.status, sent.decision.outcome) == (2, 1)
    assert list(sent.links.supersedes) == ["dec-0"]


@pytest.mark.parametrize("failure", PASSING, ids=lambda failure: failure.reason)
def test_an_announcement_is_repeated_under_the_same_correlation_id(failure: CstpError) -> None:
    with scripted_server(failure, cstp_pb2.AnnounceIntentResponse(received=True)) as server, connect(server) as client:
        assert client.announce_intent("deploy").received
    first, second = (request.correlation_id for request in server.requests)
    assert first == second
    assert uuid.UUID(first)


def test_an_announcement_names_the_code_that_it_is_about() -> None:
    with scripted_server(*[cstp_pb2.AnnounceIntentResponse(received=True)] * 2) as server, connect(server) as client:
        client.announce_intent("deploy", project="shop", paths=["src/api", "docs"])
        client.announce_intent("deploy")
    about, plain = server.requests
    assert (about.project, list(about.paths)) == ("shop", ["src/api", "docs"])
    assert (plain.HasField("project"), list(plain.paths)) == (False, [])


def test_an_action_is_repeated_under_the_same_correlation_id() -> None:
    request = pre_actions_pb2.PreActionRequest(announcement=cstp_pb2.AnnounceIntentRequest(intent="deploy"))
    answers = Unavailable("starting"), pre_actions_pb2.PreActionResponse()
    with scripted_server(*answers) as server, connect(server) as client:
        client.call(contract_methods()["cstp.preAction"], request)
    first, second = (request.announcement.correlation_id for request in server.requests)
    assert first == second
    assert uuid.UUID(first)
    assert not request.announcement.HasField("correlation_id")


def test_a_record_is_repeated_under_the_same_request_id() -> None:
    with (
        scripted_server(Unavailable("starting"), journal_pb2.RecordDecisionResponse()) as server,
        connect(server) as client,
    ):
        client.record_decision("Use X")
    first, second = (request.request_id for request in server.requests)
    assert first == second
    assert uuid.UUID(first)


def test_a_generic_call_is_made_safe_to_repeat_and_leaves_its_request_alone() -> None:
    request = cstp_pb2.AnnounceIntentRequest(intent="deploy")
    with scripted_server(cstp_pb2.AnnounceIntentResponse(received=True)) as server, connect(server) as client:
        client.call(contract_methods()["cstp.announceIntent"], request)
    assert uuid.UUID(server.requests[0].correlation_id)
    assert not request.HasField("correlation_id")


def test_retries_end_with_the_last_error() -> None:
    with (
        scripted_server(Unavailable("starting")) as server,
        connect(server, retries=RetryPolicy(attempts=3)) as client,
        pytest.raises(Unavailable, match="starting"),
    ):
        client.get_decision("dec-1")
    assert len(server.requests) == 3


def test_an_error_for_good_is_not_repeated() -> None:
    with (
        scripted_server(NotFound("no such decision")) as server,
        connect(server) as client,
        pytest.raises(NotFound),
    ):
        client.share_decision("dec-1")
    assert len(server.requests) == 1


def pages(*answers: Message) -> list[Message]:
    """Return the answers as pages that name each other."""
    for number, answer in enumerate(answers[:-1], 1):
        answer.next_page_token = f"page {number}"  # type: ignore[attr-defined]
    return list(answers)


def test_listing_decisions_fetches_page_after_page() -> None:
    answers = pages(
        journal_pb2.ListDecisionsResponse(decisions=[journal_pb2.Decision(id="a"), journal_pb2.Decision(id="b")]),
        journal_pb2.ListDecisionsResponse(decisions=[journal_pb2.Decision(id="c")]),
    )
    with scripted_server(*answers) as server, connect(server) as client:
        listed = client.list_decisions(filters=decision_filters(tags=["x"]), page_size=2)
        assert next(listed).id == "a"
        assert len(server.requests) == 1, "a page is fetched only when it is needed"
        assert [decision.id for decision in listed] == ["b", "c"]
    assert [(r.page_size, r.page_token, list(r.filters.tags)) for r in server.requests] == [
        (2, "", ["x"]),
        (2, "page 1", ["x"]),
    ]


def test_listing_the_trail_and_the_intents_fetches_page_after_page() -> None:
    entries = pages(
        audit_pb2.ListAuditEntriesResponse(entries=[audit_pb2.AuditEntry(id="2")]),
        audit_pb2.ListAuditEntriesResponse(entries=[audit_pb2.AuditEntry(id="1")]),
    )
    with scripted_server(*entries) as server, connect(server) as client:
        found = client.list_audit_entries(
            event="guardrail_check", allowed=False, after=datetime(2026, 1, 1, tzinfo=UTC)
        )
        assert [entry.id for entry in found] == ["2", "1"]
    assert server.requests[0].event == audit_pb2.AUDIT_EVENT_GUARDRAIL_CHECK
    assert server.requests[1].HasField("allowed")
    intents = pages(
        audit_pb2.ListIntentsResponse(intents=[audit_pb2.IntentRecord(correlation_id="b")]),
        audit_pb2.ListIntentsResponse(intents=[audit_pb2.IntentRecord(correlation_id="a")]),
    )
    with scripted_server(*intents) as server, connect(server) as client:
        assert [i.correlation_id for i in client.list_intents(agent="x", stakes=["low"])] == ["b", "a"]


def results(*sources: str) -> journal_pb2.ImportDecisionsResponse:
    return journal_pb2.ImportDecisionsResponse(results=[journal_pb2.ImportResult(source=source) for source in sources])


def test_an_import_travels_in_batches_each_of_which_can_be_repeated() -> None:
    records = [journal_pb2.ImportDecisionsRequest(source=name) for name in "abcde"]
    script = (results("a", "b"), Unavailable("restarting"), results("c", "d"), results("e"))
    with scripted_server(*script) as server, connect(server) as client:
        assert [result.source for result in client.import_decisions(records, batch=2)] == list("abcde")
    sent = ["".join(record.source for record in stream) for stream in server.requests]
    assert sent == ["ab", "cd", "cd", "e"]


def test_reviewing_sharing_and_unsharing_return_the_decision() -> None:
    reviewed = journal_pb2.ReviewDecisionResponse(decision=journal_pb2.Decision(id="dec-1"))
    with scripted_server(reviewed) as server, connect(server) as client:
        assert client.review_decision("dec-1", "partial", notes="slow").id == "dec-1"
    (asked,) = server.requests
    assert asked == journal_pb2.ReviewDecisionRequest(
        id="dec-1", outcome=types_pb2.OUTCOME_PARTIAL, notes="slow", request_id=asked.request_id
    )
    assert asked.request_id
    unshared = journal_pb2.UnshareDecisionResponse(decision=journal_pb2.Decision(id="dec-2"))
    with scripted_server(unshared) as server, connect(server) as client:
        assert client.unshare_decision("dec-2").id == "dec-2"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cstp.importDecisions", r"cstp\.importDecisions takes a stream"),
        ("liaison.watchEvents", r"liaison\.watchEvents answers with a stream"),
    ],
)
def test_a_stream_is_no_single_call(name: str, told: str) -> None:
    method = contract_methods()[name]
    with CstpClient("localhost:1") as client, pytest.raises(MethodNotFound, match=told):
        client.call(method, method.request())


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ("localhost:50051", "localhost:50051"),
        ("grpc://example.com:1/", "example.com:1"),
        ("grpcs://[::1]:50051", "[::1]:50051"),
        ("GRPC://Example.com:1", "example.com:1"),
    ],
)
def test_a_grpc_target_names_host_and_port(target: str, address: str) -> None:
    assert grpc_address(target) == address


@pytest.mark.parametrize("target", ["", "localhost", "grpc://", "grpc://x", "grpc://x:99999", "grpc://x:1/path"])
def test_another_grpc_target_is_refused(target: str) -> None:
    with pytest.raises(InvalidArgument, match="target"):
        CstpClient(target)


def test_an_unknown_scheme_is_refused() -> None:
    assert target_scheme("HTTPS://x") == "https"
    with pytest.raises(InvalidArgument, match="must begin with grpc://"):
        CstpClient("ftp://x:1")
