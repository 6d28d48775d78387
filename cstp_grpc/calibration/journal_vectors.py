"""The vectors of decisions, from the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cstp_grpc.decisions.store import DecisionStore, Vector


class JournalVectors:
    """Reads the vectors of one model; fulfils `FailureVectors`."""

    def __init__(self, store: DecisionStore, model: str) -> None:
        self._store = store
        self._model = model

    def read_vectors(self, ids: Sequence[str]) -> Mapping[str, Vector]:
        """Return the unit vector of each decision that has one, by id. Raises QueryFailed."""
        return {row.decision_id: row.vector for row in self._store.index_rows_of(self._model, ids)}
