"""Wiring of calibration and patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import Vector
from cstp_grpc.gen.cstp.v1 import calibration_pb2_grpc
from cstp_grpc.modules.calibration.analyst import ReviewAnalyst
from cstp_grpc.modules.calibration.confidence_records import ConfidenceRecords
from cstp_grpc.modules.calibration.servicer import CalibrationService
from cstp_grpc.modules.calibration.sql_store import SqlReviewStore
from cstp_grpc.server.server_module import Module, SharedParts
from cstp_grpc.server.wiring.decisions import build_oversight


class JournalVectors:
    """Reads the vectors of one model; fulfils `FailureVectors`."""

    def __init__(self, store: SqlDecisionStore, model: str) -> None:
        self._store = store
        self._model = model

    def read_vectors(self, ids: Sequence[str]) -> Mapping[str, Vector]:
        return {row.decision_id: row.vector for row in self._store.index_rows_of(self._model, ids)}


def build_calibration_module(shared: SharedParts) -> tuple[Module, ConfidenceRecords, ReviewAnalyst]:
    """Build the service that evaluates reviewed decisions, the records that warn agents, and the analyst of both."""
    store = SqlReviewStore(shared.database, shared.read_policy)
    vectors = JournalVectors(SqlDecisionStore(shared.database, shared.read_policy), shared.embedder.model)
    analyst = ReviewAnalyst(store, vectors)
    servicer = CalibrationService(analyst, build_oversight(shared))
    records = ConfidenceRecords(store)
    module = Module(
        servicers=[(calibration_pb2_grpc.add_CalibrationServiceServicer_to_server, servicer)],
        on_foreign_commit=[records.read_foreign_changes],
    )
    return module, records, analyst
