"""The limits that a reader cuts at are those of the contract."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor

from cstp_grpc.gen.buf.validate import validate_pb2
from cstp_grpc.gen.cstp.v1 import journal_pb2
from cstp_grpc.modules.importing.model import MAX_LENGTHS, MAX_LINKS, MAX_REASONS, MAX_TAGS
from tests.named_case import named_case

CONTENT = journal_pb2.DecisionContent.DESCRIPTOR
REASON = journal_pb2.Reason.DESCRIPTOR
IMPORT = journal_pb2.ImportDecisionsRequest.DESCRIPTOR
LINKS = journal_pb2.SourceLinks.DESCRIPTOR


def rules(message: Descriptor, field: str) -> validate_pb2.FieldRules:
    return message.fields_by_name[field].GetOptions().Extensions[validate_pb2.field]


def test_a_text_may_be_as_long_as_in_the_contract() -> None:
    for name, message, field in [
        ("title", CONTENT, "title"),
        ("context", CONTENT, "context"),
        ("category", CONTENT, "category"),
        ("notes", CONTENT, "notes"),
        ("project", CONTENT, "project"),
        ("reasons.type", REASON, "type"),
        ("reasons.text", REASON, "text"),
        ("source", IMPORT, "source"),
    ]:
        with named_case(name, message, field):
            assert MAX_LENGTHS[name] == rules(message, field).string.max_len


def test_a_list_may_be_as_long_as_in_the_contract() -> None:
    tags = rules(CONTENT, "tags").repeated
    assert (MAX_LENGTHS["tags"], MAX_TAGS) == (tags.items.string.max_len, tags.max_items)
    assert rules(CONTENT, "reasons").repeated.max_items == MAX_REASONS
    for kind in LINKS.fields_by_name:
        assert rules(LINKS, kind).repeated.max_items == MAX_LINKS
