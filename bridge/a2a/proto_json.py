"""ProtoJSON of A2A's messages, by their descriptors: parsing, required fields, rendering.

Unlike protobuf's parser, parsing names every violation by its path, accepts names in either spelling, ignores unknown
members and refuses unknown enum values. Rendering gives what protobuf's printer gives in a third of the time, and
writes whole numbers of free-form data as such.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, TypeGuard, TypeVar, cast

from a2a.utils.errors import InvalidParamsError
from google.api import field_behavior_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from bridge.a2a.errors import read_violations, violations_error
from cstp_grpc.contract import json_values
from cstp_grpc.contract.json_codec import json_path
from cstp_grpc.contract.json_values import MAX_VIOLATIONS, InvalidValue, ViolationCollector
from cstp_grpc.errors import FieldViolation

MessageT = TypeVar("MessageT", bound=Message)

DECIMAL: Final = re.compile(r"-?[0-9]{1,10}", re.ASCII)
URL_SAFE: Final = str.maketrans("-_", "+/")
VALUE_TYPE: Final = "google.protobuf.Value"
MAX_ITEMS: Final = 1000
"""How many items a list of a request may have, free-form data aside: to judge each takes time that is everybody's."""
TOO_MANY: Final = f"must have at most {MAX_ITEMS} items"


@dataclass(frozen=True, slots=True)
class KnownField:
    """A field of a message with its names in JSON."""

    field: FieldDescriptor
    names: tuple[str, ...]
    """Its name in JSON, and the one in the contract if that is another."""
    takes_null: bool
    """Whether null is a value and does not mean that the field is absent: so it is for free-form data."""
    fill_item: Callable[[Any, object, str, ViolationCollector], None]
    """Sets one message of a field of messages."""

    def spellings_in(self, members: Mapping[str, object]) -> list[str]:
        """Return the names by which an object sets the field."""
        return [name for name in self.names if name in members and (self.takes_null or members[name] is not None)]


@functools.cache
def message_fields(kind: Descriptor) -> tuple[tuple[KnownField, ...], tuple[tuple[KnownField, ...], ...]]:
    """Return the fields of a message type, and its groups of mutually exclusive fields."""
    fields = {field.name: build_known_field(field) for field in kind.fields}
    # An optional field is a choice of its own to protobuf.
    choices = [tuple(fields[field.name] for field in oneof.fields) for oneof in kind.oneofs if len(oneof.fields) > 1]
    return tuple(fields.values()), tuple(choices)


def build_known_field(field: FieldDescriptor) -> KnownField:
    """Return a field with what parsing needs of it."""
    kind = field.message_type.full_name if field.message_type is not None else ""
    codec = json_values.WELL_KNOWN_CODECS.get(kind)
    return KnownField(
        field,
        names=tuple(dict.fromkeys((field.json_name, field.name))),
        takes_null=kind == VALUE_TYPE,
        fill_item=fill_message if codec is None else codec.fill,
    )


def parse_request(params: object, kind: type[MessageT]) -> MessageT:
    """Parse params into a message. Raises InvalidParamsError."""
    message = kind()
    problems = ViolationCollector()
    fill_message(message, params, "", problems)
    if problems.found:
        raise violations_error(problems.found)
    return message


def with_json_names(error: InvalidParamsError, kind: type[Message]) -> InvalidParamsError:
    """Return an error with its fields named as in JSON."""
    fields = [replace(each, field=json_path(kind, each.field)) for each in read_violations(error)]
    # The SDK's own text says only that something is wrong.
    return violations_error(fields) if fields else error


def fill_message(message: Message, value: object, path: str, problems: ViolationCollector) -> None:
    """Set an empty message from JSON and collect all violations; there is one frame for each level of messages."""
    if not isinstance(value, dict):
        problems.add(path, "must be an object" if path else "params must be an object")
        return
    prefix = f"{path}." if path else ""
    fields, choices = message_fields(cast("Descriptor", message.DESCRIPTOR))
    for each in fields:
        spellings = each.spellings_in(value)
        if len(spellings) > 1:
            problems.add(prefix + spellings[1], f'cannot be set beside "{spellings[0]}"')
        if len(spellings) != 1:
            continue
        field, given, place = each.field, value[spellings[0]], prefix + each.field.json_name
        if field.message_type is None:
            fill_scalars(message, field, given, place, problems)
        elif not field.is_repeated:
            child = getattr(message, field.name)
            child.SetInParent()
            each.fill_item(child, given, place, problems)
        elif is_fitting_list(given, place, problems):
            for position, item in enumerate(given):
                each.fill_item(getattr(message, field.name).add(), item, f"{place}[{position}]", problems)
    for choice in choices:
        check_oneof([each.field for each in choice if each.spellings_in(value)], prefix, problems)


def fill_scalars(
    message: Message, field: FieldDescriptor, value: object, path: str, problems: ViolationCollector
) -> None:
    """Set a field of scalars, one or a list of them, and collect the violations in it."""
    if not field.is_repeated:
        try:
            setattr(message, field.name, parse_scalar(field, value))
        except InvalidValue as refusal:
            problems.add(path, str(refusal))
    elif is_fitting_list(value, path, problems):
        for position, item in enumerate(value):
            try:
                getattr(message, field.name).append(parse_scalar(field, item))
            except InvalidValue as refusal:
                problems.add(f"{path}[{position}]", str(refusal))


def is_fitting_list(value: object, path: str, problems: ViolationCollector) -> TypeGuard[list[object]]:
    """Return whether a value is a list of at most MAX_ITEMS; add a violation if it is not."""
    if isinstance(value, list) and len(value) <= MAX_ITEMS:
        return True
    problems.add(path, TOO_MANY if isinstance(value, list) else "must be a list")
    return False


def parse_scalar(field: FieldDescriptor, value: object) -> Any:
    """Parse a value that is not a message. Raises Refusal."""
    if field.enum_type is not None:
        return parse_enum(field.enum_type, value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return parse_bytes(value)
    if field.type == FieldDescriptor.TYPE_INT32:
        return json_values.INT32_CODEC.parse(
            int(value) if isinstance(value, str) and DECIMAL.fullmatch(value) else value
        )
    return json_values.SCALAR_CODECS[field.type].parse(value)


def parse_enum(enum: EnumDescriptor, value: object) -> int:
    """Parse an enum value given by name or number. Raises Refusal."""
    numbers = enum_numbers(enum)
    if isinstance(value, str) and value in numbers:
        return numbers[value]
    if isinstance(value, int) and not isinstance(value, bool) and value in numbers.values():
        return value
    raise InvalidValue("must be one of " + ", ".join(f'"{name}"' for name in numbers))


@functools.cache
def enum_numbers(enum: EnumDescriptor) -> Mapping[str, int]:
    """Return the values of an enum by name; protobuf's own look-up raises for text without UTF-8."""
    return {item.name: int(item.number) for item in enum.values}


def parse_bytes(value: object) -> bytes:
    """Decode base64 text of either alphabet, padded or not. Raises Refusal."""
    if isinstance(value, str):
        text = value.translate(URL_SAFE).rstrip("=")
        value = text + "=" * (-len(text) % 4)
    return json_values.parse_bytes(value)


def check_oneof(fields: list[FieldDescriptor], prefix: str, problems: ViolationCollector) -> None:
    """Collect a violation for each further member of a oneof."""
    for other in fields[1:]:
        problems.add(prefix + other.json_name, f'cannot be set beside "{fields[0].json_name}"')


WELL_KNOWN: Final = "google.protobuf."


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The checks that apply to a field."""

    name: str
    is_required: bool
    is_list: bool
    has_presence: bool
    has_fields: bool
    """Whether its values are messages with fields to judge."""


def check_required_fields(message: Message) -> None:
    """Check that a request has its required fields and no endless lists. Raises InvalidParamsError.

    The SDK's own check also walks through free-form data, which takes seconds for what fits into one message.
    """
    found = list(islice(find_wrong_fields(message, ""), MAX_VIOLATIONS))
    if found:
        raise violations_error(found)


def find_wrong_fields(message: Message, prefix: str) -> Iterator[FieldViolation]:
    """Yield the paths of invalid fields with descriptions."""
    for field in checked_fields(message.DESCRIPTOR):
        value, place = getattr(message, field.name), f"{prefix}{field.name}"
        is_given = message.HasField(field.name) if field.has_presence else bool(value)
        if not is_given:
            if field.is_required:
                yield FieldViolation(place, "is required")
        elif not field.is_list:
            if field.has_fields:
                yield from find_wrong_fields(value, f"{place}.")
        elif len(value) > MAX_ITEMS:
            yield FieldViolation(place, TOO_MANY)
        elif field.has_fields:
            for position, item in enumerate(value):
                yield from find_wrong_fields(item, f"{place}[{position}].")


@functools.cache
def checked_fields(kind: Descriptor) -> tuple[FieldRule, ...]:
    """Return the fields of a message type that need a check."""
    return tuple(
        field for field in map(build_field_rule, kind.fields) if field.is_required or field.is_list or field.has_fields
    )


def build_field_rule(field: FieldDescriptor) -> FieldRule:
    """Return the checks of a field."""
    required = field_behavior_pb2.FieldBehavior.Value("REQUIRED")
    return FieldRule(
        name=field.name,
        is_required=required in field.GetOptions().Extensions[field_behavior_pb2.field_behavior],
        is_list=field.is_repeated,
        has_presence=field.has_presence,
        has_fields=field.message_type is not None and not field.message_type.full_name.startswith(WELL_KNOWN),
    )


Renderer = Callable[[Any], object]

PLAIN_TYPES: Final = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_INT32})
"""The types whose values are their own JSON."""


@dataclass(frozen=True, slots=True)
class FieldRendering:
    """How a field is rendered: `render` makes JSON of one value, None if a value is its own JSON."""

    json_name: str
    is_map: bool
    is_list: bool
    has_fields: bool
    """Whether its values are messages to be rendered field by field."""
    render: Renderer | None


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object.

    Raises ValueError for values that JSON cannot express: NaN, infinity, an instant beyond the year 9999.
    """
    rendered: dict[str, Any] = {}
    # Messages within messages wait here, each with the empty object that it fills: the stack does not grow with them.
    pending: list[tuple[Message, dict[str, Any]]] = [(message, rendered)]
    for each, members in pending:
        rules = field_renderings(each.DESCRIPTOR)
        for field, value in each.ListFields():
            rule = rules[field.number]
            render = rule.render
            if rule.is_map:
                entries = members[rule.json_name] = {key: {} for key in value}
                for key in entries:
                    if rule.has_fields:
                        pending.append((value[key], entries[key]))
                    else:
                        entries[key] = value[key] if render is None else render(value[key])
            elif rule.has_fields:
                items = value if rule.is_list else (value,)
                objects: list[dict[str, Any]] = [{} for _ in items]
                pending.extend(zip(items, objects, strict=True))
                members[rule.json_name] = objects if rule.is_list else objects[0]
            elif rule.is_list:
                members[rule.json_name] = list(value) if render is None else list(map(render, value))
            else:
                members[rule.json_name] = value if render is None else render(value)
    return rendered


@functools.cache
def field_renderings(descriptor: Descriptor) -> Mapping[int, FieldRendering]:
    """Return how the fields of a message type are rendered, by field number."""
    return {field.number: build_field_rendering(field) for field in descriptor.fields}


def build_field_rendering(field: FieldDescriptor) -> FieldRendering:
    """Return how a field is rendered."""
    message = field.message_type
    is_map = message is not None and message.GetOptions().map_entry
    item = message.fields_by_name["value"] if message is not None and is_map else field
    return FieldRendering(
        json_name=field.json_name,
        is_map=is_map,
        is_list=field.is_repeated and not is_map,
        has_fields=item.message_type is not None and item.message_type.full_name not in json_values.WELL_KNOWN_CODECS,
        render=item_renderer(item),
    )


def item_renderer(field: FieldDescriptor) -> Renderer | None:
    """Return the renderer of one value of a field, None if the value is its own JSON or a message with fields.

    Raises TypeError for a type that A2A does not use.
    """
    if field.enum_type is not None:
        return enum_renderer(field.enum_type)
    if field.message_type is not None:
        known = json_values.WELL_KNOWN_CODECS.get(field.message_type.full_name)
        return None if known is None else known.render
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value: base64.b64encode(value).decode("ascii")
    if field.type not in PLAIN_TYPES:
        raise TypeError(f"{field.full_name} has a type without a JSON form here")
    return None


def enum_renderer(enum: EnumDescriptor) -> Renderer:
    """Return the renderer of an enum: its name, or its number if the descriptor has no name for it."""
    names = {value.number: value.name for value in enum.values}
    return lambda number: names.get(number, number)
