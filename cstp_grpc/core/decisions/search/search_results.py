"""The results of searches: kept as long as nothing changes, and made worth reading.

One decision stands for a series, failures and lessons are among them, and successors come first.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from cachetools import LRUCache

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.enums import DecisionStatus, Outcome
from cstp_grpc.core.decisions.decision_terms import names_in_title
from cstp_grpc.core.decisions.model import SUMMARY_TAG, DecisionFilter, DecisionLink, LinkType, Match
from cstp_grpc.core.decisions.search.relevance import NOTHING_FAVOURED, Favoured
from cstp_grpc.core.decisions.search.row_vectors import dot_products
from cstp_grpc.core.decisions.store import Vectors

CACHE_BYTES = 8 * 1024 * 1024
"""Memory for results. Chosen: some hundred searches; agents repeat queries of minutes ago, not of yesterday."""

MAX_SUMMARY_LINKS = 5000
"""Links of the summaries among the results of a search. Chosen: more than 50 summaries have."""

OBJECT_BYTES = 1000
"""Estimated memory of a search, and of a match with its decision, without the long texts: the objects of Python."""


@dataclass(frozen=True, slots=True)
class SearchParameters:
    """Parameters of a search; searches with equal parameters find the same until a decision changes."""

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
        with self._lock:
            kept = self._kept.get(parameters) if self._enter(state) else None
        return None if kept is None else kept.chosen

    def keep(self, parameters: SearchParameters, state: SearchState, chosen: ChosenMatches) -> None:
        """Keep the results of a search for which everything was read in a state, or later."""
        kept = KeptResult(chosen, estimate_result_bytes(parameters, chosen))
        with self._lock:
            # Assigning a value that is larger than the whole cache would raise.
            if self._enter(state) and kept.size <= self._kept.maxsize:
                self._kept[parameters] = kept

    def _enter(self, state: SearchState) -> bool:
        """Return True if a state is the present one; a newer one becomes it, and the results before it are dropped."""
        if state > self._state:
            self._kept.clear()
            self._state = state
        return state == self._state


def estimate_result_bytes(parameters: SearchParameters, chosen: ChosenMatches) -> int:
    # Roughly, since every search is estimated, and most decisions are in the cache of the store as well.
    size = OBJECT_BYTES + len(parameters.text)
    for match in (*chosen.preferred, *chosen.others):
        size += OBJECT_BYTES + len(match.decision.title) + len(match.decision.notes or "")
    return size


DUPLICATE_SIMILARITY = 0.97
"""Similarity of two decisions from which they say the same. Chosen: reworded sentences have 0.8 to 0.95."""

SERIES_SIMILARITY = 0.8
"""The same for decisions whose titles differ in numbers alone; records of weekly meetings, say, stay apart."""

ROWS_PER_PRODUCT = 32
"""Matches that are compared with all before them at once. Chosen: most searches have fewer."""

NUMBERS = re.compile(r"\d+(?:[.\-:/]\d+)*")


@dataclass(slots=True)
class MatchGroup:
    """Matches that say almost the same, the most relevant first; `place` is that of the first in the results."""

    place: int
    matches: list[Match]

    @property
    def first(self) -> Match:
        return self.matches[0]


def group_matches(matches: Sequence[Match], vectors: Vectors) -> list[MatchGroup]:
    """Return the matches in groups that say almost the same; `vectors` are of the first passage of each match.

    A decision whose title begins with an identifier of its own, such as `PEP 373`, is in no group with others.
    """
    groups: dict[int, MatchGroup] = {}
    close = find_close_pairs(vectors)
    for place, match in enumerate(matches):
        found = (
            groups[other]
            for other, similarity in close[place]
            if other in groups and say_the_same(groups[other].first, match, similarity)
        )
        group = next(found, None)
        if group is None:
            groups[place] = MatchGroup(place, [match])
        else:
            group.matches.append(match)
    return list(groups.values())


def find_close_pairs(vectors: Vectors) -> Sequence[Sequence[tuple[int, float]]]:
    """Return for each vector the places of those before it that may be of the same series, and their similarities."""
    close: list[list[tuple[int, float]]] = [[] for _ in vectors]
    for begin in range(0, len(vectors), ROWS_PER_PRODUCT):
        block = vectors[begin : begin + ROWS_PER_PRODUCT]
        similarities = dot_products(block[:, np.newaxis], vectors[np.newaxis, : begin + len(block)])
        # Compared as float64: as a float32, the bound would be another number.
        rows, others = np.nonzero(similarities >= np.float64(SERIES_SIMILARITY))
        for row, other, similarity in zip(
            rows.tolist(), others.tolist(), similarities[rows, others].tolist(), strict=True
        ):
            if other < begin + row:
                close[begin + row].append((other, similarity))
    return close


def say_the_same(one: Match, other: Match, similarity: float) -> bool:
    """Return True if two similar decisions are duplicates or of one series."""
    first, second = series_of_title(one.decision.title), series_of_title(other.decision.title)
    if first is None or second is None:
        return False
    return similarity >= DUPLICATE_SIMILARITY or first == second


@lru_cache(maxsize=4096)
def series_of_title(title: str) -> str | None:
    """Return a title with a placeholder for each number, version and date; None if it begins with an identifier."""
    return None if any(names_in_title(title)) else NUMBERS.sub("#", title.casefold())


def list_matches(groups: Iterable[MatchGroup], of_group: int) -> list[Match]:
    """Return the first matches of each group, at most `of_group` of each, by falling score."""
    return sorted((match for group in groups for match in group.matches[:of_group]), key=lambda match: -match.score)


def choose_precedents(
    groups: Sequence[MatchGroup], limit: int, of_group: int = 1, *, with_exemplars: bool = False
) -> list[Match]:
    """Return the first matches of each group, at most `limit` and `of_group` of each, by falling score.

    With exemplars, the most relevant failure and the most relevant lesson are among them, if there are any: in the
    place of the last ones, also if another decision stands for their group. The most relevant match stays in any case.
    """
    chosen = list_matches(groups, of_group)[:limit]
    # Results that one step has added or kept, the next step does not remove.
    protected = {match.decision.id for match in chosen[:1]}
    for is_wanted in (has_failed, has_lesson) if with_exemplars else ():
        present = next(filter(is_wanted, chosen), None)
        missing = None if present else best_match(groups, is_wanted)
        if missing is not None:
            replaceable = [match for match in reversed(chosen) if match.decision.id not in protected]
            if len(chosen) >= limit and replaceable:
                chosen.remove(replaceable[0])
            if len(chosen) < limit:
                chosen.append(missing)
        if (example := present or missing) is not None:
            protected.add(example.decision.id)
    shown = {match.decision.id for match in chosen}
    summaries = {match.decision.id: summarize_group(group, match, shown) for group in groups for match in group.matches}
    return sorted((summaries[match.decision.id] for match in chosen), key=lambda match: -match.score)


def best_match(groups: Iterable[MatchGroup], is_wanted: Callable[[Match], bool]) -> Match | None:
    wanted = [match for group in groups for match in group.matches if is_wanted(match)]
    return max(wanted, key=lambda match: match.score, default=None)


def has_failed(match: Match) -> bool:
    return match.decision.outcome is Outcome.FAILURE


def has_lesson(match: Match) -> bool:
    return bool(match.decision.notes)


def summarize_group(group: MatchGroup, match: Match, shown: set[str]) -> Match:
    """Return a match with the number and outcomes of those in its group that are not shown themselves."""
    hidden = [other for other in group.matches if other.decision.id not in shown]
    if match is not group.first or not hidden:
        return match
    outcomes = dict.fromkeys(each.decision.outcome for each in (match, *hidden) if each.decision.outcome is not None)
    return replace(match, similar_count=len(hidden), similar_outcomes=tuple(outcomes))


def put_successors_first(matches: Sequence[Match], successors: Mapping[str, str]) -> list[Match]:
    """Return matches in which each superseded decision names its successor and stands below it.

    `successors` has the readable successor of each superseded decision that has one. A superseded decision is no more
    relevant than its successor.
    """
    scores = {match.decision.id: match.score for match in matches}
    named = [
        replace(match, superseded_by=successor, score=min(match.score, scores.get(successor, match.score)))
        if (successor := successors.get(match.decision.id)) is not None
        else match
        for match in matches
    ]
    return sorted(named, key=lambda match: (-match.score, match.decision.status is DecisionStatus.SUPERSEDED))


def fold_into_summaries(
    matches: Sequence[Match], find_links: Callable[[Sequence[str], int], Sequence[DecisionLink]]
) -> list[Match]:
    """Return matches without those, if they are several, that stand below a summary that cites them and counts them."""
    tagged = {match.decision.id: match.decision for match in matches if SUMMARY_TAG in match.decision.tags}
    links = find_links(list(tagged), MAX_SUMMARY_LINKS) if tagged else ()
    places = {match.decision.id: place for place, match in enumerate(matches)}
    below: defaultdict[str, list[Match]] = defaultdict(list)
    for link in links:
        summary, place = tagged.get(link.from_id), places.get(link.to_id, -1)
        if link.type is LinkType.SUMMARIZES and summary is not None and place > places[summary.id]:
            # Security: nobody hides another agent's decisions.
            below[summary.id] += [match for match in [matches[place]] if match.decision.agent == summary.agent]
    folded = {key: found for key, found in below.items() if len(found) > 1}
    hidden = {match.decision.id for found in folded.values() for match in found}
    return [
        count_folded(match, folded.get(match.decision.id, ())) for match in matches if match.decision.id not in hidden
    ]


def count_folded(summary: Match, folded: Sequence[Match]) -> Match:
    if not folded:
        return summary
    outcomes = [each for match in folded for each in (match.decision.outcome, *match.similar_outcomes) if each]
    count = summary.similar_count + sum(1 + match.similar_count for match in folded)
    distinct = tuple(dict.fromkeys([*summary.similar_outcomes, *outcomes]))
    return replace(summary, similar_count=count, similar_outcomes=distinct)


ConvertedT = TypeVar("ConvertedT")

MAX_KEPT = 1000
"""Maximum number of matches whose messages are kept. Chosen: the results of some hundred searches, about 2 MB."""


class MatchMessages(Generic[ConvertedT]):
    """Converts matches to messages, and keeps these: a search that is repeated finds the same objects again.

    A message is not to be changed. For one thread.
    """

    def __init__(self, convert: Callable[[Match], ConvertedT], max_kept: int = MAX_KEPT) -> None:
        self._convert = convert
        self._max_kept = max_kept
        # By identity, because hashing a match takes longer than converting it. The match is kept beside its message,
        # so that no other object can have its identity.
        self._kept: dict[int, tuple[Match, ConvertedT]] = {}

    def of(self, matches: Sequence[Match]) -> list[ConvertedT]:
        return [self._message(match) for match in matches]

    def _message(self, match: Match) -> ConvertedT:
        kept = self._kept.get(id(match))
        if kept is not None:
            return kept[1]
        message = self._convert(match)
        if len(self._kept) >= self._max_kept:
            self._kept.clear()
        self._kept[id(match)] = match, message
        return message
