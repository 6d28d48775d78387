"""A2A's messages as JSON are what protobuf's own printer makes of them, with whole numbers as such."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import a2a_pb2
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.contract import json_values
from cstp_grpc.contract.json_codec import to_proto_json
from tests.named_case import named_case

KINDS = sorted(a2a_pb2.DESCRIPTOR.message_types_by_name)
FREE_FORM: dict[str, Any] = {
    "whole": 3.0,
    "half": 0.5,
    "none": None,
    "text": "ü",
    "no": False,
    "list": [1.0, [], {}],
    "object": {},
}
SCALARS: dict[int, object] = {
    FieldDescriptor.TYPE_STRING: "text",
    FieldDescriptor.TYPE_BOOL: True,
    FieldDescriptor.TYPE_INT32: -7,
    FieldDescriptor.TYPE_BYTES: b"\x00\xff",
}
DEEPEST = 4


def filled(kind: Descriptor, skipped: int, depth: int = 0) -> Message:
    """Return a message with nearly all of its fields; of the members of a choice another one is set for each number."""
    message = message_factory.GetMessageClass(kind)()
    if isinstance(message, Struct):
        message.update(FREE_FORM)
    elif isinstance(message, Value):
        message.struct_value.update(FREE_FORM)
    elif isinstance(message, Timestamp):
        message.FromJsonString("2026-01-31T08:00:00.25Z")
    elif depth < DEEPEST:
        for field in kind.fields:
            choice = field.containing_oneof
            if choice is None or choice.fields[skipped % len(choice.fields)] is field:
                fill(message, field, skipped, depth)
    return message


def fill(message: Message, field: FieldDescriptor, skipped: int, depth: int) -> None:
    container = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        if value.message_type is None:
            container["key"] = SCALARS[value.type]
        else:
            container["key"].CopyFrom(filled(value.message_type, skipped, depth + 1))
    elif field.message_type is not None:
        child = container.add() if field.is_repeated else container
        child.CopyFrom(filled(field.message_type, skipped, depth + 1))
    else:
        scalar = field.enum_type.values[-1].number if field.enum_type else SCALARS[field.type]
        if field.is_repeated:
            container.extend([scalar, scalar])
        else:
            setattr(message, field.name, scalar)


def test_a_message_is_rendered_as_protobuf_does() -> None:
    for skipped in range(5):
        for kind in KINDS:
            with named_case(skipped, kind):
                message = filled(a2a_pb2.DESCRIPTOR.message_types_by_name[kind], skipped)
                assert to_proto_json(message) == json_values.restore_integers(json_format.MessageToDict(message))


def test_an_enum_value_of_a_later_contract_is_its_number() -> None:
    status = a2a_pb2.TaskStatus.FromString(b"\x08\x63")
    assert to_proto_json(status) == {"state": 99} == json_format.MessageToDict(status)


def test_whole_numbers_are_integers() -> None:
    part = a2a_pb2.Part()
    part.data.struct_value.update({"count": 3, "share": 0.5})
    data = to_proto_json(part)["data"]
    assert [repr(data["count"]), repr(data["share"])] == ["3", "0.5"]


def test_what_json_cannot_express_is_refused() -> None:
    part = a2a_pb2.Part()
    part.data.number_value = float("nan")
    with pytest.raises(ValueError, match="no form in JSON"):
        to_proto_json(part)
