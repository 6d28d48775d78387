"""The servicer of calibration and patterns."""

from __future__ import annotations

import grpc

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.proto_values import EnumMapping
from cstp_grpc.core.decisions.messages import parse_decision_filter
from cstp_grpc.gen.cstp.v1 import calibration_pb2, calibration_pb2_grpc
from cstp_grpc.modules.calibration import model
from cstp_grpc.modules.calibration.analyst import MIN_FAILURES, ReviewAnalyst
from cstp_grpc.modules.calibration.model import FactorKind, Grouping, ReviewQuery
from cstp_grpc.modules.calibration.scores import MIN_FOR_DRIFT

GROUPING = EnumMapping(calibration_pb2.CalibrationGrouping, Grouping)
FACTOR_KIND = EnumMapping(calibration_pb2.FailureFactorKind, FactorKind)

DEFAULT_LIMIT = 20
MAX_LIMIT = 100

SHOWN_FAILURES = 5
"""Decisions of a group of failures in an answer, the latest."""

DIGITS = 6
"""Significant digits of figures in an answer, more than some thousand decisions tell."""


class CalibrationService(calibration_pb2_grpc.CalibrationServiceServicer):
    """Serves cstp.v1.CalibrationService."""

    def __init__(self, analyst: ReviewAnalyst) -> None:
        self._analyst = analyst

    def GetCalibration(
        self, request: calibration_pb2.GetCalibrationRequest, context: grpc.ServicerContext
    ) -> calibration_pb2.GetCalibrationResponse:
        """Compare confidences with outcomes."""
        report = self._analyst.report_calibration(
            current_caller.get().reader, parse_review_query(request), GROUPING.words(request.group_by)
        )
        return calibration_pb2.GetCalibrationResponse(
            count=report.count,
            left_out=report.left_out,
            truncated=report.truncated,
            minimum=model.MIN_REVIEWS,
            calibration=calibration_message(report.calibration),
            groups=[group_message(group) for group in report.groups],
            minimum_for_drift=MIN_FOR_DRIFT,
            drift=None if report.drift is None else drift_message(report.drift),
        )

    def GetPatterns(
        self, request: calibration_pb2.GetPatternsRequest, context: grpc.ServicerContext
    ) -> calibration_pb2.GetPatternsResponse:
        """Find what failures have in common."""
        limit = min(request.limit or DEFAULT_LIMIT, MAX_LIMIT)
        report = self._analyst.report_patterns(current_caller.get().reader, parse_review_query(request), limit)
        return calibration_pb2.GetPatternsResponse(
            count=report.count,
            failures=report.failures,
            truncated=report.truncated,
            minimum=model.MIN_REVIEWS,
            minimum_failures=MIN_FAILURES,
            too_few=report.too_few,
            factors=[factor_message(factor) for factor in report.factors],
            tested=report.tested,
            recurring=[recurring_failure_message(group) for group in report.recurring],
        )


def parse_review_query(
    request: calibration_pb2.GetCalibrationRequest | calibration_pb2.GetPatternsRequest,
) -> ReviewQuery:
    return ReviewQuery(parse_decision_filter(request.filters), request.all_agents)


def calibration_message(item: model.Calibration | None) -> calibration_pb2.Calibration | None:
    """Convert a calibration to a message, None to None."""
    if item is None:
        return None
    return calibration_pb2.Calibration(
        mean_confidence=round_figure(item.mean_confidence),
        success_rate=round_figure(item.success_rate),
        success_interval=interval_message(item.success_interval),
        brier_score=round_figure(item.brier.score),
        reliability=round_figure(item.brier.reliability),
        resolution=round_figure(item.brier.resolution),
        uncertainty=round_figure(item.brier.uncertainty),
        spread=round_figure(item.brier.spread),
        expected_calibration_error=round_figure(item.calibration_error),
        p_value=None if item.p_value is None else round_figure(item.p_value),
        buckets=[bucket_message(bucket) for bucket in item.buckets],
    )


def bucket_message(item: model.ReliabilityBucket) -> calibration_pb2.ReliabilityBucket:
    """Convert a bucket to a message."""
    return calibration_pb2.ReliabilityBucket(
        lower=item.lower,
        upper=item.upper,
        count=item.count,
        successes=item.successes,
        partials=item.partials,
        failures=item.failures,
        mean_confidence=round_figure(item.mean_confidence),
        success_rate=round_figure(item.success_rate),
        success_interval=interval_message(item.success_interval),
    )


def interval_message(item: model.Interval) -> calibration_pb2.EstimateInterval:
    return calibration_pb2.EstimateInterval(low=round_figure(item.low), high=round_figure(item.high))


def group_message(item: model.CalibrationGroup) -> calibration_pb2.CalibrationGroup:
    return calibration_pb2.CalibrationGroup(
        grouping=GROUPING.number(item.grouping),
        value=item.value,
        count=item.count,
        calibration=calibration_message(item.calibration),
    )


def drift_message(item: model.Drift) -> calibration_pb2.CalibrationDrift:
    """Convert the result of the test for drift to a message."""
    message = calibration_pb2.CalibrationDrift(
        count=item.count, p_value=round_figure(item.p_value), detected=item.change is not None
    )
    if (change := item.change) is not None:
        message.changed_at.CopyFrom(proto_values.timestamp_message(change.at))
        message.gap_before = round_figure(change.gap_before)
        message.gap_after = round_figure(change.gap_after)
    return message


def factor_message(item: model.FailureFactor) -> calibration_pb2.FailureFactor:
    """Convert a factor to a message."""
    return calibration_pb2.FailureFactor(
        kind=FACTOR_KIND.number(item.kind),
        value=item.value,
        failures_with=item.table.failures_with,
        others_with=item.table.others_with,
        failures_without=item.table.failures_without,
        others_without=item.table.others_without,
        odds_ratio=round_figure(item.odds_ratio),
        odds_interval=interval_message(item.odds_interval),
        p_value=round_figure(item.p_value),
        adjusted_p_value=round_figure(item.adjusted_p_value),
        significant=item.is_significant,
    )


def recurring_failure_message(item: model.RecurringFailure) -> calibration_pb2.RecurringFailure:
    """Convert a group of failures to a message."""
    return calibration_pb2.RecurringFailure(
        count=len(item.decisions),
        terms=item.terms,
        similarity=round_figure(item.similarity),
        decisions=[
            calibration_pb2.FailedDecision(
                id=decision.id,
                title=decision.title,
                agent=decision.agent,
                date=proto_values.timestamp_message(decision.date),
                notes=decision.notes,
            )
            for decision in item.decisions[:SHOWN_FAILURES]
        ],
        first_at=proto_values.timestamp_message(item.decisions[-1].date),
        last_at=proto_values.timestamp_message(item.decisions[0].date),
    )


def round_figure(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
