"""Conversion between the messages of the contract and decisions."""

from __future__ import annotations

from datetime import UTC
from typing import Final

from cstp_grpc.contract import json_codec, proto_values
from cstp_grpc.contract.errors import FieldViolation
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.core.decisions import model
from cstp_grpc.core.decisions.model import Decision, Match
from cstp_grpc.gen.cstp.v1 import cstp_pb2, journal_pb2, types_pb2
from cstp_grpc.platform.storage.pagination import MAX_BYTES

FILTER: Final = MessageMapper(model.DecisionFilter, types_pb2.DecisionFilters)
DECISION: Final = MessageMapper(
    Decision, journal_pb2.Decision, given=("journal_revision", "history", "provenance", "deleted_date", "thoughts")
)
CONTENT: Final = MessageMapper(model.DecisionContent, journal_pb2.DecisionContent)
CHANGED_CONTENT: Final = MessageMapper(model.DecisionContent, journal_pb2.DecisionChanges)
"""The other fields are absent, and the title is empty unless it changes."""
LINKS: Final = MessageMapper(model.Links, journal_pb2.Links)
REVIEW: Final = MessageMapper(model.DecisionReview, journal_pb2.DecisionReview, {"reviewed_date": "at"})
FORMER_CONTENT: Final = MessageMapper(model.FormerContent, journal_pb2.FormerContent, {"replaced_date": "replaced_at"})
HISTORY: Final = MessageMapper(
    model.DecisionHistory, journal_pb2.DecisionHistory, {"former_contents": "former"}, nested=(REVIEW, FORMER_CONTENT)
)
CHANGE: Final = MessageMapper(
    model.JournalChange, journal_pb2.WatchDecisionsResponse, given=("journal_revision",), nested=(DECISION,)
)
GRAPH_NODE: Final = MessageMapper(Decision, journal_pb2.GraphNode, given=("distance",), unset=("thought_count",))
GRAPH: Final = MessageMapper(
    model.DecisionGraph,
    journal_pb2.GetDecisionGraphResponse,
    {"nodes": lambda graph: [GRAPH_NODE.encode(item, distance=distance) for item, distance in graph.nodes]},
)
THOUGHT_CONTENT: Final = MessageMapper(model.ThoughtContent, journal_pb2.RecordThoughtRequest)
THOUGHT: Final = MessageMapper(
    model.Thought,
    journal_pb2.Thought,
    {"recorded_date": "recorded_at", "expires_date": "expires_at"},
    parts=("content",),
)
PROVENANCE: Final = MessageMapper(model.DecisionProvenance, journal_pb2.DecisionProvenance, nested=(REVIEW, LINKS))
IDENTITY: Final = MessageMapper(model.DecisionIdentity, journal_pb2.DecisionIdentity, nested=(PROVENANCE,))
EXPORTED_CONTENT: Final = MessageMapper(model.DecisionContent, journal_pb2.Decision)
EXPORTED_IDENTITY: Final = MessageMapper(model.DecisionIdentity, journal_pb2.Decision, nested=(PROVENANCE,))
"""The content and the identity of an exported decision; for decoding only."""
IMPORT: Final = MessageMapper(
    model.ImportRecord, journal_pb2.ImportDecisionsRequest, {"decision": "content"}, nested=(IDENTITY,)
)
IMPORT_RESULT: Final = MessageMapper(model.ImportResult, journal_pb2.ImportResult)
SIMILAR_DECISION: Final = MessageMapper(Match, cstp_pb2.SimilarDecision, parts=("decision",), unset=("origin",))
SUMMARY: Final = MessageMapper(
    Match, cstp_pb2.DecisionSummary, parts=("decision",), given=("reasons",), unset=("origin",)
)

EXPLANATION: Final = MessageMapper(model.SearchExplanation, journal_pb2.SearchExplanation, parts=("decision",))
EXPLAINED_SEARCH: Final = MessageMapper(model.ExplainedSearch, journal_pb2.ExplainSearchResponse, nested=(EXPLANATION,))
COMPACTION: Final = MessageMapper(model.CompactionReport, journal_pb2.CompactDecisionsResponse, nested=(DECISION,))

SHOWN_DUPLICATES: Final = 20
"""Decisions of a group in an answer, the latest; fewer if the answer would be too large."""


def exported_deletion(deleted: model.DeletedDecision) -> journal_pb2.Decision:
    deleted_date = proto_values.timestamp_message(deleted.deleted_at)
    return journal_pb2.Decision(id=deleted.id, agent=deleted.agent, deleted_date=deleted_date)


def decode_exported(values: object) -> tuple[model.DecisionIdentity, model.DecisionContent, model.Links, str]:
    """Return the identity, content, links and agent of a decision, or of a deletion, in the JSON of an export.

    Raises CodecError.
    """
    exported = json_codec.from_json(values, journal_pb2.Decision)
    identity = EXPORTED_IDENTITY.decode(exported)
    if exported.HasField("deleted_date"):
        provenance = model.DecisionProvenance(exported.deleted_date.ToDatetime(UTC))
        identity = model.DecisionIdentity(exported.id, provenance, is_deleted=True)
    elif not exported.provenance.HasField("changed_date"):
        raise json_codec.CodecError([FieldViolation("provenance.changedDate", "must be given")])
    return identity, EXPORTED_CONTENT.decode(exported), LINKS.decode(exported.links), exported.agent


def duplicates_response(report: model.DuplicateReport) -> journal_pb2.FindDuplicateDecisionsResponse:
    """Convert a report on duplicates to a response, which shows fewer of each group if they are long."""
    response = journal_pb2.FindDuplicateDecisionsResponse(compared=report.compared, truncated=report.truncated)
    left = MAX_BYTES
    for group in report.groups:
        shown = response.groups.add(count=len(group.decisions), similarity=group.similarity).decisions
        for item in group.decisions[:SHOWN_DUPLICATES]:
            message = DECISION.encode(item)
            left -= message.ByteSize()
            # One of each group in any case: a hundred of them fit.
            if left < 0 and shown:
                break
            shown.append(message)
    return response
