from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.client.federation.merge import (
    NOTHING_FOUND,
    NOTHING_JUDGED,
    decide,
    join_judgements,
    join_recollections,
    remembered,
    suggested,
    top,
)
from cstp_grpc.client.federation.model import Finding, Found, Judgement, Opinion, Recollection, Verdict
from tests.client.federation.answers import judgements, opinions, recollections

Join = Callable[[Any, Any], Any]
JOINS: list[tuple[Join, st.SearchStrategy[Any], Any]] = [
    (join_judgements, judgements, NOTHING_JUDGED),
    (join_recollections, recollections, NOTHING_FOUND),
]
each_join = pytest.mark.parametrize(("join", "values", "nothing"), JOINS, ids=["judgements", "recollections"])
quorums = st.none() | st.integers(1, 4)


def blocking(agent: str, guardrail_id: str = "rule", *, blocks: bool = True, **more: str) -> Judgement:
    finding = Finding(agent, guardrail_id, "A rule", "Not so", blocks, **more)
    return Judgement({finding.key: finding}, {}, {agent: 2})


def allowing(agent: str) -> Judgement:
    return Judgement(evaluated={agent: 2})


def said(agent: str, judgement: Judgement | None, *, required: bool = True) -> Opinion:
    if judgement is None:
        return Opinion(agent, required, why="It is away.")
    return Opinion(agent, required, judgement)


def keys(verdict: Verdict) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    return sorted(verdict.judgement.blocking), sorted(verdict.judgement.warning)


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


@given(judgements, judgements)
def test_no_join_allows_what_was_denied_or_forgets_what_was_found(a: Judgement, b: Judgement) -> None:
    both = join_judgements(a, b)
    assert both.allowed == (a.allowed and b.allowed)
    assert both.blocking.keys() == a.blocking.keys() | b.blocking.keys()
    assert both.blocking.keys() | both.warning.keys() == both.blocking.keys() | a.warning.keys() | b.warning.keys()
    assert both.blocking.keys().isdisjoint(both.warning)


@given(judgements, st.lists(opinions(), max_size=4), opinions())
def test_asking_one_more_agent_never_allows_what_is_denied(
    own: Judgement, peers: list[Opinion], another: Opinion
) -> None:
    before, after = decide("self", own, peers), decide("self", own, [*peers, another])
    assert before.allowed or not after.allowed
    assert before.judgement.blocking.keys() <= after.judgement.blocking.keys()


@given(judgements, st.lists(opinions(), max_size=4))
def test_without_a_quorum_every_required_peer_must_allow(own: Judgement, peers: list[Opinion]) -> None:
    allowed = own.allowed and all(o.judgement is not None and o.judgement.allowed for o in peers if o.required)
    assert decide("self", own, peers).allowed == allowed


@given(judgements, st.lists(opinions(), max_size=4, unique_by=lambda o: o.agent), st.integers(1, 4))
def test_with_a_quorum_enough_required_peers_must_allow(own: Judgement, peers: list[Opinion], needed: int) -> None:
    votes = {o.agent: o.judgement is not None and o.judgement.allowed for o in peers if o.required}
    verdict = decide("self", own, peers, needed)
    assert verdict.poll is not None
    assert (verdict.poll.votes, verdict.poll.needed) == (votes, needed)
    assert verdict.allowed == (own.allowed and sum(votes.values()) >= needed)


@given(judgements, st.lists(opinions(), max_size=4), quorums, st.data())
def test_neither_the_order_of_opinions_nor_their_repetition_matters(
    own: Judgement, peers: list[Opinion], quorum: int | None, data: st.DataObject
) -> None:
    again = data.draw(st.permutations([*peers, *peers[:2]]))
    assert decide("self", own, again, quorum) == decide("self", own, peers, quorum)


@given(judgements, st.lists(opinions(), max_size=4), quorums)
def test_what_is_denied_says_why_and_nothing_that_blocks_is_lost(
    own: Judgement, peers: list[Opinion], quorum: int | None
) -> None:
    verdict = decide("self", own, peers, quorum)
    assert verdict.allowed == (not verdict.judgement.blocking)
    told = {**verdict.judgement.warning, **verdict.judgement.blocking}
    for judged in (own, *(o.judgement for o in peers if o.judgement)):
        for key in judged.blocking:
            assert key in told
    assert own.blocking.keys() <= verdict.judgement.blocking.keys()


def test_what_outvoted_peers_block_becomes_a_warning_of_the_same_severity() -> None:
    peers = [said("ann", allowing("ann")), said("ben", blocking("ben")), said("cleo", None)]
    verdict = decide("self", allowing("self"), peers, 1)
    assert keys(verdict) == ([], [("ben", "rule"), ("cleo", "federation-unreachable")])
    assert [finding.blocks for finding in verdict.judgement.warning.values()] == [True, True]


def test_a_vote_that_is_lost_keeps_all_violations_and_says_so() -> None:
    peers = [said("ann", allowing("ann")), said("ben", blocking("ben"))]
    verdict = decide("self", allowing("self"), peers, 2)
    assert keys(verdict) == ([("ben", "rule"), ("self", "federation-quorum")], [])
    assert verdict.judgement.blocking["self", "federation-quorum"].message == (
        "1 of 2 required peers allow this, and 2 must"
    )


def test_peers_do_not_outvote_the_agent_itself() -> None:
    verdict = decide("self", blocking("self"), [said("ann", allowing("ann"))], 1)
    assert keys(verdict) == ([("self", "rule")], [])


def test_a_peer_that_is_asked_twice_allows_only_what_it_allows_both_times() -> None:
    for peers in ([said("ann", None), said("ann", allowing("ann"))], [said("ann", allowing("ann")), said("ann", None)]):
        assert not decide("self", allowing("self"), peers, 1).allowed


def test_advisory_peers_only_warn_and_have_no_vote() -> None:
    peers = [said("ann", blocking("ann"), required=False), said("ben", None, required=False)]
    verdict = decide("self", allowing("self"), peers)
    assert keys(verdict) == ([], [("ann", "rule"), ("ben", "federation-unreachable")])
    assert verdict.judgement.warning["ann", "rule"].blocks
    assert not verdict.judgement.warning["ben", "federation-unreachable"].blocks
    assert not decide("self", allowing("self"), peers, 1).allowed


def test_a_required_peer_that_did_not_judge_is_named_with_the_reason() -> None:
    verdict = decide("self", allowing("self"), [said("ann", None)])
    finding = verdict.judgement.blocking["ann", "federation-unreachable"]
    assert (finding.code, finding.message) == (
        "FEDERATION_UNREACHABLE",
        "The required peer ann did not judge this. It is away.",
    )


@given(recollections, st.lists(recollections, max_size=3), st.data())
def test_what_is_remembered_does_not_depend_on_order(
    own: Recollection, others: list[Recollection], data: st.DataObject
) -> None:
    again = data.draw(st.permutations([*others, *others[:1]]))
    assert remembered(own, again) == remembered(own, others)
    assert remembered(own, [reduce(join_recollections, others, NOTHING_FOUND)]) == remembered(own, others)


@given(recollections, recollections, st.integers(0, 4))
def test_the_top_are_those_with_the_greatest_weights(a: Recollection, b: Recollection, limit: int) -> None:
    both = join_recollections(a, b)
    chosen = top(both, limit)
    assert len(chosen) == min(limit, len(both.best))
    assert [found.weight for found in chosen] == sorted((f.weight for f in both.best.values()), reverse=True)[:limit]


def test_a_decision_is_told_once_by_whoever_has_it_nearest() -> None:
    near, far = Found("dec-1", "ben", 0.9, b"near"), Found("dec-1", "ann", 0.5, b"far")
    both = join_recollections(Recollection({"dec-1": far}, {"ann": 1}), Recollection({"dec-1": near}, {"ben": 1}))
    assert both == Recollection({"dec-1": near}, {"ann": 1, "ben": 1})


def test_no_peer_replaces_what_the_agent_itself_remembers_of_a_decision() -> None:
    own, forged = Found("dec-1", "self", 0.4, b"it failed"), Found("dec-1", "mallory", 1.0, b"it went well")
    told = remembered(Recollection({"dec-1": own}, {"self": 1}), [Recollection({"dec-1": forged}, {"mallory": 1})])
    assert top(told, 5) == [own]


def test_suggestions_are_ones_own_then_remedies_then_those_of_peers_in_turns() -> None:
    verdict = blocking("ann", suggestion="Ask a colleague")
    peers = [["Wait", "Take a copy"], [" ", "Roll  back"], ["ask a  colleague", "Never told"]]
    assert suggested(["Test it"], verdict, peers, 5) == [
        "Test it",
        "Ask a colleague",
        "Wait",
        "Take a copy",
        "Roll  back",
    ]
