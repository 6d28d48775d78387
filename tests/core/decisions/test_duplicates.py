"""Which decisions say nearly the same, on each kind of database."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import DecisionStatus, Visibility
from cstp_grpc.core.decisions.journal_reader import group_similar
from cstp_grpc.core.decisions.model import Decision, DecisionContent, DecisionFilter, DuplicateReport, Links
from tests.core.decisions.journals import JournalKit
from tests.core.decisions.rows import decision, row, vectors


def record(kit: JournalKit, title: str, caller: str = "alice", **fields: Any) -> Decision:
    return kit.journal.record(DecisionContent(title, **fields), Links(), caller, "request-1")


def find(kit: JournalKit, least: float | None = None, limit: int = 0, **conditions: Any) -> DuplicateReport:
    return kit.journal.find_duplicates("alice", DecisionFilter(**conditions), least, limit)


def titles(report: DuplicateReport) -> list[list[str]]:
    return [[item.title for item in group.decisions] for group in report.groups]


def test_own_decisions_with_the_same_words_are_duplicates(kit: JournalKit) -> None:
    for title in ("put jobs on a queue", "drop the cache of the shop", "put the jobs on a queue"):
        record(kit, title)
    record(kit, "put jobs on a queue", "bob", visibility=Visibility.SHARED)
    report = find(kit)
    assert titles(report) == [["put the jobs on a queue", "put jobs on a queue"]]
    assert (report.compared, report.truncated) == (3, False)
    assert 0.9 <= report.groups[0].similarity <= 1


def test_what_is_superseded_is_no_duplicate(kit: JournalKit) -> None:
    old = record(kit, "put jobs on a queue")
    kit.journal.record(DecisionContent("put jobs on a queue"), Links(supersedes=(old.id,)), "alice", "request-2")
    assert find(kit) == DuplicateReport((), 1, truncated=False)
    assert find(kit, status=(DecisionStatus.SUPERSEDED,)).compared == 0


def test_filters_and_the_number_of_groups_bound_the_report(kit: JournalKit) -> None:
    for project in ("atlas", "borealis"):
        for _ in range(2):
            record(kit, f"use the queue of {project}", project=project)
    assert titles(find(kit, 0.99, project="atlas")) == [["use the queue of atlas"] * 2]
    report = find(kit, 0.99, limit=1)
    assert (len(report.groups), report.compared, report.truncated) == (1, 4, True)
    assert find(kit, agent="bob") == DuplicateReport((), 0, truncated=False)


@given(st.lists(vectors, max_size=12), st.sampled_from([0.5, 0.9, 1.0]))
def test_groups_are_what_similar_pairs_connect(found: list[Any], least: float) -> None:
    decisions = [decision(row(f"dec-{number}", number, vector)) for number, vector in enumerate(found)]
    groups = {frozenset({number}) for number in range(len(found))}
    similarity = [[round(float(np.dot(one, other)), 6) for other in found] for one in found]
    for first in range(len(found)):
        for second in range(first):
            if similarity[first][second] >= least:
                one, other = (next(group for group in groups if place in group) for place in (first, second))
                groups = (groups - {one, other}) | {one | other}
    result = group_similar(decisions, found, least)
    expected = {frozenset(f"dec-{place}" for place in group) for group in groups if len(group) > 1}
    assert {frozenset(item.id for item in group.decisions) for group in result} == expected
    assert [group.similarity for group in result] == sorted((group.similarity for group in result), reverse=True)
    for group in result:
        places = [int(item.id.removeprefix("dec-")) for item in group.decisions]
        assert group.similarity == max(similarity[one][other] for one in places for other in places if one != other)
