"""Patterns of failure: its factors, by statistics of contingency tables, and failures that recur."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.contract.enums import Outcome
from cstp_grpc.core.decisions.search.row_vectors import dot_products
from cstp_grpc.core.decisions.store import Vector
from cstp_grpc.modules.calibration import model
from cstp_grpc.modules.calibration.scores import Z_95
from cstp_grpc.platform.embedding.lexical_embedder import STOP_WORDS, split_words, stem_word

HALF = 0.5
"""Added to each count, so that one of 0 gives no infinite odds."""

TOLERANCE = 1e-7
"""Relative difference below which two tables are equally probable; R's fisher.test has the same."""


def odds_ratio(table: model.OutcomeTable) -> float:
    """Return the odds of failure with something, divided by those without it.

    Sources of the correction by 0.5: Haldane 1956, The Estimation and Significance of the Logarithm of a Ratio of
    Frequencies; Anscombe 1956, On Estimating Binomial Response Relations.
    """
    failures_with, others_with, failures_without, others_without = corrected_counts(table)
    return failures_with * others_without / (others_with * failures_without)


def odds_ratio_interval(table: model.OutcomeTable) -> model.Interval:
    """Return the 95 % interval of the odds ratio.

    Source: Woolf 1955, On Estimating the Relation between Blood Group and Disease; with the correction as in Gart 1966,
    Alternative Analyses of Contingency Tables.
    """
    error = math.sqrt(sum(1 / count for count in corrected_counts(table)))
    middle = math.log(odds_ratio(table))
    return model.Interval(math.exp(middle - Z_95 * error), math.exp(middle + Z_95 * error))


def corrected_counts(table: model.OutcomeTable) -> tuple[float, float, float, float]:
    return (
        table.failures_with + HALF,
        table.others_with + HALF,
        table.failures_without + HALF,
        table.others_without + HALF,
    )


class FisherTest:
    """Fisher's exact test for tables of at most `total` decisions."""

    def __init__(self, total: int) -> None:
        # Computed once, since one report tests hundreds of tables of the same decisions.
        self._log_factorials = np.array([math.lgamma(number + 1) for number in range(total + 1)])

    def p_value(self, table: model.OutcomeTable) -> float:
        """Return the two-sided p-value: the probability of all tables that are at most as probable as this one.

        Source: Fisher 1922, On the Interpretation of Chi-squared from Contingency Tables, and the Calculation of P.
        """
        with_it = table.failures_with + table.others_with
        failures = table.failures_with + table.failures_without
        total = with_it + table.failures_without + table.others_without
        possible = np.arange(max(0, with_it + failures - total), min(with_it, failures) + 1)
        logs = self._log_choose(with_it, possible) + self._log_choose(total - with_it, failures - possible)
        # Relative to the most probable table, so that no probability underflows.
        weights = np.exp(logs - logs.max())
        observed = weights[table.failures_with - possible[0]]
        share = weights[weights <= observed * (1 + TOLERANCE)].sum() / weights.sum()
        return min(1.0, float(share))

    def _log_choose(self, number: int, chosen: NDArray[np.intp]) -> NDArray[np.float64]:
        logs = self._log_factorials
        found: NDArray[np.float64] = logs[number] - logs[chosen] - logs[number - chosen]
        return found


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Return p-values that account for the number of tests, in the same order.

    Taking those of at most q as discoveries makes the share of false ones at most q on average. Source: Benjamini and
    Hochberg 1995, Controlling the False Discovery Rate.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [1.0] * len(p_values)
    least = 1.0
    for rank in range(len(order), 0, -1):
        place = order[rank - 1]
        # Divided first, so that the factor is never less than 1 by rounding.
        least = min(least, p_values[place] * (len(p_values) / rank))
        adjusted[place] = least
    return adjusted


MIN_ON_EACH_SIDE: Final = 5
"""Decisions with something, and without it, that a test needs. Chosen: with fewer, hardly any table is significant, and
each test makes the others less so."""

MAX_TESTED: Final = 500
"""Factors that are tested, the most common. Chosen: a test of 20 000 decisions takes about 0.1 ms."""

Factor = tuple[model.FactorKind, str]


def find_failure_factors(decisions: Sequence[model.ReviewedDecision]) -> list[model.FailureFactor]:
    """Return all tested factors, by rising p-value, then by falling distance of the odds ratio from 1."""
    failed = [item for item in decisions if item.outcome is Outcome.FAILURE]
    with_it = Counter(factor for item in decisions for factor in factors_of(item))
    failed_with = Counter(factor for item in failed for factor in factors_of(item))
    # By number, kind and value, so that the order of decisions does not matter.
    common = sorted(with_it, key=lambda factor: (-with_it[factor], factor))
    testable = [each for each in common if MIN_ON_EACH_SIDE <= with_it[each] <= len(decisions) - MIN_ON_EACH_SIDE]
    tables = {
        factor: model.OutcomeTable(
            failures_with=failed_with[factor],
            others_with=with_it[factor] - failed_with[factor],
            failures_without=len(failed) - failed_with[factor],
            others_without=len(decisions) - len(failed) - with_it[factor] + failed_with[factor],
        )
        for factor in testable[:MAX_TESTED]
    }
    return sorted(compare_tables(tables, len(decisions)), key=rank_of_factor)


def factors_of(decision: model.ReviewedDecision) -> Iterator[Factor]:
    yield from ((model.FactorKind.REASON, each) for each in dict.fromkeys(decision.reason_types))
    yield from ((model.FactorKind.TAG, each) for each in dict.fromkeys(decision.tags))
    for kind, value in (
        (model.FactorKind.CATEGORY, decision.category),
        (model.FactorKind.STAKES, decision.stakes),
        (model.FactorKind.PROJECT, decision.project),
    ):
        if value is not None:
            yield kind, value


def compare_tables(tables: dict[Factor, model.OutcomeTable], total: int) -> list[model.FailureFactor]:
    test = FisherTest(total)
    p_values = [test.p_value(table) for table in tables.values()]
    return [
        model.FailureFactor(kind, value, table, odds_ratio(table), odds_ratio_interval(table), p_value, adjusted)
        for ((kind, value), table), p_value, adjusted in zip(
            tables.items(), p_values, adjust_p_values(p_values), strict=True
        )
    ]


def rank_of_factor(factor: model.FailureFactor) -> tuple[float, float, Factor]:
    """Return the sort key of a factor: the surest first, then the strongest."""
    strength = max(factor.odds_ratio, 1 / factor.odds_ratio)
    return factor.p_value, -strength, (factor.kind, factor.value)


MIN_SIMILARITY: Final = 0.5
"""The mean similarity of two groups that are one. Chosen: of pairs that are about the same, half are more similar by
all-MiniLM-L6-v2, and of unrelated pairs 95 % are less similar than 0.31."""

MAX_FAILURES: Final = 400
"""Failures that are compared with each other, the latest. Chosen: it takes about 0.1 s, and rises with the cube."""

MAX_OTHERS: Final = 2000
"""Decisions that did not fail whose words are counted, the latest. Chosen: splitting their texts takes about 0.1 s."""

MAX_TERMS: Final = 5
MIN_TERM_LENGTH: Final = 3
"""Letters of a common word; shorter ones say little alone."""

Similarities = NDArray[np.float64]


def find_recurring_failures(
    failures: Sequence[model.ReviewedDecision], vectors: Mapping[str, Vector], others: Sequence[model.ReviewedDecision]
) -> list[model.RecurringFailure]:
    """Return the groups of at least two failures, the largest first, then the latest.

    Of the latest `MAX_FAILURES`, those without a vector belong to no group. `others` are the decisions that did not
    fail, against which words are compared.
    """
    known = [item for item in latest_first(failures)[:MAX_FAILURES] if item.id in vectors]
    if len(known) < 2:
        return []
    matrix = np.stack([vectors[item.id] for item in known]).astype(np.float64)
    # Row by row and not as one matrix product, whose threads would take the time of other calls.
    similarities = np.stack([dot_products(matrix, row) for row in matrix])
    background = [*known, *latest_first(others)[:MAX_OTHERS]]
    word_counts = Counter(stem for item in background for stem in words_by_stem(item))
    found = []
    for places in link_groups(similarities, MIN_SIMILARITY):
        members = [known[place] for place in places]
        terms = common_terms(members, word_counts, len(background))
        found.append(model.RecurringFailure(members, terms, mean_similarity(similarities, places)))
    return sorted(found, key=lambda group: (-len(group.decisions), -group.decisions[0].date.timestamp()))


def latest_first(decisions: Sequence[model.ReviewedDecision]) -> list[model.ReviewedDecision]:
    return sorted(decisions, key=lambda item: (-item.date.timestamp(), item.id))


def link_groups(similarities: Similarities, least: float) -> list[list[int]]:
    """Return the groups of at least two items whose mean similarity to each other is at least `least`.

    The two most similar groups become one until none are similar enough (average linkage: Sokal and Michener 1958, A
    Statistical Method for Evaluating Systematic Relationships). Linking by means forms no chains, whose ends have
    nothing in common. Numbers within a group rise.
    """
    links = similarities.copy()
    np.fill_diagonal(links, -np.inf)
    groups: dict[int, list[int]] = {place: [place] for place in range(len(links))}
    while len(groups) > 1:
        # Of equal ones the first: the same for the same items in the same order.
        first, second = sorted(divmod(int(links.argmax()), len(links)))
        if links[first, second] < least:
            break
        one, other = len(groups[first]), len(groups[second])
        # The mean over all pairs of the united group and each other one (Lance and Williams 1967).
        merged = (one * links[first] + other * links[second]) / (one + other)
        # The united group has the row of the first one; that of the second one is out of the search.
        links[first], links[:, first] = merged, merged
        links[second], links[:, second] = -np.inf, -np.inf
        links[first, first] = -np.inf
        groups[first] = sorted(groups[first] + groups.pop(second))
    return [places for places in groups.values() if len(places) > 1]


def mean_similarity(similarities: Similarities, places: Sequence[int]) -> float:
    within = similarities[np.ix_(places, places)]
    pairs = len(places) * (len(places) - 1)
    return float((within.sum() - within.trace()) / pairs)


def words_by_stem(decision: model.ReviewedDecision) -> dict[str, str]:
    """Return the words of title, tags and lesson by their stems, without common ones and numbers."""
    found: dict[str, str] = {}
    for text in (decision.title, *decision.tags, decision.notes or ""):
        for word in split_words(text):
            if len(word) >= MIN_TERM_LENGTH and word not in STOP_WORDS and not word.isdigit():
                found.setdefault(stem_word(word), word)
    return found


def common_terms(members: Sequence[model.ReviewedDecision], word_counts: Mapping[str, int], total: int) -> list[str]:
    """Return words that at least half of the members, and at least two, have; the most particular to them first.

    How particular they are is measured by the log-likelihood ratio against all decisions (Dunning 1993, Accurate
    Methods for the Statistics of Surprise and Coincidence).
    """
    within: Counter[str] = Counter()
    spellings: dict[str, Counter[str]] = {}
    for member in members:
        for stem, word in words_by_stem(member).items():
            within[stem] += 1
            spellings.setdefault(stem, Counter())[word] += 1
    needed = max(2, math.ceil(len(members) / 2))
    ranked = sorted(
        (-log_likelihood_ratio(count, len(members), word_counts[stem], total), stem)
        for stem, count in within.items()
        if count >= needed
    )
    return [most_common_spelling(spellings[stem]) for _, stem in ranked[:MAX_TERMS]]


def most_common_spelling(spellings: Counter[str]) -> str:
    """Return the most common word of a stem; of equally common ones the shortest, then the first."""
    return min(spellings, key=lambda word: (-spellings[word], len(word), word))


def log_likelihood_ratio(within: int, members: int, everywhere: int, total: int) -> float:
    """Return how surely a word is more common within a group than outside of it; 0 if it is not."""
    outside, rest = everywhere - within, total - members
    # Multiplied out, because `rest` may be 0.
    if outside * members >= within * rest:
        return 0.0
    overall = everywhere / total
    return 2 * (
        log_likelihood(within, members, within / members)
        + log_likelihood(outside, rest, outside / rest if rest else 0.0)
        - log_likelihood(within, members, overall)
        - log_likelihood(outside, rest, overall)
    )


def log_likelihood(count: int, total: int, rate: float) -> float:
    """Return the logarithm of the likelihood of `count` among `total` at a rate; a count of zero adds nothing."""
    occurring = count * math.log(rate) if count else 0.0
    absent = (total - count) * math.log(1 - rate) if total > count else 0.0
    return occurring + absent
