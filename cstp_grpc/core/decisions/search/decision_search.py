"""The search for decisions by similarity: planned, ranked, and checked against the journal."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Final, Protocol

from cstp_grpc.contract.enums import DecisionStatus
from cstp_grpc.core.decisions.model import Decision, DecisionFilter, DecisionLink, Match, build_predicate
from cstp_grpc.core.decisions.search import search_results
from cstp_grpc.core.decisions.search.ranking import ScoredDecision
from cstp_grpc.core.decisions.search.relevance import NOTHING_FAVOURED, Favoured, RankedQuery
from cstp_grpc.core.decisions.search.row_source import OpenRows, RowSource
from cstp_grpc.core.decisions.search.row_vectors import MIN_CODES_TO_SPLIT
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.platform.embedding.embedder import Embedder
from cstp_grpc.platform.storage.revision_tokens import RevisionGate, reject_revision

logger = logging.getLogger(__name__)

UNRESTRICTED = DecisionFilter()

MAX_SHORT_WORK = 12_000
"""Maximum work of a short search, in rows of the matrix: about 0.5 ms on a small machine. The event loop serves no
other call meanwhile. Measured: with 16 searches of 10 000 decisions in flight, batches take a quarter less CPU."""

LISTED_OF_SERIES = 3
"""Results of one series that a query lists. Measured: with one, a tenth of linked proposals is not found, since often a
decision that differs only in its number is wanted; with three, all are found."""

POOL_GROWTH = 4
MAX_POOL = 400
"""Results that are looked at for a few different ones, about 10 ms. Chosen: no series that was seen is longer."""

MAX_EXEMPLARS = 2

WORK_PER_RESULT = 200
"""Rows that are scored in the time in which one result is read and converted."""


class MoreResultsNeeded(Exception):
    """Series fill the first results, so that the search takes longer than `DecisionSearch.is_short` has said."""


NOT_MEASURED: Final = nullcontext()


class SearchPlan(StrEnum):
    """How a search is answered."""

    KEPT = "kept"
    """It was searched before, and nothing has changed since."""
    EXACT = "exact"
    """All rows that pass the filters were scored."""
    PROPOSED = "proposed"
    """Those were that an engine proposed."""


class SearchObserver(Protocol):
    """Observes searches, on any thread. It must neither block nor raise."""

    def measure_search(self) -> AbstractContextManager[object]:
        """Measure the block, which is a search."""

    def observe_plan(self, plan: SearchPlan, rows: int) -> None:
        """Count a search, or a part of it under one filter, by the kind of its answer, with the scored rows."""


class DecisionSearch:
    """Plans and runs searches. Safe for many threads.

    A source gives the rows that may belong to an answer: all that pass the filters, or those that an engine proposes.
    They are scored here, and the journal finally decides what a caller may read.
    """

    def __init__(
        self,
        store: SqlDecisionStore,
        source: RowSource,
        embedder: Embedder,
        revisions: RevisionGate = reject_revision,
        observer: SearchObserver | None = None,
    ) -> None:
        self._store = store
        self._source = source
        self._embedder = embedder
        self._revisions = revisions
        self._observer = observer
        self._reads_are_short = store.is_local
        self._results = search_results.RecentResults()

    def require_revision(self, token: str) -> None:
        """Wait until searches can find everything up to a journal revision of any server.

        Raises InvalidArgument if the token is not one of this journal, Unavailable if the journal has not reached the
        revision, and QueryFailed.
        """
        self._revisions(token)

    def search(
        self,
        text: str,
        filters: DecisionFilter,
        caller: str,
        limit: int,
        min_score: float,
        min_revision: str | None = None,
        *,
        may_grow: bool = True,
    ) -> list[Match]:
        """Return readable decisions that pass the filters, by falling similarity to a text.

        They are at most `limit` and score at least `min_score`; at equal scores the latest comes first. Raises
        QueryFailed if the journal or the embedder fails, the errors of `require_revision`, and MoreResultsNeeded as
        `find_precedents` does.
        """
        if min_revision is not None:
            self.require_revision(min_revision)
        return self.find_precedents(
            text, (filters,), caller, limit, min_score, of_series=LISTED_OF_SERIES, may_grow=may_grow
        )

    def find_precedents(
        self,
        text: str,
        preferences: Sequence[DecisionFilter],
        caller: str,
        limit: int,
        min_score: float,
        favoured: Favoured = NOTHING_FAVOURED,
        *,
        of_series: int = 1,
        with_exemplars: bool = False,
        may_grow: bool = True,
    ) -> list[Match]:
        """Return at most `limit` matches: those of the first filter, and then of the next ones if there is room.

        Each is returned once, and `of_series` of each series. The journal is read once for all filters, unless it has
        changes that the matrix lacks. Superseded decisions stand below their successors. With exemplars, the most
        relevant failure and the most relevant lesson that pass the first filter are among them. Raises as `search`
        does, and MoreResultsNeeded if more results than the first `limit` must be looked at, unless `may_grow`.
        """
        parameters = search_results.SearchParameters(
            text, tuple(preferences), caller, limit, min_score, favoured, of_series, with_exemplars
        )
        self._source.load()
        with NOT_MEASURED if self._observer is None else self._observer.measure_search():
            # Read first: results with changes during the search are then cached for a former state.
            state = self._read_state()
            chosen = self._results.find(parameters, state)
            if chosen is None:
                chosen = self._choose_matches(parameters, may_grow=may_grow)
                self._results.keep(parameters, state, chosen)
            else:
                self._note_plan(SearchPlan.KEPT, 0)
            return self._put_in_order(chosen, parameters)

    def may_recall(self, parameters: search_results.SearchParameters) -> bool:
        """Return whether results of a search are kept, of whatever state, and the state is fast to read."""
        return self._reads_are_short and self._source.is_loaded and self._results.contains(parameters)

    def recall(self, parameters: search_results.SearchParameters) -> list[Match] | None:
        """Return the matches that `find_precedents` found before, if nothing has changed since; None otherwise.

        Fast enough for the event loop. Raises QueryFailed.
        """
        if not self.may_recall(parameters):
            return None
        chosen = self._results.find(parameters, self._read_state())
        if chosen is None:
            return None
        self._note_plan(SearchPlan.KEPT, 0)
        return self._put_in_order(chosen, parameters)

    def _note_plan(self, plan: SearchPlan, rows: int) -> None:
        if self._observer is not None:
            self._observer.observe_plan(plan, rows)

    @property
    def never_waits(self) -> bool:
        """Whether searches only compute: the journal is a file of this machine, and no engine is asked."""
        return self._reads_are_short and self._source.scanned_rows is not None

    def _read_state(self) -> search_results.SearchState:
        return search_results.SearchState(self._source.version, self._store.read_state())

    def _choose_matches(
        self, search: search_results.SearchParameters, *, may_grow: bool
    ) -> search_results.ChosenMatches:
        run = self.begin_run(search.text, search.caller, search.min_score, search.favoured)
        with self._source.expect_queries([run.query.vector]):
            groups = self._find_groups(run, search, may_grow=may_grow)
        limit, of_series = search.limit, search.of_series
        is_preferred = build_predicate(search.preferences[0])
        preferred = [group for group in groups if is_preferred(group.first.decision)]
        others = [group for group in groups if not is_preferred(group.first.decision)]
        chosen = search_results.choose_precedents(preferred, limit, of_series, with_exemplars=search.with_exemplars)
        return search_results.ChosenMatches(
            chosen, search_results.choose_precedents(others, limit, of_series)[: limit - len(chosen)]
        )

    def _find_groups(
        self, run: SearchRun, search: search_results.SearchParameters, *, may_grow: bool
    ) -> list[search_results.MatchGroup]:
        """Return groups of matches from which `limit` can be listed, if there are so many."""
        limit, of_series = search.limit, search.of_series
        wanted = limit
        while True:
            pool = self._find_matches(run, search.preferences, wanted, with_exemplars=search.with_exemplars)
            groups = run.group(pool)
            # Without exemplars, which may be less relevant than results of a larger pool.
            regular = {match.decision.id for match in pool[:wanted]}
            listed = sum(match.decision.id in regular for match in search_results.list_matches(groups, of_series))
            if listed >= limit or len(pool) < wanted or wanted >= MAX_POOL:
                return groups
            if wanted > limit and not may_grow:
                raise MoreResultsNeeded
            # Series fill the pool; the results that they hide come after them.
            wanted = pool_size(limit) if wanted == limit else min(wanted * POOL_GROWTH, MAX_POOL)

    def _put_in_order(
        self, chosen: search_results.ChosenMatches, search: search_results.SearchParameters
    ) -> list[Match]:
        """Return the matches of a search, superseded ones below their successors."""
        # Looked up each time: a link that changes the status of no decision gives none a new revision.
        successors = self._readable_successors(chosen.preferred, search.caller)
        found = [*search_results.put_successors_first(chosen.preferred, successors), *chosen.others]
        # Announcements compare the decisions themselves.
        return found if search.with_exemplars else search_results.fold_into_summaries(found, self._store.touching_links)

    def _readable_successors(self, matches: Sequence[Match], caller: str) -> dict[str, str]:
        superseded = [match.decision.id for match in matches if match.decision.status is DecisionStatus.SUPERSEDED]
        if not superseded:
            return {}
        successors = self._store.find_successors(superseded)
        ids = [key for each in successors.values() for key in each]
        readable = self._store.get_readable(ids, caller, UNRESTRICTED)
        shown = {key: [each for each in found if each in readable] for key, found in successors.items()}
        # The latest one, if several supersede it.
        return {key: max(found, key=lambda each: (readable[each].date, each)) for key, found in shown.items() if found}

    def begin_run(
        self, text: str, caller: str, min_score: float = 0.0, favoured: Favoured = NOTHING_FAVOURED
    ) -> SearchRun:
        query = RankedQuery.of(text, self._embedder.embed([text])[0], self._embedder.model, favoured)
        return SearchRun(self._source.open(query, caller), self._store, query, caller, min_score)

    def _find_matches(
        self, run: SearchRun, preferences: Sequence[DecisionFilter], limit: int, *, with_exemplars: bool
    ) -> list[Match]:
        rankings: list[Ranking] = []
        expected: dict[str, None] = {}
        for filters in preferences:
            if len(expected) >= limit:
                break
            ranking = Ranking(self, run, filters, limit + len(expected), with_exemplars=with_exemplars and not rankings)
            expected.update((item.decision_id, None) for item in ranking.ranked)
            rankings.append(ranking)
        run.read(expected)
        found: dict[str, Match] = {}
        for position, filters in enumerate(preferences):
            if len(found) >= limit:
                break
            # Results of earlier filters may occur again, so request enough to fill the rest without them.
            needed = limit + len(found)
            if position == len(rankings):
                rankings.append(Ranking(self, run, filters, needed))
            for match in rankings[position].best(needed):
                found.setdefault(match.decision.id, match)
        return list(found.values())[: limit + (MAX_EXEMPLARS if with_exemplars else 0)]

    def is_short(self, text: str, preferences: Sequence[DecisionFilter], limit: int) -> bool:
        """Return True if a search does not block and is fast enough to run on the event loop.

        It is if the text's vector is cached, few rows are scanned and the journal is a file of this machine.
        """
        size = self._source.scanned_rows
        if size is None:
            return False
        work = WORK_PER_RESULT * pool_size(limit)
        for filters in preferences:
            work += size * (1 + len(filters.tags))
        # From MIN_CODES_TO_SPLIT rows, scoring waits for another thread.
        is_small = size < MIN_CODES_TO_SPLIT and work <= MAX_SHORT_WORK
        return is_small and self._reads_are_short and self._source.is_loaded and self.is_cached(text)

    def is_cached(self, text: str) -> bool:
        """Return True if a text was embedded before, so that a search for it computes no vector."""
        return self._embedder.is_cached(text)

    @property
    def embeds_together(self) -> bool:
        """Whether `embed_together` caches vectors."""
        return self._embedder.embeds_together

    def embed_together(self, texts: Iterable[str]) -> None:
        """Cache the vectors of the texts of several searches, all computed at once, if this embedder can.

        An error is left to the searches, which embed their texts alone.
        """
        try:
            self._embedder.embed_together(texts)
        except Exception:  # one text must not fail the searches for the others
            logger.warning("the texts of several searches were not embedded together", exc_info=True)

    def expect_texts(self, texts: Iterable[str]) -> AbstractContextManager[None]:
        """Scan for all of the texts when a search for one of them needs it, until the end of the block.

        Raises QueryFailed if the embedder fails.
        """
        # One by one, since only vectors of single texts are cached.
        return self._source.expect_queries([self._embedder.embed([text])[0] for text in texts])

    def rank(
        self, run: SearchRun, filters: DecisionFilter, limit: int, *, with_exemplars: bool
    ) -> list[ScoredDecision]:
        candidates = run.rows.candidates(filters, limit, exemplary=with_exemplars)
        proposes = self._source.scanned_rows is None
        self._note_plan(SearchPlan.PROPOSED if proposes else SearchPlan.EXACT, len(candidates))
        return candidates.best(run.query, limit, run.min_score, with_exemplars=with_exemplars)


def pool_size(limit: int) -> int:
    """Return how many results are looked at for `limit` different ones, if they are not in series."""
    return 2 * limit + 5


class SearchRun:
    """A search while it runs: its query, its rows, and the decisions that it has read.

    A search with a larger limit begins with these. Each decision is read at most once, as the caller may read it.
    """

    def __init__(
        self, rows: OpenRows, store: SqlDecisionStore, query: RankedQuery, caller: str, min_score: float
    ) -> None:
        self.query = query
        self.caller = caller
        self.min_score = min_score
        self.rows = rows
        self._store = store
        self._requested: set[str] = set()
        self.found: dict[str, Decision] = {}

    def group(self, matches: Sequence[Match]) -> list[search_results.MatchGroup]:
        return search_results.group_matches(matches, self.rows.first_vectors([each.decision.id for each in matches]))

    def links_of(self, decision_id: str) -> list[DecisionLink]:
        return self._store.touching_links([decision_id], search_results.MAX_SUMMARY_LINKS)

    def read(self, ids: Iterable[str]) -> None:
        unknown = [decision_id for decision_id in ids if decision_id not in self._requested]
        if unknown:
            self._requested.update(unknown)
            self.found.update(self._store.get_readable(unknown, self.caller, UNRESTRICTED))


class Ranking:
    """The top decisions of a search under one filter, by the data of the matrix; extended when more are needed.

    With exemplars, the top failure and the top row with a lesson are ranked, too.
    """

    def __init__(
        self,
        search: DecisionSearch,
        run: SearchRun,
        filters: DecisionFilter,
        limit: int,
        *,
        with_exemplars: bool = False,
    ) -> None:
        self._search = search
        self._run = run
        self._filters = filters
        self._limit = limit
        self._with_exemplars = with_exemplars
        self.ranked = search.rank(run, filters, limit, with_exemplars=with_exemplars)

    def best(self, needed: int) -> list[Match]:
        """Return the top matches that the journal confirms, at most `needed`."""
        # Ends at the latest when all candidates are ranked, since the limit doubles.
        while self.ranked:
            self._run.read(item.decision_id for item in self.ranked)
            matches = self._readable_matches()
            if len(matches) >= needed or len(self.ranked) < self._limit:
                return matches[: needed + (MAX_EXEMPLARS if self._with_exemplars else 0)]
            # The journal knows of changes that the matrix has not seen yet; the next best take their places.
            self._limit *= 2
            self.ranked = self._search.rank(self._run, self._filters, self._limit, with_exemplars=self._with_exemplars)
        return []

    def _readable_matches(self) -> list[Match]:
        passes = build_predicate(self._filters)
        found = ((self._run.found.get(item.decision_id), item) for item in self.ranked)
        return [
            Match(decision, item.score, item.similarity, item.matched_by)
            for decision, item in found
            if decision is not None and passes(decision)
        ]
