"""The shared intents of the last day in memory, with their vectors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import numpy as np

from cstp_grpc.guardrails.cel_variables import MAX_WINDOW_SECONDS
from cstp_grpc.intents.model import (
    IntentClosing,
    IntentId,
    IntentKey,
    IntentVector,
    SharedIntent,
    SharedIntentStore,
)
from cstp_grpc.storage.unit_of_work import UnitOfWork
from cstp_grpc.storage.writer import GroupCommitWriter

RECENT_TIME = timedelta(seconds=MAX_WINDOW_SECONDS)
"""How long an intent is told to others."""
MAX_RECENT = 1000
"""Maximum number of intents that are told, the latest ones. Chosen: an announcement is compared with them in 0.1 ms."""

REMOVAL_BATCH = 500
"""Rows of a table that one transaction removes at most. Chosen: announcements wait for it only briefly."""


class RecentIntents:
    """Holds the latest shared intents, of each its latest revision. Safe for many threads.

    Intents of this process are added once they are committed; `refresh` takes over those of other processes. Vectors
    are of the embedder's `model` and have `dimensions` numbers.
    """

    def __init__(
        self,
        store: SharedIntentStore,
        model: str,
        dimensions: int,
        clock: Callable[[], datetime],
        limit: int = MAX_RECENT,
    ) -> None:
        self._store = store
        self._model = model
        self._clock = clock
        self._limit = limit
        # Lets one thread at a time refresh, which reads the database. Taken before `_lock`, never the other way round.
        self._refreshing = threading.Lock()
        # Guards all that follows; held for memory only, because the event loop waits for it.
        self._lock = threading.Lock()
        self._rows: dict[IntentId, int] = {}
        """The row of each intent in the next three, whose first `len(self._rows)` rows are used."""
        self._shared: list[SharedIntent] = []
        self._times = np.empty(limit, np.float64)
        self._vectors = np.empty((limit, dimensions), np.float32)
        # The next two belong to whoever holds `_refreshing`.
        self._position: int | None = None
        """The number of a change up to which all were read; None before the first refresh."""
        self._read: set[int] = set()
        """The numbers of changes beyond it that were read."""
        self._missed: list[Callable[[], None]] | None = None
        """Changes since a refresh began, whose snapshot may lack them; None if there is no refresh."""

    def __len__(self) -> int:
        """Return how many intents are held; some may have become too old to be told."""
        return len(self._rows)

    def store(self, unit_of_work: UnitOfWork, shared: SharedIntent) -> None:
        """Store a shared revision within the transaction that stores the intent; `add` it after the commit."""
        self._store.put(unit_of_work, self._model, shared, self._clock())

    def note_change(self, unit_of_work: UnitOfWork, key: IntentKey) -> None:
        """Note within the transaction that closes or takes back an intent that others have to read it again.

        `close` or `withdraw` it after the commit.
        """
        self._store.note_change(unit_of_work, (key.agent, key.correlation_id), self._clock())

    def add(self, shared: SharedIntent) -> None:
        """Add a committed revision, which replaces an earlier one of its intent."""
        self._change(partial(self._put, shared))

    def withdraw(self, key: IntentKey) -> None:
        """Remove the revisions of an intent before a committed one, which is not shared."""
        self._change(partial(self._remove, key))

    def close(self, key: IntentKey, closing: IntentClosing) -> None:
        """Note how a revision ended."""
        self._change(partial(self._close, key, closing))

    def find_similar(self, vector: IntentVector, min_similarity: float) -> list[tuple[SharedIntent, float]]:
        """Return the intents of the last day whose cosine similarity to a vector is at least `min_similarity`."""
        oldest = (self._clock() - RECENT_TIME).timestamp()
        with self._lock:
            count = len(self._shared)
            similarities = self._vectors[:count] @ vector
            found = np.flatnonzero((self._times[:count] >= oldest) & (similarities >= min_similarity))
            return [(self._shared[row], float(similarities[row])) for row in found]

    def refresh(self) -> None:
        """Take over what the database holds; only what changed is read. Raises QueryFailed."""
        with self._refreshing:
            try:
                with self._lock:
                    self._missed = []
                # Before the changes: those that are settled by then are among them.
                settled = self._store.settled_change()
                if self._position is None or not self._read_changes(self._position):
                    self._read_all()
                    self._read = set()
                self._position = max(settled, self._position or 0)
                self._read = {number for number in self._read if number > self._position}
            finally:
                with self._lock:
                    self._missed = None

    def remove_expired(self, writer: GroupCommitWriter) -> bool:
        """Remove intents that are not told any more, and return whether more may be stored. Raises Unavailable."""
        oldest = self._clock() - RECENT_TIME
        with self._lock:
            for row in np.flatnonzero(self._times[: len(self._shared)] < oldest.timestamp())[::-1].tolist():
                self._remove_row(row)
        return writer.run(lambda unit_of_work: self._store.remove_before(unit_of_work, oldest, REMOVAL_BATCH))

    def _read_all(self) -> None:
        latest_first = self._store.load_recent(self._model, self._clock() - RECENT_TIME, self._limit)
        with self._lock:
            self._rows.clear()
            self._shared.clear()
            for shared in latest_first:
                self._put(shared)
            self._apply_missed()

    def _read_changes(self, position: int) -> bool:
        """Take over the changes after a position, or return False if there are so many that reading all is faster."""
        limit = self._limit + len(self._read)
        changes = self._store.changes_after(position, limit)
        if len(changes) == limit:
            return False
        changed = {change.intent_id for change in changes if change.number not in self._read}
        if not changed:
            return True
        found = {intent_id(shared): shared for shared in self._store.load_latest(self._model, sorted(changed))}
        oldest = self._clock() - RECENT_TIME
        with self._lock:
            for key in changed:
                shared = found.get(key)
                if shared is None:
                    self._forget(key)
                elif shared.intent.received_at >= oldest:
                    self._put(shared)
            self._apply_missed()
        self._read |= {change.number for change in changes}
        return True

    def _apply_missed(self) -> None:
        for change in self._missed or ():
            change()

    def _change(self, change: Callable[[], None]) -> None:
        with self._lock:
            change()
            if self._missed is not None:
                self._missed.append(change)

    def _put(self, shared: SharedIntent) -> None:
        intent = shared.intent
        row = self._rows.get((intent.agent, intent.correlation_id))
        if row is None:
            if len(self._shared) == self._limit:
                self._remove_row(int(np.argmin(self._times)))
            row = len(self._shared)
            self._shared.append(shared)
            self._rows[intent.agent, intent.correlation_id] = row
        elif self._shared[row].intent.revision > intent.revision:
            return
        self._shared[row] = shared
        self._times[row] = intent.received_at.timestamp()
        self._vectors[row] = shared.vector

    def _remove(self, key: IntentKey) -> None:
        row = self._rows.get((key.agent, key.correlation_id))
        if row is not None and self._shared[row].intent.revision < key.revision:
            self._remove_row(row)

    def _forget(self, key: IntentId) -> None:
        row = self._rows.get(key)
        if row is not None:
            self._remove_row(row)

    def _close(self, key: IntentKey, closing: IntentClosing) -> None:
        row = self._rows.get((key.agent, key.correlation_id))
        if row is not None and (shared := self._shared[row]).intent.key == key:
            self._shared[row] = replace(shared, intent=replace(shared.intent, closing=closing))

    def _remove_row(self, row: int) -> None:
        """Remove a row; the last one takes its place."""
        gone, last = self._shared[row].intent, self._shared.pop()
        del self._rows[gone.agent, gone.correlation_id]
        if row < len(self._shared):
            self._shared[row] = last
            self._rows[last.intent.agent, last.intent.correlation_id] = row
            self._times[row] = self._times[len(self._shared)]
            self._vectors[row] = self._vectors[len(self._shared)]


def intent_id(shared: SharedIntent) -> IntentId:
    """Return the id of a shared intent."""
    return shared.intent.agent, shared.intent.correlation_id
