"""Statistics of tables that say how often decisions failed with and without something."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.calibration.model import Interval, OutcomeTable
from cstp_grpc.calibration.scores import Z_95

HALF = 0.5
"""Added to each count, so that one of 0 gives no infinite odds."""

TOLERANCE = 1e-7
"""Relative difference below which two tables are equally probable; R's fisher.test has the same."""


def odds_ratio(table: OutcomeTable) -> float:
    """Return the odds of failure with something, divided by those without it.

    Sources of the correction by 0.5: Haldane 1956, The Estimation and Significance of the Logarithm of a Ratio of
    Frequencies; Anscombe 1956, On Estimating Binomial Response Relations.
    """
    failures_with, others_with, failures_without, others_without = corrected_counts(table)
    return failures_with * others_without / (others_with * failures_without)


def odds_ratio_interval(table: OutcomeTable) -> Interval:
    """Return the 95 % interval of the odds ratio.

    Source: Woolf 1955, On Estimating the Relation between Blood Group and Disease; with the correction as in Gart 1966,
    Alternative Analyses of Contingency Tables.
    """
    error = math.sqrt(sum(1 / count for count in corrected_counts(table)))
    middle = math.log(odds_ratio(table))
    return Interval(math.exp(middle - Z_95 * error), math.exp(middle + Z_95 * error))


def corrected_counts(table: OutcomeTable) -> tuple[float, float, float, float]:
    """Return the counts of a table plus 0.5 each."""
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

    def p_value(self, table: OutcomeTable) -> float:
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
