"""The outcomes of a recent time in memory, in columns, so that a question is answered in microseconds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.enums import Outcome, Visibility
from cstp_grpc.guardrails.history import HistoryMeasure, HistoryQuery, HistoryScope, fold_label
from cstp_grpc.guardrails.history_lookup import HistoryRequest
from cstp_grpc.intents.outcomes import KnownOutcome
from cstp_grpc.storage.pagination import to_microseconds
from cstp_grpc.storage.storable_text import replace_unstorable

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
"""In the place of the number of a name: there is none, or nothing has this name."""

Columns = dict[str, NDArray[Any]]


class RecentOutcomes:
    """Counts outcomes since an instant. One thread at a time may use it."""

    def __init__(self, read_policy: ReadPolicy) -> None:
        self._read_policy = read_policy
        self._names: dict[str, int] = {}
        # Ordered by `at`, so that a time is a slice.
        self._columns: Columns = {name: np.empty(0, kind) for name, kind in COLUMNS.items()}

    def __len__(self) -> int:
        return len(self._columns["at"])

    def apply(self, outcomes: Sequence[KnownOutcome], deleted: Sequence[str] = ()) -> None:
        """Put outcomes in the place of earlier ones of the same source, and remove those of `deleted`."""
        if not outcomes and not deleted:
            return
        gone = np.array([hash_source(source) for source in deleted], np.int64)
        changed = np.array([hash_source(item.source) for item in outcomes], np.int64)
        kept = self._select(~np.isin(self._columns["source"], np.concatenate([changed, gone])))
        self._set_counted(kept, gone, counts=True)
        for has_outcome in (False, True):
            known = [item for item in outcomes if (item.outcome is not None) == has_outcome]
            self._set_counted(
                kept, np.array([hash_source(item.source) for item in known], np.int64), counts=not has_outcome
            )
        added = self._make_columns([item for item in outcomes if item.outcome is not None])
        merged = {name: np.concatenate([kept[name], added[name]]) for name in COLUMNS}
        # Stable, and fast for what is nearly sorted, as changes come in the order of time.
        order = np.argsort(merged["at"], kind="stable")
        self._columns = {name: column[order] for name, column in merged.items()}

    def forget_before(self, instant: datetime) -> None:
        """Remove the outcomes that were known before an instant."""
        start = int(np.searchsorted(self._columns["at"], to_microseconds(instant)))
        # Copied, since a slice would keep the whole column in memory.
        self._columns = {name: column[start:].copy() for name, column in self._columns.items()}

    def count_outcomes(self, request: HistoryRequest, now: datetime) -> dict[HistoryQuery, int]:
        """Return the answers to the queries of a request for whose scopes its subject has a value."""
        answers: dict[HistoryQuery, int] = {}
        for scopes, queries in groupby(sorted(request.queries), attrgetter("scopes")):
            if request.subject.find_missing(scopes) is None:
                answers |= self._count_scope(request, scopes, list(queries), to_microseconds(now))
        return answers

    def _count_scope(
        self, request: HistoryRequest, scopes: Sequence[HistoryScope], queries: Sequence[HistoryQuery], now: int
    ) -> dict[HistoryQuery, int]:
        """Return the answers to queries of the same scopes."""
        longest = max(query.seconds for query in queries)
        columns = self._columns
        start = int(np.searchsorted(columns["at"], now - longest * 1_000_000))
        agent, audience = columns["agent"][start:], columns["audience"][start:]
        least = PEERS if self._read_policy.is_restricted_peer(request.reader) else AGENTS
        chosen = columns["counts"][start:] & ((audience >= least) | (agent == self._find_name(request.reader)))
        for scope in scopes:
            name = getattr(request.subject, scope)
            wanted = self._find_name(name if scope is HistoryScope.AGENT else fold_label(name))
            chosen &= columns[scope][start:] == wanted
        at, outcomes = columns["at"][start:][chosen], columns["outcome"][start:][chosen]
        return {
            query: count_measure(query.measure, at[first:], outcomes[first:])
            for query in queries
            for first in [int(np.searchsorted(at, now - query.seconds * 1_000_000))]
        }

    def _select(self, rows: NDArray[np.bool_]) -> Columns:
        return {name: column[rows] for name, column in self._columns.items()}

    def _set_counted(self, columns: Columns, decisions: NDArray[np.int64], *, counts: bool) -> None:
        """Set whether the intents of which these decisions came count themselves."""
        if len(decisions):
            columns["counts"][np.isin(columns["decision"], decisions)] = counts

    def _make_columns(self, outcomes: Sequence[KnownOutcome]) -> Columns:
        rows = [
            (
                to_microseconds(item.at),
                hash_source(item.source),
                NOTHING if item.decision_source is None else hash_source(item.decision_source),
                self._add_name(item.agent),
                ABSENT if item.category is None else self._add_name(fold_label(item.category)),
                ABSENT if item.project is None else self._add_name(fold_label(item.project)),
                OUTCOME_NUMBERS[item.outcome],
                self._audience_of(item),
                item.is_counted,
            )
            for item in outcomes
            if item.outcome is not None
        ]
        values = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
        return {name: np.array(column, kind) for (name, kind), column in zip(COLUMNS.items(), values, strict=True)}

    def _audience_of(self, item: KnownOutcome) -> int:
        if item.visibility is not Visibility.SHARED:
            return OWNER
        return PEERS if self._read_policy.shares_with_peers(item.category, item.tags) else AGENTS

    def _add_name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _find_name(self, name: str) -> int:
        # As the database has it.
        return self._names.get(replace_unstorable(name), UNKNOWN)


def count_measure(measure: HistoryMeasure, at: NDArray[np.int64], outcomes: NDArray[np.int8]) -> int:
    """Return the answer for outcomes, in the order of their instants."""
    match measure:
        case HistoryMeasure.COUNT:
            return len(outcomes)
        case HistoryMeasure.FAILURES:
            return int(np.count_nonzero(outcomes == FAILURE))
        case HistoryMeasure.SUCCESSES:
            return int(np.count_nonzero(outcomes == SUCCESS))
        case HistoryMeasure.SUCCESSES_SINCE_FAILURE:
            failures = at[outcomes == FAILURE]
            # Behind the last failure and all else of the same instant.
            first = int(np.searchsorted(at, failures[-1], side="right")) if len(failures) else 0
            return int(np.count_nonzero(outcomes[first:] == SUCCESS))


def hash_source(source: str) -> int:
    """Return a hash of a source with 64 bits; that two of a million are the same has a chance of 1 in 40 million."""
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8).digest(), signed=True)
