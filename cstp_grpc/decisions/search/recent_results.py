"""The results of recent searches, which are those of the same search again as long as nothing has changed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cachetools import LRUCache

from cstp_grpc.decisions.model import DecisionFilter, Match
from cstp_grpc.decisions.search.relevance import NOTHING_FAVOURED, Favoured

CACHE_BYTES = 8 * 1024 * 1024
"""Memory for results. Chosen: some hundred searches; agents repeat what they asked minutes ago, not yesterday."""

OBJECT_BYTES = 1000
"""Estimated memory of a search, and of a match with its decision, without the long texts: the objects of Python."""


@dataclass(frozen=True, slots=True)
class SearchParameters:
    """What a search is made with; searches with equal parameters find the same until something changes."""

    text: str
    preferences: tuple[DecisionFilter, ...]
    caller: str
    limit: int
    min_score: float
    favoured: Favoured = NOTHING_FAVOURED
    of_series: int = 1
    with_exemplars: bool = False


class SearchState(NamedTuple):
    """The state of all that a search reads: how often the matrix has changed, and the state of the journal."""

    matrix: int
    journal: int


@dataclass(frozen=True, slots=True)
class ChosenMatches:
    """The matches of a search that pass its first filter, and the others, before their successors are looked up."""

    preferred: Sequence[Match]
    others: Sequence[Match]


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The result of a search, with the estimated number of bytes that it takes in memory."""

    chosen: ChosenMatches
    size: int


class RecentResults:
    """Keeps the results of the searches made last in the present state. Safe for many threads."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        # Guards both fields; held for memory only, because the event loop waits for it.
        self._lock = threading.Lock()
        self._state = SearchState(-1, -1)
        """The state in which all kept results were found."""
        self._kept: LRUCache[SearchParameters, KeptResult] = LRUCache(max_bytes, getsizeof=lambda kept: kept.size)

    def contains(self, parameters: SearchParameters) -> bool:
        """Return True if the results of a search are kept, perhaps of a state that is over."""
        # Without the lock: `in` does not reorder the cache, and an outdated answer only costs time.
        return parameters in self._kept

    def find(self, parameters: SearchParameters, state: SearchState) -> ChosenMatches | None:
        """Return the results of a search in a state; None if they are not kept."""
        with self._lock:
            kept = self._kept.get(parameters) if self._enter(state) else None
        return None if kept is None else kept.chosen

    def keep(self, parameters: SearchParameters, state: SearchState, chosen: ChosenMatches) -> None:
        """Keep the results of a search for which everything was read in a state, or later."""
        kept = KeptResult(chosen, estimate_result_bytes(parameters, chosen))
        with self._lock:
            # Assigning what is larger than the whole cache would raise.
            if self._enter(state) and kept.size <= self._kept.maxsize:
                self._kept[parameters] = kept

    def _enter(self, state: SearchState) -> bool:
        """Return True if a state is the present one; a newer one becomes it, and the results before it are dropped."""
        if state > self._state:
            self._kept.clear()
            self._state = state
        return state == self._state


def estimate_result_bytes(parameters: SearchParameters, chosen: ChosenMatches) -> int:
    """Return the estimated number of bytes that a search and its result take in memory."""
    # Roughly, since every search is estimated, and most decisions are in the cache of the store as well.
    size = OBJECT_BYTES + len(parameters.text)
    for match in (*chosen.preferred, *chosen.others):
        size += OBJECT_BYTES + len(match.decision.title) + len(match.decision.notes or "")
    return size
