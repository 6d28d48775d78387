"""The import request for a decision record."""

from __future__ import annotations

from cstp_grpc.contract import proto_values
from cstp_grpc.decisions.model import ImportRecord
from cstp_grpc.gen.cstp.v1 import journal_pb2


def import_request(record: ImportRecord) -> journal_pb2.ImportDecisionsRequest:
    """Return the request that imports a record."""
    content, links = record.content, record.links
    return journal_pb2.ImportDecisionsRequest(
        source=record.source,
        decision=journal_pb2.DecisionContent(
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
        ),
        links=journal_pb2.SourceLinks(
            supersedes=links.supersedes,
            superseded_by=links.superseded_by,
            depends_on=links.depends_on,
            relates_to=links.relates_to,
        ),
    )
