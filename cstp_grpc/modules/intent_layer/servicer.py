"""The servicer of the Intent Layer: nodes, learnings and reviews."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2 as pb2
from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2_grpc as pb2_grpc
from cstp_grpc.modules.intent_layer import model
from cstp_grpc.modules.intent_layer.context_resolution import iter_delivered_files
from cstp_grpc.modules.intent_layer.learning_store import LearningQuery
from cstp_grpc.modules.intent_layer.project_service import ListedNode, ProjectCall, ProjectRegistry, ValidationReport
from cstp_grpc.platform.storage.pagination import PageRequest

MessageT = TypeVar("MessageT", bound=Message)

MAX_ANSWER_BYTES = 3 * 1024 * 1024
"""Maximum size of a response; gRPC clients accept messages of 4 MiB by default."""

CONTEXT_REQUEST = MessageMapper(model.ContextRequest, pb2.ResolveContextRequest)
NEW_LEARNING = MessageMapper(model.NewLearning, pb2.ReportLearningRequest, given=("paths", "agent_id"))
LEARNING_QUERY = MessageMapper(LearningQuery, pb2.ListLearningsRequest)
REVIEW_REQUEST = MessageMapper(model.ReviewRequest, pb2.ReviewLearningRequest, given=("reviewer", "claimed_reviewer"))
SECTION = MessageMapper(model.NodeSection, pb2.Section)
NODE = MessageMapper(
    ListedNode,
    pb2.NodeSummary,
    {
        "file": "node.path",
        "folder": "node.folder",
        "tokens": "node.tokens",
        "sections": lambda listed: [section.name for section in listed.node.sections],
    },
)
LEARNING = MessageMapper(
    model.Learning,
    pb2.Learning,
    {"timestamp": "at"},
    nested=[MessageMapper(model.LearningReview, pb2.Review, {"timestamp": "at"})],
)
UNREADABLE = MessageMapper(model.UnreadableReportFile, pb2.UnreadableReport)
RESOLUTION = MessageMapper(
    model.ResolvedContext,
    pb2.ResolveContextResponse,
    {
        "covered": lambda resolution: bool(resolution.nodes),
        "nodes": lambda resolution: [
            pb2.NodeReference(file=file.path, folder=node.folder, tokens=file.tokens)
            for node, file in iter_delivered_files(resolution.nodes)
        ],
    },
    nested=[LEARNING],
)
REPORT = MessageMapper(ValidationReport, pb2.ValidateNodesResponse)
PLACEMENT = MessageMapper(model.FactPlacement, pb2.PlaceFactResponse)
SKELETON = MessageMapper(model.NodeSkeleton, pb2.InitNodeResponse)
OUTCOME = MessageMapper(model.ReviewOutcome, pb2.ReviewLearningResponse, nested=[LEARNING])


class IntentLayerService(pb2_grpc.IntentLayerServiceServicer):
    """Serves intent_layer.v1.IntentLayerService."""

    def __init__(self, projects: ProjectRegistry) -> None:
        self._projects = projects

    def ResolveContext(
        self, request: pb2.ResolveContextRequest, context: grpc.ServicerContext
    ) -> pb2.ResolveContextResponse:
        resolution = self._projects[request.project].resolve(CONTEXT_REQUEST.decode(request), current_call())
        return require_size_limit(RESOLUTION.encode(resolution), "max_tokens", "is too high or missing")

    def ListNodes(self, request: pb2.ListNodesRequest, context: grpc.ServicerContext) -> pb2.ListNodesResponse:
        page = self._projects[request.project].nodes(PageRequest(request.page_size, request.page_token), current_call())
        return nodes_message(page.items, page.next_token)

    def GetNode(self, request: pb2.GetNodeRequest, context: grpc.ServicerContext) -> pb2.GetNodeResponse:
        listed = self._projects[request.project].node(request.path, current_call())
        also = [file.path for file in listed.node.files[1:]]
        return pb2.GetNodeResponse(
            node=NODE.encode(listed), sections=map(SECTION.encode, listed.node.sections), also=also[0] if also else None
        )

    def ValidateNodes(
        self, request: pb2.ValidateNodesRequest, context: grpc.ServicerContext
    ) -> pb2.ValidateNodesResponse:
        judged = self._projects[request.project].validate(request.paths, current_call())
        return require_size_limit(REPORT.encode(judged), "paths", "has too many findings; name fewer")

    def PlaceFact(self, request: pb2.PlaceFactRequest, context: grpc.ServicerContext) -> pb2.PlaceFactResponse:
        placed = self._projects[request.project].place(request.paths, current_call())
        return PLACEMENT.encode(placed)

    def InitNode(self, request: pb2.InitNodeRequest, context: grpc.ServicerContext) -> pb2.InitNodeResponse:
        written = self._projects[request.project].init(request.path, current_call(), dry_run=request.dry_run)
        return SKELETON.encode(written)

    def ReportLearning(
        self, request: pb2.ReportLearningRequest, context: grpc.ServicerContext
    ) -> pb2.ReportLearningResponse:
        by = current_call(proto_values.optional_field(request, "agent_id"))
        # The author that a report names; the audit record also has the authenticated caller.
        new = NEW_LEARNING.decode(
            request, paths=(request.path, *request.also_paths), agent_id=by.claimed_agent or by.caller
        )
        filed = self._projects[request.project].report(new, by)
        return report_message(filed)

    def ListLearnings(
        self, request: pb2.ListLearningsRequest, context: grpc.ServicerContext
    ) -> pb2.ListLearningsResponse:
        page = self._projects[request.project].learnings(
            LEARNING_QUERY.decode(request), PageRequest(request.page_size, request.page_token), current_call()
        )
        return learnings_message(page.items, page.unreadable, page.next_token)

    def ReviewLearning(
        self, request: pb2.ReviewLearningRequest, context: grpc.ServicerContext
    ) -> pb2.ReviewLearningResponse:
        by = current_call(proto_values.optional_field(request, "reviewer"))
        review = REVIEW_REQUEST.decode(request, reviewer=by.caller, claimed_reviewer=by.claimed_agent)
        return OUTCOME.encode(self._projects[request.project].review(review, by))


def current_call(claimed_agent: str | None = None) -> ProjectCall:
    caller = current_caller.get()
    return ProjectCall(caller.agent, caller.request_id, claimed_agent)


def require_size_limit(message: MessageT, field: str, problem: str) -> MessageT:
    """Return a response within the size limit. Raises InvalidArgument for a larger one."""
    if message.ByteSize() > MAX_ANSWER_BYTES:
        raise InvalidArgument.field(field, f"{problem}: the answer would have more than {MAX_ANSWER_BYTES} bytes")
    return message


def nodes_message(nodes: Iterable[ListedNode], next_token: str = "") -> pb2.ListNodesResponse:
    """Convert a page of nodes to a message; without a token it is the only one."""
    return pb2.ListNodesResponse(nodes=map(NODE.encode, nodes), next_page_token=next_token)


def report_message(filed: model.Learning) -> pb2.ReportLearningResponse:
    return pb2.ReportLearningResponse(learning=LEARNING.encode(filed))


def learnings_message(
    items: Iterable[model.Learning], unreadable: Iterable[model.UnreadableReportFile], next_token: str = ""
) -> pb2.ListLearningsResponse:
    """Convert a page of learnings to a message; without a token it is the only one."""
    return pb2.ListLearningsResponse(
        learnings=map(LEARNING.encode, items), next_page_token=next_token, unreadable=map(UNREADABLE.encode, unreadable)
    )
