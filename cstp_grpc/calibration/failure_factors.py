"""What goes with failure: reasons, tags, categories, stakes and projects, tested one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from cstp_grpc.calibration.contingency import FisherTest, adjust_p_values, odds_ratio, odds_ratio_interval
from cstp_grpc.calibration.model import FactorKind, FailureFactor, OutcomeTable, ReviewedDecision
from cstp_grpc.enums import Outcome

MIN_ON_EACH_SIDE: Final = 5
"""Decisions with something, and without it, that a test needs. Chosen: with fewer, hardly any table is significant, and
each test makes the others less so."""

MAX_TESTED: Final = 500
"""Factors that are tested, the most common. Chosen: a test of 20 000 decisions takes about 0.1 ms."""

Factor = tuple[FactorKind, str]


def find_failure_factors(decisions: Sequence[ReviewedDecision]) -> list[FailureFactor]:
    """Return all tested factors, by rising p-value, then by falling distance of the odds ratio from 1."""
    failed = [item for item in decisions if item.outcome is Outcome.FAILURE]
    with_it = Counter(factor for item in decisions for factor in factors_of(item))
    failed_with = Counter(factor for item in failed for factor in factors_of(item))
    # By number, kind and value, so that the order of decisions does not matter.
    common = sorted(with_it, key=lambda factor: (-with_it[factor], factor))
    testable = [each for each in common if MIN_ON_EACH_SIDE <= with_it[each] <= len(decisions) - MIN_ON_EACH_SIDE]
    tables = {
        factor: OutcomeTable(
            failures_with=failed_with[factor],
            others_with=with_it[factor] - failed_with[factor],
            failures_without=len(failed) - failed_with[factor],
            others_without=len(decisions) - len(failed) - with_it[factor] + failed_with[factor],
        )
        for factor in testable[:MAX_TESTED]
    }
    return sorted(compare_tables(tables, len(decisions)), key=rank_of_factor)


def factors_of(decision: ReviewedDecision) -> Iterator[Factor]:
    """Yield what a decision has, each once."""
    yield from ((FactorKind.REASON, each) for each in dict.fromkeys(decision.reason_types))
    yield from ((FactorKind.TAG, each) for each in dict.fromkeys(decision.tags))
    for kind, value in (
        (FactorKind.CATEGORY, decision.category),
        (FactorKind.STAKES, decision.stakes),
        (FactorKind.PROJECT, decision.project),
    ):
        if value is not None:
            yield kind, value


def compare_tables(tables: dict[Factor, OutcomeTable], total: int) -> list[FailureFactor]:
    """Return the factors of tables of `total` decisions each."""
    test = FisherTest(total)
    p_values = [test.p_value(table) for table in tables.values()]
    return [
        FailureFactor(kind, value, table, odds_ratio(table), odds_ratio_interval(table), p_value, adjusted)
        for ((kind, value), table), p_value, adjusted in zip(
            tables.items(), p_values, adjust_p_values(p_values), strict=True
        )
    ]


def rank_of_factor(factor: FailureFactor) -> tuple[float, float, Factor]:
    """Return the sort key of a factor: the surest first, then the strongest."""
    strength = max(factor.odds_ratio, 1 / factor.odds_ratio)
    return factor.p_value, -strength, (factor.kind, factor.value)
