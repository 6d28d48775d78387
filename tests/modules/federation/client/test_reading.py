from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import PeerStatus, Severity
from cstp_grpc.contract.errors import PermissionDenied
from cstp_grpc.contract.json_codec import to_json
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.core.guardrails.model import Violation
from cstp_grpc.gen.cstp.v1 import access_pb2, cstp_pb2, types_pb2
from cstp_grpc.modules.federation.fan_out import PendingReplies
from cstp_grpc.modules.federation.merge import EMPTY_VERDICT, NO_MATCHES, MergedVerdict, decide_verdict
from cstp_grpc.modules.federation.peer import Agent, CircuitBreaker, Peer
from cstp_grpc.modules.federation.peer_responses import (
    PeerIntentFeedback,
    PeerResponse,
    qualified_agent_name,
    read_query_matches,
    read_replies,
    read_reply,
    read_similar_decisions,
    read_verdict,
    write_announcement,
    write_check,
    write_query,
)
from cstp_grpc.modules.federation.peer_transport import CallMetadata, PeerCallResult
from tests.client.strategies import descriptor_of, messages
from tests.example_counts import examples
from tests.modules.federation.client.answers import (
    NOON,
    WARN,
    announcement,
    check,
    lesson,
    query,
    related_intent,
    replied,
    similar,
    summary,
    violation,
)
from tests.modules.federation.client.servers import QUERY, REQUEST, SECONDS
from tests.named_case import named_case

ANSWERS: list[Callable[[], Message]] = [
    lambda: check(violation(), warnings=(violation("soft", WARN),)),
    lambda: query(summary()),
    lambda: announcement(similar(), verdict=cstp_pb2.GuardrailStatus(allowed=True), suggestions=("Wait",)),
]


def changed(message: Message, **values: Any) -> Message:
    """Return a message with other values; None takes a field away."""
    for name, value in values.items():
        if value is None:
            message.ClearField(name)
        elif isinstance(value, Message):
            getattr(message, name).CopyFrom(value)
        else:
            setattr(message, name, value)
    return message


class Saying:
    """A way to a peer that answers all calls alike."""

    def __init__(self, answer: Message) -> None:
        self._answer = answer

    def call(self, method: RpcMethod, request: Message, seconds: float, metadata: CallMetadata) -> PeerCallResult:
        return PeerCallResult(PeerStatus.ANSWERED, self._answer)

    def close(self) -> None:
        pass


def heard(answer: Message) -> PeerResponse:
    """Return the result of reading the answer of a required peer."""
    peer = Peer(
        Agent("ben", "", timeout=SECONDS),
        Saying(answer),
        CircuitBreaker(5, 10.0),
        max_calls=1,
        clock=time.monotonic,
    )
    with closing(peer):
        return read_replies(PendingReplies([peer], QUERY, REQUEST, SECONDS).replies(), [peer], {"ben"})[0]


def test_a_verdict_is_read_with_the_peers_name() -> None:
    message = check(
        violation("prod", suggestion="Wait", code="EVALUATION_ERROR"),
        violation("own", agent="its own name"),
        violation("far", agent="cleo"),
        warnings=(violation("soft", WARN), violation("outvoted")),
    )
    judgement = read_verdict(message, "ben", itself="its own name")
    assert judgement.violations["ben", "prod"] == Violation(
        "prod", "A rule", "Not so", Severity.BLOCK, suggestion="Wait", code="EVALUATION_ERROR"
    )
    assert judgement.violations.keys() == {("ben", "prod"), ("ben", "own"), ("ben/cleo", "far")}
    assert {key: each.severity for key, each in judgement.warnings.items()} == {
        ("ben", "soft"): Severity.WARN,
        ("ben", "outvoted"): Severity.BLOCK,
    }
    assert {agent: each.evaluated for agent, each in judgement.by_agent.items()} == {"ben": 3, "ben/cleo": 0}


def test_a_warning_of_a_guardrail_that_blocks_too_is_not_repeated() -> None:
    judgement = read_verdict(check(violation("rule"), warnings=(violation("rule", WARN),)), "ben")
    assert (list(judgement.violations), list(judgement.warnings)) == ([("ben", "rule")], [])


def test_decisions_are_weighed_and_counted_by_who_has_them() -> None:
    message = query(summary("dec-1", 0.25), summary("dec-2", 0.5, origin="cleo"), summary("dec-3", 1.5))
    found = read_query_matches(message, "ben", 0.5)
    assert {key: (each.decision.origin, each.weight) for key, each in found.best.items()} == {
        "dec-1": ("ben", 0.375),
        "dec-2": ("ben/cleo", 0.25),
        "dec-3": ("ben", 0.0),
    }
    assert found.totals == {"ben": 2, "ben/cleo": 1}


def test_an_agent_that_found_nothing_is_counted_too() -> None:
    assert read_query_matches(query(), "ben", 1.0).totals == {"ben": 0}


def test_similar_decisions_are_weighed_as_well() -> None:
    found = read_similar_decisions(announcement(similar("dec-1", 0.25)), "ben", 0.5)
    assert [(each.decision.origin, each.weight) for each in found.best.values()] == [("ben", 0.375)]


def test_ones_own_answer_is_read_as_it_is() -> None:
    message = query(summary("dec-1", title="x" * 600))
    assert list(read_query_matches(message, "self", 1.0).best) == ["dec-1"]
    assert read_verdict(check(violation("rule", message="x" * 30_000)), "self").violations


NONSENSE: dict[str, Callable[[], Message]] = {
    "nothing": cstp_pb2.CheckGuardrailsResponse,
    "another answer": access_pb2.GetAccessResponse,
    "no agent": lambda: changed(check(), agent=None),
    "no instant": lambda: changed(check(), evaluated_at=None),
    "an instant that JSON cannot write": lambda: changed(check(), evaluated_at=Timestamp(seconds=10**15)),
    "nanoseconds beyond a second": lambda: changed(check(), evaluated_at=Timestamp(nanos=-1)),
    "allows what it blocks": lambda: changed(check(violation()), allowed=True),
    "denies without a violation": lambda: changed(check(), allowed=False),
    "fewer than no guardrails": lambda: check(evaluated=-1),
    "more guardrails than there can be": lambda: check(evaluated=2**31 - 1),
    "too many violations": lambda: check(*[violation(f"r{n}", name="", message="") for n in range(1_001)]),
    "too much to tell on": lambda: check(*[violation(f"r{n}", message="x" * 20_000) for n in range(14)]),
    "an empty guardrail": lambda: check(violation("")),
    "a blank guardrail": lambda: check(violation(" ")),
    "a long guardrail": lambda: check(violation("x" * 201)),
    "a guardrail that steers a terminal": lambda: check(violation("\x1b[2J")),
    "a long message": lambda: check(violation(message="x" * 20_001)),
    "a long suggestion": lambda: check(warnings=(violation("r", WARN, suggestion="x" * 20_001),)),
    "a code of two lines": lambda: check(violation(code="A\nB")),
    "a long agent": lambda: check(violation(agent="x" * 501)),
    "an agent that turns around": lambda: check(violation(agent="ben\u202e")),
    "no agent of a query": lambda: changed(query(), agent=None),
    "too many decisions": lambda: query(*[summary(f"dec-{n}") for n in range(51)]),
    "a decision without an identifier": lambda: query(summary("")),
    "a decision without a title": lambda: query(summary(title="")),
    "a decision without a date": lambda: query(changed(summary(), date=None)),  # type: ignore[arg-type]
    "a decision of another era": lambda: query(changed(summary(), date=Timestamp(seconds=-(10**15)))),  # type: ignore[arg-type]
    "a long title": lambda: query(summary(title="x" * 501)),
    "long notes": lambda: query(summary(notes="x" * 20_001)),
    "a distance that is no number": lambda: query(summary(distance=math.nan)),
    "an endless distance": lambda: query(summary(distance=math.inf)),
    "a negative distance": lambda: query(summary(distance=-0.1)),
    "a distance beyond the farthest": lambda: query(summary(distance=2.1)),
    "a confidence that is no number": lambda: query(changed(summary(), confidence=math.nan)),  # type: ignore[arg-type]
    "more than sure": lambda: query(changed(summary(), confidence=1.1)),  # type: ignore[arg-type]
    "too many tags": lambda: query(cstp_pb2.DecisionSummary(id="d", title="t", date=NOON, tags=["t"] * 101)),
    "a long tag": lambda: query(cstp_pb2.DecisionSummary(id="d", title="t", date=NOON, tags=["t" * 201])),
    "no agent of an announcement": lambda: changed(announcement(), responding_agent=None),
    "not received": lambda: changed(announcement(), received=False),
    "received at no time": lambda: changed(announcement(), received_at=None),
    "a score out of range": lambda: announcement(changed(similar(), score=1.1)),  # type: ignore[arg-type]
    "a score that is no number": lambda: announcement(changed(similar(), score=math.nan)),  # type: ignore[arg-type]
    "a verdict that contradicts itself": lambda: announcement(verdict=cstp_pb2.GuardrailStatus()),
    "a suggestion without end": lambda: announcement(suggestions=("x" * 20_001,)),
    "a detail without end": lambda: announcement(details=[lesson("x" * 20_001)]),
    "a detail beyond relevance": lambda: announcement(details=[lesson(relevance=1.1)]),
    "a detail of too many decisions": lambda: announcement(details=[lesson(decision_ids=["d"] * 51)]),
    "a detail of an odd agent": lambda: announcement(details=[lesson(agent="a\x1b")]),
    "an intent of nobody": lambda: announcement(related=[related_intent("")]),
    "an intent without an id": lambda: announcement(related=[related_intent(correlation_id="")]),
    "an intent at no time": lambda: announcement(related=[related_intent(received_at=None)]),
    "an intent beyond relevance": lambda: announcement(related=[related_intent(score=math.nan)]),
    "an intent without end": lambda: announcement(related=[related_intent(intent="x" * 20_001)]),
    "an intent of too many paths": lambda: announcement(related=[related_intent(paths=["p"] * 101)]),
    "an intent closed before all times": lambda: announcement(
        related=[related_intent(closing={"closed_at": Timestamp(seconds=-(10**12))})]
    ),
}


def test_an_answer_that_makes_no_sense_is_a_failure_and_never_allows() -> None:
    for name, message in NONSENSE.items():
        with named_case(name):
            answer = heard(message())
            assert (answer.status, answer.verdict, answer.matches, answer.feedback) == (
                PeerStatus.NOT_UNDERSTOOD,
                None,
                None,
                None,
            )
            assert answer.failure is not None
            assert answer.failure.reason == "INTERNAL"
            assert answer.failure.message.startswith("Its answer was not understood: ")
            assert not decide_verdict("self", EMPTY_VERDICT, [answer.peer_verdict]).allowed


def test_nothing_a_peer_wrote_is_told_of_an_answer_that_makes_no_sense() -> None:
    answer = heard(check(violation("secret" * 100)))
    assert answer.failure is not None
    assert "secret" not in answer.failure.message


def test_a_required_peer_that_announces_without_a_verdict_gave_none() -> None:
    answer = heard(announcement())
    assert answer.status is PeerStatus.ANSWERED
    assert "It answered without a verdict." in [
        finding.message.partition("verdict. ")[2]
        for finding in decide_verdict("self", EMPTY_VERDICT, [answer.peer_verdict]).merged.violations.values()
    ]


def test_what_cannot_be_printed_becomes_spaces_and_lines_stay() -> None:
    judgement = heard(check(violation(message="one\ntwo\x1b[31m\u202ered\x00"))).verdict
    assert judgement is not None
    assert judgement.violations["ben", "rule"].message == "one\ntwo [31m red "


def test_a_decision_is_told_on_however_it_was_written_down() -> None:
    odd = summary(
        title="\u3000", category="a\x1bb", project="a\u202eb", agent="a\u200db", tags=["a\u00a0b"], reasons=["a\x00b"]
    )
    recollection = heard(query(odd)).matches
    assert recollection is not None
    texts: dict[str, Any] = {"category": "a b", "project": "a b", "agent": "a b", "tags": ["a b"], "reasons": ["a b"]}
    assert recollection.best["dec-1"].decision == summary(title=" ", origin="ben", **texts)
    feedback = heard(announcement(similar(title="\u00a0", notes="\x85"))).feedback
    assert feedback is not None
    assert feedback.similar.best["dec-1"].decision == similar(title=" ", notes=" ", origin="ben")


@pytest.mark.parametrize("answer", [query, announcement])
def test_of_very_long_decisions_the_first_are_told_on(answer: Callable[..., Message]) -> None:
    made: Any = summary if answer is query else similar
    heard_ = heard(answer(*[made(f"dec-{number}", notes="録" * 5_000) for number in range(30)]))
    assert heard_.status is PeerStatus.ANSWERED
    found = heard_.matches or (heard_.feedback and heard_.feedback.similar)
    assert found
    assert list(found.best) == [f"dec-{number}" for number in range(17)]


def test_a_peer_has_a_few_suggestions_told_on() -> None:
    feedback = heard(
        announcement(suggestions=("Wait\x1b", "Roll back", "Ask", "Think", "Sleep", "x" * 20_001))
    ).feedback
    assert feedback is not None
    assert [each.text for each in feedback.suggestions] == ["Wait ", "Roll back", "Ask", "Think", "Sleep"]


def test_details_and_related_intents_are_told_on_with_the_name_of_the_peer() -> None:
    related = [related_intent(f"eve-{number}", intent="Do\x1bit", stakes=99) for number in range(7)]
    related[0].origin, related[1].origin = "its own name", "cleo"
    details = [lesson("Wait\x1b", kind=99), lesson("Ask", outcome=99, origin="cleo"), lesson("Never said")]
    feedback = heard(announcement(suggestions=("Wait\x1b", "Ask"), details=details, related=related)).feedback
    assert feedback is not None
    assert feedback.suggestions == (
        lesson("Wait ", kind=cstp_pb2.SUGGESTION_KIND_UNSPECIFIED, origin="ben"),
        lesson("Ask", origin="ben/cleo"),
    )
    assert [(item.intent.agent, item.intent.origin, item.weight) for item in feedback.related] == [
        ("eve-0", "ben", 0.5),
        ("eve-1", "ben/cleo", 0.5),
        *((f"eve-{number}", "ben", 0.5) for number in range(2, 5)),
    ]
    assert {(item.intent.intent, item.intent.stakes) for item in feedback.related} == {("Do it", 0)}


def test_words_of_a_later_contract_are_left_out() -> None:
    odd = summary()
    odd.MergeFromString(b"\x30\x63\x38\x63\x28\x63\xc2\x3e\x03abc")
    recollection = heard(query(odd)).matches
    assert recollection is not None
    assert recollection.best["dec-1"].decision == summary(origin="ben")


def test_the_words_of_an_error_are_told_on_one_short_line() -> None:
    error = PermissionDenied("no\nway \x1b" + "x" * 2_000)
    answer = read_reply(replied("ben", None, PeerStatus.REFUSED, error), required=True, trust=1.0)
    assert answer.failure is not None
    assert answer.failure.reason == "PERMISSION_DENIED"
    assert answer.failure.message.startswith("It refuses to answer: no way xxx")
    assert len(answer.failure.message) < 600
    assert answer.failure.message.isprintable()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (PeerStatus.UNREACHABLE, "UNAVAILABLE"),
        (PeerStatus.TIMED_OUT, "DEADLINE_EXCEEDED"),
        (PeerStatus.NOT_UNDERSTOOD, "INTERNAL"),
        (PeerStatus.SKIPPED, "UNAVAILABLE"),
        (PeerStatus.REFUSED, "PERMISSION_DENIED"),
    ],
)
def test_a_failure_without_an_error_has_a_reason_all_the_same(status: PeerStatus, reason: str) -> None:
    answer = read_reply(replied("ben", None, status), required=False, trust=1.0)
    assert answer.failure is not None
    assert (answer.status, answer.failure.reason) == (status, reason)


@pytest.mark.parametrize(
    ("theirs", "name"),
    [("", "ben"), ("itself", "ben"), ("cleo", "ben/cleo"), ("cleo/dan", "ben/cleo/dan"), ("a\n\x1bb", "ben/a b")],
)
def test_peers_of_peers_are_named_by_the_way_to_them(theirs: str, name: str) -> None:
    assert qualified_agent_name("ben", theirs, "itself") == name


def test_a_name_is_never_longer_than_it_may_be() -> None:
    assert len(qualified_agent_name("ben", "x" * 2_000)) == 500


@pytest.mark.parametrize("sensible", ANSWERS, ids=["check", "query", "announcement"])
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_a_peer_answers_what_comes_of_it_can_be_sent(
    sensible: Callable[[], Message], data: st.DataObject
) -> None:
    message = sensible()
    message.MergeFrom(data.draw(st.just(type(message)()) | messages(descriptor_of(type(message)))))
    answer = heard(message)
    verdict = decide_verdict("self", MergedVerdict(), [answer.peer_verdict])
    checked, asked, announced = check(), query(), announcement()
    write_check(checked, verdict, [answer])
    write_query(asked, answer.matches or NO_MATCHES, 10, [answer])
    write_announcement(announced, verdict, PeerIntentFeedback(NOON, NO_MATCHES), [answer])
    for written in (checked, asked, announced):
        to_json(written)
        assert type(written).FromString(written.SerializeToString()) == written
    assert checked.allowed == (answer.verdict is not None and answer.verdict.allowed)
    assert types_pb2.PEER_STATUS_UNSPECIFIED not in {each.status for each in checked.responses}
