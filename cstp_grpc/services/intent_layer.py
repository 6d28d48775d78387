"""Context before an edit, learning after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from cstp_grpc.errors import InvalidArgument
from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2 as pb2
from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2_grpc as pb2_grpc
from cstp_grpc.intent_layer.library import Call, ListedNode, Projects
from cstp_grpc.intent_layer.model import (
    ContextRequest,
    Duplicate,
    Edits,
    Finding,
    FindingSeverity,
    Learning,
    LearningState,
    LearningType,
    MergedSection,
    NewLearning,
    Resolution,
    Review,
    ReviewRequest,
    ReviewVerdict,
    Section,
    UnreadableReportFile,
)
from cstp_grpc.intent_layer.pending import LearningPage, LearningQuery
from cstp_grpc.intent_layer.resolution import delivered_files
from cstp_grpc.services import convert
from cstp_grpc.services.caller import current_caller
from cstp_grpc.storage.paging import PageRequest

MessageT = TypeVar("MessageT", bound=Message)

MAX_ANSWER_BYTES = 3 * 1024 * 1024
"""How large an answer may be; gRPC takes messages of 4 MiB unless told otherwise."""

LEARNING_TYPE = convert.EnumWords(pb2.LearningType, LearningType)
LEARNING_STATE = convert.EnumWords(pb2.LearningState, LearningState)
REVIEW_VERDICT = convert.EnumWords(pb2.ReviewVerdict, ReviewVerdict)
FINDING_SEVERITY = convert.EnumWords(pb2.FindingSeverity, FindingSeverity)


class IntentLayerService(pb2_grpc.IntentLayerServiceServicer):
    """Serves intent_layer.v1.IntentLayerService."""

    def __init__(self, projects: Projects) -> None:
        self._projects = projects

    def ResolveContext(
        self, request: pb2.ResolveContextRequest, context: grpc.ServicerContext
    ) -> pb2.ResolveContextResponse:
        """Return what governs a path."""
        resolution = self._projects.get(request.project).resolve(context_request(request), call())
        return bounded(resolution_message(resolution), "max_tokens", "is too high or missing")

    def ListNodes(self, request: pb2.ListNodesRequest, context: grpc.ServicerContext) -> pb2.ListNodesResponse:
        """List nodes."""
        page = self._projects.get(request.project).nodes(PageRequest(request.page_size, request.page_token), call())
        return pb2.ListNodesResponse(nodes=[summary(item) for item in page.items], next_page_token=page.next_token)

    def GetNode(self, request: pb2.GetNodeRequest, context: grpc.ServicerContext) -> pb2.GetNodeResponse:
        """Read a node."""
        listed = self._projects.get(request.project).node(request.path, call())
        return node_message(listed)

    def ValidateNodes(
        self, request: pb2.ValidateNodesRequest, context: grpc.ServicerContext
    ) -> pb2.ValidateNodesResponse:
        """Judge nodes."""
        judged = self._projects.get(request.project).validate(request.paths, call())
        answer = pb2.ValidateNodesResponse(
            valid=judged.valid, findings=[finding(item) for item in judged.findings], nodes=judged.nodes
        )
        return bounded(answer, "paths", "has too many findings; name fewer")

    def PlaceFact(self, request: pb2.PlaceFactRequest, context: grpc.ServicerContext) -> pb2.PlaceFactResponse:
        """Return where a fact belongs."""
        placed = self._projects.get(request.project).place(request.paths, call())
        return pb2.PlaceFactResponse(
            folder=placed.folder, file=placed.file, exists=placed.exists, covering=placed.covering
        )

    def InitNode(self, request: pb2.InitNodeRequest, context: grpc.ServicerContext) -> pb2.InitNodeResponse:
        """Write the skeleton of a node."""
        written = self._projects.get(request.project).init(request.path, call(), dry_run=request.dry_run)
        return pb2.InitNodeResponse(file=written.file, content=written.content)

    def ReportLearning(
        self, request: pb2.ReportLearningRequest, context: grpc.ServicerContext
    ) -> pb2.ReportLearningResponse:
        """File a learning."""
        by = call(convert.optional(request, "agent_id"))
        filed = self._projects.get(request.project).report(new_learning(request, by), by)
        return pb2.ReportLearningResponse(learning=learning(filed))

    def ListLearnings(
        self, request: pb2.ListLearningsRequest, context: grpc.ServicerContext
    ) -> pb2.ListLearningsResponse:
        """List learnings."""
        page = self._projects.get(request.project).learnings(
            learning_query(request), PageRequest(request.page_size, request.page_token), call()
        )
        return learnings_message(page)

    def ReviewLearning(
        self, request: pb2.ReviewLearningRequest, context: grpc.ServicerContext
    ) -> pb2.ReviewLearningResponse:
        """Review a learning."""
        by = call(convert.optional(request, "reviewer"))
        outcome = self._projects.get(request.project).review(review_request(request, by), by)
        return pb2.ReviewLearningResponse(
            learning=learning(outcome.learning),
            node=outcome.node,
            diff=outcome.diff,
            duplicates=[duplicate(item) for item in outcome.duplicates],
        )


def call(claimed_agent: str | None = None) -> Call:
    """Return the request that is being answered."""
    caller = current_caller.get()
    return Call(caller.agent, caller.request_id, claimed_agent)


def bounded(message: MessageT, field: str, problem: str) -> MessageT:
    """Return an answer that callers can take. Raises InvalidArgument for one that is too large."""
    if message.ByteSize() > MAX_ANSWER_BYTES:
        raise InvalidArgument.field(field, f"{problem}: the answer would have more than {MAX_ANSWER_BYTES} bytes")
    return message


def context_request(message: pb2.ResolveContextRequest) -> ContextRequest:
    """Return what to resolve."""
    return ContextRequest(
        path=message.path,
        sections=tuple(message.sections),
        compact=message.compact,
        with_pending=message.with_pending,
        max_tokens=convert.optional(message, "max_tokens"),
    )


def resolution_message(resolution: Resolution) -> pb2.ResolveContextResponse:
    """Return what governs a path as a message."""
    files = [(node.folder, file) for node, file in delivered_files(resolution.nodes)]
    return pb2.ResolveContextResponse(
        covered=bool(resolution.nodes),
        nodes=[pb2.NodeReference(file=file.path, folder=folder, tokens=file.tokens) for folder, file in files],
        sections=[merged_section(item) for item in resolution.sections],
        markdown=resolution.markdown,
        tokens=resolution.tokens,
        left_out=[pb2.LeftOut(file=at.file, section=at.section, tokens=at.tokens) for at in resolution.left_out],
        pending=[learning(item) for item in resolution.pending],
        unreadable=[unreadable_report(item) for item in resolution.unreadable],
    )


def merged_section(item: MergedSection) -> pb2.MergedSection:
    """Return a merged section as a message."""
    parts = [pb2.SectionPart(file=part.file, text=part.text, line=part.line) for part in item.parts]
    return pb2.MergedSection(name=item.name, parts=parts)


def summary(listed: ListedNode) -> pb2.NodeSummary:
    """Return what a listing tells of a node."""
    return pb2.NodeSummary(
        file=listed.node.path,
        folder=listed.node.folder,
        tokens=listed.node.tokens,
        sections=[section.name for section in listed.node.sections],
        parent=listed.parent,
    )


def node_message(listed: ListedNode) -> pb2.GetNodeResponse:
    """Return a node as a message."""
    also: Sequence[str] = [file.path for file in listed.node.files[1:]]
    return pb2.GetNodeResponse(
        node=summary(listed),
        sections=[section_message(section) for section in listed.node.sections],
        also=also[0] if also else None,
    )


def section_message(section: Section) -> pb2.Section:
    """Return a section as a message."""
    return pb2.Section(name=section.name, text=section.text, file=section.file, line=section.line)


def finding(item: Finding) -> pb2.Finding:
    """Return a finding as a message."""
    return pb2.Finding(
        severity=FINDING_SEVERITY.number(item.severity),
        rule=item.rule,
        file=item.file,
        line=item.line,
        message=item.message,
    )


def new_learning(message: pb2.ReportLearningRequest, by: Call) -> NewLearning:
    """Return a learning to file."""
    return NewLearning(
        type=LEARNING_TYPE.required(message.type),
        paths=(message.path, *message.also_paths),
        title=message.title,
        detail=message.detail,
        agent_id=by.claimed_agent or by.caller,
        evidence=convert.optional(message, "evidence"),
        operation=convert.optional(message, "operation"),
    )


def learning_query(message: pb2.ListLearningsRequest) -> LearningQuery:
    """Return which learnings to list."""
    return LearningQuery(
        states=frozenset(LEARNING_STATE.words(message.states)),
        types=frozenset(LEARNING_TYPE.words(message.types)),
        path=convert.optional(message, "path"),
    )


def learning(item: Learning) -> pb2.Learning:
    """Return a learning as a message."""
    return pb2.Learning(
        id=item.id,
        type=LEARNING_TYPE.number(item.type),
        state=LEARNING_STATE.number(item.state),
        timestamp=convert.timestamp(item.at),
        paths=item.paths,
        title=item.title,
        detail=item.detail,
        evidence=item.evidence,
        agent_id=item.agent_id,
        operation=item.operation,
        file=item.file,
        reviews=[review(each) for each in item.reviews],
        unplaced_paths=item.unplaced_paths,
    )


def learnings_message(page: LearningPage) -> pb2.ListLearningsResponse:
    """Return a page of learnings as a message."""
    return pb2.ListLearningsResponse(
        learnings=[learning(item) for item in page.items],
        next_page_token=page.next_token,
        unreadable=[unreadable_report(item) for item in page.unreadable],
    )


def unreadable_report(item: UnreadableReportFile) -> pb2.UnreadableReport:
    """Return a report that cannot be read as a message."""
    return pb2.UnreadableReport(file=item.file, reason=item.reason)


def review(item: Review) -> pb2.Review:
    """Return a review as a message."""
    return pb2.Review(
        verdict=REVIEW_VERDICT.number(item.verdict),
        reviewer=item.reviewer,
        reason=item.reason,
        timestamp=convert.timestamp(item.at),
    )


def review_request(message: pb2.ReviewLearningRequest, by: Call) -> ReviewRequest:
    """Return a review to carry out."""
    edits = message.edits
    return ReviewRequest(
        id=message.id,
        verdict=REVIEW_VERDICT.required(message.verdict),
        reviewer=by.caller,
        claimed_reviewer=by.claimed_agent,
        reason=message.reason,
        edits=Edits(
            title=convert.optional(edits, "title"),
            detail=convert.optional(edits, "detail"),
            section=convert.optional(edits, "section"),
        ),
        force=message.force,
        dry_run=message.dry_run,
    )


def duplicate(item: Duplicate) -> pb2.Duplicate:
    """Return what a node says that is likely the same as a message."""
    return pb2.Duplicate(file=item.file, line=item.line, text=item.text, score=item.score)
