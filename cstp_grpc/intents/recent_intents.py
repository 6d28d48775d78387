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
    IntentKey,
    IntentVector,
    SharedIntent,
    SharedIntentState,
    SharedIntentStore,
)
from cstp_grpc.storage.unit_of_work import UnitOfWork

RECENT_TIME = timedelta(seconds=MAX_WINDOW_SECONDS)
"""How long an intent is told to others."""
MAX_RECENT = 1000
"""Maximum number of intents that are told, the latest ones. Chosen: an announcement is compared with them in 0.1 ms."""

IntentId = tuple[str, str]
"""Agent and correlation id; the latest revision stands for the intent."""


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
        self._missed: list[Callable[[], None]] | None = None
        """Changes since a refresh began, whose snapshot may lack them; None if there is no refresh."""

    def __len__(self) -> int:
        """Return how many intents are held; some may have become too old to be told."""
        return len(self._rows)

    def store(self, unit_of_work: UnitOfWork, shared: SharedIntent) -> None:
        """Store a shared revision within the transaction that stores the intent; `add` it after the commit."""
        self._store.put(unit_of_work, self._model, shared)

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
        """Take over what the database holds. Raises QueryFailed."""
        with self._refreshing:
            try:
                with self._lock:
                    self._missed = []
                states = self._store.states(self._model, self._clock() - RECENT_TIME, self._limit)
                with self._lock:
                    held = {shared.intent.key: shared for shared in self._shared}
                if len(held) == len(states) and all(is_current(held.get(state.key), state) for state in states):
                    return
                unknown = [state.key for state in states if state.key not in held]
                loaded = self._store.load(self._model, unknown) if unknown else ()
                known = held | {shared.intent.key: shared for shared in loaded}
                with self._lock:
                    self._replace_all([with_state(known[state.key], state) for state in states if state.key in known])
                    for change in self._missed:
                        change()
            finally:
                with self._lock:
                    self._missed = None

    def _change(self, change: Callable[[], None]) -> None:
        with self._lock:
            change()
            if self._missed is not None:
                self._missed.append(change)

    def _replace_all(self, latest_first: list[SharedIntent]) -> None:
        self._rows.clear()
        self._shared.clear()
        for shared in latest_first:
            self._put(shared)

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


def is_current(shared: SharedIntent | None, state: SharedIntentState) -> bool:
    """Return True if a shared intent is held with the present verdict and closing."""
    return shared is not None and (shared.allowed, shared.intent.closing) == (state.allowed, state.closing)


def with_state(shared: SharedIntent, state: SharedIntentState) -> SharedIntent:
    """Return a shared intent with the present verdict and closing."""
    if is_current(shared, state):
        return shared
    return replace(shared, allowed=state.allowed, intent=replace(shared.intent, closing=state.closing))
