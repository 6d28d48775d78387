"""Convert messages to JSON and back, from their descriptors, in two profiles.

In both, names are lowerCamelCase, null means absent, and every invalid field is reported with its path. In
CONTRACT_JSON enums are plain words, fields without presence are always printed, and unspecified enums and absent fields
are omitted; unknown fields are reported. PROTO_JSON is protobuf's own JSON: enums have their full names, and fields are
printed if they are set; the proto's own names are accepted too, and unknown fields ignored. It equals the output of
protobuf's printer in a third of the time, but prints whole numbers of free-form data without a fraction. The codec of a
message type is compiled once, on first use.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeGuard, TypeVar, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract import json_values
from cstp_grpc.contract.errors import FieldViolation
from cstp_grpc.contract.json_scalars import (
    INT32_CODEC,
    OMITTED,
    InvalidValue,
    ScalarCodec,
    ViolationCollector,
    parse_bytes,
    parse_text,
    printable_key,
    render_bytes,
    scalar_codec,
)
from cstp_grpc.contract.json_values import MessageCodec

MessageT = TypeVar("MessageT", bound=Message)
RenderValue = Callable[[Any], object]

PROTO_PATH_PART: Final = re.compile(r'\[(?:"(?:[^"\\]|\\.)*"|[^\]"]*)\]|[^.\[\]]+')
"""A name, or a bracketed index or key, in a field path as the contract writes it."""
DECIMAL: Final = re.compile(r"-?[0-9]{1,10}", re.ASCII)
URL_SAFE: Final = str.maketrans("-_", "+/")
NOT_AN_OBJECT: Final = "must be an object"
CONTEXT_FIELDS: Final = frozenset({"cstp.v1.Action.context", "cstp.v1.AnnounceIntentRequest.metadata"})
"""The fields that guardrails read as the context, by their full names."""


class CodecError(Exception):
    """JSON does not fit a message; `violations` holds the JSON path of each invalid field, at most a hundred."""

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        super().__init__("; ".join(f"{item.field}: {item.description}".removeprefix(": ") for item in violations))
        self.violations = list(violations)


@dataclass(frozen=True, slots=True, eq=False)  # looked up by identity, for each message
class JsonProfile:
    """The rules by which messages are written in JSON."""

    scalar_codec: Callable[[FieldDescriptor], ScalarCodec]
    """Returns the codec of a field's scalar values."""
    takes_proto_names: bool = False
    """Whether a member may have the name of its field in the proto too."""
    ignores_unknown: bool = False
    """Whether members that no field has are ignored."""
    max_items: int | None = None
    """How many items a list may have, free-form data aside; None for any number."""
    max_context_values: int | None = None
    """How many values a context may have; None for any number."""


def proto_scalar_codec(field: FieldDescriptor) -> ScalarCodec:
    if field.enum_type is not None:
        return proto_enum_codec(field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return ScalarCodec(parse_any_base64, render_bytes)
    if field.type == FieldDescriptor.TYPE_INT32:
        return ScalarCodec(parse_decimal)
    return scalar_codec(field)


def proto_enum_codec(enum: EnumDescriptor) -> ScalarCodec:
    """Return the codec of an enum by the names or numbers of its values; a number without a name stays one."""
    # Protobuf's own look-up raises for text without UTF-8.
    numbers = {value.name: int(value.number) for value in enum.values}
    names = {number: name for name, number in numbers.items()}
    expected = "must be one of " + ", ".join(f'"{name}"' for name in numbers)

    def parse(value: object) -> int:
        if isinstance(value, str) and value in numbers:
            return numbers[value]
        if isinstance(value, int) and not isinstance(value, bool) and value in names:
            return value
        raise InvalidValue(expected)

    return ScalarCodec(parse, lambda number: names.get(number, number))


def parse_any_base64(value: object) -> bytes:
    """Decode base64 text of either alphabet, padded or not."""
    if isinstance(value, str):
        text = value.translate(URL_SAFE).rstrip("=")
        value = text + "=" * (-len(text) % 4)
    return parse_bytes(value)


def parse_decimal(value: object) -> int:
    number = int(value) if isinstance(value, str) and DECIMAL.fullmatch(value) else value
    return int(INT32_CODEC.parse(number))


CONTRACT_JSON: Final = JsonProfile(scalar_codec)
"""The JSON of the contract."""
PROTO_JSON: Final = JsonProfile(proto_scalar_codec, takes_proto_names=True, ignores_unknown=True, max_items=1000)
"""The JSON of A2A. `max_items` is chosen: items are validated on the event loop, which all callers share."""


@functools.cache
def contract_json(max_context_values: int) -> JsonProfile:
    """Return the profile of requests of the contract whose contexts have at most so many values."""
    return JsonProfile(scalar_codec, max_context_values=max_context_values)


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object, as the contract is written.

    Raises ValueError for values that JSON cannot express: NaN, infinity, a timestamp after the year 9999.
    """
    rendered = message_codec(message.DESCRIPTOR, CONTRACT_JSON).render(message)
    if not isinstance(rendered, dict):
        raise TypeError(f"{message.DESCRIPTOR.full_name} is not an object in JSON")
    return rendered


def to_proto_json(message: Message) -> dict[str, Any]:
    """Return a message as the JSON object that ProtoJSON makes of it. Raises ValueError as `to_json` does."""
    rendered: dict[str, Any] = {}
    # Nested messages are appended with the empty object that they fill, so that the stack does not grow with them.
    pending: list[tuple[Message, dict[str, Any]]] = [(message, rendered)]
    for each, members in pending:
        codecs = object_codec(each.DESCRIPTOR, PROTO_JSON).by_number
        # ListFields has the set fields alone, which is what ProtoJSON prints.
        for field, value in each.ListFields():
            codec = codecs[field.number]
            render = codec.render_item
            if codec.is_map:
                entries = members[codec.json_name] = {key: {} for key in value}
                for key in entries:
                    if codec.has_fields:
                        pending.append((value[key], entries[key]))
                    else:
                        entries[key] = value[key] if render is None else render(value[key])
            elif codec.has_fields:
                items = value if codec.is_list else (value,)
                objects: list[dict[str, Any]] = [{} for _ in items]
                pending.extend(zip(items, objects, strict=True))
                members[codec.json_name] = objects if codec.is_list else objects[0]
            elif codec.is_list:
                members[codec.json_name] = list(value) if render is None else list(map(render, value))
            else:
                members[codec.json_name] = value if render is None else render(value)
    return rendered


def from_json(data: object, message_class: type[MessageT], profile: JsonProfile = CONTRACT_JSON) -> MessageT:
    """Parse a JSON value into a message. Raises CodecError."""
    message = message_class()
    problems = ViolationCollector()
    message_codec(message_class.DESCRIPTOR, profile).fill(message, data, "", problems)
    # Only now: every violation is reported at once, and the half-filled message is dropped.
    if problems.found:
        raise CodecError(problems.found)
    return message


def json_path(message_class: type[Message], proto_path: str) -> str:
    """Translate a field path of the contract to JSON names: `filters.min_confidence` to `filters.minConfidence`.

    Parts that name no field of the contract stay unchanged.
    """
    message = cast("Descriptor | None", message_class.DESCRIPTOR)
    path = ""
    for part in PROTO_PATH_PART.findall(proto_path):
        if part.startswith("["):
            path += part
            continue
        field = message.fields_by_name.get(part) if message else None
        path += ("." if path else "") + (field.json_name if field else part)
        message = field.message_type if field else None
        if message is not None and message.GetOptions().map_entry:
            message = message.fields_by_name["value"].message_type
    return path


@functools.cache
def message_codec(descriptor: Descriptor, profile: JsonProfile) -> MessageCodec:
    """Return the JSON codec of a message type. Raises TypeError for an unsupported well-known type."""
    known = json_values.WELL_KNOWN_CODECS.get(descriptor.full_name)
    if known is not None:
        return known
    if json_values.UNSUPPORTED_WELL_KNOWN.fullmatch(descriptor.full_name):
        raise TypeError(f"{descriptor.full_name} has no JSON form here")
    return object_codec(descriptor, profile)


@functools.cache
def object_codec(descriptor: Descriptor, profile: JsonProfile) -> ObjectCodec:
    """Return the JSON codec of a message type that has fields."""
    return ObjectCodec(descriptor, profile)


class ObjectCodec:
    """The codec of a message that is a JSON object."""

    def __init__(self, descriptor: Descriptor, profile: JsonProfile) -> None:
        self._descriptor = descriptor
        self._profile = profile

    @functools.cached_property
    def by_number(self) -> Mapping[int, FieldCodec]:
        """The field codecs by field number; compiled lazily, since messages may be recursive."""
        return {field.number: FieldCodec(field, self._profile) for field in self._descriptor.fields}

    @functools.cached_property
    def _by_name(self) -> Mapping[str, FieldCodec]:
        return {name: field for field in self.by_number.values() for name in field.names}

    @functools.cached_property
    def _rows(self) -> tuple[tuple[str, str, bool, RenderValue | None], ...]:
        """The data of each field for rendering: proto name, JSON name, presence, render function."""
        fields = self.by_number.values()
        return tuple((field.name, field.json_name, field.has_presence, render_function(field)) for field in fields)

    @functools.cached_property
    def _choices(self) -> tuple[tuple[FieldCodec, ...], ...]:
        """The members of each oneof; an optional field is one of its own to protobuf."""
        return tuple(
            tuple(self.by_number[field.number] for field in oneof.fields)
            for oneof in self._descriptor.oneofs
            # Proto3's `optional` is a synthetic oneof of one field.
            if len(oneof.fields) > 1
        )

    def render(self, message: Message) -> dict[str, object]:
        rendered: dict[str, object] = {}
        for name, key, has_presence, render in self._rows:
            # HasField raises ValueError for fields without presence, hence the flag.
            if has_presence and not message.HasField(name):
                continue
            value = getattr(message, name)
            if render is not None:
                value = render(value)
                if value is OMITTED:
                    continue
            rendered[key] = value
        return rendered

    def fill(self, message: Message, value: object, path: str, problems: ViolationCollector) -> None:
        """Set the fields of a message from a JSON object."""
        if not isinstance(value, dict):
            problems.add(path, NOT_AN_OBJECT)
            return
        prefix = f"{path}." if path else ""
        fields = self._by_name
        # If unknown members are ignored, only known ones are looked up: a caller's thousand unknown members cost
        # nothing, and violations come in the order of the fields.
        known = (
            [(name, value[name]) for name in fields if name in value]
            if self._profile.ignores_unknown
            else value.items()
        )
        for key, item in known:
            field = fields.get(key)
            if field is None:
                problems.add(prefix + printable_key(key), "is not a known field")
            # As in ProtoJSON, null means absent, except in a google.protobuf.Value.
            elif item is None and not field.takes_null:
                continue
            elif key != field.json_name and field.is_given(value, field.json_name):
                problems.add(prefix + key, f'cannot be set together with "{field.json_name}"')
            elif field.codec is None or field.is_map:
                field.fill_values(message, item, prefix + field.json_name, problems)
            elif not field.is_list:
                # Filled here and not in FieldCodec, for one frame per level of nesting.
                child = getattr(message, field.name)
                # An empty object makes the field present, as the first access alone does not.
                child.SetInParent()
                field.codec.fill(child, item, prefix + field.json_name, problems)
            elif field.is_fitting_list(item, prefix + field.json_name, problems):
                children = getattr(message, field.name)
                for position, each in enumerate(item):
                    field.codec.fill(children.add(), each, f"{prefix}{field.json_name}[{position}]", problems)
        if self._choices:
            self._check_choices(value, prefix, problems)

    def _check_choices(self, value: dict[str, object], prefix: str, problems: ViolationCollector) -> None:
        """Report each further member of a oneof."""
        for fields in self._choices:
            # By the JSON and not by the message, in which the last member of a oneof has silently cleared the others.
            given = [field.json_name for field in fields if any(field.is_given(value, name) for name in field.names)]
            for other in given[1:]:
                problems.add(prefix + other, f'cannot be set together with "{given[0]}"')


class FieldCodec:
    """The codec of a field. Raises TypeError if its type has no JSON form."""

    def __init__(self, field: FieldDescriptor, profile: JsonProfile) -> None:
        self.name = field.name
        self.json_name = field.json_name
        self.names = tuple(
            dict.fromkeys((field.json_name, field.name) if profile.takes_proto_names else (field.json_name,))
        )
        """The codec of its members in JSON."""
        self.has_presence = field.has_presence
        kind = field.message_type
        self.is_map = kind is not None and kind.GetOptions().map_entry
        self.is_list = field.is_repeated and not self.is_map
        if kind is not None and self.is_map and kind.fields_by_name["key"].type != FieldDescriptor.TYPE_STRING:
            raise TypeError(f"{field.full_name} must have keys of type string")
        item = kind.fields_by_name["value"] if kind is not None and self.is_map else field
        self.codec = None if item.message_type is None else message_codec(item.message_type, profile)
        if profile.max_context_values is not None and field.full_name in CONTEXT_FIELDS:
            self.codec = json_values.BoundedObjectCodec(profile.max_context_values)
        """The codec of its messages; None for scalars."""
        self.has_fields = isinstance(self.codec, ObjectCodec)
        self.takes_null = self.codec is json_values.VALUE_CODEC and not field.is_repeated
        """Whether null is a value of the field instead of meaning absent."""
        self._scalar = profile.scalar_codec(item) if item.message_type is None else None
        form = self.codec or self._scalar
        self.render_item: RenderValue | None = form.render if form else None
        """Returns the JSON of one value; None if a value is its own JSON."""
        self._max_items = profile.max_items

    def is_given(self, members: Mapping[str, object], name: str) -> bool:
        return name in members and (self.takes_null or members[name] is not None)

    def fill_values(self, message: Message, value: object, path: str, problems: ViolationCollector) -> None:
        """Set a map, a scalar or a list of scalars from a JSON value."""
        if self.is_map:
            self._fill_map(getattr(message, self.name), value, path, problems)
            return
        assert self._scalar is not None, "messages are filled by ObjectCodec"
        if not self.is_list:
            try:
                setattr(message, self.name, self._scalar.parse(value))
            except InvalidValue as refusal:
                problems.add(path, str(refusal))
        elif self.is_fitting_list(value, path, problems):
            container = getattr(message, self.name)
            for position, item in enumerate(value):
                try:
                    container.append(self._scalar.parse(item))
                except InvalidValue as refusal:
                    problems.add(f"{path}[{position}]", str(refusal))

    def is_fitting_list(self, value: object, path: str, problems: ViolationCollector) -> TypeGuard[list[object]]:
        if not isinstance(value, list):
            problems.add(path, "must be a list")
            return False
        if self._max_items is not None and len(value) > self._max_items:
            problems.add(path, too_many_items(self._max_items))
            return False
        return True

    def _fill_map(self, container: Any, value: object, path: str, problems: ViolationCollector) -> None:
        """Parse the entries of a map and set them."""
        if not isinstance(value, dict):
            problems.add(path, NOT_AN_OBJECT)
            return
        for key, item in value.items():
            place = f"{path}.{printable_key(key)}"
            try:
                if self.codec:
                    # Reading a missing key of a map of messages creates the entry.
                    self.codec.fill(container[parse_text(key)], item, place, problems)
                elif self._scalar:
                    container[parse_text(key)] = self._scalar.parse(item)
            except InvalidValue as refusal:
                problems.add(place, str(refusal))


def too_many_items(most: int) -> str:
    return f"must have at most {most} items"


def render_function(field: FieldCodec) -> RenderValue | None:
    """Return the function that renders a whole field as the contract has it, or None if its value is its own JSON."""
    if field.is_map:
        return functools.partial(render_map, field.render_item)
    if field.is_list:
        return functools.partial(render_values, field.render_item) if field.render_item else list
    return field.render_item


def render_values(render: RenderValue, values: Sequence[object]) -> list[object]:
    return [item for item in map(render, values) if item is not OMITTED]


def render_map(render: RenderValue | None, values: Any) -> dict[str, object]:
    """Render the entries of a map in key order, without the omitted ones."""
    # Sorted, since a protobuf map has no order, and equal messages must give equal JSON.
    entries = ((key, render(values[key]) if render else values[key]) for key in sorted(values))
    return {key: item for key, item in entries if item is not OMITTED}
