"""The import request for a decision record."""

from __future__ import annotations

from cstp_grpc.decisions.messages import content_message
from cstp_grpc.decisions.model import ImportRecord
from cstp_grpc.gen.cstp.v1 import journal_pb2


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
