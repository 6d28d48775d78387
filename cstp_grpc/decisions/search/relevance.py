"""How relevant a decision is to a query: the evidence of meaning and of words, combined into one score.

The evidence is a sum: the cosine similarity of the best passage, the coverage of the query's words, whether the query
names the decision, and whether its category and project are those that are asked from. The score is the logistic
function of it: of the decisions with a score s that were found for the queries of `tests/bench/retrieval`, about the
share s was relevant. The weights were measured there too; docs/adr/0016 has the tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.decision_terms import QueryTerm, query_terms
from cstp_grpc.decisions.store import Vector

SCORE_DECIMALS = 6
"""Decimals of scores and similarities; float32 vectors do not carry more, and rounding makes a score the same on every
path."""

COVERAGE_WEIGHT = 1.5
"""Measured: from 1.2 to 1.8 all sets are within the noise of each other, on short and long records."""
COINCIDENTAL_WORDS = 1.5
"""How many words of mean rarity a record must share before the shared words count in full. Measured: with 1 to 2 no set
ranks worse than by similarity alone; without it a single word of a short query decides."""
CONCLUSIVE_COVERAGE = 0.5
"""Coverage that counts in full in any case, so that a query of one word finds it. Chosen."""
NAME_WEIGHT = 0.7
"""Measured: with 0.3 some identifiers are not found first; more changes nothing."""
CATEGORY_WEIGHT = 0.05
PROJECT_WEIGHT = 0.05


@dataclass(frozen=True, slots=True)
class RelevanceCurve:
    """The logistic function from evidence to score, for the similarities of one model."""

    slope: float
    midpoint: float
    """The evidence with the score 0.5."""

    def score(self, evidence: float) -> float:
        """Return the score of an evidence, from 0 to 1."""
        return 1 / (1 + math.exp(-self.slope * (evidence - self.midpoint)))

    def evidence(self, score: float) -> float:
        """Return the least evidence whose score, rounded, is at least this."""
        if score <= 0:
            return -math.inf
        least = min(score, 1.0) - 0.5 * 10**-SCORE_DECIMALS
        return self.midpoint + math.log(least / (1 - least)) / self.slope


MINILM = RelevanceCurve(slope=8.0, midpoint=0.4)
"""Measured: 0.4 is the evidence of three right records of four for short questions, of 98 of 100 for linked proposals,
and of the best result of one unrelated journal of four."""
RELEVANCE_CURVES: Mapping[str, RelevanceCurve] = {"lexical-v1": RelevanceCurve(slope=8.0, midpoint=0.35)}
"""By model; others are taken to have similarities like those of all-MiniLM-L6-v2."""


def relevance_curve(model: str) -> RelevanceCurve:
    """Return the curve of a model."""
    return RELEVANCE_CURVES.get(model, MINILM)


def evidence_of_words(coverage: NDArray[np.float64], rarities: Sequence[float]) -> NDArray[np.float64]:
    """Return the evidence of coverages, given how rare each term of the query is.

    A coverage below that of some words of mean rarity counts by its square, since one word of several may occur by
    chance. In a long query that is a small part of it, in a short one much of it.
    """
    total = sum(rarities)
    if not total:
        return np.zeros_like(coverage)
    mean_share = sum(rarity * rarity for rarity in rarities) / (total * total)
    full = min(COINCIDENTAL_WORDS * mean_share, CONCLUSIVE_COVERAGE)
    return COVERAGE_WEIGHT * coverage * np.minimum(coverage / full, 1.0)


@dataclass(frozen=True, slots=True)
class Favoured:
    """The category and project in which a search is made; decisions of the same are somewhat more relevant."""

    category: str | None = None
    project: str | None = None


NOTHING_FAVOURED = Favoured()


@dataclass(frozen=True, slots=True, eq=False)
class RankedQuery:
    """A query, ready to be ranked by: its vector, its terms, and what is favoured."""

    vector: Vector
    terms: tuple[QueryTerm, ...]
    curve: RelevanceCurve
    favoured: Favoured = NOTHING_FAVOURED

    @classmethod
    def of(cls, text: str, vector: Vector, model: str, favoured: Favoured = NOTHING_FAVOURED) -> RankedQuery:
        """Return the query of a text."""
        return cls(vector, query_terms(text), relevance_curve(model), favoured)
