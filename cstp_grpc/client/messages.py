"""Plain Python values to messages of the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

from google.protobuf import struct_pb2, timestamp_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from cstp_grpc.calling import Json
from cstp_grpc.client.json_forms import ROUNDED
from cstp_grpc.client.json_known import find_rounded_integer
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
    """Return conditions that decisions must all meet; what is left out does not restrict.

    Bounds are inclusive and dates aware; `stakes`, `status` and `outcome` mean any of, `tags` all of.
    Raises InvalidArgument.
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
    return message_of(types_pb2.DecisionFilters, values)


def message_of(kind: type[MessageT], values: Mapping[str, Any]) -> MessageT:
    """Return a message with fields of plain values; None leaves one out. Raises InvalidArgument, and TypeError.

    Enums are words, instants aware datetimes, JSON objects mappings; other messages are messages, or mappings of
    their fields.
    """
    message = kind()
    fill(message, values)
    return message


def fill(message: Message, values: Mapping[str, Any]) -> None:
    """Set fields of a message."""
    fields = cast(Descriptor, message.DESCRIPTOR).fields_by_name
    for name, value in values.items():
        if value is None:
            continue
        field = fields[name]
        if field.is_repeated:
            getattr(message, name).extend(
                [number(field.enum_type, item, name) if field.enum_type else item for item in value]
            )
        elif field.message_type:
            fill_message(field, getattr(message, name), value)
        else:
            setattr(message, name, number(field.enum_type, value, name) if field.enum_type else value)


def fill_message(field: FieldDescriptor, message: Message, value: Any) -> None:
    """Set a field that is a message."""
    message.SetInParent()
    if isinstance(value, Message):
        message.CopyFrom(value)
    elif isinstance(message, timestamp_pb2.Timestamp):
        fill_instant(message, value, field.name)
    elif isinstance(message, struct_pb2.Struct):
        fill_object(message, value, field.name)
    else:
        fill(message, value)


def number(enum: EnumDescriptor, word: str, field: str) -> int:
    """Return the number of a plain word in an enum of the contract. Raises InvalidArgument."""
    unspecified = enum.values_by_number[0].name
    prefix = unspecified.removesuffix("UNSPECIFIED")
    found = enum.values_by_name.get(prefix + word.upper())
    if found is None or found.number == 0:
        words = (name.removeprefix(prefix).lower() for name in enum.values_by_name if name != unspecified)
        raise InvalidArgument.field(field, f"{word!r} is not one of {', '.join(words)}")
    return found.number


def fill_instant(message: timestamp_pb2.Timestamp, moment: datetime, field: str) -> None:
    """Set a message to an instant. Raises InvalidArgument where it has no time zone."""
    if moment.tzinfo is None:
        raise InvalidArgument.field(field, "needs a time zone")
    message.FromDatetime(moment)


def fill_object(message: struct_pb2.Struct, content: Mapping[str, Json], field: str) -> None:
    """Set a message to a JSON object.

    Raises InvalidArgument if it is none, or if it holds an integer that a double would round.
    """
    try:
        rounded = find_rounded_integer(content, field)
        if rounded is not None:
            raise InvalidArgument.field(rounded, ROUNDED)
        message.update(dict(content))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgument.field(field, f"is not a JSON object: {error}") from error
