from __future__ import annotations

from typing import Any

import pytest
from a2a.types.a2a_pb2 import Task
from google.protobuf import json_format

from bridge.a2a.message_parsing import APPLICATION_JSON, MEDIA_TYPES, TEXT_PLAIN, IntentAnnouncement, MethodCall
from bridge.a2a.task_results import (
    TaskResult,
    canceled_result,
    name_message_fields,
    result_of_call,
    result_of_failure,
    with_result,
)
from cstp_grpc.contract.errors import CstpError, FieldViolation, InternalError, InvalidArgument, NotFound, RateLimited
from tests.bridge.a2a.talking import CANCELED, COMPLETED, FAILED, REJECTED, data_of

REVIEW = {
    "guardrailId": "review",
    "name": "Requires Review",
    "message": "Get a review",
    "severity": "block",
    "suggestion": "Ask someone",
}
ROLLOUT = {"guardrailId": "rollout", "name": "Staged Rollout", "message": "Consider stages", "severity": "warn"}
DECISION = {
    "id": "d-1",
    "title": "Deploy by hand",
    "outcome": "failure",
    "date": "2026-01-02T03:04:05Z",
    "distance": 0.25,
    "score": 0.91,
    "notes": "Automate it",
}


def announcement(**members: Any) -> dict[str, Any]:
    return {
        "received": True,
        "correlationId": "c-1",
        "receivedAt": "2026-01-02T03:04:05Z",
        "revision": 1,
        "similarDecisions": [],
        "relatedIntents": [],
        "suggestions": [],
        "respondingAgent": "cstp",
        **members,
    }


def verdict(violations: list[Any], warnings: list[Any], evaluated: int = 5) -> dict[str, Any]:
    return {"allowed": not violations, "violations": violations, "warnings": warnings, "evaluated": evaluated}


def text_of(answer: TaskResult) -> str:
    assert answer.artifact
    return str(answer.artifact.parts[-1].text)


def status_of(answer: TaskResult) -> str:
    return str(answer.status[0].text)


def test_the_artifact_is_the_exact_result_and_then_a_text() -> None:
    result = announcement(similarDecisions=[DECISION], guardrailStatus=verdict([], []))
    answer = result_of_call("cstp.announceIntent", result, MEDIA_TYPES)
    assert answer.artifact
    data, text = answer.artifact.parts
    assert data_of(data) == result
    assert (data.media_type, text.media_type) == (APPLICATION_JSON, TEXT_PLAIN)
    assert answer.state == COMPLETED


@pytest.mark.parametrize("media_type", MEDIA_TYPES)
def test_the_artifact_has_what_is_wanted(media_type: str) -> None:
    answer = result_of_call("cstp.announceIntent", announcement(), [media_type])
    assert answer.artifact
    assert [part.media_type for part in answer.artifact.parts] == [media_type]


def test_a_blocked_intent_is_rejected_and_told_why() -> None:
    result = announcement(
        guardrailStatus=verdict([REVIEW], [ROLLOUT]),
        similarDecisions=[DECISION],
        suggestions=["Deploy to 10% first"],
    )
    answer = result_of_call("cstp.announceIntent", result, MEDIA_TYPES)
    assert answer.state == REJECTED
    assert status_of(answer) == "Blocked: 1 of 5 guardrails blocks this intent: Get a review"
    assert text_of(answer).splitlines() == [
        "Blocked: 1 of 5 guardrails blocks this intent: Get a review",
        "",
        "Violations:",
        "- Requires Review: Get a review",
        "  Suggestion: Ask someone",
        "",
        "Warnings:",
        "- Staged Rollout: Consider stages",
        "",
        "Similar decisions:",
        "- Deploy by hand (failure, 2026-01-02, score 0.91)",
        "  Notes: Automate it",
        "",
        "Suggestions:",
        "- Deploy to 10% first",
        "",
        "Correlation id: c-1",
    ]


def test_a_revised_intent_says_which_revision_it_is() -> None:
    said = text_of(result_of_call("cstp.announceIntent", announcement(revision=3), MEDIA_TYPES)).splitlines()
    assert said[-1] == "Correlation id: c-1, revision 3"


def test_an_intent_without_a_verdict_is_received() -> None:
    answer = result_of_call("cstp.announceIntent", announcement(), MEDIA_TYPES)
    assert answer.state == COMPLETED
    assert status_of(answer) == "Received. Guardrails give no verdict here."


def test_a_check_is_its_verdict() -> None:
    allowed = result_of_call("cstp.checkGuardrails", verdict([], [], evaluated=1), MEDIA_TYPES)
    blocked = result_of_call("cstp.checkGuardrails", verdict([REVIEW, REVIEW], []), MEDIA_TYPES)
    assert (allowed.state, text_of(allowed)) == (COMPLETED, "Allowed: no guardrail of 1 blocks this action.")
    warned = result_of_call("cstp.checkGuardrails", verdict([], [ROLLOUT]), MEDIA_TYPES)
    assert (warned.state, status_of(warned)) == (
        COMPLETED,
        "Allowed: no guardrail of 5 blocks this action, but mind: Consider stages",
    )
    assert blocked.state == REJECTED
    assert status_of(blocked) == "Blocked: 2 of 5 guardrails block this action: Get a review; Get a review"


def test_a_query_lists_its_decisions() -> None:
    found = {"category": "ops", "status": "decided", **{k: v for k, v in DECISION.items() if k != "score"}}
    answer = result_of_call("cstp.queryDecisions", {"decisions": [found], "query": "deploying"}, MEDIA_TYPES)
    assert text_of(answer).splitlines() == [
        "1 past decision found for “deploying”.",
        "",
        "Decisions:",
        "- Deploy by hand (ops, decided, failure, 2026-01-02, score 0.75)",
        "  Notes: Automate it",
    ]


def test_a_query_may_find_nothing() -> None:
    answer = result_of_call("cstp.queryDecisions", {"decisions": [], "query": "x"}, MEDIA_TYPES)
    assert text_of(answer) == "No past decision resembles “x”."


def test_any_other_result_is_shown_as_it_is() -> None:
    answer = result_of_call("cstp.getAccess", {"allowed": False, "agent": "cstp"}, MEDIA_TYPES)
    assert answer.state == COMPLETED
    assert text_of(answer).splitlines() == [
        "cstp.getAccess answered.",
        "",
        "    {",
        '      "allowed": false,',
        '      "agent": "cstp"',
        "    }",
    ]


def test_an_empty_result_is_an_object() -> None:
    answer = result_of_call("cstp.any", {}, MEDIA_TYPES)
    assert answer.artifact
    assert answer.artifact.parts[0].data.WhichOneof("kind") == "struct_value"


def test_a_long_result_is_cut_and_says_so() -> None:
    answer = result_of_call("cstp.any", {"text": "x" * 30_000}, MEDIA_TYPES)
    assert len(text_of(answer)) < 21_000
    assert text_of(answer).endswith("These are the first 20000 of 30016 characters; as application/json it is whole.")


def test_what_people_wrote_stays_text() -> None:
    title = "see [this](http://evil.example)\n# ![x](y) <b> `c`" + "z" * 2000
    text = text_of(
        result_of_call(
            "cstp.announceIntent", announcement(similarDecisions=[{**DECISION, "title": title}]), MEDIA_TYPES
        )
    )
    (line,) = [line for line in text.splitlines() if line.startswith("- see")]
    assert line.startswith(r"- see \[this\](http://evil.example) # !\[x\](y) \<b> \`c\`zzz")
    assert len(line) < 1_100


def test_a_failure_is_told_in_words_and_as_data() -> None:
    failure = RateLimited("Too many calls", retry_after=0.5)
    answer = result_of_failure(failure, "r-1")
    assert (answer.state, answer.artifact) == (FAILED, None)
    assert status_of(answer) == "Failed: Too many calls (RATE_LIMITED)"
    error = {"reason": "RATE_LIMITED", "message": "Too many calls", "requestId": "r-1", "retryAfterMs": 500}
    assert data_of(answer.status[1]) == {"error": error}


def test_a_failure_keeps_its_own_request_id() -> None:
    answer = result_of_failure(InternalError("x", metadata={"requestId": "server-1"}), "r-1")
    assert data_of(answer.status[1])["error"]["requestId"] == "server-1"


def wrong(*fields: str) -> CstpError:
    return InvalidArgument("what it was", violations=[FieldViolation(field, "is wrong") for field in fields])


def test_related_intents_are_told_with_their_closing() -> None:
    related = {"agent": "bob", "receivedAt": "2026-01-02T03:04:05Z", "intent": "Rebuild `it`"}
    closing = {"closedAt": "2026-01-02T04:00:00Z", "outcome": "failure", "notes": "The disk was full"}
    result = announcement(relatedIntents=[related, {**related, "closing": closing}])
    lines = text_of(result_of_call("cstp.announceIntent", result, MEDIA_TYPES)).splitlines()
    start = lines.index("Related intents:")
    assert lines[start + 1 : start + 4] == [
        "- bob at 2026-01-02T03:04:05Z, open: Rebuild \\`it\\`",
        "- bob at 2026-01-02T03:04:05Z, closed with failure: Rebuild \\`it\\`",
        "  Notes: The disk was full",
    ]
    federated = announcement(relatedIntents=[{**related, "origin": "house"}])
    assert "- house/bob at " in text_of(result_of_call("cstp.announceIntent", federated, MEDIA_TYPES))


def test_wrong_params_of_an_announcement_are_named_by_their_places() -> None:
    request = IntentAnnouncement({}, {"stakes": "metadata.stakes", "metadata": "parts[1].data", "a.b": "metadata.a.b"})
    failure = wrong("stakes", "metadata.x.y", "agent.id", "a.b")
    name_message_fields(failure, request)
    expected = ["metadata.stakes", "parts[1].data.x.y", "agent.id", "metadata.a.b"]
    assert failure.violations == tuple(FieldViolation(field, "is wrong") for field in expected)
    assert failure.message == "; ".join(f"{field}: is wrong" for field in expected)


def test_wrong_params_of_a_call_keep_their_names() -> None:
    failure = wrong("limit")
    name_message_fields(failure, MethodCall("cstp.queryDecisions", {}))
    assert (failure.message, failure.violations) == ("what it was", (FieldViolation("limit", "is wrong"),))


def test_other_failures_have_no_places() -> None:
    failure = NotFound("x")
    name_message_fields(failure, IntentAnnouncement({}))
    assert (failure.message, failure.violations) == ("x", ())


def test_an_answer_ends_a_task() -> None:
    task = json_format.ParseDict({"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}, Task())
    ended = with_result(task, canceled_result())
    assert ended.status.state == CANCELED
    said = ended.status.message
    assert (said.task_id, said.context_id, said.parts[0].text) == ("t", "c", "Canceled by its owner")
    assert not ended.artifacts
    assert task.status.state != CANCELED
