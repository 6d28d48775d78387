"""The servicer of the Intent Layer: nodes, learnings and reviews."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2 as pb2
from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2_grpc as pb2_grpc
from cstp_grpc.modules.intent_layer.context_resolution import iter_delivered_files
from cstp_grpc.modules.intent_layer.learning_store import LearningQuery
from cstp_grpc.modules.intent_layer.model import (
    ContextRequest,
    DuplicateMatch,
    FactPlacement,
    FindingSeverity,
    Learning,
    LearningEdits,
    LearningReview,
    LearningState,
    LearningType,
    MergedSection,
    NewLearning,
    NodeSection,
    NodeSkeleton,
    ResolvedContext,
    ReviewOutcome,
    ReviewRequest,
    ReviewVerdict,
    UnreadableReportFile,
    ValidationFinding,
)
from cstp_grpc.modules.intent_layer.project_service import ListedNode, ProjectCall, ProjectRegistry, ValidationReport
from cstp_grpc.platform.storage.pagination import PageRequest

MessageT = TypeVar("MessageT", bound=Message)

MAX_ANSWER_BYTES = 3 * 1024 * 1024
"""Maximum size of a response; gRPC clients accept messages of 4 MiB by default."""

LEARNING_TYPE = proto_values.EnumMapping(pb2.LearningType, LearningType)
LEARNING_STATE = proto_values.EnumMapping(pb2.LearningState, LearningState)
REVIEW_VERDICT = proto_values.EnumMapping(pb2.ReviewVerdict, ReviewVerdict)
FINDING_SEVERITY = proto_values.EnumMapping(pb2.FindingSeverity, FindingSeverity)


class IntentLayerService(pb2_grpc.IntentLayerServiceServicer):
    """Serves intent_layer.v1.IntentLayerService."""

    def __init__(self, projects: ProjectRegistry) -> None:
        self._projects = projects

    def ResolveContext(
        self, request: pb2.ResolveContextRequest, context: grpc.ServicerContext
    ) -> pb2.ResolveContextResponse:
        """Return the sections that apply to a path."""
        resolution = self._projects[request.project].resolve(parse_context_request(request), current_call())
        return require_size_limit(resolution_message(resolution), "max_tokens", "is too high or missing")

    def ListNodes(self, request: pb2.ListNodesRequest, context: grpc.ServicerContext) -> pb2.ListNodesResponse:
        page = self._projects[request.project].nodes(PageRequest(request.page_size, request.page_token), current_call())
        return nodes_message(page.items, page.next_token)

    def GetNode(self, request: pb2.GetNodeRequest, context: grpc.ServicerContext) -> pb2.GetNodeResponse:
        listed = self._projects[request.project].node(request.path, current_call())
        return node_message(listed)

    def ValidateNodes(
        self, request: pb2.ValidateNodesRequest, context: grpc.ServicerContext
    ) -> pb2.ValidateNodesResponse:
        judged = self._projects[request.project].validate(request.paths, current_call())
        return require_size_limit(validation_message(judged), "paths", "has too many findings; name fewer")

    def PlaceFact(self, request: pb2.PlaceFactRequest, context: grpc.ServicerContext) -> pb2.PlaceFactResponse:
        """Return the node that a fact belongs to."""
        placed = self._projects[request.project].place(request.paths, current_call())
        return placement_message(placed)

    def InitNode(self, request: pb2.InitNodeRequest, context: grpc.ServicerContext) -> pb2.InitNodeResponse:
        written = self._projects[request.project].init(request.path, current_call(), dry_run=request.dry_run)
        return skeleton_message(written)

    def ReportLearning(
        self, request: pb2.ReportLearningRequest, context: grpc.ServicerContext
    ) -> pb2.ReportLearningResponse:
        by = current_call(proto_values.optional_field(request, "agent_id"))
        filed = self._projects[request.project].report(parse_new_learning(request, by), by)
        return report_message(filed)

    def ListLearnings(
        self, request: pb2.ListLearningsRequest, context: grpc.ServicerContext
    ) -> pb2.ListLearningsResponse:
        page = self._projects[request.project].learnings(
            parse_learning_query(request), PageRequest(request.page_size, request.page_token), current_call()
        )
        return learnings_message(page.items, page.unreadable, page.next_token)

    def ReviewLearning(
        self, request: pb2.ReviewLearningRequest, context: grpc.ServicerContext
    ) -> pb2.ReviewLearningResponse:
        by = current_call(proto_values.optional_field(request, "reviewer"))
        outcome = self._projects[request.project].review(parse_review_request(request, by), by)
        return outcome_message(outcome)


def current_call(claimed_agent: str | None = None) -> ProjectCall:
    caller = current_caller.get()
    return ProjectCall(caller.agent, caller.request_id, claimed_agent)


def require_size_limit(message: MessageT, field: str, problem: str) -> MessageT:
    """Return a response within the size limit. Raises InvalidArgument for a larger one."""
    if message.ByteSize() > MAX_ANSWER_BYTES:
        raise InvalidArgument.field(field, f"{problem}: the answer would have more than {MAX_ANSWER_BYTES} bytes")
    return message


def parse_context_request(message: pb2.ResolveContextRequest) -> ContextRequest:
    return ContextRequest(
        path=message.path,
        sections=tuple(message.sections),
        compact=message.compact,
        with_pending=message.with_pending,
        max_tokens=proto_values.optional_field(message, "max_tokens"),
    )


def resolution_message(resolution: ResolvedContext) -> pb2.ResolveContextResponse:
    """Convert a resolution to a message."""
    files = [(node.folder, file) for node, file in iter_delivered_files(resolution.nodes)]
    return pb2.ResolveContextResponse(
        covered=bool(resolution.nodes),
        nodes=[pb2.NodeReference(file=file.path, folder=folder, tokens=file.tokens) for folder, file in files],
        sections=[merged_section_message(item) for item in resolution.sections],
        markdown=resolution.markdown,
        tokens=resolution.tokens,
        left_out=[pb2.LeftOut(file=at.file, section=at.section, tokens=at.tokens) for at in resolution.left_out],
        pending=[learning_message(item) for item in resolution.pending],
        unreadable=[unreadable_report_message(item) for item in resolution.unreadable],
    )


def merged_section_message(item: MergedSection) -> pb2.MergedSection:
    parts = [pb2.SectionPart(file=part.file, text=part.text, line=part.line) for part in item.parts]
    return pb2.MergedSection(name=item.name, parts=parts)


def node_summary(listed: ListedNode) -> pb2.NodeSummary:
    return pb2.NodeSummary(
        file=listed.node.path,
        folder=listed.node.folder,
        tokens=listed.node.tokens,
        sections=[section.name for section in listed.node.sections],
        parent=listed.parent,
    )


def nodes_message(nodes: Iterable[ListedNode], next_token: str = "") -> pb2.ListNodesResponse:
    """Convert a page of nodes to a message; without a token it is the only one."""
    return pb2.ListNodesResponse(nodes=[node_summary(item) for item in nodes], next_page_token=next_token)


def node_message(listed: ListedNode) -> pb2.GetNodeResponse:
    also: Sequence[str] = [file.path for file in listed.node.files[1:]]
    return pb2.GetNodeResponse(
        node=node_summary(listed),
        sections=[section_message(section) for section in listed.node.sections],
        also=also[0] if also else None,
    )


def section_message(section: NodeSection) -> pb2.Section:
    return pb2.Section(name=section.name, text=section.text, file=section.file, line=section.line)


def finding_message(item: ValidationFinding) -> pb2.Finding:
    return pb2.Finding(
        severity=FINDING_SEVERITY.number(item.severity),
        rule=item.rule,
        file=item.file,
        line=item.line,
        message=item.message,
    )


def validation_message(report: ValidationReport) -> pb2.ValidateNodesResponse:
    findings = [finding_message(item) for item in report.findings]
    return pb2.ValidateNodesResponse(valid=report.valid, findings=findings, nodes=report.nodes)


def placement_message(placed: FactPlacement) -> pb2.PlaceFactResponse:
    return pb2.PlaceFactResponse(folder=placed.folder, file=placed.file, exists=placed.exists, covering=placed.covering)


def skeleton_message(skeleton: NodeSkeleton) -> pb2.InitNodeResponse:
    return pb2.InitNodeResponse(file=skeleton.file, content=skeleton.content)


def parse_new_learning(message: pb2.ReportLearningRequest, by: ProjectCall) -> NewLearning:
    """Parse a learning to report."""
    return NewLearning(
        type=LEARNING_TYPE.required_word(message.type),
        paths=(message.path, *message.also_paths),
        title=message.title,
        detail=message.detail,
        # What a report names as its author; the audit record has the authenticated caller beside it.
        agent_id=by.claimed_agent or by.caller,
        evidence=proto_values.optional_field(message, "evidence"),
        operation=proto_values.optional_field(message, "operation"),
    )


def parse_learning_query(message: pb2.ListLearningsRequest) -> LearningQuery:
    return LearningQuery(
        states=frozenset(LEARNING_STATE.words(message.states)),
        types=frozenset(LEARNING_TYPE.words(message.types)),
        path=proto_values.optional_field(message, "path"),
    )


def learning_message(item: Learning) -> pb2.Learning:
    """Convert a learning to a message."""
    return pb2.Learning(
        id=item.id,
        type=LEARNING_TYPE.number(item.type),
        state=LEARNING_STATE.number(item.state),
        timestamp=proto_values.timestamp_message(item.at),
        paths=item.paths,
        title=item.title,
        detail=item.detail,
        evidence=item.evidence,
        agent_id=item.agent_id,
        operation=item.operation,
        file=item.file,
        reviews=[review_message(each) for each in item.reviews],
        unplaced_paths=item.unplaced_paths,
    )


def report_message(filed: Learning) -> pb2.ReportLearningResponse:
    return pb2.ReportLearningResponse(learning=learning_message(filed))


def learnings_message(
    items: Iterable[Learning], unreadable: Iterable[UnreadableReportFile], next_token: str = ""
) -> pb2.ListLearningsResponse:
    """Convert a page of learnings to a message; without a token it is the only one."""
    return pb2.ListLearningsResponse(
        learnings=[learning_message(item) for item in items],
        next_page_token=next_token,
        unreadable=[unreadable_report_message(item) for item in unreadable],
    )


def unreadable_report_message(item: UnreadableReportFile) -> pb2.UnreadableReport:
    return pb2.UnreadableReport(file=item.file, reason=item.reason)


def review_message(item: LearningReview) -> pb2.Review:
    return pb2.Review(
        verdict=REVIEW_VERDICT.number(item.verdict),
        reviewer=item.reviewer,
        reason=item.reason,
        timestamp=proto_values.timestamp_message(item.at),
    )


def parse_review_request(message: pb2.ReviewLearningRequest, by: ProjectCall) -> ReviewRequest:
    """Parse a review."""
    edits = message.edits
    return ReviewRequest(
        id=message.id,
        verdict=REVIEW_VERDICT.required_word(message.verdict),
        reviewer=by.caller,
        claimed_reviewer=by.claimed_agent,
        reason=message.reason,
        edits=LearningEdits(
            title=proto_values.optional_field(edits, "title"),
            detail=proto_values.optional_field(edits, "detail"),
            section=proto_values.optional_field(edits, "section"),
        ),
        force=message.force,
        dry_run=message.dry_run,
    )


def duplicate_message(item: DuplicateMatch) -> pb2.Duplicate:
    """Convert a likely duplicate in a node to a message."""
    return pb2.Duplicate(file=item.file, line=item.line, text=item.text, score=item.score)


def outcome_message(outcome: ReviewOutcome) -> pb2.ReviewLearningResponse:
    return pb2.ReviewLearningResponse(
        learning=learning_message(outcome.learning),
        node=outcome.node,
        diff=outcome.diff,
        duplicates=[duplicate_message(item) for item in outcome.duplicates],
    )
