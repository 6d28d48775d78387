"""What commands that work on a project's folder print with --json: the same messages that the service answers with."""

from __future__ import annotations

from collections.abc import Iterable

from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2 as pb2
from cstp_grpc.intent_layer.library import Judgement, ListedNode
from cstp_grpc.intent_layer.model import Learning, Placement, Resolution, ReviewOutcome, Skeleton, UnreadableReportFile
from cstp_grpc.services import intent_layer as service


def resolved(resolution: Resolution) -> pb2.ResolveContextResponse:
    """Return what governs a path."""
    return service.resolution_message(resolution)


def nodes(found: Iterable[ListedNode]) -> pb2.ListNodesResponse:
    """Return a listing of nodes."""
    return pb2.ListNodesResponse(nodes=[service.summary(each) for each in found])


def judged(judgement: Judgement) -> pb2.ValidateNodesResponse:
    """Return a judgement."""
    findings = [service.finding(each) for each in judgement.findings]
    return pb2.ValidateNodesResponse(valid=judgement.valid, findings=findings, nodes=judgement.nodes)


def placed(placement: Placement) -> pb2.PlaceFactResponse:
    """Return where a fact belongs."""
    return pb2.PlaceFactResponse(
        folder=placement.folder, file=placement.file, exists=placement.exists, covering=placement.covering
    )


def begun(skeleton: Skeleton) -> pb2.InitNodeResponse:
    """Return a node to begin with."""
    return pb2.InitNodeResponse(file=skeleton.file, content=skeleton.content)


def filed(learning: Learning) -> pb2.ReportLearningResponse:
    """Return what was filed."""
    return pb2.ReportLearningResponse(learning=service.learning(learning))


def learnings(found: Iterable[Learning], unreadable: Iterable[UnreadableReportFile]) -> pb2.ListLearningsResponse:
    """Return a listing of learnings."""
    return pb2.ListLearningsResponse(
        learnings=[service.learning(each) for each in found],
        unreadable=[service.unreadable_report(each) for each in unreadable],
    )


def reviewed(outcome: ReviewOutcome) -> pb2.ReviewLearningResponse:
    """Return what came of a review."""
    return pb2.ReviewLearningResponse(
        learning=service.learning(outcome.learning),
        node=outcome.node,
        diff=outcome.diff,
        duplicates=[service.duplicate(each) for each in outcome.duplicates],
    )
