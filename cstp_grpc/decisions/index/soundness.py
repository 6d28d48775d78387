"""Whether an index can be trusted."""

from __future__ import annotations

from cstp_grpc.decisions.index import IndexBroken, ProposalIndex
from cstp_grpc.decisions.matrix import VectorMatrix

SAMPLES = 20
NEIGHBOURS = 10
TOLERATED = 0.1
"""The share of proposals that may be unknown, because other servers recorded them a moment ago."""

MISSES = 2
"""How many samples may not be found: Chroma loses the way to one in some hundred vectors of a small collection."""

ROUNDING = 1e-3


def check_soundness(index: ProposalIndex, matrix: VectorMatrix, at_least: int) -> None:
    """Raise IndexBroken where an index does not hold what it was fed, IndexUnavailable where it does not answer.

    `at_least` is how many decisions it must hold. Chroma counts what it was told, also where its vectors are lost; so
    vectors of the matrix are looked up, and each should find itself, or another that is equal.
    """
    count = index.count()
    if count < at_least:
        raise IndexBroken(f"the index holds {count} of {at_least} decisions")
    samples = matrix.sample(SAMPLES)
    missing = proposed = unknown = 0
    for vector in samples:
        scores = [matrix.similarity(decision_id, vector) for decision_id in index.propose(vector, NEIGHBOURS)]
        known = [score for score in scores if score is not None]
        proposed += len(scores)
        unknown += len(scores) - len(known)
        missing += max(known, default=-1.0) < float(vector @ vector) - ROUNDING
    if missing > MISSES:
        raise IndexBroken(f"the index does not find {missing} of {len(samples)} decisions")
    if unknown > TOLERATED * proposed:
        raise IndexBroken(f"the index proposes decisions that are not in the journal: {unknown} of {proposed}")
