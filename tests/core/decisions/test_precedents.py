"""What of the results is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.core.decisions.model import SUMMARY_TAG, Decision, DecisionLink, LinkType, Match
from cstp_grpc.core.decisions.search.search_results import (
    MatchGroup,
    choose_precedents,
    fold_into_summaries,
    group_matches,
    put_successors_first,
)


def match(
    key: str, score: float = 0.5, title: str | None = None, outcome: Outcome | None = None, notes: str | None = None
) -> Match:
    decision = Decision(
        key,
        title or f"title of {key}",
        DecisionStatus.DECIDED,
        datetime(2026, 1, 1, tzinfo=UTC),
        "alice",
        Visibility.SHARED,
        outcome=outcome,
        notes=notes,
    )
    return Match(decision, score)


def vectors(*similarities: float) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Unit vectors, each with the given similarity to the first."""
    return np.array([(s, np.sqrt(1 - s * s)) for s in similarities], np.float32)


def keys(groups: list[MatchGroup]) -> list[list[str]]:
    return [[each.decision.id for each in group.matches] for group in groups]


def ids(matches: list[Match]) -> list[str]:
    return [each.decision.id for each in matches]


def test_a_series_is_one_group() -> None:
    found = [
        match("a", title="Deploy billing v3.10"),
        match("b", title="Deploy billing v3.2"),
        match("c", title="Other"),
    ]
    assert keys(group_matches(found, vectors(1, 0.85, 0.85))) == [["a", "b"], ["c"]]


def test_decisions_with_identifiers_of_their_own_are_no_series() -> None:
    found = [match("a", title="PEP 373 – Python 2.7 schedule"), match("b", title="PEP 361 – Python 2.6 schedule")]
    assert keys(group_matches(found, vectors(1, 0.99))) == [["a"], ["b"]]


def test_series_are_found_however_far_their_members_are_apart() -> None:
    titles = ("Deploy billing", "Deploy search", "Rotate keys")
    found = [match(f"m{place}", title=f"{titles[place % 3]} v{place}") for place in range(100)]
    # Any two have a similarity of 0.9.
    alike = np.concatenate([np.full((100, 1), np.sqrt(0.9)), np.eye(100) * np.sqrt(0.1)], axis=1, dtype=np.float32)
    expected = [[f"m{place}" for place in range(start, 100, 3)] for start in range(3)]
    assert keys(group_matches(found, alike)) == expected


def test_several_of_a_group_are_listed_if_wanted() -> None:
    group = MatchGroup(0, [match(f"m{place}", 0.9 - place / 10) for place in range(5)])
    listed = choose_precedents([group, MatchGroup(5, [match("other", 0.75)])], 3, 2)
    assert [(each.decision.id, each.similar_count) for each in listed] == [("m0", 3), ("m1", 0), ("other", 0)]


def test_titles_alone_make_no_series() -> None:
    found = [match("a", title="Weekly decision 1"), match("b", title="Weekly decision 2")]
    assert keys(group_matches(found, vectors(1, 0.5))) == [["a"], ["b"]]


def test_near_duplicates_are_one_group_whatever_their_titles() -> None:
    found = [match("a"), match("b"), match("c")]
    assert keys(group_matches(found, vectors(1, 0.98, 0.9))) == [["a", "b"], ["c"]]


def test_a_group_is_shown_once_with_its_number_and_outcomes() -> None:
    group = MatchGroup(
        0, [match("a", 0.9, outcome=Outcome.SUCCESS), match("b", 0.8, outcome=Outcome.PARTIAL), match("c")]
    )
    (shown,) = choose_precedents([group], 5)
    assert (shown.decision.id, shown.similar_count) == ("a", 2)
    assert shown.similar_outcomes == (Outcome.SUCCESS, Outcome.PARTIAL)


def test_the_most_relevant_failure_and_lesson_take_the_last_places() -> None:
    groups = [MatchGroup(place, [match(f"m{place}", 0.9 - place / 100)]) for place in range(8)]
    groups += [
        MatchGroup(8, [match("failed", 0.5, outcome=Outcome.FAILURE)]),
        MatchGroup(9, [match("learned", 0.4, notes="lesson")]),
    ]
    assert ids(choose_precedents(groups, 5)) == ["m0", "m1", "m2", "m3", "m4"]
    assert ids(choose_precedents(groups, 5, with_exemplars=True)) == ["m0", "m1", "m2", "failed", "learned"]
    assert ids(choose_precedents(groups, 1, with_exemplars=True)) == ["m0"]


def test_a_failure_that_a_series_hides_is_shown_beside_it() -> None:
    series = [match(f"s{number}", 0.9, outcome=Outcome.SUCCESS) for number in range(4)]
    failed = match("failed", 0.8, outcome=Outcome.FAILURE, notes="lesson")
    first, second = choose_precedents([MatchGroup(0, [*series, failed])], 5, with_exemplars=True)
    assert (first.decision.id, first.similar_count, first.similar_outcomes) == ("s0", 3, (Outcome.SUCCESS,))
    assert (second.decision.id, second.similar_count) == ("failed", 0)


def test_a_superseded_decision_names_its_successor_and_stands_below_it() -> None:
    found = [match("old", 0.9), match("other", 0.8), match("new", 0.6)]
    ordered = put_successors_first(found, {"old": "new"})
    assert ids(ordered) in (["other", "new", "old"], ["other", "old", "new"])
    old = next(each for each in ordered if each.decision.id == "old")
    assert (old.superseded_by, old.score) == ("new", 0.6)
    assert put_successors_first(found[:2], {"old": "new"})[0].superseded_by == "new"


outcomes = st.none() | st.sampled_from(Outcome)
scored = st.lists(st.tuples(st.floats(0, 1), outcomes, st.none() | st.just("lesson"), st.integers(0, 3)), max_size=20)


@given(scored, st.integers(1, 6))
def test_choosing_loses_no_group_and_counts_each_decision_once(
    drawn: list[tuple[float, Outcome | None, str | None, int]], limit: int
) -> None:
    by_group: dict[int, list[Match]] = {}
    ordered = sorted(drawn, key=lambda each: -each[0])
    for number, (score, outcome, notes, group) in enumerate(ordered):
        by_group.setdefault(group, []).append(match(f"d{number}", score, outcome=outcome, notes=notes))
    groups = [MatchGroup(place, matches) for place, matches in enumerate(by_group.values())]

    chosen = choose_precedents(groups, limit, with_exemplars=True)

    assert len(chosen) <= max(limit, 0)
    assert len(set(ids(chosen))) == len(chosen)
    assert [each.score for each in chosen] == sorted((each.score for each in chosen), reverse=True)
    assert len(chosen) >= min(limit, len(groups))
    assert len(chosen) + sum(each.similar_count for each in chosen) <= len(drawn)
    if drawn:
        assert chosen[0].score == ordered[0][0]
    if limit >= 3:
        assert any(each[1] is Outcome.FAILURE for each in drawn) <= any(
            each.decision.outcome is Outcome.FAILURE for each in chosen
        )
        assert any(each[2] for each in drawn) <= any(each.decision.notes for each in chosen)


def links_from(summary: str, *keys: str) -> Callable[[Sequence[str], int], list[DecisionLink]]:
    return lambda ids, _: [DecisionLink(summary, LinkType.SUMMARIZES, key) for key in keys] if summary in ids else []


def tagged(key: str) -> Match:
    found = match(key)
    return replace(found, decision=replace(found.decision, tags=(SUMMARY_TAG,)))


def test_a_summary_stands_for_several_less_relevant_decisions_that_it_cites() -> None:
    found = [match("best"), tagged("s"), match("a", outcome=Outcome.FAILURE), match("other"), match("b")]
    folded = fold_into_summaries(found, links_from("s", "best", "a", "b", "elsewhere"))
    assert ids(folded) == ["best", "s", "other"]
    assert (folded[1].similar_count, folded[1].similar_outcomes) == (2, (Outcome.FAILURE,))


def test_a_summary_counts_what_the_decisions_that_it_stands_for_stand_for() -> None:
    series = replace(match("a", outcome=Outcome.FAILURE), similar_count=2, similar_outcomes=(Outcome.SUCCESS,))
    summary = replace(tagged("s"), similar_count=1, similar_outcomes=(Outcome.FAILURE,))
    (folded,) = fold_into_summaries([summary, series, match("b")], links_from("s", "a", "b"))
    assert (folded.similar_count, folded.similar_outcomes) == (5, (Outcome.FAILURE, Outcome.SUCCESS))


def test_a_summary_hides_neither_a_single_decision_nor_those_of_other_agents() -> None:
    foreign = [replace(item, decision=replace(item.decision, agent="bob")) for item in (match("a"), match("b"))]
    found = [tagged("s"), *foreign, match("c")]
    assert fold_into_summaries(found, links_from("s", "a", "b", "c")) == found
    # Another kind of link hides nothing.
    related = DecisionLink("s", LinkType.RELATES_TO, "c")
    found = [tagged("s"), match("c"), match("d")]
    assert fold_into_summaries(found, lambda *_: [related, replace(related, to_id="d")]) == found
