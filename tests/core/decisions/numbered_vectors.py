"""Vectors that are told apart by a number. Processes of the tests import this and little else."""

from __future__ import annotations

import numpy as np

from cstp_grpc.core.decisions.search.row_vectors import FIRST_SLOTS
from cstp_grpc.core.decisions.store import Vector

DIMENSIONS = 8
NUMBERS = FIRST_SLOTS + 500


def vector_of(number: int) -> Vector:
    """Return a vector that no other number has, and that tells whether it is whole."""
    return np.full(DIMENSIONS, number + 1, np.float32)
