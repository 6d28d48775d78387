"""The servicer of calibration and patterns."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.contract.proto_values import EnumMapping
from cstp_grpc.core.audit.oversight import Oversight
from cstp_grpc.core.decisions.messages import FILTER
from cstp_grpc.gen.cstp.v1 import calibration_pb2, calibration_pb2_grpc
from cstp_grpc.modules.calibration import model
from cstp_grpc.modules.calibration.analyst import MIN_FAILURES, ReviewAnalyst
from cstp_grpc.modules.calibration.model import Grouping, ReviewQuery
from cstp_grpc.modules.calibration.scores import MIN_FOR_DRIFT

GROUPING = EnumMapping(calibration_pb2.CalibrationGrouping, Grouping)
ReviewRequest: TypeAlias = calibration_pb2.GetCalibrationRequest | calibration_pb2.GetPatternsRequest
MessageT = TypeVar("MessageT", bound=Message)

DEFAULT_LIMIT = 20
MAX_LIMIT = 100

SHOWN_FAILURES = 5
"""Decisions of a group of failures in an answer, the latest."""

DIGITS = 6
"""Significant digits of figures in an answer, more than some thousand decisions support."""


class CalibrationService(calibration_pb2_grpc.CalibrationServiceServicer):
    """Serves cstp.v1.CalibrationService."""

    def __init__(self, analyst: ReviewAnalyst, oversight: Oversight) -> None:
        self._analyst = analyst
        self._oversight = oversight

    def GetCalibration(
        self, request: calibration_pb2.GetCalibrationRequest, context: grpc.ServicerContext
    ) -> calibration_pb2.GetCalibrationResponse:
        report = self._analyst.report_calibration(
            self._reader(request, "cstp.getCalibration"), parse_review_query(request), GROUPING.words(request.group_by)
        )
        return round_figures(REPORT.encode(report, minimum=model.MIN_REVIEWS, minimum_for_drift=MIN_FOR_DRIFT))

    def GetPatterns(
        self, request: calibration_pb2.GetPatternsRequest, context: grpc.ServicerContext
    ) -> calibration_pb2.GetPatternsResponse:
        """Find common factors of failures."""
        limit = min(request.limit or DEFAULT_LIMIT, MAX_LIMIT)
        report = self._analyst.report_patterns(
            self._reader(request, "cstp.getPatterns"), parse_review_query(request), limit
        )
        return round_figures(PATTERNS.encode(report, minimum=model.MIN_REVIEWS, minimum_failures=MIN_FAILURES))

    def _reader(self, request: ReviewRequest, method: str) -> str:
        caller = current_caller.get()
        if not request.oversee:
            return caller.reader
        return self._oversight.choose_reader(caller, method, request.filters.agent)


def parse_review_query(request: ReviewRequest) -> ReviewQuery:
    every_agent = request.all_agents or (request.oversee and not request.filters.HasField("agent"))
    return ReviewQuery(FILTER.decode(request.filters), every_agent)


CALIBRATION = MessageMapper(
    model.Calibration,
    calibration_pb2.Calibration,
    {"brier_score": "brier.score", "expected_calibration_error": "calibration_error"},
    parts=("brier",),
)
GROUP = MessageMapper(model.CalibrationGroup, calibration_pb2.CalibrationGroup, nested=(CALIBRATION,))
DRIFT = MessageMapper(
    model.Drift,
    calibration_pb2.CalibrationDrift,
    {
        "detected": lambda item: item.change is not None,
        "changed_at": "change.at",
        "gap_before": "change.gap_before",
        "gap_after": "change.gap_after",
    },
)
REPORT = MessageMapper(
    model.CalibrationReport,
    calibration_pb2.GetCalibrationResponse,
    given=("minimum", "minimum_for_drift"),
    nested=(CALIBRATION, GROUP, DRIFT),
)
FACTOR = MessageMapper(model.FailureFactor, calibration_pb2.FailureFactor, parts=("table",))
FAILED_DECISION = MessageMapper(model.ReviewedDecision, calibration_pb2.FailedDecision)
RECURRING_FAILURE = MessageMapper(
    model.RecurringFailure,
    calibration_pb2.RecurringFailure,
    {
        "count": lambda item: len(item.decisions),
        "decisions": lambda item: map(FAILED_DECISION.encode, item.decisions[:SHOWN_FAILURES]),
        "first_at": lambda item: proto_values.timestamp_message(item.decisions[-1].date),
        "last_at": lambda item: proto_values.timestamp_message(item.decisions[0].date),
    },
)
PATTERNS = MessageMapper(
    model.PatternReport,
    calibration_pb2.GetPatternsResponse,
    given=("minimum", "minimum_failures"),
    nested=(FACTOR, RECURRING_FAILURE),
)


def round_figures(message: MessageT) -> MessageT:
    """Round all figures of a message, and return it."""
    for field, value in message.ListFields():
        if field.message_type:
            for each in value if field.is_repeated else (value,):
                round_figures(each)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
            setattr(message, field.name, float(f"{value:.{DIGITS}g}"))
    return message
