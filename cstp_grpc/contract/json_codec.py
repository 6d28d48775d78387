"""Convert messages of the contract to JSON and back, from their descriptors.

Names are lowerCamelCase and enums plain words. Fields without presence are always printed; unspecified enums and
absent fields are omitted. On input, null means absent, and every unknown or invalid field is reported with its path.
The codec of a message type is compiled once, on first use.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from cstp_grpc.contract import json_values
from cstp_grpc.contract.json_values import (
    OMITTED,
    InvalidValue,
    MessageCodec,
    ScalarCodec,
    ViolationCollector,
    parse_text,
    printable_key,
    scalar_codec,
)
from cstp_grpc.errors import FieldViolation

MessageT = TypeVar("MessageT", bound=Message)
RenderValue = Callable[[Any], object]

PROTO_PATH_PART: Final = re.compile(r'\[(?:"(?:[^"\\]|\\.)*"|[^\]"]*)\]|[^.\[\]]+')
"""A name, or a bracketed index or key, in a field path as the contract writes it."""


class CodecError(Exception):
    """JSON does not fit a message; `violations` holds the JSON path of each invalid field, at most a hundred."""

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        super().__init__("; ".join(f"{item.field}: {item.description}".removeprefix(": ") for item in violations))
        self.violations = list(violations)


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object.

    Raises ValueError for values that JSON cannot express: NaN, infinity, a timestamp after the year 9999.
    """
    rendered = message_codec(message.DESCRIPTOR).render(message)
    if not isinstance(rendered, dict):
        raise TypeError(f"{message.DESCRIPTOR.full_name} is not an object in JSON")
    return rendered


def from_json(data: object, message_class: type[MessageT]) -> MessageT:
    """Parse a JSON value into a message. Raises CodecError."""
    message = message_class()
    problems = ViolationCollector()
    message_codec(message_class.DESCRIPTOR).fill(message, data, "", problems)
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
def message_codec(descriptor: Descriptor) -> MessageCodec:
    """Return the JSON codec of a message type. Raises TypeError for an unsupported well-known type."""
    known = json_values.WELL_KNOWN_CODECS.get(descriptor.full_name)
    if known is not None:
        return known
    if json_values.UNSUPPORTED_WELL_KNOWN.fullmatch(descriptor.full_name):
        raise TypeError(f"{descriptor.full_name} has no JSON form here")
    return ObjectCodec(descriptor)


class ObjectCodec:
    """The codec of a message that is a JSON object."""

    def __init__(self, descriptor: Descriptor) -> None:
        self._descriptor = descriptor

    @functools.cached_property
    def _fields(self) -> dict[str, FieldCodec]:
        """The field codecs by JSON name; compiled lazily, since messages may be recursive."""
        return {field.json_name: compile_field(field) for field in self._descriptor.fields}

    @functools.cached_property
    def _rows(self) -> tuple[tuple[str, str, bool, RenderValue | None], ...]:
        """What rendering needs of each field: proto name, JSON name, presence, render function."""
        return tuple((field.name, key, field.has_presence, field.render) for key, field in self._fields.items())

    @functools.cached_property
    def _choices(self) -> tuple[tuple[str, ...], ...]:
        """The JSON names of the members of each oneof."""
        return tuple(
            tuple(field.json_name for field in oneof.fields)
            for oneof in self._descriptor.oneofs
            if len(oneof.fields) > 1
        )

    def render(self, message: Message) -> dict[str, object]:
        """Return a message as a JSON object."""
        rendered: dict[str, object] = {}
        for name, key, has_presence, render in self._rows:
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
            problems.add(path, "must be an object")
            return
        prefix = f"{path}." if path else ""
        fields = self._fields
        for key, item in value.items():
            field = fields.get(key)
            if field is None:
                problems.add(prefix + printable_key(key), "is not a known field")
            elif item is not None or field.takes_null:
                field.read(message, item, prefix + key, problems)
        if self._choices:
            self._check_choices(value, prefix, problems)

    def _check_choices(self, value: dict[str, object], prefix: str, problems: ViolationCollector) -> None:
        """Report a second member of a oneof."""
        for names in self._choices:
            first, *others = [name for name in names if value.get(name) is not None] or [""]
            for other in others:
                problems.add(prefix + other, f'cannot be set beside "{first}"')


class FieldCodec(ABC):
    """Base class of the codecs of single fields."""

    takes_null = False
    """Whether null is a value of the field instead of meaning absent."""
    render: RenderValue | None

    def __init__(self, field: FieldDescriptor) -> None:
        self.name = field.name
        self.has_presence = field.has_presence

    @abstractmethod
    def read(self, message: Message, value: object, path: str, problems: ViolationCollector) -> None:
        """Set the field from a JSON value that is not absent."""


class ScalarFieldCodec(FieldCodec):
    """The codec of a singular scalar field."""

    def __init__(self, field: FieldDescriptor, form: ScalarCodec) -> None:
        super().__init__(field)
        self.render = form.render
        self._parse = form.parse

    def read(self, message: Message, value: object, path: str, problems: ViolationCollector) -> None:
        """Parse the value and set the field."""
        try:
            setattr(message, self.name, self._parse(value))
        except InvalidValue as refusal:
            problems.add(path, str(refusal))


class RepeatedScalarCodec(FieldCodec):
    """The codec of a repeated scalar field."""

    def __init__(self, field: FieldDescriptor, form: ScalarCodec) -> None:
        super().__init__(field)
        self.render = functools.partial(render_values, form.render) if form.render else list
        self._parse = form.parse

    def read(self, message: Message, value: object, path: str, problems: ViolationCollector) -> None:
        """Parse the items and append them."""
        if not isinstance(value, list):
            problems.add(path, "must be a list")
            return
        container = getattr(message, self.name)
        for position, item in enumerate(value):
            try:
                container.append(self._parse(item))
            except InvalidValue as refusal:
                problems.add(f"{path}[{position}]", str(refusal))


class MessageFieldCodec(FieldCodec):
    """The codec of a singular message field."""

    def __init__(self, field: FieldDescriptor, form: MessageCodec) -> None:
        super().__init__(field)
        self.takes_null = form is json_values.VALUE_CODEC
        self.render = form.render
        self._form = form

    def read(self, message: Message, value: object, path: str, problems: ViolationCollector) -> None:
        """Parse the value into the field's message."""
        child = getattr(message, self.name)
        child.SetInParent()
        self._form.fill(child, value, path, problems)


class RepeatedMessageCodec(FieldCodec):
    """The codec of a repeated message field."""

    def __init__(self, field: FieldDescriptor, form: MessageCodec) -> None:
        super().__init__(field)
        self.render = functools.partial(render_values, form.render)
        self._form = form

    def read(self, message: Message, value: object, path: str, problems: ViolationCollector) -> None:
        """Parse the items and append them."""
        if not isinstance(value, list):
            problems.add(path, "must be a list")
            return
        container = getattr(message, self.name)
        for position, item in enumerate(value):
            self._form.fill(container.add(), item, f"{path}[{position}]", problems)


class MapFieldCodec(FieldCodec):
    """The codec of a map field with string keys; entries are printed in key order."""

    def __init__(self, field: FieldDescriptor, entry: Descriptor) -> None:
        super().__init__(field)
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        if key.type != FieldDescriptor.TYPE_STRING:
            raise TypeError(f"{field.full_name} must have keys of type string")
        self._form = message_codec(value.message_type) if value.message_type else None
        self._value = None if value.message_type else scalar_codec(value)
        render_item = self._form.render if self._form else self._value.render if self._value else None
        self.render = functools.partial(render_map, render_item)

    def read(self, message: Message, value: object, path: str, problems: ViolationCollector) -> None:
        """Parse the entries and set them."""
        if not isinstance(value, dict):
            problems.add(path, "must be an object")
            return
        container = getattr(message, self.name)
        for key, item in value.items():
            place = f"{path}.{printable_key(key)}"
            try:
                if self._form:
                    self._form.fill(container[parse_text(key)], item, place, problems)
                elif self._value:
                    container[parse_text(key)] = self._value.parse(item)
            except InvalidValue as refusal:
                problems.add(place, str(refusal))


def compile_field(field: FieldDescriptor) -> FieldCodec:
    """Return the codec of a field. Raises TypeError if its type has no JSON form."""
    if field.message_type is None:
        return (
            RepeatedScalarCodec(field, scalar_codec(field))
            if field.is_repeated
            else ScalarFieldCodec(field, scalar_codec(field))
        )
    if field.message_type.GetOptions().map_entry:
        return MapFieldCodec(field, field.message_type)
    form = message_codec(field.message_type)
    return RepeatedMessageCodec(field, form) if field.is_repeated else MessageFieldCodec(field, form)


def render_values(render: RenderValue, values: Sequence[object]) -> list[object]:
    """Render the items of a list, without the omitted ones."""
    return [item for item in map(render, values) if item is not OMITTED]


def render_map(render: RenderValue | None, values: Any) -> dict[str, object]:
    """Render the entries of a map in key order, without the omitted ones."""
    entries = ((key, render(values[key]) if render else values[key]) for key in sorted(values))
    return {key: item for key, item in entries if item is not OMITTED}
