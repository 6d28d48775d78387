"""Conversion between the messages of the contract and decisions."""

from __future__ import annotations

from collections.abc import Iterable

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.proto_values import EnumMapping
from cstp_grpc.core.decisions.model import (
    Decision,
    DecisionContent,
    DecisionFilter,
    DecisionGraph,
    DecisionHistory,
    DuplicateReport,
    ImportAction,
    ImportRecord,
    JournalChange,
    Links,
    LinkType,
    MatchReason,
    Reason,
)
from cstp_grpc.gen.cstp.v1 import cstp_pb2, journal_pb2, types_pb2
from cstp_grpc.platform.storage.pagination import MAX_BYTES

MATCH_REASON = EnumMapping(cstp_pb2.MatchReason, MatchReason)
IMPORT_ACTION = EnumMapping(journal_pb2.ImportAction, ImportAction)
SHOWN_DUPLICATES = 20
"""Decisions of a group in an answer, the latest; fewer if the answer would be too large."""
LINK_TYPE = EnumMapping(journal_pb2.LinkType, LinkType)


def parse_decision_filter(message: types_pb2.DecisionFilters) -> DecisionFilter:
    """Parse the conditions of a query or listing."""
    return DecisionFilter(
        category=proto_values.optional_field(message, "category"),
        min_confidence=proto_values.optional_field(message, "min_confidence"),
        max_confidence=proto_values.optional_field(message, "max_confidence"),
        date_after=proto_values.datetime_field(message, "date_after"),
        date_before=proto_values.datetime_field(message, "date_before"),
        stakes=proto_values.STAKES.words(message.stakes),
        status=proto_values.STATUS.words(message.status),
        outcome=proto_values.OUTCOME.words(message.outcome),
        tags=tuple(message.tags),
        project=proto_values.optional_field(message, "project"),
        agent=proto_values.optional_field(message, "agent"),
    )


def decision_message(
    item: Decision, journal_revision: str | None = None, history: DecisionHistory | None = None
) -> journal_pb2.Decision:
    """Convert a decision to a message, after a change with the revision of the journal."""
    return journal_pb2.Decision(
        id=item.id,
        title=item.title,
        context=item.context,
        category=item.category,
        stakes=proto_values.STAKES.number(item.stakes),
        confidence=item.confidence,
        status=proto_values.STATUS.number(item.status),
        outcome=proto_values.OUTCOME.number(item.outcome),
        date=proto_values.timestamp_message(item.date),
        reviewed_date=proto_values.optional_timestamp(item.reviewed_date),
        notes=item.notes,
        reasons=[journal_pb2.Reason(type=r.type, text=r.text, strength=r.strength) for r in item.reasons],
        tags=item.tags,
        project=item.project,
        agent=item.agent,
        visibility=proto_values.VISIBILITY.number(item.visibility),
        links=links_message(item.links),
        source=item.source,
        journal_revision=journal_revision,
        review_by=proto_values.optional_timestamp(item.review_by),
        history=None if history is None else history_message(history),
    )


def change_response(change: JournalChange, journal_revision: str) -> journal_pb2.WatchDecisionsResponse:
    return journal_pb2.WatchDecisionsResponse(
        decision=None if change.decision is None else decision_message(change.decision),
        deleted_id=change.deleted_id,
        journal_revision=journal_revision,
    )


def history_message(history: DecisionHistory) -> journal_pb2.DecisionHistory:
    """Convert the history of a decision to a message."""
    return journal_pb2.DecisionHistory(
        reviews=[
            journal_pb2.DecisionReview(
                outcome=proto_values.OUTCOME.number(review.outcome),
                notes=review.notes,
                reviewed_date=proto_values.timestamp_message(review.at),
                reviewer=review.reviewer,
                confidence=review.confidence,
            )
            for review in history.reviews
        ],
        review_count=history.review_count,
        revision=history.revision,
        former_contents=[
            journal_pb2.FormerContent(
                revision=former.revision,
                replaced_date=proto_values.timestamp_message(former.replaced_at),
                content=content_message(former.content),
            )
            for former in history.former
        ],
    )


def content_message(content: DecisionContent) -> journal_pb2.DecisionContent:
    """Convert the content of a decision to a message."""
    return journal_pb2.DecisionContent(
        title=content.title,
        context=content.context,
        category=content.category,
        stakes=proto_values.STAKES.number(content.stakes),
        confidence=content.confidence,
        status=proto_values.STATUS.number(content.status),
        outcome=proto_values.OUTCOME.number(content.outcome),
        date=proto_values.optional_timestamp(content.date),
        notes=content.notes,
        reasons=[journal_pb2.Reason(type=r.type, text=r.text, strength=r.strength) for r in content.reasons],
        tags=content.tags,
        project=content.project,
        visibility=proto_values.VISIBILITY.number(content.visibility),
        review_by=proto_values.optional_timestamp(content.review_by),
    )


def links_message(item: Links) -> journal_pb2.Links:
    return journal_pb2.Links(supersedes=item.supersedes, depends_on=item.depends_on, relates_to=item.relates_to)


def graph_response(graph: DecisionGraph) -> journal_pb2.GetDecisionGraphResponse:
    """Convert a graph to the response that has it."""
    return journal_pb2.GetDecisionGraphResponse(
        nodes=[
            journal_pb2.GraphNode(
                id=item.id,
                title=item.title,
                status=proto_values.STATUS.number(item.status),
                outcome=proto_values.OUTCOME.number(item.outcome),
                date=proto_values.timestamp_message(item.date),
                agent=item.agent,
                category=item.category,
                distance=distance,
            )
            for item, distance in graph.nodes
        ],
        links=[
            journal_pb2.GraphLink(from_id=link.from_id, to_id=link.to_id, type=LINK_TYPE.number(link.type))
            for link in graph.links
        ],
        truncated=graph.truncated,
    )


def duplicates_response(report: DuplicateReport) -> journal_pb2.FindDuplicateDecisionsResponse:
    """Convert a report on duplicates to a response, which shows fewer of each group if they are long."""
    response = journal_pb2.FindDuplicateDecisionsResponse(compared=report.compared, truncated=report.truncated)
    left = MAX_BYTES
    for group in report.groups:
        shown = response.groups.add(count=len(group.decisions), similarity=group.similarity).decisions
        for item in group.decisions[:SHOWN_DUPLICATES]:
            message = decision_message(item)
            left -= message.ByteSize()
            # One of each group in any case: a hundred of them fit.
            if left < 0 and shown:
                break
            shown.append(message)
    return response


def parse_reasons(messages: Iterable[journal_pb2.Reason]) -> tuple[Reason, ...]:
    return tuple(Reason(r.type, r.text, proto_values.optional_field(r, "strength")) for r in messages)


def import_request(record: ImportRecord) -> journal_pb2.ImportDecisionsRequest:
    """Return the request that imports a record."""
    content, links = record.content, record.links
    return journal_pb2.ImportDecisionsRequest(
        source=record.source,
        decision=content_message(content),
        links=journal_pb2.SourceLinks(
            supersedes=links.supersedes,
            superseded_by=links.superseded_by,
            depends_on=links.depends_on,
            relates_to=links.relates_to,
        ),
        restore_deleted=record.restore_deleted,
    )
