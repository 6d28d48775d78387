"""How relevant a decision is to a query: the evidence of meaning and of words, combined into one score.

The evidence is a sum: the cosine similarity of the best passage, the coverage of the query's words, whether the query
names the decision, and whether its category and project are those that are asked from. The score is the logistic
function of it, fitted so that of the best results with a score s about the share s is right: half of them for
paraphrased questions, half for questions and intents that the journal knows nothing about. docs/adr/0016 has the
measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.core.decisions.decision_terms import QueryTerm, is_numbered_identifier, query_terms
from cstp_grpc.core.decisions.model import Contribution, ScoreFeature
from cstp_grpc.core.decisions.store import Vector

SCORE_DECIMALS = 6
"""Decimals of scores and similarities; float32 vectors do not carry more, and rounding makes a score the same on every
path."""

SHORT_QUERY_WEIGHTS = (0.6, 0.3)
"""Weights of coverage, and of coverage that is not coincidental, for a query of no words. Chosen by leaving out each of
22 collections in turn (docs/adr/0035): questions in other words share few with the record that answers them."""
LONG_QUERY_WEIGHTS = (0.0, 1.5)
"""The same from `LONG_QUERY` words on, such as titles with an abstract."""
LONG_QUERY = 20
COINCIDENTAL_WORDS = 1.5
"""How many words of mean rarity a record must share before the shared words count in full. Measured: with 1 to 2 no set
ranks worse than by similarity alone; without it a single word of a short query decides."""
CONCLUSIVE_COVERAGE = 0.5
"""Coverage that counts in full in any case, so that a query of one word finds it. Chosen."""
NAME_WEIGHT = 0.7
"""Measured: with 0.3 some identifiers are not found first; more changes nothing."""
IDENTIFIER_WEIGHT = 0.4
"""How much more evidence a query of numbered identifiers asks for. Decisions that have one of them are given it, since
the similarity of other numbers means nothing. Chosen: `PEP 236` has a similarity of 0.7 to `PEP 703`, and then a score
of 0.3."""
CATEGORY_WEIGHT = 0.05
PROJECT_WEIGHT = 0.05


SPREAD_WEIGHT = 4.0
"""How much evidence a lack of spread costs. Chosen with the next one on 19 collections (docs/adr/0042)."""
UNKNOWN_WORDS_WEIGHT = 0.15
"""How much more evidence a query asks for if no decision has any of its words, such as nonsense; with the square of
their share if some decision has others."""
FULL_SAMPLE = 50
"""Decisions from which the spread of their similarities counts in full. Chosen: of fewer, it is off by a tenth."""
MEAN_SHARE = 1 / 3
"""The share of the mean similarity that counts as spread: in a journal about one thing, all is equally near. Chosen."""


@dataclass(frozen=True, slots=True)
class RelevanceCurve:
    """The logistic function from evidence to score, for the similarities of one model."""

    slope: float
    midpoint: float
    """The evidence with the score 0.5."""
    spread: float | None = None
    """The standard deviation of a query's similarities to a journal which knows about it; None if it does not count."""
    raises: tuple[Contribution, ...] = ()
    """The reasons for a higher midpoint, each with a negative weight."""

    def score(self, evidence: float) -> float:
        return 1 / (1 + math.exp(-self.slope * (evidence - self.midpoint)))

    def evidence(self, score: float) -> float:
        """Return the least evidence whose score, rounded, is at least this."""
        if score <= 0:
            return -math.inf
        smallest = 10**-SCORE_DECIMALS
        least = min(max(score, smallest), 1.0) - 0.5 * smallest
        return self.midpoint + math.log(least / (1 - least)) / self.slope

    def raised(self, feature: ScoreFeature, value: float, weight: float) -> RelevanceCurve:
        """Return the curve that asks for more evidence: `value` times `weight`."""
        raises = (*self.raises, Contribution(feature, value, -weight))
        return RelevanceCurve(self.slope, self.midpoint + value * weight, self.spread, raises)

    def contributions(self) -> Iterator[Contribution]:
        """Yield those of the query alone, which with the evidence of a decision give the score its sum."""
        raised = sum(each.amount for each in self.raises)
        yield Contribution(ScoreFeature.MIDPOINT, 1.0, -(self.midpoint + raised))
        yield from self.raises

    def for_query(self, similarities: NDArray[np.float64]) -> RelevanceCurve:
        """Return the curve for a query with these similarities to a sample of the journal.

        A subject that no decision covers is about equally far from all of them, and the best match is still irrelevant
        (normalized query commitment: Shtok et al., 2012, "Predicting query performance by query-drift estimation").
        """
        count = len(similarities)
        if self.spread is None or not count:
            return self
        mean = float(similarities.sum()) / count
        # Not std(), which takes four times as long.
        variance = float(similarities @ similarities) / count - mean * mean
        lack = self.spread - max(math.sqrt(max(variance, 0.0)), MEAN_SHARE * mean)
        if lack <= 0:
            return self
        return self.raised(ScoreFeature.LACK_OF_SPREAD, min(count / FULL_SAMPLE, 1.0) * lack, SPREAD_WEIGHT)


MINILM = RelevanceCurve(slope=6.0, midpoint=0.45, spread=0.1)
"""Fitted to the tuning half of the questions, short and whole records, and as many questions and intents about
something else (slope 6.35, midpoint 0.447)."""
RELEVANCE_CURVES: Mapping[str, RelevanceCurve] = {"lexical-v1": RelevanceCurve(slope=8.0, midpoint=0.35)}
"""By model; that of the lexical embedder is chosen. Others are centred, so that their similarities are like those of
all-MiniLM-L6-v2 (`cstp_grpc/platform/embedding/embedder.py`)."""


def weights_of_words(length: int) -> tuple[float, float]:
    """Return the weights of coverage, and of coverage that is not coincidental, for a query of `length` words."""
    share = min(length / LONG_QUERY, 1.0)
    short, long = SHORT_QUERY_WEIGHTS, LONG_QUERY_WEIGHTS
    return short[0] + share * (long[0] - short[0]), short[1] + share * (long[1] - short[1])


def evidence_of_words(coverage: NDArray[np.float64], rarities: Sequence[float], length: int) -> NDArray[np.float64]:
    """Return the evidence of coverages, given how rare each term of the query is and how many words it has.

    A coverage below that of some words of mean rarity may be a coincidence: in part it counts by its square. In a long
    query that is a small part of it, in a short one much of it.
    """
    total = sum(rarities)
    if not total:
        return np.zeros_like(coverage)
    mean_share = sum(rarity * rarity for rarity in rarities) / (total * total)
    full = min(COINCIDENTAL_WORDS * mean_share, CONCLUSIVE_COVERAGE)
    linear, squared = weights_of_words(length)
    return coverage * (linear + squared * np.minimum(coverage / full, 1.0))


def unknown_share(terms: Sequence[QueryTerm], rarities: Sequence[float], known: Sequence[int]) -> float:
    """Return the share of the words of a query that no decision has; `known` is how many have each term."""
    if not any(known):
        return 1.0
    words = [each for each in zip(terms, rarities, known, strict=True) if not each[0].is_compound]
    total = sum(rarity for _, rarity, _ in words)
    return sum(rarity for _, rarity, count in words if not count) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Favoured:
    """The category and project in which a search is made; decisions of the same are somewhat more relevant."""

    category: str | None = None
    project: str | None = None


NOTHING_FAVOURED = Favoured()


@dataclass(frozen=True, slots=True, eq=False)
class RankedQuery:
    """A query, ready to rank by: its vector, its terms, its preferences, and whether it consists only of numbered
    identifiers."""

    vector: Vector
    terms: tuple[QueryTerm, ...]
    curve: RelevanceCurve
    favoured: Favoured = NOTHING_FAVOURED
    is_identifier: bool = False

    @property
    def length(self) -> int:
        """The number of its words, without stop words."""
        return sum(term.count for term in self.terms if not term.is_compound)

    @classmethod
    def of(cls, text: str, vector: Vector, model: str, favoured: Favoured = NOTHING_FAVOURED) -> RankedQuery:
        curve, is_identifier = RELEVANCE_CURVES.get(model, MINILM), is_numbered_identifier(text)
        if is_identifier:
            # Of nothing but numbers, neither the spread nor the words say anything.
            curve = replace(curve.raised(ScoreFeature.IDENTIFIER_QUERY, 1.0, IDENTIFIER_WEIGHT), spread=None)
        return cls(vector, query_terms(text), curve, favoured, is_identifier)
