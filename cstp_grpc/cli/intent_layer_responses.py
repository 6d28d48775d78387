"""The responses that commands on a project folder print with --json: the same messages that the service returns."""

from __future__ import annotations

from collections.abc import Iterable

from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2 as pb2
from cstp_grpc.intent_layer import servicer as service
from cstp_grpc.intent_layer.model import (
    FactPlacement,
    Learning,
    NodeSkeleton,
    ResolvedContext,
    ReviewOutcome,
    UnreadableReportFile,
)
from cstp_grpc.intent_layer.project_service import ListedNode, ValidationReport


def resolve_response(resolution: ResolvedContext) -> pb2.ResolveContextResponse:
    """Return the response for a resolved context."""
    return service.resolution_message(resolution)


def list_nodes_response(found: Iterable[ListedNode]) -> pb2.ListNodesResponse:
    """Return the response for a listing of nodes."""
    return pb2.ListNodesResponse(nodes=[service.node_summary(each) for each in found])


def validate_response(judgement: ValidationReport) -> pb2.ValidateNodesResponse:
    """Return the response for a validation."""
    findings = [service.finding_message(each) for each in judgement.findings]
    return pb2.ValidateNodesResponse(valid=judgement.valid, findings=findings, nodes=judgement.nodes)


def place_response(placement: FactPlacement) -> pb2.PlaceFactResponse:
    """Return the response for a placement."""
    return pb2.PlaceFactResponse(
        folder=placement.folder, file=placement.file, exists=placement.exists, covering=placement.covering
    )


def init_response(skeleton: NodeSkeleton) -> pb2.InitNodeResponse:
    """Return the response for a new node."""
    return pb2.InitNodeResponse(file=skeleton.file, content=skeleton.content)


def report_response(learning: Learning) -> pb2.ReportLearningResponse:
    """Return the response for a filed learning."""
    return pb2.ReportLearningResponse(learning=service.learning_message(learning))


def list_learnings_response(
    found: Iterable[Learning], unreadable: Iterable[UnreadableReportFile]
) -> pb2.ListLearningsResponse:
    """Return the response for a listing of learnings."""
    return pb2.ListLearningsResponse(
        learnings=[service.learning_message(each) for each in found],
        unreadable=[service.unreadable_report_message(each) for each in unreadable],
    )


def review_response(outcome: ReviewOutcome) -> pb2.ReviewLearningResponse:
    """Return the response for a review."""
    return pb2.ReviewLearningResponse(
        learning=service.learning_message(outcome.learning),
        node=outcome.node,
        diff=outcome.diff,
        duplicates=[service.duplicate_message(each) for each in outcome.duplicates],
    )
