"""Wiring of calibration and patterns."""

from __future__ import annotations

from cstp_grpc.calibration.analyst import ReviewAnalyst
from cstp_grpc.calibration.journal_vectors import JournalVectors
from cstp_grpc.calibration.servicer import CalibrationService
from cstp_grpc.calibration.sql_store import SqlReviewStore
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.decisions.sql_store import SqlDecisionStore
from cstp_grpc.gen.cstp.v1 import calibration_pb2_grpc
from cstp_grpc.server_module import Module, SharedParts


def build_calibration_module(shared: SharedParts, read_policy: ReadPolicy) -> Module:
    """Build the service that evaluates reviewed decisions."""
    vectors = JournalVectors(SqlDecisionStore(shared.database, read_policy), shared.embedder.model)
    analyst = ReviewAnalyst(SqlReviewStore(shared.database, read_policy), vectors)
    return Module(
        servicers=[(calibration_pb2_grpc.add_CalibrationServiceServicer_to_server, CalibrationService(analyst))]
    )
