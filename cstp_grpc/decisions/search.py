"""Finding past decisions by what they mean."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from cstp_grpc.decisions.embedding import Embedder
from cstp_grpc.decisions.index import IndexUnavailable, Proposals
from cstp_grpc.decisions.matrix import MARGIN, Candidates, Scored, VectorMatrix
from cstp_grpc.decisions.model import Decision, DecisionFilter, Match
from cstp_grpc.decisions.store import DecisionStore, Vector

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Inquiry:
    """What is searched, and for whom."""

    vector: Vector
    filters: DecisionFilter
    caller: str
    min_score: float


class DecisionSearch:
    """Plans and answers searches. Safe for many threads.

    Up to `exact_limit` decisions that pass the filters are all scored. Beyond that, the index proposes `overfetch` of
    all decisions, which are filtered and scored here; where others might belong to the answer too, or the index does
    not answer, all are scored after all. The journal has the last word on what a caller may read.
    """

    def __init__(
        self,
        store: DecisionStore,
        matrix: VectorMatrix,
        embedder: Embedder,
        index: Proposals | None,
        exact_limit: int,
        overfetch: int,
    ) -> None:
        self._store = store
        self._matrix = matrix
        self._embedder = embedder
        self._index = index
        self._exact_limit = exact_limit
        self._overfetch = overfetch
        self._outage = Outage()

    def search(self, text: str, filters: DecisionFilter, caller: str, limit: int, min_score: float) -> list[Match]:
        """Return decisions that the caller may read and that pass the filters, by falling similarity to a text.

        They are at most `limit` and score at least `min_score`; of equal ones the latest comes first. Raises
        QueryFailed where the journal or the embedder does not answer.
        """
        inquiry = Inquiry(self._embedder.embed([text])[0], filters, caller, min_score)
        candidates = self._matrix.candidates(caller, filters)
        found: dict[str, Decision] = {}
        asked: set[str] = set()
        wanted = limit
        while True:
            ranked = self._rank(inquiry, candidates, wanted)
            unknown = [item.decision_id for item in ranked if item.decision_id not in asked]
            found.update(self._store.readable(unknown, caller, filters))
            asked.update(unknown)
            if len(found) >= limit or len(ranked) < wanted:
                return matches(ranked, found)[:limit]
            # The journal knows of changes that the matrix has not seen yet; the next best take their places.
            wanted *= 2

    def _rank(self, inquiry: Inquiry, candidates: Candidates, limit: int) -> list[Scored]:
        if self._index is not None and len(candidates) > self._exact_limit:
            proposed = self._rank_proposals(self._index, inquiry, limit)
            if proposed is not None:
                return proposed
        return candidates.best(inquiry.vector, limit, inquiry.min_score)

    def _rank_proposals(self, index: Proposals, inquiry: Inquiry, limit: int) -> list[Scored] | None:
        """Return the best of what the index proposes or has not taken yet; None where others may be as good."""
        try:
            revision = index.revision
            ids = index.propose(inquiry.vector, self._overfetch)
        except IndexUnavailable as error:
            self._outage.begin(error)
            return None
        self._outage.end()
        known = self._matrix.among(ids, revision, inquiry.caller, inquiry.filters)
        ranked = known.best(inquiry.vector, limit, inquiry.min_score)
        least = ranked[-1].score if len(ranked) == limit else inquiry.min_score
        # Where even the last proposal is that good, there may be as good ones behind it.
        last = self._matrix.similarity(ids[-1], inquiry.vector) if ids else None
        return ranked if last is not None and last < least - MARGIN else None


class Outage:
    """Logs the beginning and the end of a time without the index, once each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lasting = False

    def begin(self, error: IndexUnavailable) -> None:
        """Note that the index did not answer."""
        with self._lock:
            begun, self._lasting = not self._lasting, True
        if begun:
            logger.warning("searching without the index: %s", error)

    def end(self) -> None:
        """Note that the index answered."""
        if self._lasting:
            with self._lock:
                ended, self._lasting = self._lasting, False
            if ended:
                logger.info("searching with the index again")


def matches(ranked: list[Scored], found: dict[str, Decision]) -> list[Match]:
    """Return what was found in the order of its rank."""
    return [Match(found[item.decision_id], item.score) for item in ranked if item.decision_id in found]
