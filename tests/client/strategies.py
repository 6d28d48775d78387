"""Hypothesis strategies that follow descriptors."""

from __future__ import annotations

from typing import Any, cast

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import strategies as st

SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.text(max_size=8),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
}


def descriptor_of(kind: type[Message]) -> Descriptor:
    """Return the descriptor of a message class, which its stub declares as either of two classes."""
    return cast("Descriptor", kind.DESCRIPTOR)


json_leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["low", "red", "2026-01-01T00:00:00Z", "1.5s", "-0.25s", "AAA=", "\ud800"])
)
json_values: st.SearchStrategy[Any] = st.recursive(
    json_leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
numbers = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number or 0.0)


def values(depth: int = 2) -> st.SearchStrategy[Value]:
    leaves = (
        st.just(Value(null_value=0))  # type: ignore[arg-type]
        | st.booleans().map(lambda flag: Value(bool_value=flag))
        | st.text(max_size=4).map(lambda text: Value(string_value=text))
        | numbers.map(lambda number: Value(number_value=number))
    )
    if not depth:
        return leaves
    return (
        leaves
        | structs(depth - 1).map(lambda s: Value(struct_value=s))
        | lists(depth - 1).map(lambda items: Value(list_value=items))
    )


def structs(depth: int = 2) -> st.SearchStrategy[Struct]:
    return st.dictionaries(st.text(max_size=4), values(depth), max_size=3).map(lambda fields: Struct(fields=fields))


def lists(depth: int = 2) -> st.SearchStrategy[ListValue]:
    return st.lists(values(depth), max_size=3).map(lambda items: ListValue(values=items))


def timestamps() -> st.SearchStrategy[Timestamp]:
    nanos = st.sampled_from([0, 5_000_000, 7_000, 123_456_789]) | st.integers(0, 999_999_999)
    return st.builds(Timestamp, seconds=st.integers(-62_135_596_800, 253_402_300_799), nanos=nanos)


def durations() -> st.SearchStrategy[Duration]:
    nanos = st.sampled_from([0, 5_000_000, 7_000, 123_456_789]) | st.integers(0, 999_999_999)
    return st.builds(
        lambda sign, seconds, nanos: Duration(seconds=sign * seconds, nanos=sign * nanos),
        st.sampled_from([1, -1]),
        st.just(0) | st.integers(0, 315_575_999_999),
        nanos,
    )


def field_masks() -> st.SearchStrategy[FieldMask]:
    names = st.lists(st.from_regex(r"[a-z][a-z0-9]{0,3}(_[a-z]{1,3}){0,2}", fullmatch=True), max_size=3)
    return names.map(lambda paths: FieldMask(paths=paths))


WELL_KNOWN: dict[str, Any] = {
    "google.protobuf.FieldMask": field_masks,
    "google.protobuf.Timestamp": timestamps,
    "google.protobuf.Duration": durations,
    "google.protobuf.Struct": structs,
    "google.protobuf.Value": values,
    "google.protobuf.ListValue": lists,
}


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 2) -> Message:
    """Messages that JSON can express: enums are stated wherever they stand in a list or are present."""
    message = message_factory.GetMessageClass(descriptor)()
    chosen = {oneof.name: draw(st.sampled_from([field.name for field in oneof.fields])) for oneof in descriptor.oneofs}
    for field in descriptor.fields:
        if field.containing_oneof and chosen[field.containing_oneof.name] != field.name:
            continue
        if draw(st.booleans()):
            fill(draw, message, field, depth)
    return message


def fill(draw: st.DrawFn, message: Message, field: FieldDescriptor, depth: int) -> None:
    """Set one field of a message."""
    if field.message_type and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        for key, item in draw(st.dictionaries(st.text(max_size=4), single(value, depth), max_size=2)).items():
            if value.message_type:
                getattr(message, field.name)[key].CopyFrom(item)
            else:
                getattr(message, field.name)[key] = item
    elif field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(single(field, depth), max_size=2)))
    elif field.message_type:
        getattr(message, field.name).CopyFrom(draw(single(field, depth)))
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, draw(single(field, depth)))


def single(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    """One value of a field."""
    if field.enum_type:
        return st.sampled_from([value.number for value in field.enum_type.values if value.number])
    if field.message_type is None:
        return SCALARS[field.type]
    known = WELL_KNOWN.get(field.message_type.full_name)
    if known:
        return known()
    if not depth:
        return st.builds(message_factory.GetMessageClass(field.message_type))
    return messages(field.message_type, depth - 1)


def near_misses(descriptor: Descriptor, depth: int = 2) -> st.SearchStrategy[Any]:
    """JSON objects with the names of a message and values that may or may not fit."""
    members: dict[str, st.SearchStrategy[Any]] = {}
    for field in descriptor.fields:
        value = json_values
        inner = field.message_type
        if inner and depth and inner.full_name not in WELL_KNOWN and not inner.GetOptions().map_entry:
            child = near_misses(inner, depth - 1)
            value = value | child | st.lists(child, max_size=2)
        elif field.enum_type:
            words = st.sampled_from([entry.name.rpartition("_")[2].lower() for entry in field.enum_type.values])
            value = value | words | st.lists(words, max_size=2)
        members[field.json_name] = value
    return st.fixed_dictionaries({}, optional=members)
