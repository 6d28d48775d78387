"""Explained searches: the parts of scores, and the reasons why decisions are left out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Visibility
from cstp_grpc.contract.errors import NotFound
from cstp_grpc.core.decisions.model import Decision, DecisionFilter, ExplainedSearch, ScoreFeature, SearchOutcome
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.search.relevance import NOTHING_FAVOURED
from cstp_grpc.core.decisions.search.search_explanation import explain_search
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.core.decisions.store import IndexRow
from tests.core.decisions.journals import JournalKit
from tests.core.decisions.rows import AGENTS, queries, rows
from tests.core.decisions.test_search import ANY, Finder, record


@given(st.lists(rows, max_size=20), st.sampled_from([*AGENTS, "carol"]), queries)
def test_the_contributions_are_the_score_that_a_search_returns(changes: list[IndexRow], caller: str, query) -> None:  # type: ignore[no-untyped-def]
    query = replace(query, favoured=NOTHING_FAVOURED)
    matrix = VectorMatrix(3, SHARE_WITH_ALL)
    matrix.apply(changes)
    results = matrix.candidates(caller, ANY).best(query, 100, 0.0)

    explained = matrix.candidates_of([item.decision_id for item in changes], caller).explain(query)

    assert [item for item, _ in explained] == results
    for item, parts in explained:
        total = sum(part.amount for part in parts)
        assert item.score == pytest.approx(1 / (1 + math.exp(-query.curve.slope * total)), abs=1e-5)
        assert len({part.feature for part in parts}) == len(parts)


def explain(
    finder: Finder, text: str, *expected: Decision, filters: DecisionFilter = ANY, limit: int = 10, least: float = 0.25
) -> ExplainedSearch:
    return explain_search(finder.search, text, filters, "bob", limit, (least, least), [item.id for item in expected])


def outcomes(explained: ExplainedSearch) -> list[tuple[str, SearchOutcome, int]]:
    return [(each.decision.id, each.outcome, each.place) for each in explained.decisions]


def test_each_reason_to_leave_a_decision_out_is_named(kit: JournalKit) -> None:
    best = record(kit, "queue the ledger", category="ops")
    second = record(kit, "queue every write of the ledger", category="ops", tags=("slow",))
    other = record(kit, "drop the cache")
    finder = Finder(kit)
    late = record(kit, "queue the ledger of tokens")

    found = explain(finder, "queue the ledger", best, other, late)
    assert outcomes(found) == [
        (best.id, SearchOutcome.LISTED, 1),
        (second.id, SearchOutcome.LISTED, 2),
        (other.id, SearchOutcome.BELOW_MIN_SCORE, 0),
        (late.id, SearchOutcome.NOT_INDEXED, 0),
    ]
    assert (found.decisions[3].score, found.decisions[3].contributions) == (None, ())
    assert [each.score for each in found.decisions[:2]] == [
        each.score for each in finder.search.search("queue the ledger", ANY, "bob", 10, 0.25)
    ]
    assert outcomes(explain(finder, "queue the ledger", second, limit=1))[1] == (
        second.id,
        SearchOutcome.BEYOND_LIMIT,
        0,
    )

    (filtered,) = explain(finder, "queue the ledger", best, filters=DecisionFilter("ops", tags=("new",))).decisions
    assert filtered.outcome is SearchOutcome.FILTERED
    assert filtered.unmet_filters == DecisionFilter(tags=("new",))
    assert filtered.score == found.decisions[0].score


def test_a_series_stands_for_those_that_it_hides(kit: JournalKit) -> None:
    series = [record(kit, f"Deploy the ledger v3.{number}", context="Rolled out to production.") for number in range(5)]
    explained = explain(Finder(kit), "deploy the ledger", *series).decisions
    assert [each.outcome for each in explained] == [SearchOutcome.LISTED] * 3 + [SearchOutcome.SIMILAR_LISTED] * 2
    assert {each.similar_to for each in explained[3:]} == {explained[0].decision.id}


def test_a_result_that_an_engine_does_not_propose_is_named(kit: JournalKit, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = record(kit, "queue the ledger")
    finder = Finder(kit)
    monkeypatch.setattr(finder.search, "search", lambda *_: [])
    assert outcomes(explain(finder, "queue the ledger", lost)) == [(lost.id, SearchOutcome.NOT_PROPOSED, 0)]


@pytest.mark.parametrize("visible", [False, True])
def test_only_decisions_that_the_caller_may_read_are_explained(kit: JournalKit, visible: bool) -> None:
    hidden = record(kit, "queue the ledger", visibility=Visibility.PRIVATE)
    if visible:
        kit.journal.share(hidden.id, "alice", "req-2")
        kit.journal.delete(hidden.id, "alice", "req-3")
    with pytest.raises(NotFound, match=hidden.id):
        explain(Finder(kit), "queue the ledger", hidden)


def test_an_identifier_is_explained_by_the_name_and_the_demand(kit: JournalKit) -> None:
    named, other = record(kit, "INC-2041: queue the ledger"), record(kit, "INC-7: queue the cache")
    parts = {
        each.decision.id: {part.feature: part.amount for part in each.contributions}
        for each in explain(Finder(kit), "inc 2041", named, other, least=0.0).decisions
    }
    assert parts[named.id][ScoreFeature.IDENTIFIER] == -parts[named.id][ScoreFeature.IDENTIFIER_QUERY]
    assert ScoreFeature.NAME in parts[named.id]
    assert not {ScoreFeature.IDENTIFIER, ScoreFeature.NAME} & set(parts[other.id])
