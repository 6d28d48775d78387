from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2
from cstp_grpc.modules.federation.merge import NO_MATCHES, decide_verdict, merge_matches, merge_search_results
from cstp_grpc.modules.federation.peer import PeerReply
from cstp_grpc.modules.federation.peer_responses import (
    PeerResponse,
    read_feedback,
    read_query_matches,
    read_reply,
    read_verdict,
    write_announcement,
    write_check,
    write_query,
)
from tests.modules.federation.client.answers import (
    BLOCK,
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

NAMES = ["ann", "ben", "cleo", "dan"]

violations = st.builds(
    violation,
    st.sampled_from(["one", "two"]),
    message=st.sampled_from(["a", "b"]),
    agent=st.sampled_from(["", "its own name", "eve"]),
    suggestion=st.sampled_from(["Wait", "wait", "Ask"]),
)
checks = st.builds(
    lambda blocks, warns: check(*blocks, warnings=tuple(warns)),
    st.lists(violations, max_size=2),
    st.lists(violations, max_size=2),
)
identifiers = st.sampled_from(["dec-1", "dec-2", "dec-3"])
distances = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0])
titles = st.sampled_from(["This", "That"])
queries = st.lists(st.builds(summary, identifiers, distances, title=titles), max_size=3).map(lambda d: query(*d))
announcements = st.builds(
    lambda decisions, verdict, suggestions, related: announcement(
        *decisions,
        verdict=verdict,
        suggestions=tuple(suggestions),
        details=[lesson(text) for text in suggestions if text in ("Wait", "Sleep")],
        related=related,
    ),
    st.lists(st.builds(similar, identifiers, distances, title=titles), max_size=3),
    checks.map(lambda c: status(c)),
    st.lists(st.sampled_from(["Wait", "Roll back", "Test it", "Sleep", "Think"]), max_size=3),
    st.lists(st.builds(related_intent, st.sampled_from(["eve", "fay"]), st.sampled_from([0.5, 0.75, 1.0])), max_size=3),
)


def status(message: cstp_pb2.CheckGuardrailsResponse) -> cstp_pb2.GuardrailStatus:
    return cstp_pb2.GuardrailStatus(
        allowed=message.allowed,
        violations=message.violations,
        warnings=message.warnings,
        evaluated=message.evaluated,
    )


def understood(replies: Sequence[PeerReply]) -> list[PeerResponse]:
    return [
        read_reply(reply, required=reply.agent != "dan", trust=0.5 if reply.agent == "ben" else 1.0)
        for reply in replies
    ]


def checked(
    own: cstp_pb2.CheckGuardrailsResponse, replies: Sequence[PeerReply], quorum: int | None = None
) -> cstp_pb2.CheckGuardrailsResponse:
    answer, peers = cstp_pb2.CheckGuardrailsResponse(), understood(replies)
    answer.CopyFrom(own)
    verdict = decide_verdict("self", read_verdict(own, "self"), [peer.peer_verdict for peer in peers], quorum)
    write_check(answer, verdict, peers)
    return answer


def asked(
    own: cstp_pb2.QueryDecisionsResponse, replies: Sequence[PeerReply], limit: int = 3
) -> cstp_pb2.QueryDecisionsResponse:
    answer, peers = cstp_pb2.QueryDecisionsResponse(), understood(replies)
    answer.CopyFrom(own)
    found = [peer.matches for peer in peers if peer.matches]
    write_query(answer, merge_search_results(read_query_matches(own, "self", 1.0), found), limit, peers)
    return answer


def announced(own: cstp_pb2.AnnounceIntentResponse, replies: Sequence[PeerReply]) -> cstp_pb2.AnnounceIntentResponse:
    answer, peers = cstp_pb2.AnnounceIntentResponse(), understood(replies)
    answer.CopyFrom(own)
    verdict = decide_verdict("self", read_verdict(own.guardrail_status, "self"), [peer.peer_verdict for peer in peers])
    write_announcement(answer, verdict, read_feedback(own, "self", 1.0), peers)
    return answer


def bytes_of(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


Federate = Callable[..., Message]


@pytest.mark.parametrize(
    ("federate", "answers"),
    [(checked, checks), (asked, queries), (announced, announcements)],
    ids=["check", "query", "announcement"],
)
@given(data=st.data())
def test_the_same_answers_in_any_order_give_the_same_bytes(
    federate: Federate, answers: st.SearchStrategy[Message], data: st.DataObject
) -> None:
    own = data.draw(answers)
    failure = st.sampled_from([s for s in PeerStatus if s is not PeerStatus.ANSWERED])
    replies = [
        replied(name, status=data.draw(failure))
        if data.draw(st.integers(0, 3)) == 0
        else replied(name, data.draw(answers))
        for name in NAMES
    ]
    assert bytes_of(federate(own, data.draw(st.permutations(replies)))) == bytes_of(federate(own, replies))


@given(st.lists(queries, min_size=4, max_size=4), st.integers(1, 3))
def test_the_same_answers_in_any_grouping_give_the_same_bytes(
    answers: list[cstp_pb2.QueryDecisionsResponse], split: int
) -> None:
    found = [read_query_matches(answer, name, 1.0) for name, answer in zip(NAMES, answers, strict=True)]
    grouped = [reduce(merge_matches, found[:split]), reduce(merge_matches, found[split:])]
    merged = [cstp_pb2.QueryDecisionsResponse(), cstp_pb2.QueryDecisionsResponse()]
    write_query(merged[0], reduce(merge_matches, found), 10, [])
    write_query(merged[1], reduce(merge_matches, reversed(grouped)), 10, [])
    assert bytes_of(merged[0]) == bytes_of(merged[1])


@given(checks, st.lists(checks, min_size=2, max_size=4), st.none() | st.integers(1, 3))
def test_an_answer_is_allowed_exactly_where_it_has_no_violations(
    own: cstp_pb2.CheckGuardrailsResponse, answers: list[cstp_pb2.CheckGuardrailsResponse], quorum: int | None
) -> None:
    merged = checked(own, [replied(*pair) for pair in zip(NAMES, answers, strict=False)], quorum)
    assert merged.allowed == (not merged.violations)
    assert merged.HasField("quorum") == (quorum is not None)


def test_a_check_tells_whose_guardrails_matched_and_what_each_peer_said() -> None:
    own = check(violation("z"), evaluated=4)
    replies = [
        replied("dan", check(violation("d"))),
        replied("ben", check(violation("b"), violation("a", agent="eve"), warnings=(violation("w", WARN),))),
        replied("ann", status=PeerStatus.UNREACHABLE, error=Unavailable("It stops")),
    ]
    merged = checked(own, replies)
    assert [(v.agent, v.guardrail_id, v.severity) for v in merged.violations] == [
        ("ann", "federation-unreachable", BLOCK),
        ("ben", "b", BLOCK),
        ("ben/eve", "a", BLOCK),
        ("self", "z", BLOCK),
    ]
    assert [(v.agent, v.guardrail_id, v.severity) for v in merged.warnings] == [("dan", "d", BLOCK), ("ben", "w", WARN)]
    assert (merged.allowed, merged.evaluated, merged.evaluated_at, merged.agent) == (False, 10, NOON, own.agent)
    ann, ben, dan = merged.responses
    assert (ann.agent, ann.status, ann.latency_ms) == ("ann", types_pb2.PEER_STATUS_UNREACHABLE, 1.5)
    assert ann.error == cstp_pb2.PeerError(reason="UNAVAILABLE", message="It cannot be reached or fails: It stops")
    assert not ann.HasField("guardrail_status")
    assert (ben.agent, ben.status, ben.guardrail_status.allowed) == ("ben", types_pb2.PEER_STATUS_ANSWERED, False)
    assert [v.agent for v in ben.guardrail_status.violations] == ["ben", "ben/eve"]
    assert ben.guardrail_status.evaluated == 3
    assert not ben.HasField("error")
    assert [v.guardrail_id for v in dan.guardrail_status.violations] == ["d"]


def test_a_check_by_quorum_tells_the_votes() -> None:
    replies = [replied("cleo", check(violation("c"))), replied("ann", check()), replied("dan", check())]
    merged = checked(check(), replies, 1)
    assert merged.allowed
    assert [(v.agent, v.severity) for v in merged.warnings] == [("cleo", BLOCK)]
    assert merged.quorum == cstp_pb2.Quorum(
        needed=1,
        allowing=1,
        votes=[cstp_pb2.Vote(agent="ann", allow=True), cstp_pb2.Vote(agent="cleo", allow=False)],
    )


def test_a_query_tells_the_nearest_decisions_of_all_and_how_many_each_found() -> None:
    own = query(summary("dec-1", 0.5))
    replies = [
        replied("ann", query(summary("dec-2", 0.25), summary("dec-1", 0.0, title="Forged"))),
        replied("ben", query(summary("dec-3", 0.0), summary("dec-4", 0.75))),
        replied("cleo", query()),
        replied("dan", status=PeerStatus.TIMED_OUT),
    ]
    merged = asked(own, replies, 3)
    assert [(d.id, d.origin, d.title) for d in merged.decisions] == [
        ("dec-2", "ann", "What was done"),
        ("dec-1", "self", "What was done"),
        ("dec-3", "ben", "What was done"),
    ]
    assert (merged.total, merged.query, merged.agent) == (3, own.query, own.agent)
    assert dict(merged.totals) == {"self": 1, "ann": 2, "ben": 2, "cleo": 0}
    assert [[d.id for d in response.decisions.decisions] for response in merged.responses] == [
        ["dec-1", "dec-2"],
        ["dec-3", "dec-4"],
        [],
        [],
    ]
    assert [response.HasField("decisions") for response in merged.responses] == [True, True, True, False]


def test_an_announcement_merges_the_feedback_of_all() -> None:
    own = announcement(
        similar("dec-1", 0.5),
        verdict=status(check(evaluated=2)),
        suggestions=("Test it", "Wait"),
        details=[lesson("Wait")],
        related=[related_intent("eve", 0.5)],
    )
    own.code_context.project = "shop"
    theirs = announcement(
        *[similar(f"dec-{n}", 0.25) for n in range(2, 8)],
        verdict=status(check(violation("b", suggestion="Take a copy"))),
        suggestions=("wait", "Roll back", "Ask", "Think", "Sleep"),
        details=[lesson("wait", relevance=0.9), lesson("Ask")],
        related=[related_intent("fay", 0.75)],
    )
    merged = announced(own, [replied("ann", theirs)])
    assert [(d.id, d.origin) for d in merged.similar_decisions] == [(f"dec-{n}", "ann") for n in range(2, 7)]
    assert [(v.agent, v.guardrail_id) for v in merged.guardrail_status.violations] == [("ann", "b")]
    assert (merged.guardrail_status.allowed, merged.guardrail_status.evaluated) == (False, 5)
    assert list(merged.suggestions) == ["Test it", "Wait", "Take a copy", "Roll back", "Ask"]
    remedy = cstp_pb2.Suggestion(
        text="Take a copy", kind=cstp_pb2.SUGGESTION_KIND_GUARDRAIL, guardrail_id="b", origin="ann"
    )
    assert list(merged.suggestion_details) == [lesson("Wait", origin="self"), remedy, lesson("Ask", origin="ann")]
    assert [(each.agent, each.origin) for each in merged.related_intents] == [("fay", "ann"), ("eve", "self")]
    assert merged.code_context == own.code_context
    assert (merged.received_at, merged.correlation_id) == (NOON, "c-1")
    (ann,) = merged.responses
    assert ann.feedback.received_at == NOON
    assert len(ann.feedback.similar_decisions) == 5
    assert list(ann.feedback.suggestions) == ["wait", "Roll back", "Ask", "Think", "Sleep"]
    assert [detail.text for detail in ann.feedback.suggestion_details] == ["wait", "Ask"]
    assert [each.agent for each in ann.feedback.related_intents] == ["fay"]
    assert [v.guardrail_id for v in ann.guardrail_status.violations] == ["b"]


def test_an_announcement_without_a_verdict_to_tell_keeps_none() -> None:
    own, peers = announcement(), understood([replied("ann", announcement(suggestions=("Wait",)))])
    write_announcement(own, None, read_feedback(own, "self", 1.0), peers)
    assert not own.HasField("guardrail_status")
    assert list(own.suggestions) == ["Wait"]


def test_what_is_written_again_replaces_what_was_there() -> None:
    answer, own, peers = check(), read_verdict(check(), "self"), understood([replied("ann", check())])
    write_check(answer, decide_verdict("self", own, [peer.peer_verdict for peer in peers], 1), peers)
    write_check(answer, decide_verdict("self", own, []), [])
    assert answer == check()
    found, nothing = query(), query()
    write_query(found, read_query_matches(query(summary()), "ann", 1.0), 5, [])
    write_query(found, NO_MATCHES, 5, [])
    assert found == nothing
