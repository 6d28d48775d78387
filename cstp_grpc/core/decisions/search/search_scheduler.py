"""Where searches run: short ones on the event loop, others on threads, those that wait together."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final, NamedTuple

from cstp_grpc.core.decisions.model import DecisionFilter, Match
from cstp_grpc.core.decisions.search.decision_search import LISTED_OF_SERIES, DecisionSearch, MoreResultsNeeded
from cstp_grpc.core.decisions.search.relevance import Favoured
from cstp_grpc.core.decisions.search.search_results import SearchParameters
from cstp_grpc.platform.storage.background_work import WorkPool

MAX_BATCH: Final = 16
"""Searches of one batch. Chosen: more would share the scan at little gain, and the first would wait longer."""

BATCHES_THAT_WAIT: Final = 2
"""Batches at a time if they wait for a database server or an index; the other one computes meanwhile."""
BATCHES_THAT_COMPUTE: Final = 1
"""Batches at a time if none waits. Two share fewer scans, and pass the interpreter's lock to and fro: measured with
100 000 decisions and 16 searches in flight, each takes a third more CPU."""

Matches = list[Match]


class PendingSearch(NamedTuple):
    """A search whose caller awaits `future`. If only its text is to be embedded, it is `list`."""

    text: str
    run: Callable[[], Matches]
    context: contextvars.Context
    future: asyncio.Future[Matches]

    def find(self) -> Matches | Exception:
        try:
            # In its caller's context, above all for the request id in logs.
            return self.context.run(self.run)
        except Exception as error:  # noqa: BLE001 - its caller gets it, and the others their results
            return error


class BatchQueue:
    """Searches that wait, and the tasks that run them in batches: those that arrive during a batch are the next."""

    def __init__(
        self, pool: WorkPool, prepare: Callable[[Iterable[str]], AbstractContextManager[None]], max_batches: int
    ) -> None:
        """State the context in which the searches for some texts run, and how many batches run at a time."""
        self._pool = pool
        self._prepare = prepare
        self._max_batches = max_batches
        # All of this is used on the event loop alone, between two awaits.
        self._waiting: deque[PendingSearch] = deque()
        self._runners: set[asyncio.Task[None] | None] = set()

    async def run(self, text: str, search: Callable[[], Matches]) -> Matches:
        loop = asyncio.get_running_loop()
        pending = PendingSearch(text, search, contextvars.copy_context(), loop.create_future())
        self._waiting.append(pending)
        if len(self._runners) < self._max_batches:
            runner = loop.create_task(self._run_batches())
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)
        return await pending.future

    async def _run_batches(self) -> None:
        """Run waiting searches, batch by batch, until none waits."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            # A caller that was cancelled wants no result.
            batch = [pending for pending in batch if not pending.future.done()]
            results: Sequence[Matches | Exception | None] = [None] * len(batch)
            try:
                results = await self._pool.run(self._run_batch, batch)
            except Exception as error:  # noqa: BLE001 - the callers get it
                results = [error] * len(batch)
            finally:
                for pending, result in zip(batch, results, strict=True):
                    settle_future(pending.future, result)
        # Before the callers resume, who start a runner only if too few are left.
        self._runners.discard(asyncio.current_task())

    def _run_batch(self, batch: Sequence[PendingSearch]) -> list[Matches | Exception]:
        with self._prepare([pending.text for pending in batch]):
            return [pending.find() for pending in batch]


def settle_future(future: asyncio.Future[Matches], result: Matches | Exception | None) -> None:
    """Pass a result to a caller that still waits; None if its runner was cancelled, as when a server stops."""
    if future.done():
        return
    if result is None:
        future.cancel()
    elif isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


class SearchScheduler:
    """Runs searches of one kind of calls. For one event loop at a time.

    Long searches and new texts are run in batches: the texts of one are embedded together, its searches share one scan,
    and threads change once for all. A text that is embedded elsewhere, or not cached, has a thread of its own.
    """

    def __init__(self, search: DecisionSearch, pool: WorkPool) -> None:
        self._search = search
        self._pool = pool
        # Apart, so that a search for a cached text waits for no other text to be embedded. Two batches of texts at a
        # time would compete for the cores, and be smaller.
        self._new_texts = BatchQueue(pool, self._embed_together, 1)
        batches = BATCHES_THAT_COMPUTE if search.never_waits else BATCHES_THAT_WAIT
        self._searches = BatchQueue(pool, search.expect_texts, batches)

    async def search(
        self,
        text: str,
        filters: DecisionFilter,
        caller: str,
        limit: int,
        min_score: float,
        min_revision: str | None = None,
    ) -> Matches:
        """Return the matches of `DecisionSearch.search`; raises the same errors."""

        def search(may_grow: bool = True) -> Matches:
            return self._search.search(text, filters, caller, limit, min_score, min_revision, may_grow=may_grow)

        if min_revision is not None:
            # To come to a revision takes a while if much was written elsewhere.
            return await self._pool.run(search)
        parameters = SearchParameters(text, (filters,), caller, limit, min_score, of_series=LISTED_OF_SERIES)
        return await self._run(parameters, search)

    async def find_precedents(
        self,
        text: str,
        preferences: tuple[DecisionFilter, ...],
        caller: str,
        limit: int,
        min_score: float,
        favoured: Favoured,
    ) -> Matches:
        """Return the matches of `DecisionSearch.find_precedents` with exemplars; raises the same errors."""

        def find_precedents(may_grow: bool = True) -> Matches:
            return self._search.find_precedents(
                text, preferences, caller, limit, min_score, favoured, with_exemplars=True, may_grow=may_grow
            )

        parameters = SearchParameters(text, preferences, caller, limit, min_score, favoured, with_exemplars=True)
        return await self._run(parameters, find_precedents)

    async def _run(self, parameters: SearchParameters, search: Callable[..., Matches]) -> Matches:
        text = parameters.text
        if self._search.may_recall(parameters):
            # In turn, although it is short: a check would wait behind all that arrive before it.
            recalled = await self._pool.run_short(self._search.recall, parameters)
            if recalled is not None:
                return recalled
        if self._search.embeds_together and not self._search.is_cached(text):
            await self._new_texts.run(text, list)
        if self._search.is_short(text, parameters.preferences, parameters.limit):
            # Not on the loop if series make it long, which only the search itself finds out.
            with suppress(MoreResultsNeeded):
                return await self._pool.run_short(search, False)  # noqa: FBT003
        if not self._search.is_cached(text):
            return await self._pool.run(search)
        return await self._searches.run(text, search)

    def _embed_together(self, texts: Iterable[str]) -> AbstractContextManager[None]:
        self._search.embed_together(texts)
        return nullcontext()
