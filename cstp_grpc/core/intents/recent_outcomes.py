"""Outcomes that count for rules over the past: the port that reads them, and those of a recent time in memory.

The latter are in columns, so that a question is answered in microseconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter, eq
from typing import Any, Final, NamedTuple

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import fold_name, replace_unstorable
from cstp_grpc.contract.enums import Outcome, Visibility
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.guardrails.history import HistoryMeasure, HistoryRequest, HistoryScope
from cstp_grpc.platform.storage.pagination import to_microseconds


@dataclass(frozen=True, slots=True)
class KnownOutcome:
    """How a decision or a closed intent turned out, as it stands now.

    `source` identifies it. `at` has an offset: when the outcome became known. `outcome` is None for a decision that
    does not have one (any more). `decision_source` is the source of the decision that resulted from an intent, and
    `is_counted` is False if that decision has an outcome of its own, which then counts instead.
    """

    source: str
    agent: str
    category: str | None
    project: str | None
    visibility: Visibility
    outcome: Outcome | None
    at: datetime
    tags: tuple[str, ...] = ()
    decision_source: str | None = None
    is_counted: bool = True


def decision_source(decision_id: str) -> str:
    return f"decision {decision_id}"


def intent_source(number: int) -> str:
    """Return the source of the outcome of an intent, whose number the store gave to it."""
    return f"intent {number}"


class OutcomeState(NamedTuple):
    """How far changes are known: the revision of the journal, and the number of the last closing of an intent."""

    revision: int
    closing_number: int

    def is_beyond(self, other: OutcomeState) -> bool:
        """Return whether this state has any change that another one has not."""
        return any(own > its for own, its in zip(self, other, strict=True))

    def count_from(self, earlier: OutcomeState) -> int:
        """Return about how many changes there were since an earlier state."""
        return sum(new - old for new, old in zip(self, earlier, strict=True))


@dataclass(frozen=True, slots=True)
class OutcomeChanges:
    """Changes up to a state: outcomes as they are now, and the sources of those that are gone."""

    state: OutcomeState
    outcomes: Sequence[KnownOutcome]
    deleted: Sequence[str] = ()


COLUMNS: Final[Mapping[str, type[Any]]] = {
    "at": np.int64,
    "source": np.int64,
    "decision": np.int64,
    "agent": np.int32,
    "category": np.int32,
    "project": np.int32,
    "outcome": np.int8,
    "audience": np.int8,
    "counts": np.bool_,
}
"""The columns: microseconds since 1970, hashes of sources, numbers of names, and the constants below."""

OUTCOME_NUMBERS: Final[Mapping[Outcome, int]] = {outcome: number for number, outcome in enumerate(Outcome)}
SUCCESS: Final = OUTCOME_NUMBERS[Outcome.SUCCESS]
FAILURE: Final = OUTCOME_NUMBERS[Outcome.FAILURE]

OWNER, AGENTS, PEERS = range(3)
"""Who may read an outcome: its agent alone, other agents too, or also peers."""

NOTHING: Final = 0
"""In the place of the hash of a source that is not there."""
ABSENT, UNKNOWN = -1, -2
"""In the place of the number of a name: the name is missing, or nothing has this name."""

MAX_KEPT_MOMENTS: Final = 1_000_000
"""How many instants the timelines that are kept hold together, at 16 bytes each."""
MOST_APPENDED: Final = 20
"""How many outcomes at once are added to timelines; for more it is cheaper to make them again."""
LEAST_WEIGHT: Final = 4_000
"""As how many instants a short timeline counts: no more than 250 are kept, each of which new outcomes are added to."""

Columns = dict[str, NDArray[Any]]
TimelineKey = tuple[int, bool, tuple[HistoryScope, ...], tuple[int, ...]]
"""The reader, whether it is a restricted peer, and the scopes with their values."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The instants of outcomes in their order; before each and at the end, how many failed and succeeded until then."""

    at: array[int]
    failures: array[int]
    successes: array[int]

    def __len__(self) -> int:
        return len(self.at)

    def append(self, at: int, outcome: int) -> None:
        """Add an outcome that is not earlier than the others."""
        self.at.append(at)
        self.failures.append(self.failures[-1] + (outcome == FAILURE))
        self.successes.append(self.successes[-1] + (outcome == SUCCESS))

    def count_measure(self, measure: HistoryMeasure, since: int) -> int:
        """Return the answer for the outcomes from an instant on."""
        first = bisect_left(self.at, since)
        match measure:
            case HistoryMeasure.COUNT:
                return len(self.at) - first
            case HistoryMeasure.FAILURES:
                return self.failures[-1] - self.failures[first]
            case HistoryMeasure.SUCCESSES:
                return self.successes[-1] - self.successes[first]
            case HistoryMeasure.SUCCESSES_SINCE_FAILURE:
                return self.successes[-1] - self.successes[max(first, self._end_of_failures())]

    def _end_of_failures(self) -> int:
        """Return the position behind the last failure and all else of the same instant."""
        if not self.failures[-1]:
            return 0
        # The last position before which not all failures have been.
        last = bisect_left(self.failures, self.failures[-1]) - 1
        return bisect_right(self.at, self.at[last])


class RecentOutcomes:
    """Counts outcomes since an instant. One thread at a time may use it."""

    def __init__(self, read_policy: ReadPolicy) -> None:
        self._read_policy = read_policy
        self._names: dict[str, int] = {}
        # Ordered by `at`. Longer than the outcomes that there are, so that those that come last take no copy.
        self._columns: Columns = {name: np.empty(0, kind) for name, kind in COLUMNS.items()}
        self._size = 0
        self._names_decisions = False
        """Whether any closing names a decision."""
        # Made from the columns for a query. Outcomes that come last are added; any other change drops all.
        self._timelines: LRUCache[TimelineKey, Timeline] = LRUCache(MAX_KEPT_MOMENTS, getsizeof=weigh_timeline)

    def __len__(self) -> int:
        return self._size

    def apply(self, outcomes: Sequence[KnownOutcome], deleted: Sequence[str] = ()) -> None:
        """Replace earlier outcomes of the same sources, and remove those of `deleted`."""
        with_outcome = [item for item in outcomes if item.outcome is not None]
        without = [hash(source) for source in deleted] + [
            hash(item.source) for item in outcomes if item.outcome is None
        ]
        decided = [hash(item.source) for item in with_outcome]
        self._remove([*without, *decided])
        self._set_counted(without, counts=True)
        self._set_counted(decided, counts=False)
        if with_outcome:
            self._add(self._make_columns(with_outcome))

    def forget_before(self, instant: datetime) -> None:
        """Remove the outcomes that were known before an instant."""
        self._keep(self._used("at") >= to_microseconds(instant))

    def count_outcomes(self, request: HistoryRequest, now: datetime) -> dict[str, int]:
        answers: dict[str, int] = {}
        instant = to_microseconds(now)
        for scopes, queries in groupby(request.queries, SCOPES):
            if request.subject.find_missing(scopes) is None:
                timeline = self._find_timeline(request, scopes)
                for query in queries:
                    answers[query.name] = timeline.count_measure(query.measure, instant - query.seconds * 1_000_000)
        return answers

    def _find_timeline(self, request: HistoryRequest, scopes: tuple[HistoryScope, ...]) -> Timeline:
        """Return the timeline of the outcomes that a request counts."""
        values = []
        for scope in scopes:
            value = getattr(request.subject, scope)
            values.append(self._find_name(value if scope is HistoryScope.AGENT else fold_name(value)))
        is_peer = self._read_policy.is_restricted_peer(request.reader)
        key = (self._find_name(request.reader), is_peer, scopes, tuple(values))
        found = self._timelines.get(key)
        if found is None:
            found = self._make_timeline(key)
            # One that is larger than all that may be kept is made again each time.
            if weigh_timeline(found) <= MAX_KEPT_MOMENTS:
                self._timelines[key] = found
        return found

    def _make_timeline(self, key: TimelineKey) -> Timeline:
        reader, is_peer, scopes, values = key
        chosen = (self._used("audience") >= (PEERS if is_peer else AGENTS)) | (self._used("agent") == reader)
        chosen &= self._used("counts")
        for scope, value in zip(scopes, values, strict=True):
            chosen &= self._used(scope) == value
        outcomes = self._used("outcome")[chosen]
        return Timeline(
            array("q", self._used("at")[chosen].tobytes()),
            *(array("i", running_count(outcomes == kind).tobytes()) for kind in (FAILURE, SUCCESS)),
        )

    def _used(self, name: str) -> NDArray[Any]:
        return self._columns[name][: self._size]

    def _remove(self, sources: Sequence[int]) -> None:
        if not sources:
            return
        gone = find_rows(self._used("source"), sources)
        if gone.any():
            self._keep(~gone)

    def _keep(self, rows: NDArray[np.bool_]) -> None:
        self._columns = {name: self._used(name)[rows] for name in COLUMNS}
        self._size = len(self._columns["at"])
        self._timelines.clear()

    def _set_counted(self, decisions: Sequence[int], *, counts: bool) -> None:
        """Set whether the intents that led to these decisions count themselves."""
        if not decisions or not self._names_decisions:
            return
        rows = find_rows(self._used("decision"), decisions)
        if rows.any():
            self._used("counts")[rows] = counts
            self._timelines.clear()

    def _add(self, added: Columns) -> None:
        start, end = self._size, self._size + len(added["at"])
        if end > len(self._columns["at"]):
            # Half as much again: outcomes come one by one, and each would copy all columns.
            grown = {name: np.empty(end + end // 2, kind) for name, kind in COLUMNS.items()}
            for name, column in grown.items():
                column[:start] = self._used(name)
            self._columns = grown
        for name, column in self._columns.items():
            column[start:end] = added[name]
        self._size = end
        self._names_decisions |= bool(np.any(added["decision"] != NOTHING))
        at = self._used("at")
        if np.any(at[max(start, 1) :] < at[max(start, 1) - 1 : -1]):
            # An import may add older outcomes. Timelines contain positions, which change then.
            order = np.argsort(at, kind="stable")
            self._columns = {name: self._used(name)[order] for name in COLUMNS}
            self._timelines.clear()
        elif end - start > MOST_APPENDED:
            self._timelines.clear()
        else:
            for row in range(start, end):
                self._append_to_timelines({name: column[row].item() for name, column in self._columns.items()})

    def _append_to_timelines(self, outcome: Mapping[str, Any]) -> None:
        """Add an outcome, which comes last, to the timelines that it belongs to."""
        for (reader, is_peer, scopes, values), timeline in self._timelines.items():
            is_readable = outcome["audience"] >= (PEERS if is_peer else AGENTS) or outcome["agent"] == reader
            if is_readable and outcome["counts"] and all(map(eq, map(outcome.__getitem__, scopes), values)):
                timeline.append(outcome["at"], outcome["outcome"])

    def _make_columns(self, outcomes: Sequence[KnownOutcome]) -> Columns:
        rows = [
            (
                to_microseconds(item.at),
                hash(item.source),
                NOTHING if item.decision_source is None else hash(item.decision_source),
                self._add_name(item.agent),
                ABSENT if item.category is None else self._add_name(fold_name(item.category)),
                ABSENT if item.project is None else self._add_name(fold_name(item.project)),
                OUTCOME_NUMBERS[item.outcome],
                self._audience_of(item),
                item.is_counted,
            )
            for item in outcomes
            if item.outcome is not None
        ]
        return {
            name: np.array(column, kind)
            for (name, kind), column in zip(COLUMNS.items(), zip(*rows, strict=True), strict=True)
        }

    def _audience_of(self, item: KnownOutcome) -> int:
        if item.visibility is not Visibility.SHARED:
            return OWNER
        return PEERS if self._read_policy.shares_with_peers(item.category, item.tags) else AGENTS

    def _add_name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _find_name(self, name: str) -> int:
        # As the database has it.
        return self._names.get(replace_unstorable(name), UNKNOWN)


SCOPES = attrgetter("scopes")


def find_rows(column: NDArray[np.int64], values: Sequence[int]) -> NDArray[np.bool_]:
    # The usual case, in half of the time.
    return column == values[0] if len(values) == 1 else np.isin(column, np.array(values, np.int64))


def weigh_timeline(timeline: Timeline) -> int:
    """Return as how many instants a timeline counts."""
    return max(len(timeline), LEAST_WEIGHT)


def running_count(flags: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return how many flags are set before each position, and at last how many in all."""
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(flags, dtype=np.int32)])
