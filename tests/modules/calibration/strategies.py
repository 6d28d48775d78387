"""Generated forecasts and decisions."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cstp_grpc.modules.calibration.scores import Values

Forecasts = tuple[Values, Values]

confidences = st.one_of(
    st.sampled_from([0.0, 0.1, 0.29, 0.3, 0.5, 0.7, 0.95, 1.0]), st.floats(0, 1, allow_subnormal=False)
)
outcomes = st.sampled_from([0.0, 0.5, 1.0])


def forecasts(least: int = 1, most: int = 60) -> st.SearchStrategy[Forecasts]:
    """Return confidences with the values of their outcomes."""
    pairs = st.lists(st.tuples(confidences, outcomes), min_size=least, max_size=most)
    return pairs.map(split_pairs)


def split_pairs(pairs: list[tuple[float, float]]) -> Forecasts:
    """Return the arrays of pairs."""
    values = np.array(pairs, np.float64)
    return values[:, 0], values[:, 1]
