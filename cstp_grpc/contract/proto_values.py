"""Build messages of the contract from plain Python values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

from google.protobuf import struct_pb2, timestamp_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from cstp_grpc.contract.calls import Json
from cstp_grpc.contract.json_values import ROUNDED_INTEGER_TEXT, find_rounded_integer
from cstp_grpc.errors import InvalidArgument
from cstp_grpc.gen.cstp.v1 import types_pb2

MessageT = TypeVar("MessageT", bound=Message)


def decision_filters(
    *,
    category: str | None = None,
    min_confidence: float | None = None,
    max_confidence: float | None = None,
    date_after: datetime | None = None,
    date_before: datetime | None = None,
    stakes: Sequence[str] = (),
    status: Sequence[str] = (),
    outcome: Sequence[str] = (),
    tags: Sequence[str] = (),
    project: str | None = None,
    agent: str | None = None,
) -> types_pb2.DecisionFilters:
    """Return filters that decisions must all match; omitted ones do not restrict.

    Bounds are inclusive and dates timezone-aware; `stakes`, `status` and `outcome` match any of the values, `tags`
    all of them. Raises InvalidArgument.
    """
    values = {
        "category": category,
        "min_confidence": min_confidence,
        "max_confidence": max_confidence,
        "date_after": date_after,
        "date_before": date_before,
        "stakes": stakes,
        "status": status,
        "outcome": outcome,
        "tags": tags,
        "project": project,
        "agent": agent,
    }
    return build_message(types_pb2.DecisionFilters, values)


def build_message(kind: type[MessageT], values: Mapping[str, Any]) -> MessageT:
    """Build a message from plain values by field name; None omits a field.

    Enums are words, timestamps aware datetimes, JSON objects mappings; other messages are messages, or mappings of
    their fields. Raises InvalidArgument and TypeError.
    """
    message = kind()
    set_fields(message, values)
    return message


def set_fields(message: Message, values: Mapping[str, Any]) -> None:
    """Set the fields of a message."""
    fields = cast(Descriptor, message.DESCRIPTOR).fields_by_name
    for name, value in values.items():
        if value is None:
            continue
        field = fields[name]
        if field.is_repeated:
            getattr(message, name).extend(
                [enum_number(field.enum_type, item, name) if field.enum_type else item for item in value]
            )
        elif field.message_type:
            set_message_field(field, getattr(message, name), value)
        else:
            setattr(message, name, enum_number(field.enum_type, value, name) if field.enum_type else value)


def set_message_field(field: FieldDescriptor, message: Message, value: Any) -> None:
    """Set a message field."""
    message.SetInParent()
    if isinstance(value, Message):
        message.CopyFrom(value)
    elif isinstance(message, timestamp_pb2.Timestamp):
        set_timestamp(message, value, field.name)
    elif isinstance(message, struct_pb2.Struct):
        set_json_object(message, value, field.name)
    else:
        set_fields(message, value)


def enum_number(enum: EnumDescriptor, word: str, field: str) -> int:
    """Return the number of an enum word of the contract. Raises InvalidArgument."""
    unspecified = enum.values_by_number[0].name
    prefix = unspecified.removesuffix("UNSPECIFIED")
    found = enum.values_by_name.get(prefix + word.upper())
    if found is None or found.number == 0:
        words = (name.removeprefix(prefix).lower() for name in enum.values_by_name if name != unspecified)
        raise InvalidArgument.field(field, f"{word!r} is not one of {', '.join(words)}")
    return found.number


def set_timestamp(message: timestamp_pb2.Timestamp, moment: datetime, field: str) -> None:
    """Set a Timestamp. Raises InvalidArgument if the datetime is naive."""
    if moment.tzinfo is None:
        raise InvalidArgument.field(field, "needs a time zone")
    message.FromDatetime(moment)


def set_json_object(message: struct_pb2.Struct, content: Mapping[str, Json], field: str) -> None:
    """Set a Struct from a JSON object.

    Raises InvalidArgument if it is not one, or if it has an integer that a double would round.
    """
    try:
        rounded = find_rounded_integer(content, field)
        if rounded is not None:
            raise InvalidArgument.field(rounded, ROUNDED_INTEGER_TEXT)
        message.update(dict(content))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgument.field(field, f"is not a JSON object: {error}") from error
