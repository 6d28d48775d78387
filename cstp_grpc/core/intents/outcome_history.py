"""Answers history queries of guardrails, from memory that follows the journal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from cstp_grpc.contract.errors import CstpError
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.guardrails.history import CountedHistory, HistoryFacts, HistoryRequest, UnreadHistory
from cstp_grpc.core.intents.recent_outcomes import OutcomeState, RecentOutcomes
from cstp_grpc.core.intents.sql_outcomes import SqlOutcomeStore
from cstp_grpc.platform.storage.background_work import WorkPool

SHORT_CHANGES: Final = 20
"""Maximum number of changes that are read on the event loop: they take less than a millisecond."""
FORGOTTEN_SHARE: Final = 0.25
"""How much longer than asked for outcomes stay in memory, as a share of the time asked for. Chosen: forgetting copies
all columns."""


class OutcomeHistory:
    """Counts recorded outcomes for guardrails; fulfils `HistoryReader`. Safe for many threads.

    Each reading asks the database for its newest change, so that all commits count on every server. `pool`
    runs long work.
    """

    def __init__(
        self, store: SqlOutcomeStore, read_policy: ReadPolicy, clock: Callable[[], datetime], pool: WorkPool
    ) -> None:
        self._store = store
        self._read_policy = read_policy
        self._clock = clock
        self._pool = pool
        # Taken before the other lock, by threads alone.
        self._loading = threading.Lock()
        # Guards all below. Not held while the database is asked, or the event loop would wait for it.
        self._lock = threading.Lock()
        self._recent = RecentOutcomes(read_policy)
        self._state: OutcomeState | None = None
        """The changes that are in memory; None before the first reading."""
        self._since: datetime | None = None
        """The instant from which on all outcomes are in memory; None before the first reading."""
        self._longest = 0
        """The longest time in seconds that was asked for."""

    def load(self, seconds: int) -> None:
        """Read the outcomes of a time unless they are in memory. Raises QueryFailed."""
        # One thread at a time: the others need the same.
        with self._loading:
            if self._covers(seconds):
                return
            since = self._clock() - timedelta(seconds=seconds)
            loaded = self._store.load_since(since)
            recent = RecentOutcomes(self._read_policy)
            recent.apply(loaded.outcomes)
            with self._lock:
                # Others may have followed the journal further by now; the count catches up again.
                self._recent, self._state, self._since, self._longest = recent, loaded.state, since, seconds

    async def read(self, requests: Sequence[HistoryRequest]) -> Sequence[HistoryFacts]:
        """Return the facts for each request, from one state of the journal."""
        if self._store.is_local:
            # Without a turn on the event loop, which takes as long again: almost always nothing has changed.
            found = self._read_short(requests, 0)
            if found is None:
                found = await self._pool.run_short(self._read_short, requests, SHORT_CHANGES)
            if found is not None:
                return found
        return await self._pool.run(self.read_blocking, requests)

    def read_blocking(self, requests: Sequence[HistoryRequest]) -> Sequence[HistoryFacts]:
        """Return the facts for each request; may take long, and blocks on the database."""
        try:
            newest = self._store.read_state()
            while True:
                self.load(longest_time(requests))
                found = self._follow(newest, requests)
                if found is not None:
                    return found
        except CstpError as error:
            return [UnreadHistory(error.message)] * len(requests)

    def _read_short(self, requests: Sequence[HistoryRequest], most: int) -> Sequence[HistoryFacts] | None:
        """Return the facts, or None if more changes than `most` have to be read first."""
        try:
            newest = self._store.read_state()
            known = self._state
            if known is None or newest.count_from(known) > most:
                return None
            return self._follow(newest, requests)
        except CstpError as error:
            return [UnreadHistory(error.message)] * len(requests)

    def _follow(self, newest: OutcomeState, requests: Sequence[HistoryRequest]) -> Sequence[HistoryFacts] | None:
        """Return the facts once memory is as far as the journal; None if it begins too late. Raises QueryFailed."""
        while True:
            with self._lock:
                known = self._state
                if known is None or not self._covers(longest_time(requests)):
                    return None
                if not newest.is_beyond(known):
                    return self._count(requests)
            changes = self._store.changes_after(known)
            with self._lock:
                # Another thread may have applied later changes, which these must not replace.
                if self._state == known:
                    self._recent.apply(changes.outcomes, changes.deleted)
                    self._state = changes.state

    def _covers(self, seconds: int) -> bool:
        """Return whether the outcomes of a time are in memory."""
        return self._since is not None and self._since <= self._clock() - timedelta(seconds=seconds)

    def _count(self, requests: Sequence[HistoryRequest]) -> Sequence[HistoryFacts]:
        """Count under the lock."""
        now = self._clock()
        self._forget_old(now)
        if len(requests) == 1:
            return [CountedHistory(self._recent.count_outcomes(requests[0], now))]
        counted: dict[HistoryRequest, HistoryFacts] = {}
        for request in requests:
            # Actions of a batch often have everything in common that counts.
            if request not in counted:
                counted[request] = CountedHistory(self._recent.count_outcomes(request, now))
        return [counted[request] for request in requests]

    def _forget_old(self, now: datetime) -> None:
        begin = now - timedelta(seconds=self._longest)
        if self._since is not None and begin - self._since > timedelta(seconds=self._longest * FORGOTTEN_SHARE):
            self._recent.forget_before(begin)
            self._since = begin


def longest_time(requests: Sequence[HistoryRequest]) -> int:
    return max((query.seconds for request in requests for query in request.queries), default=0)
