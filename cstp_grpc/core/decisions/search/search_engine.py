"""Searches by an engine that holds vectors and words outside of the servers, so that these keep no copy of the journal.

An engine only proposes decisions. Their rows are read from the journal, which also has changes that the engine lacks.
The rows decide if a caller may read a decision, and are scored as all rows in memory are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Final, Protocol

from cachetools import TTLCache

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import QueryFailed, Unavailable
from cstp_grpc.core.decisions.model import DecisionFilter
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.search.ranking import CandidateRows, CollectionStatistics
from cstp_grpc.core.decisions.search.relevance import RankedQuery
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.core.decisions.search.word_index import inverse_document_frequency
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import IndexRow, Vector, Vectors
from cstp_grpc.platform.storage.background_work import PeriodicTask

logger = logging.getLogger(__name__)

MIN_PROPOSALS: Final = 200
"""Decisions that are proposed at least by meaning. Measured with a million decisions of random words, which is harder
than real ones: 80 find .82 of the best ten without a filter, 200 .86, 300 .89, and 1000 .95 in three times the time."""

PROPOSALS_PER_RESULT: Final = 4
"""Decisions that are proposed for each result that a search needs, since their order is that of one feature alone."""

MAX_UNFED: Final = 2000
"""Changes that a search reads from the journal because the engine lacks them, in about 100 ms. Chosen: twice as many as
are fed together."""

MAX_WORD_ROWS: Final = 2000
"""Decisions with rare words of the query, of which the engine chooses those with most words. Measured with a million:
2000 take 3 ms, 20 000 24 ms. Decisions that have no rare word are proposed by meaning alone."""
MAX_RAREST_ROWS: Final = 5000
"""The same for the rarest word alone."""

SAMPLE: Final = 128
"""Decisions whose similarities show how far those of a query spread."""
SAMPLED_CALLERS: Final = 32
SAMPLE_SECONDS: Final = 600.0
"""How long the sample of a caller is kept. Chosen: it changes only as fast as the whole journal does."""

FEED_BATCH: Final = 1000
"""Decisions fed in one transaction of the engine."""
FEED_SECONDS: Final = 1.0
"""Interval of the feeding. Changes of this server and those that the database notifies of are fed at once."""
PROGRESS_SECONDS: Final = 10.0
"""Minimum time between two lines of the log about a long feeding."""


class EngineFailed(Exception):
    """The engine does not answer, or not as expected; the message is for the log."""


class EngineIncomplete(Exception):
    """The engine was not fed the whole journal yet."""


@dataclass(frozen=True, slots=True)
class TermStatistics:
    """How many decisions a caller may read, and how many of them have each term, by hash."""

    count: int
    frequencies: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class ProposalRequest:
    """A request for proposals: `count` decisions near a vector, and as many with most words.

    `weights` has those of the words by hash; the decisions have one of the `rare` ones. If `exemplary`, failures and
    lessons near the vector, too.
    """

    vector: Vector
    weights: Mapping[int, float]
    rare: Sequence[int]
    caller: str
    filters: DecisionFilter
    count: int
    exemplary: bool


@dataclass(frozen=True, slots=True)
class Proposals:
    """Ids of decisions, the revision up to which the engine had every change, and whether more may pass the filter."""

    ids: Sequence[str]
    revision: int
    more: bool


class Feeding(Protocol):
    """A transaction that feeds an engine; no other process feeds it meanwhile."""

    @property
    def revision(self) -> int:
        """The revision up to which the engine has every change; -1 if it is empty."""

    def put(self, rows: Sequence[IndexRow], erased: Sequence[str], revision: int) -> None:
        """Add or replace decisions, remove erased ones, and set the revision."""

    def complete(self) -> None:
        """Make the engine answer, now that it has the whole journal."""


class SearchEngine(Protocol):
    """Proposes decisions of one journal. Safe for many threads; methods raise EngineFailed and EngineIncomplete."""

    def propose(self, request: ProposalRequest) -> Proposals:
        """Return decisions that the caller may read and that pass the filter."""

    def read_statistics(self, hashes: Sequence[int], caller: str) -> TermStatistics:
        """Return how many decisions have each of some terms."""

    def sample(self, caller: str, count: int) -> Sequence[str]:
        """Return ids of decisions that the caller may read, always about the same."""

    def begin_feeding(self) -> AbstractContextManager[Feeding | None]:
        """Begin a transaction; None if another process feeds the engine now."""

    def close(self) -> None:
        """Close its connections."""


class EngineSource:
    """The rows that an engine proposes; fulfils `RowSource`."""

    def __init__(
        self,
        engine: SearchEngine,
        store: SqlDecisionStore,
        model: str,
        dimensions: int,
        sharing: ReadPolicy,
        lacks_vectors: Callable[[], bool] = lambda: False,
    ) -> None:
        """While `lacks_vectors`, searches fail, since the journal has no vectors of some proposed decisions."""
        self._lacks_vectors = lacks_vectors
        self.engine = engine
        self.store = store
        self.model = model
        self._dimensions = dimensions
        self._sharing = sharing
        # Guards `_samples`; not held while one is read.
        self._lock = threading.Lock()
        self._samples: TTLCache[str, VectorMatrix] = TTLCache(SAMPLED_CALLERS, SAMPLE_SECONDS)

    is_loaded = True
    version = 0
    scanned_rows = None

    def load(self) -> None:
        """Do nothing: a server keeps no copy."""

    def expect_queries(self, queries: Sequence[Vector]) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def open(self, query: RankedQuery, caller: str) -> EngineRows:
        if self._lacks_vectors():
            raise engine_error(EngineIncomplete())
        try:
            terms = self.engine.read_statistics([term.hash for term in query.terms], caller)
            sample = self._sample(caller)
        except (EngineFailed, EngineIncomplete) as error:
            raise engine_error(error) from error
        similarities = sample.sampled_similarities(caller, query.vector)
        statistics = CollectionStatistics(terms.count, terms.frequencies, similarities)
        return EngineRows(self, query, caller, statistics)

    def new_matrix(self) -> VectorMatrix:
        return VectorMatrix(self._dimensions, self._sharing)

    def _sample(self, caller: str) -> VectorMatrix:
        with self._lock:
            found = self._samples.get(caller)
        if found is None:
            found = self.new_matrix()
            found.apply(self.store.index_rows_of(self.model, self.engine.sample(caller, SAMPLE)))
            # An empty one may be that of a journal which is just being filled.
            if found.size:
                with self._lock:
                    self._samples[caller] = found
        return found


class EngineRows:
    """The rows that an engine proposes for one query; fulfils `OpenRows`. For one thread."""

    def __init__(self, source: EngineSource, query: RankedQuery, caller: str, statistics: CollectionStatistics) -> None:
        self._source = source
        self._query = query
        self._caller = caller
        self._statistics = statistics
        self._weights, self._rare = weigh_words(query, statistics)
        self._matrix = source.new_matrix()
        self._read: set[str] = set()
        self._asked: dict[DecisionFilter, tuple[int, bool]] = {}
        """How many were requested under each filter, and whether exemplary ones were."""

    def candidates(self, filters: DecisionFilter, count: int, *, exemplary: bool) -> CandidateRows:
        wanted = max(MIN_PROPOSALS, PROPOSALS_PER_RESULT * count)
        asked, had_exemplary = self._asked.get(filters, (0, False))
        has_more = wanted > asked or exemplary > had_exemplary
        while True:
            if has_more:
                request = ProposalRequest(
                    self._query.vector, self._weights, self._rare, self._caller, filters, wanted, exemplary
                )
                has_more = self._propose(request)
                self._asked[filters] = wanted, exemplary
            found = self._matrix.candidates(self._caller, filters, self._statistics)
            if len(found) >= count or not has_more:
                return found
            # Many proposals are gone, have changed since the engine was fed, or are passages of the same decision.
            wanted *= 2

    def candidates_of(self, ids: Sequence[str]) -> CandidateRows:
        self._load(ids)
        return self._matrix.candidates_of(ids, self._caller, self._statistics)

    def first_vectors(self, ids: Sequence[str]) -> Vectors:
        return self._matrix.first_vectors(ids)

    def _propose(self, request: ProposalRequest) -> bool:
        source = self._source
        try:
            proposals = source.engine.propose(request)
        except (EngineFailed, EngineIncomplete) as error:
            raise engine_error(error) from error
        # After the proposals, whose revision is then not newer than what is read here.
        unfed = source.store.changed_ids(proposals.revision, MAX_UNFED + 1)
        if len(unfed) > MAX_UNFED:
            raise engine_error(EngineIncomplete())
        self._load((*proposals.ids, *unfed))
        return proposals.more

    def _load(self, ids: Sequence[str]) -> None:
        new = [key for key in dict.fromkeys(ids) if key not in self._read]
        self._matrix.apply(self._source.store.index_rows_of(self._source.model, new))
        self._read.update(new)


def engine_error(error: EngineFailed | EngineIncomplete) -> QueryFailed:
    """Return the error for a caller; the engine's own message goes to the log only."""
    if isinstance(error, EngineIncomplete):
        return QueryFailed("the search engine does not have the whole journal yet; try again later")
    # The feeder logs a lasting failure once.
    logger.debug("the search engine failed: %s", error)
    return QueryFailed("the search engine does not answer; try again")


def weigh_words(query: RankedQuery, statistics: CollectionStatistics) -> tuple[dict[int, float], list[int]]:
    """Return the weights of the known terms of a query by hash, and those that together few decisions have."""
    weights: dict[int, float] = {}
    rare: list[int] = []
    rows = 0
    for term in sorted(query.terms, key=lambda term: statistics.frequencies.get(term.hash, 0)):
        frequency = statistics.frequencies.get(term.hash, 0)
        rows += frequency
        if frequency:
            weights[term.hash] = term.count * inverse_document_frequency(statistics.count, frequency)
            if rows <= (MAX_WORD_ROWS if rare else MAX_RAREST_ROWS):
                rare.append(term.hash)
    return weights, rare


class EngineFeeder:
    """Feeds an engine from the journal in a thread, at intervals and when woken.

    It follows the journal by revisions: after a kill it continues where it was. Several processes may feed one engine,
    one at a time.
    """

    def __init__(
        self,
        engine: SearchEngine,
        store: SqlDecisionStore,
        model: str,
        missing: Callable[[Callable[[], bool]], int] = lambda _: 0,
    ) -> None:
        """`missing` gives vectors to decisions that lack them, and returns their number; it runs once at first.

        It gets a function that returns whether it must end early.
        """
        self._engine = engine
        self._store = store
        self._model = model
        self._missing: Callable[[Callable[[], bool]], int] | None = missing
        self._task = PeriodicTask("search-feed", self.feed, FEED_SECONDS, logger, "the search engine is not fed")
        self.reached: int | None = None
        """The revision that the engine has; None while it is not complete or does not answer."""
        self.lacks_vectors = False
        """Whether decisions may lack vectors of the model: from the start until all were looked at."""
        self._next_line = 0.0
        """When the progress is logged next, by the monotonic clock."""

    def start(self) -> None:
        self.lacks_vectors = True
        self._task.start()

    def wake(self) -> None:
        self._task.wake()

    def stop(self) -> None:
        self._task.stop()
        self._engine.close()

    def feed(self) -> None:
        """Feed what is missing. Raises QueryFailed and Unavailable."""
        try:
            if self._missing is not None:
                # They got no new revisions with their vectors, so that all must be fed again.
                if self._missing(self._task.is_stopping):
                    self._restart()
                self._missing = None
                self.lacks_vectors = self._task.is_stopping()
            while not self._task.is_stopping() and self._feed_batch():
                pass
        except Exception as error:
            self.reached = None
            if isinstance(error, EngineFailed):
                raise QueryFailed("the search engine does not answer") from error
            raise

    def _restart(self) -> None:
        with self._engine.begin_feeding() as feeding:
            if feeding is not None and feeding.revision >= 0:
                feeding.put([], [], -1)

    def _feed_batch(self) -> bool:
        """Feed some decisions; return whether more may be missing."""
        with self._engine.begin_feeding() as feeding:
            if feeding is None:
                return False
            # Usually nothing has changed, which the newest revision shows faster than an empty batch.
            newest, present = self._store.newest_revision(), feeding.revision
            rows, erased, reached, is_last = [], [], present, True
            if newest > present:
                rows = list(islice(self._store.index_rows(self._model, present), FEED_BATCH))
                is_last = len(rows) < FEED_BATCH
                # Up to here `rows` has every change. Revisions are committed in their order, so that every deletion up
                # to here is found by a later read; one after it may precede a change that `rows` does not have.
                complete = max([newest, *(row.revision for row in rows[-1:])]) if is_last else rows[-1].revision
                erased = [row for row in self._store.erased_rows(present) if row.revision <= complete]
                reached = complete
                feeding.put(rows, [row.decision_id for row in erased], reached)
            if is_last:
                feeding.complete()
        if is_last:
            self.reached = reached
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + PROGRESS_SECONDS
            logger.info("fed the search engine up to change %d of %d", reached, newest)
        return not is_last


def require_revision(store: SqlDecisionStore, revision: int) -> None:
    """Raise Unavailable if the journal has not reached a revision; searches find all that it has reached."""
    if store.newest_revision() < revision:
        raise Unavailable("the journal has not come to that revision; try again")
