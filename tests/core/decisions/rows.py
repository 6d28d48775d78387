"""Rows of the matrix, and what a search over them must answer, computed the slow way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
from hypothesis import strategies as st

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.decisions.decision_terms import TERM_TYPE, QueryTerm, TermField, Terms
from cstp_grpc.core.decisions.model import Decision, DecisionFilter, ScoreFeature, build_predicate
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.search.ranking import ScoredDecision
from cstp_grpc.core.decisions.search.relevance import (
    CATEGORY_WEIGHT,
    COINCIDENTAL_WORDS,
    CONCLUSIVE_COVERAGE,
    IDENTIFIER_WEIGHT,
    NAME_WEIGHT,
    PROJECT_WEIGHT,
    UNKNOWN_WORDS_WEIGHT,
    Favoured,
    RankedQuery,
    RelevanceCurve,
    weights_of_words,
)
from cstp_grpc.core.decisions.search.word_index import inverse_document_frequency
from cstp_grpc.core.decisions.store import IndexRow, PassageVectors, Vector
from tests.core.decisions import strategies

AGENTS = ("alice", "bob")
IDS = tuple(f"dec-{number}" for number in range(5))
DIRECTIONS = ((1, 0, 0), (1, 1, 0), (1, 1, 1), (0, 1, 0), (-1, 0, 0), (1, 0.25, 0))
"""Few directions, so that scores are often equal."""


def unit(*numbers: float) -> Vector:
    """A vector of length 1."""
    vector = np.array(numbers, np.float32)
    return vector / np.linalg.norm(vector)


vectors = st.sampled_from(DIRECTIONS).map(lambda numbers: unit(*numbers))


def row(decision_id: str, revision: int, vector: Vector | None = None, **changes: object) -> IndexRow:
    """A row of alice's, shared, with little else."""
    values: dict[str, object] = {
        "agent": "alice",
        "visibility": Visibility.SHARED,
        "category": None,
        "confidence": None,
        "date": strategies.EPOCH.timestamp(),
        "stakes": None,
        "status": DecisionStatus.DECIDED,
        "outcome": None,
        "tags": (),
        "project": None,
        **changes,
    }
    passages = passages_of(unit(1, 0, 0) if vector is None else vector)
    return IndexRow(decision_id, revision, passages, **values)  # type: ignore[arg-type]


def passages_of(*vectors: Vector, has_lesson: bool = False) -> PassageVectors:
    """The vectors of a decision's passages."""
    return PassageVectors(np.stack(vectors), has_lesson)


def terms_of(occurrences: Mapping[int, tuple[float, int]]) -> Terms:
    """Terms by hash, each with its impact and its fields."""
    return np.array([(key, *occurrences[key]) for key in sorted(occurrences)], TERM_TYPE)


HASHES = (1, 7, 99, 4_000_000_000)
terms = st.dictionaries(
    st.sampled_from(HASHES), st.tuples(st.sampled_from([0.25, 0.5, 0.875]), st.integers(0, 15)), max_size=4
).map(terms_of)
queries = st.builds(
    RankedQuery,
    vector=vectors,
    terms=st.dictionaries(
        st.sampled_from([*HASHES, 12]), st.sampled_from([(False, False), (True, False), (False, True)]), max_size=4
    ).map(lambda kinds: tuple(QueryTerm(key, 1 + key % 2, *kind) for key, kind in kinds.items())),
    curve=st.sampled_from([RelevanceCurve(3, 0.4), RelevanceCurve(3, 0.4, spread=0.6)]),
    favoured=st.builds(Favoured, st.none() | strategies.categories, st.none() | strategies.projects),
    is_identifier=st.booleans(),
)


def query_of(vector: Vector) -> RankedQuery:
    """A query without words."""
    return RankedQuery(vector, (), RelevanceCurve(slope=3, midpoint=0.4))


rows = st.builds(
    IndexRow,
    decision_id=st.sampled_from(IDS),
    revision=st.integers(0, 3),
    passages=st.builds(
        PassageVectors, st.lists(vectors, min_size=1, max_size=3).map(np.stack), has_lesson=st.booleans()
    ),
    agent=st.sampled_from(AGENTS),
    visibility=st.sampled_from(Visibility),
    category=st.none() | strategies.categories,
    confidence=st.none() | strategies.fractions,
    date=strategies.dates.map(datetime.timestamp),
    stakes=st.none() | st.sampled_from(Stakes),
    status=st.sampled_from(DecisionStatus),
    outcome=st.none() | st.sampled_from(Outcome),
    tags=strategies.tags,
    project=st.none() | strategies.projects,
    terms=terms,
)
filters = strategies.filters(st.sampled_from(AGENTS))


@dataclass
class SlowMatrix:
    """What the matrix must do, a decision at a time."""

    rows: dict[str, IndexRow]

    @classmethod
    def of(cls, rows: Iterable[IndexRow]) -> SlowMatrix:
        newest: dict[str, IndexRow] = {}
        for item in rows:
            if item.decision_id not in newest or item.revision > newest[item.decision_id].revision:
                newest[item.decision_id] = item
        return cls(newest)

    def passing(self, caller: str, wanted: DecisionFilter, sharing: ReadPolicy) -> list[IndexRow]:
        # The matrix has dates as float64, which centuries from now are 4 us apart.
        after, before = wanted.date_after, wanted.date_before
        wanted = replace(wanted, date_after=after and as_float(after), date_before=before and as_float(before))
        found = ((item, decision(item)) for item in self.rows.values())
        return [item for item, meant in found if sharing.may_read(meant, caller) and build_predicate(wanted)(meant)]

    def best(
        self,
        found: Iterable[IndexRow],
        query: RankedQuery,
        limit: int,
        min_score: float,
        readable: Iterable[IndexRow] = (),
    ) -> list[tuple[str, float, float]]:
        """Return id, score and similarity of the best; words are as rare as they are among the readable ones."""
        corpus = list(readable)
        scored = []
        for item in found:
            products = [
                round(sum(float(a) * float(b) for a, b in zip(vector, query.vector, strict=True)), 6)
                for vector in item.passages.vectors
            ]
            similarity = max(-1.0, min(1.0, max(products)))
            evidence = round(similarity + self.added(item, query, corpus), 6)
            scored.append((evidence, item.date, item.decision_id, similarity))
        scored.sort(key=lambda one: (-one[0], -one[1], one[2]))
        curve = query.curve.for_query(
            np.array([round(float(np.vecdot(each.passages.vectors, query.vector).max()), 6) for each in corpus])
        )
        if query.curve.spread is not None:
            curve = curve.raised(ScoreFeature.UNKNOWN_WORDS, self.unknown(query, corpus) ** 2, UNKNOWN_WORDS_WEIGHT)
        results = [(key, round(curve.score(evidence), 6), similarity) for evidence, _, key, similarity in scored]
        return [one for one in results if one[1] >= min_score][:limit]

    def unknown(self, query: RankedQuery, corpus: list[IndexRow]) -> float:
        """Return the share of the query's words that no row has."""
        count_of = {term: sum(term.hash in each.terms["hash"] for each in corpus) for term in query.terms}
        if not any(count_of.values()):
            return 1.0
        rarity_of = {
            term: term.count * inverse_document_frequency(len(corpus), count)
            for term, count in count_of.items()
            if not (term.is_unit or term.is_pair)
        }
        lost = sum(rarity for term, rarity in rarity_of.items() if not count_of[term])
        return lost / (sum(rarity_of.values()) or 1)

    def added(self, item: IndexRow, query: RankedQuery, corpus: list[IndexRow]) -> float:
        """Return the evidence beside the similarity."""
        bound = squares = covered = 0.0
        named = identified = False
        for term in query.terms:
            having = [each for each in corpus if term.hash in each.terms["hash"]]
            if (term.is_unit or term.is_pair) and not having:
                continue
            rarity = term.count * inverse_document_frequency(len(corpus), len(having))
            bound += rarity
            squares += rarity**2
            for occurrence in item.terms[item.terms["hash"] == term.hash]:
                covered += rarity * float(occurrence["impact"])
                named = named or (term.is_unit and bool(occurrence["fields"] & TermField.NAME))
                identified = identified or (
                    term.is_unit and bool(occurrence["fields"] & (TermField.NAME | TermField.UNIT))
                )
        coverage = covered / (bound or 1)
        full = min(COINCIDENTAL_WORDS * squares / (bound or 1) ** 2, CONCLUSIVE_COVERAGE)
        linear, squared = weights_of_words(query.length)
        favoured = query.favoured
        return (
            coverage * (linear + squared * (min(coverage / full, 1) if full else 0))
            + NAME_WEIGHT * named
            + IDENTIFIER_WEIGHT * (query.is_identifier and identified)
            + CATEGORY_WEIGHT * (favoured.category is not None and item.category == favoured.category)
            + PROJECT_WEIGHT * (favoured.project is not None and item.project == favoured.project)
        )


def shown(results: Iterable[ScoredDecision]) -> list[tuple[str, float, float]]:
    """Return id, score and similarity of results."""
    return [(item.decision_id, item.score, item.similarity) for item in results]


def as_float(instant: datetime) -> datetime:
    """The instant as the seconds of a float give it."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=instant.timestamp())


def decision(item: IndexRow) -> Decision:
    """The decision that a row stands for."""
    return Decision(
        id=item.decision_id,
        title="any",
        status=item.status,
        date=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=item.date),
        agent=item.agent,
        visibility=item.visibility,
        category=item.category,
        stakes=item.stakes,
        confidence=item.confidence,
        outcome=item.outcome,
        tags=item.tags,
        project=item.project,
    )
