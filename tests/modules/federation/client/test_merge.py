from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Severity
from cstp_grpc.core.guardrails.model import Violation
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2
from cstp_grpc.modules.federation.merge import (
    EMPTY_VERDICT,
    NO_MATCHES,
    FederatedVerdict,
    MergedMatches,
    MergedVerdict,
    PeerVerdict,
    WeightedIntent,
    WeightedMatch,
    build_verdict,
    decide_verdict,
    merge_matches,
    merge_related_intents,
    merge_search_results,
    merge_suggestions,
    merge_verdicts,
    top_matches,
)
from tests.modules.federation.client.answers import NOON, judgements, opinions, recollections, related_intent

Join = Callable[[Any, Any], Any]
JOINS: list[tuple[Join, st.SearchStrategy[Any], Any]] = [
    (merge_verdicts, judgements, EMPTY_VERDICT),
    (merge_matches, recollections, NO_MATCHES),
]
each_join = pytest.mark.parametrize(("join", "values", "nothing"), JOINS, ids=["judgements", "recollections"])
quorums = st.none() | st.integers(1, 4)


def blocking(agent: str, guardrail_id: str = "rule", **more: Any) -> MergedVerdict:
    violation = Violation(guardrail_id, "A rule", "Not so", Severity.BLOCK, **more)
    return MergedVerdict({agent: build_verdict([violation], [], evaluated=2)})


def allowing(agent: str) -> MergedVerdict:
    return MergedVerdict({agent: build_verdict([], [], evaluated=2)})


def found(agent: str, weight: float, title: str) -> WeightedMatch[cstp_pb2.DecisionSummary]:
    return WeightedMatch(cstp_pb2.DecisionSummary(id="dec-1", origin=agent, title=title), weight)


def said(agent: str, judgement: MergedVerdict | None, *, required: bool = True) -> PeerVerdict:
    if judgement is None:
        return PeerVerdict(agent, required, reason="It is away.")
    return PeerVerdict(agent, required, judgement)


def keys(verdict: FederatedVerdict) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    return sorted(verdict.merged.violations), sorted(verdict.merged.warnings)


@each_join
@given(data=st.data())
def test_joins_are_commutative_associative_idempotent_and_have_a_unit(
    join: Join, values: st.SearchStrategy[Any], nothing: Any, data: st.DataObject
) -> None:
    a, b, c = data.draw(values), data.draw(values), data.draw(values)
    assert join(a, b) == join(b, a)
    assert join(join(a, b), c) == join(a, join(b, c))
    assert join(a, a) == a
    assert join(a, nothing) == a == join(nothing, a)


def needing_approval(agent: str) -> MergedVerdict:
    violation = Violation("rule", "A rule", "Not yet", Severity.APPROVE)
    return MergedVerdict({agent: build_verdict([violation], [], evaluated=2)})


def test_the_gravest_severity_of_a_guardrail_is_kept_and_listed_first() -> None:
    mild, medium, grave = (
        Violation("rule", "A rule", message, severity)
        for message, severity in (("c", Severity.WARN), ("b", Severity.APPROVE), ("a", Severity.BLOCK))
    )
    for least, greatest in ((mild, medium), (medium, grave), (mild, grave)):
        answers = [MergedVerdict({"ann": build_verdict([each], [])}) for each in (greatest, least)]
        assert list(merge_verdicts(*answers).violations.values()) == [greatest]
    by_agent = {"ann": mild, "ben": medium, "cleo": grave}
    merged = MergedVerdict({agent: build_verdict([each], []) for agent, each in by_agent.items()})
    assert list(merged.violations.values()) == [grave, medium, mild]


@pytest.mark.parametrize(
    ("own", "peer", "required", "outcome"),
    [
        (allowing("me"), needing_approval("ann"), True, (False, True)),
        (needing_approval("me"), allowing("ann"), True, (False, True)),
        (needing_approval("me"), needing_approval("ann"), True, (False, True)),
        (needing_approval("me"), blocking("ann"), True, (False, False)),
        (blocking("me"), needing_approval("ann"), True, (False, False)),
        (needing_approval("me"), None, True, (False, False)),
        (allowing("me"), needing_approval("ann"), False, (True, False)),
    ],
)
def test_approval_is_required_unless_anyone_blocks(
    own: MergedVerdict, peer: MergedVerdict | None, required: bool, outcome: tuple[bool, bool]
) -> None:
    verdict = decide_verdict("me", own, [said("ann", peer, required=required)])

    assert (verdict.allowed, verdict.approval_required) == outcome


@given(judgements, judgements)
def test_no_join_allows_what_was_denied_or_forgets_what_was_found(a: MergedVerdict, b: MergedVerdict) -> None:
    both = merge_verdicts(a, b)
    assert both.allowed == (a.allowed and b.allowed)
    assert both.violations.keys() == a.violations.keys() | b.violations.keys()
    assert (
        both.violations.keys() | both.warnings.keys() == both.violations.keys() | a.warnings.keys() | b.warnings.keys()
    )
    assert both.violations.keys().isdisjoint(both.warnings)


@given(judgements, st.lists(opinions(), max_size=4), opinions())
def test_asking_one_more_agent_never_allows_what_is_denied(
    own: MergedVerdict, peers: list[PeerVerdict], another: PeerVerdict
) -> None:
    before, after = decide_verdict("self", own, peers), decide_verdict("self", own, [*peers, another])
    assert before.allowed or not after.allowed
    assert before.merged.violations.keys() <= after.merged.violations.keys()


@given(judgements, st.lists(opinions(), max_size=4))
def test_without_a_quorum_every_required_peer_must_allow(own: MergedVerdict, peers: list[PeerVerdict]) -> None:
    allowed = own.allowed and all(o.verdict is not None and o.verdict.allowed for o in peers if o.required)
    assert decide_verdict("self", own, peers).allowed == allowed


@given(judgements, st.lists(opinions(), max_size=4, unique_by=lambda o: o.agent), st.integers(1, 4))
def test_with_a_quorum_enough_required_peers_must_allow(
    own: MergedVerdict, peers: list[PeerVerdict], needed: int
) -> None:
    votes = {o.agent: o.verdict is not None and o.verdict.allowed for o in peers if o.required}
    verdict = decide_verdict("self", own, peers, needed)
    assert verdict.vote is not None
    assert (verdict.vote.votes, verdict.vote.needed) == (votes, needed)
    assert verdict.allowed == (own.allowed and sum(votes.values()) >= needed)


@given(judgements, st.lists(opinions(), max_size=4), quorums, st.data())
def test_neither_the_order_of_opinions_nor_their_repetition_matters(
    own: MergedVerdict, peers: list[PeerVerdict], quorum: int | None, data: st.DataObject
) -> None:
    again = data.draw(st.permutations([*peers, *peers[:2]]))
    assert decide_verdict("self", own, again, quorum) == decide_verdict("self", own, peers, quorum)


@given(judgements, st.lists(opinions(), max_size=4), quorums)
def test_what_is_denied_says_why_and_nothing_that_blocks_is_lost(
    own: MergedVerdict, peers: list[PeerVerdict], quorum: int | None
) -> None:
    verdict = decide_verdict("self", own, peers, quorum)
    assert verdict.allowed == (not verdict.merged.violations)
    told = {**verdict.merged.warnings, **verdict.merged.violations}
    for judged in (own, *(o.verdict for o in peers if o.verdict)):
        for key in judged.violations:
            assert key in told
    assert own.violations.keys() <= verdict.merged.violations.keys()


def test_what_outvoted_peers_block_becomes_a_warning_of_the_same_severity() -> None:
    peers = [said("ann", allowing("ann")), said("ben", blocking("ben")), said("cleo", None)]
    verdict = decide_verdict("self", allowing("self"), peers, 1)
    assert keys(verdict) == ([], [("ben", "rule"), ("cleo", "federation-unreachable")])
    assert {each.severity for each in verdict.merged.warnings.values()} == {Severity.BLOCK}


def test_a_vote_that_is_lost_keeps_all_violations_and_says_so() -> None:
    peers = [said("ann", allowing("ann")), said("ben", blocking("ben"))]
    verdict = decide_verdict("self", allowing("self"), peers, 2)
    assert keys(verdict) == ([("ben", "rule"), ("self", "federation-quorum")], [])
    assert verdict.merged.violations["self", "federation-quorum"].message == (
        "1 of 2 required peers allow this, and 2 must"
    )


def test_peers_do_not_outvote_the_agent_itself() -> None:
    verdict = decide_verdict("self", blocking("self"), [said("ann", allowing("ann"))], 1)
    assert keys(verdict) == ([("self", "rule")], [])


def test_a_peer_that_is_asked_twice_allows_only_what_it_allows_both_times() -> None:
    for peers in ([said("ann", None), said("ann", allowing("ann"))], [said("ann", allowing("ann")), said("ann", None)]):
        assert not decide_verdict("self", allowing("self"), peers, 1).allowed


def test_advisory_peers_only_warn_and_have_no_vote() -> None:
    peers = [said("ann", blocking("ann"), required=False), said("ben", None, required=False)]
    verdict = decide_verdict("self", allowing("self"), peers)
    assert keys(verdict) == ([], [("ann", "rule"), ("ben", "federation-unreachable")])
    assert verdict.merged.warnings["ann", "rule"].severity is Severity.BLOCK
    assert verdict.merged.warnings["ben", "federation-unreachable"].severity is Severity.WARN
    assert not decide_verdict("self", allowing("self"), peers, 1).allowed


def test_a_required_peer_that_did_not_judge_is_named_with_the_reason() -> None:
    verdict = decide_verdict("self", allowing("self"), [said("ann", None)])
    finding = verdict.merged.violations["ann", "federation-unreachable"]
    assert (finding.code, finding.message) == (
        "FEDERATION_UNREACHABLE",
        "The required peer ann gave no verdict. It is away.",
    )


@given(recollections, st.lists(recollections, max_size=3), st.data())
def test_what_is_remembered_does_not_depend_on_order(
    own: MergedMatches[Any], others: list[MergedMatches[Any]], data: st.DataObject
) -> None:
    again = data.draw(st.permutations([*others, *others[:1]]))
    assert merge_search_results(own, again) == merge_search_results(own, others)
    assert merge_search_results(own, [reduce(merge_matches, others, NO_MATCHES)]) == merge_search_results(own, others)


@given(recollections, recollections, st.integers(0, 4))
def test_the_top_are_those_with_the_greatest_weights(a: MergedMatches[Any], b: MergedMatches[Any], limit: int) -> None:
    both = merge_matches(a, b)
    chosen = top_matches(both, limit)
    assert len(chosen) == min(limit, len(both.best))
    weights = [both.best[decision.id].weight for decision in chosen]
    assert weights == sorted((match.weight for match in both.best.values()), reverse=True)[:limit]


def test_a_decision_is_told_once_by_whoever_has_it_nearest() -> None:
    near, far = found("ben", 0.9, "near"), found("ann", 0.5, "far")
    both = merge_matches(MergedMatches({"dec-1": far}, {"ann": 1}), MergedMatches({"dec-1": near}, {"ben": 1}))
    assert both == MergedMatches({"dec-1": near}, {"ann": 1, "ben": 1})


def test_no_peer_replaces_what_the_agent_itself_remembers_of_a_decision() -> None:
    own, forged = found("self", 0.4, "it failed"), found("mallory", 1.0, "it went well")
    told = merge_search_results(
        MergedMatches({"dec-1": own}, {"self": 1}), [MergedMatches({"dec-1": forged}, {"mallory": 1})]
    )
    assert top_matches(told, 5) == [own.decision]


def test_suggestions_are_ones_own_then_remedies_then_those_of_peers_in_turns() -> None:
    verdict = blocking("ann", suggestion="Ask a colleague")
    peers = [["Wait", "Take a copy"], [" ", "Roll  back"], ["ask a  colleague", "Never told"]]
    theirs = [[cstp_pb2.Suggestion(text=text) for text in texts] for texts in peers]
    merged = merge_suggestions([cstp_pb2.Suggestion(text="Test it")], verdict, theirs, 5)
    assert [suggestion.text for suggestion in merged] == [
        "Test it",
        "Ask a colleague",
        "Wait",
        "Take a copy",
        "Roll  back",
    ]
    assert (merged[1].kind, merged[1].origin) == (cstp_pb2.SUGGESTION_KIND_GUARDRAIL, "ann")


def test_related_intents_are_open_ones_by_weight_then_closed_ones_each_once() -> None:
    def told(agent: str, weight: float, origin: str, **more: Any) -> WeightedIntent:
        return WeightedIntent(related_intent(agent, origin=origin, **more), weight)

    done = {"closing": {"closed_at": NOON, "outcome": types_pb2.OUTCOME_FAILURE}}
    own = [told("eve", 0.5, "self"), told("dan", 0.9, "self", **done)]
    theirs = [
        told("eve", 0.8, "ann"),
        told("eve", 0.6, "ben", correlation_id="c-2"),
        told("fay", 0.7, "ben"),
        told("fay", 0.3, "ann"),
    ]
    for others in (theirs, theirs[::-1]):
        merged = merge_related_intents(own, others, 5)
        assert [(each.agent, each.correlation_id, each.origin) for each in merged] == [
            ("fay", "c-9", "ben"),
            ("eve", "c-2", "ben"),
            ("eve", "c-9", "self"),
            ("dan", "c-9", "self"),
        ]
        assert merge_related_intents(own, others, 2) == merged[:2]
