"""Conversion between plain Python values and messages of the contract, for servicers and clients.

The words of enums, aware datetimes and JSON objects stand for enums, Timestamps and Structs.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from google.protobuf import field_mask_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from cstp_grpc.contract.calls import Json
from cstp_grpc.contract.enums import ApprovalStatus, DecisionStatus, Outcome, PeerStatus, Severity, Stakes, Visibility
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.contract.json_scalars import ROUNDED_INTEGER_TEXT, InvalidValue, scalar_codec
from cstp_grpc.contract.json_values import find_rounded_integer
from cstp_grpc.gen.cstp.v1 import types_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

MessageT = TypeVar("MessageT", bound=Message)
NumberT = TypeVar("NumberT", bound=int)
WordT = TypeVar("WordT", bound=StrEnum)

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS_A_DAY: Final = 86_400


class EnumMapping(Generic[NumberT, WordT]):
    """Maps an enum of the contract to an enum of the domain, whose names lack the prefix."""

    def __init__(self, wrapper: _EnumTypeWrapper[NumberT], words: type[WordT]) -> None:
        numbers = enum_numbers(wrapper.DESCRIPTOR, words)
        self._numbers = cast(dict[WordT, NumberT], numbers)
        self._words = {number: word for word, number in self._numbers.items()}

    def word(self, number: NumberT) -> WordT | None:
        return self._words.get(number)

    def required_word(self, number: NumberT) -> WordT:
        return self._words[number]

    def words(self, numbers: Iterable[NumberT]) -> tuple[WordT, ...]:
        return tuple(self._words[number] for number in numbers)

    def number(self, word: WordT | None) -> NumberT:
        return cast(NumberT, 0) if word is None else self._numbers[word]


def enum_numbers(enum: EnumDescriptor, words: type[WordT]) -> dict[WordT, int]:
    """Return the numbers of the words of an enum, whose names in the contract have a prefix."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {word: enum.values_by_name[prefix + word.name].number for word in words}


STAKES: Final = EnumMapping(types_pb2.Stakes, Stakes)
OUTCOME: Final = EnumMapping(types_pb2.Outcome, Outcome)
STATUS: Final = EnumMapping(types_pb2.DecisionStatus, DecisionStatus)
SEVERITY: Final = EnumMapping(types_pb2.Severity, Severity)
VISIBILITY: Final = EnumMapping(types_pb2.Visibility, Visibility)
APPROVAL_STATUS: Final = EnumMapping(types_pb2.ApprovalStatus, ApprovalStatus)
PEER_STATUS: Final = EnumMapping(types_pb2.PeerStatus, PeerStatus)


def optional_field(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def datetime_field(message: Any, field: str) -> datetime | None:
    """Return a timestamp field as an aware datetime in UTC, or None if it is absent."""
    stamp: timestamp_pb2.Timestamp | None = optional_field(message, field)
    return None if stamp is None else stamp.ToDatetime(UTC)


def timestamp_message(moment: datetime) -> timestamp_pb2.Timestamp:
    # Several times as fast as Timestamp.FromDatetime, and on the way of every call.
    since = moment - EPOCH
    return timestamp_pb2.Timestamp(seconds=since.days * SECONDS_A_DAY + since.seconds, nanos=since.microseconds * 1000)


def write_timestamp(stamp: timestamp_pb2.Timestamp, moment: datetime) -> None:
    """Set a Timestamp to an aware datetime."""
    since = moment - EPOCH
    stamp.seconds = since.days * SECONDS_A_DAY + since.seconds
    stamp.nanos = since.microseconds * 1000


def optional_timestamp(moment: datetime | None) -> timestamp_pb2.Timestamp | None:
    return None if moment is None else timestamp_message(moment)


def struct_to_dict(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Convert a Struct to a JSON object; whole numbers become integers."""
    fields = struct.fields
    content: dict[str, Any] = {}
    # By key, because `items` of a map field is slow Python; the commonest kinds here, without a call for each.
    for key in fields:
        value = fields[key]
        kind = value.WhichOneof("kind")
        if kind == "bool_value":
            content[key] = value.bool_value
        elif kind == "string_value":
            content[key] = value.string_value
        else:
            content[key] = value_to_json(value)
    return content


def value_to_json(value: struct_pb2.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        # A Struct has only doubles: 3 arrives as 3.0, but a sender of 3 expects to read 3.
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "struct_value":
        return struct_to_dict(value.struct_value)
    if kind == "list_value":
        return [value_to_json(item) for item in value.list_value.values]
    return getattr(value, kind) if kind not in (None, "null_value") else None


def dict_to_struct(content: Mapping[str, Any]) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(dict(content))
    return struct


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

    Bounds are inclusive and dates timezone-aware; `stakes`, `status` and `outcome` match any of the values, `tags` all
    of them. Raises InvalidArgument.
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


def build_message(kind: type[MessageT], values: Mapping[str, Any], path: str = "") -> MessageT:
    """Build a message from plain values by field name; None omits a field.

    Enums are words, timestamps aware datetimes, field masks names, JSON objects mappings; other messages are messages,
    or mappings of their fields. `path` is the prefix of fields in errors. Raises InvalidArgument.
    """
    message = kind()
    set_fields(message, values, path)
    return message


def set_fields(message: Message, values: Any, path: str) -> None:
    """Set the fields of the message at a path. Raises InvalidArgument."""
    descriptor = cast(Descriptor, message.DESCRIPTOR)
    if not isinstance(values, Mapping):
        raise InvalidArgument.field(path, f"must be a {descriptor.name} or a mapping of its fields")
    fields = descriptor.fields_by_name
    for name, value in values.items():
        where = f"{path}.{name}" if path else str(name)
        field = fields.get(str(name))
        if field is None:
            close = difflib.get_close_matches(str(name), fields.keys(), 1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(fields)}"
            raise InvalidArgument.field(where, f"is unknown; {hint}")
        if value is None:
            continue
        if field.is_repeated:
            extend_field(message, field, value, where)
        elif field.message_type:
            set_message(getattr(message, name), value, where)
        else:
            set_scalar(functools.partial(setattr, message, name), field, value, where)


def extend_field(message: Message, field: FieldDescriptor, values: Any, path: str) -> None:
    """Append values to a repeated field. Raises InvalidArgument."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise InvalidArgument.field(path, "must be a list")
    container = getattr(message, field.name)
    for position, value in enumerate(values):
        if field.message_type:
            set_message(container.add(), value, f"{path}[{position}]")
        else:
            set_scalar(container.append, field, value, f"{path}[{position}]")


def set_scalar(store: Callable[[Any], None], field: FieldDescriptor, value: Any, path: str) -> None:
    """Store a scalar or the number of an enum word. Raises InvalidArgument."""
    if field.enum_type:
        value = enum_number(field.enum_type, value, path)
    try:
        store(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument.field(path, describe_invalid_scalar(field, value)) from error


def describe_invalid_scalar(field: FieldDescriptor, value: object) -> str:
    try:
        scalar_codec(field).parse(value)
    except InvalidValue as refusal:
        return str(refusal)
    return f"must not be a {type(value).__name__}"


def set_message(message: Message, value: Any, path: str) -> None:
    """Set a message. Raises InvalidArgument."""
    # An empty mapping makes the field present, as one that is not given does not.
    message.SetInParent()
    if isinstance(value, Message) and value.DESCRIPTOR is message.DESCRIPTOR:
        message.CopyFrom(value)
    elif isinstance(message, timestamp_pb2.Timestamp):
        set_timestamp(message, value, path)
    elif isinstance(message, field_mask_pb2.FieldMask):
        extend_field(message, message.DESCRIPTOR.fields_by_name["paths"], value, path)
    elif isinstance(message, struct_pb2.Struct):
        set_json_object(message, value, path)
    else:
        set_fields(message, value, path)


def enum_number(enum: EnumDescriptor, word: Any, field: str) -> int:
    """Return the number of an enum word of the contract. Raises InvalidArgument."""
    unspecified = enum.values_by_number[0].name
    prefix = unspecified.removesuffix("UNSPECIFIED")
    found = enum.values_by_name.get(prefix + str(word).upper())
    if found is None or found.number == 0:
        words = (name.removeprefix(prefix).lower() for name in enum.values_by_name if name != unspecified)
        raise InvalidArgument.field(field, f"{word!r} is not one of {', '.join(words)}")
    return found.number


def set_timestamp(message: timestamp_pb2.Timestamp, moment: Any, field: str) -> None:
    """Set a Timestamp. Raises InvalidArgument unless it is a datetime with a time zone."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidArgument.field(field, "must be a datetime with a time zone")
    message.FromDatetime(moment)


def set_json_object(message: struct_pb2.Struct, content: Mapping[str, Json], field: str) -> None:
    """Set a Struct from a JSON object.

    Raises InvalidArgument if it is not one, or if it has an integer that a double would round.
    """
    try:
        # Before `update`, which would silently store the rounded number.
        rounded = find_rounded_integer(content, field)
        if rounded is not None:
            raise InvalidArgument.field(rounded, ROUNDED_INTEGER_TEXT)
        message.update(dict(content))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgument.field(field, f"is not a JSON object: {error}") from error
