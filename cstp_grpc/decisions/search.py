"""Finding past decisions by what they mean."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cstp_grpc.decisions.embedding import Embedder
from cstp_grpc.decisions.filters import predicate_of
from cstp_grpc.decisions.index import IndexUnavailable, Proposals
from cstp_grpc.decisions.matrix import MARGIN, Candidates, Scored, VectorMatrix
from cstp_grpc.decisions.model import Decision, DecisionFilter, Match
from cstp_grpc.decisions.revisions import NO_REVISIONS, RequiredRevisions
from cstp_grpc.decisions.scoring import SPLIT_FROM
from cstp_grpc.decisions.store import DecisionStore, Vector

logger = logging.getLogger(__name__)

UNRESTRICTED = DecisionFilter()

SHORT_WORK = 12_000
"""How much a short search may look at, in rows of the matrix: what takes about 0.5 ms on a small machine."""

RESULT_WORK = 200
"""How many rows can be looked at in the time in which one result is read and made ready."""


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
        revisions: RequiredRevisions = NO_REVISIONS,
    ) -> None:
        self._store = store
        self._matrix = matrix
        self._embedder = embedder
        self._index = index
        self._exact_limit = exact_limit
        self._overfetch = overfetch
        self._revisions = revisions
        self._outage = Outage()

    def require_revision(self, token: str) -> None:
        """Have searches that begin now find what the journal had at a revision, whichever server wrote it.

        Raises InvalidArgument if the token is none of this journal, Unavailable if the journal has not come that far,
        and QueryFailed.
        """
        self._revisions.require(token)

    def search(
        self,
        text: str,
        filters: DecisionFilter,
        caller: str,
        limit: int,
        min_score: float,
        min_revision: str | None = None,
    ) -> list[Match]:
        """Return decisions that the caller may read and that pass the filters, by falling similarity to a text.

        They are at most `limit` and score at least `min_score`; of equal ones the latest comes first. Raises
        QueryFailed where the journal or the embedder does not answer, and what `require_revision` does.
        """
        if min_revision is not None:
            self.require_revision(min_revision)
        return self.search_by_preference(text, (filters,), caller, limit, min_score)

    def search_by_preference(
        self, text: str, preferences: Sequence[DecisionFilter], caller: str, limit: int, min_score: float
    ) -> list[Match]:
        """Return what `search` finds with the first of the filters, then what it finds with the next one, and so on.

        They are at most `limit` together, each once. The journal is asked once for all, unless it knows of changes that
        the matrix has not seen. Raises as `search` does.
        """
        vector = self._embedder.embed([text])[0]
        record = RecordReader(self._store, caller)
        rankings: list[Ranking] = []
        expected: dict[str, None] = {}
        for filters in preferences:
            if len(expected) >= limit:
                break
            ranking = Ranking(self, Inquiry(vector, filters, caller, min_score), limit + len(expected))
            expected.update((item.decision_id, None) for item in ranking.ranked)
            rankings.append(ranking)
        record.read(expected)
        found: dict[str, Match] = {}
        for place, filters in enumerate(preferences):
            if len(found) >= limit:
                break
            # Each that was found may show up again, so ask for enough to fill the rest.
            wanted = limit + len(found)
            if place == len(rankings):
                rankings.append(Ranking(self, Inquiry(vector, filters, caller, min_score), wanted))
            for match in rankings[place].best(wanted, record):
                found.setdefault(match.decision.id, match)
        return list(found.values())[:limit]

    def is_short(self, text: str, preferences: Sequence[DecisionFilter], limit: int) -> bool:
        """Whether a search waits for nothing and takes so little time that nobody need be protected from it.

        It does if the text was embedded before, few decisions are looked at and the journal is a file of this machine.
        """
        size = self._matrix.size
        work = sum(size * (1 + len(filters.tags)) for filters in preferences) + RESULT_WORK * limit
        # From SPLIT_FROM rows on, scoring waits for another thread.
        exact = size < SPLIT_FROM and (self._index is None or size <= self._exact_limit)
        return work <= SHORT_WORK and exact and self._store.is_local and self._embedder.is_cached(text)

    def rank(self, inquiry: Inquiry, candidates: Candidates, limit: int) -> list[Scored]:
        """Return the best of the candidates, by what the matrix knows."""
        if self._index is not None and len(candidates) > self._exact_limit:
            proposed = self._rank_proposals(self._index, inquiry, limit)
            if proposed is not None:
                return proposed
        return candidates.best(inquiry.vector, limit, inquiry.min_score)

    def candidates(self, inquiry: Inquiry) -> Candidates:
        """Return the decisions that may be found, by what the matrix knows."""
        return self._matrix.candidates(inquiry.caller, inquiry.filters)

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


class RecordReader:
    """Reads decisions from the journal as one caller may read them, each at most once."""

    def __init__(self, store: DecisionStore, caller: str) -> None:
        self._store = store
        self._caller = caller
        self._asked: set[str] = set()
        self.found: dict[str, Decision] = {}

    def read(self, ids: Iterable[str]) -> None:
        """Add those of `ids` to `found` that were not asked for before and that the caller may read."""
        unknown = [decision_id for decision_id in ids if decision_id not in self._asked]
        if unknown:
            self._asked.update(unknown)
            self.found.update(self._store.readable(unknown, self._caller, UNRESTRICTED))


class Ranking:
    """The best decisions of one inquiry, by what the matrix knows; more of them when they are needed."""

    def __init__(self, search: DecisionSearch, inquiry: Inquiry, limit: int) -> None:
        self._search = search
        self._inquiry = inquiry
        self._limit = limit
        self._candidates = search.candidates(inquiry)
        self._passes = predicate_of(inquiry.filters)
        self.ranked = search.rank(inquiry, self._candidates, limit)

    def best(self, wanted: int, record: RecordReader) -> list[Match]:
        """Return the best that the journal shows too, at most `wanted`."""
        while True:
            record.read(item.decision_id for item in self.ranked)
            matches = self._shown(record)
            if len(matches) >= wanted or len(self.ranked) < self._limit:
                return matches[:wanted]
            # The journal knows of changes that the matrix has not seen yet; the next best take their places.
            self._limit *= 2
            self.ranked = self._search.rank(self._inquiry, self._candidates, self._limit)

    def _shown(self, record: RecordReader) -> list[Match]:
        found = ((record.found.get(item.decision_id), item.score) for item in self.ranked)
        return [Match(decision, score) for decision, score in found if decision is not None and self._passes(decision)]


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
