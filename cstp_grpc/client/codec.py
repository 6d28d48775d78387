"""Between the contract's messages and JSON, by the contract's descriptors.

Names are lowerCamelCase and enums plain words. Fields without presence are always printed; unspecified enums and what
is absent are left out. On input null means absent, and every field that is unknown or wrong is named by its path.
A message type is compiled once, at its first use.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from cstp_grpc.client import json_known
from cstp_grpc.client.json_forms import ABSENT, Problems, Refusal, ValueForm, parse_text, shown, value_form
from cstp_grpc.client.json_known import MessageForm
from cstp_grpc.errors import FieldViolation

MessageT = TypeVar("MessageT", bound=Message)
Render = Callable[[Any], object]

PATH_PART: Final = re.compile(r'\[(?:"(?:[^"\\]|\\.)*"|[^\]"]*)\]|[^.\[\]]+')
"""A name, or an index or key in brackets, of a path as the contract writes it."""


class CodecError(Exception):
    """JSON does not fit a message; `violations` names every wrong field by its JSON path, up to a hundred."""

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        super().__init__("; ".join(f"{item.field}: {item.description}".removeprefix(": ") for item in violations))
        self.violations = list(violations)


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object.

    Raises ValueError where it holds what JSON cannot express: NaN, infinity, an instant beyond the year 9999.
    """
    rendered = message_form(message.DESCRIPTOR).render(message)
    if not isinstance(rendered, dict):
        raise TypeError(f"{message.DESCRIPTOR.full_name} is not an object in JSON")
    return rendered


def from_json(data: object, message_class: type[MessageT]) -> MessageT:
    """Return the message that a JSON value describes. Raises CodecError."""
    message = message_class()
    problems = Problems()
    message_form(message_class.DESCRIPTOR).fill(message, data, "", problems)
    if problems.found:
        raise CodecError(problems.found)
    return message


def json_path(message_class: type[Message], proto_path: str) -> str:
    """Return the JSON path of a field that the contract's path names: `filters.min_confidence` as
    `filters.minConfidence`. Parts that name no field of the contract stay as they are.
    """
    message = cast("Descriptor | None", message_class.DESCRIPTOR)
    path = ""
    for part in PATH_PART.findall(proto_path):
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
def message_form(descriptor: Descriptor) -> MessageForm:
    """Return how a type of message looks in JSON. Raises TypeError for a well-known one that is not known here."""
    known = json_known.FORMS.get(descriptor.full_name)
    if known is not None:
        return known
    if json_known.WITHOUT_FORM.fullmatch(descriptor.full_name):
        raise TypeError(f"{descriptor.full_name} has no JSON form here")
    return ObjectForm(descriptor)


class ObjectForm:
    """A message of the contract, as a JSON object."""

    def __init__(self, descriptor: Descriptor) -> None:
        self._descriptor = descriptor

    @functools.cached_property
    def _fields(self) -> dict[str, Field]:
        """The fields by their JSON names; compiled late, since messages may hold themselves."""
        return {field.json_name: compile_field(field) for field in self._descriptor.fields}

    @functools.cached_property
    def _rows(self) -> tuple[tuple[str, str, bool, Render | None], ...]:
        """What rendering needs of each field: its names, whether it has presence, its rendering."""
        return tuple((field.name, key, field.has_presence, field.render) for key, field in self._fields.items())

    @functools.cached_property
    def _choices(self) -> tuple[tuple[str, ...], ...]:
        """The JSON names of fields of which only one may be set."""
        return tuple(
            tuple(field.json_name for field in oneof.fields)
            for oneof in self._descriptor.oneofs
            if len(oneof.fields) > 1
        )

    def render(self, message: Message) -> dict[str, object]:
        """Return the object."""
        rendered: dict[str, object] = {}
        for name, key, has_presence, render in self._rows:
            if has_presence and not message.HasField(name):
                continue
            value = getattr(message, name)
            if render is not None:
                value = render(value)
                if value is ABSENT:
                    continue
            rendered[key] = value
        return rendered

    def fill(self, message: Message, value: object, path: str, problems: Problems) -> None:
        """Set the fields that the object names."""
        if not isinstance(value, dict):
            problems.add(path, "must be an object")
            return
        prefix = f"{path}." if path else ""
        fields = self._fields
        for key, item in value.items():
            field = fields.get(key)
            if field is None:
                problems.add(prefix + shown(key), "is not a known field")
            elif item is not None or field.takes_null:
                field.read(message, item, prefix + key, problems)
        if self._choices:
            self._check_choices(value, prefix, problems)

    def _check_choices(self, value: dict[str, object], prefix: str, problems: Problems) -> None:
        """Refuse a second member of a oneof."""
        for names in self._choices:
            first, *others = [name for name in names if value.get(name) is not None] or [""]
            for other in others:
                problems.add(prefix + other, f'cannot be set beside "{first}"')


class Field(ABC):
    """One field of a message; the base of its kinds."""

    takes_null = False
    """Whether null is a value of the field and not its absence."""
    render: Render | None

    def __init__(self, field: FieldDescriptor) -> None:
        self.name = field.name
        self.has_presence = field.has_presence

    @abstractmethod
    def read(self, message: Message, value: object, path: str, problems: Problems) -> None:
        """Set the field from a JSON value that is not absent."""


class ValueField(Field):
    """A single value that is no message."""

    def __init__(self, field: FieldDescriptor, form: ValueForm) -> None:
        super().__init__(field)
        self.render = form.render
        self._parse = form.parse

    def read(self, message: Message, value: object, path: str, problems: Problems) -> None:
        """Set the field."""
        try:
            setattr(message, self.name, self._parse(value))
        except Refusal as refusal:
            problems.add(path, str(refusal))


class ValuesField(Field):
    """A list of values that are no messages."""

    def __init__(self, field: FieldDescriptor, form: ValueForm) -> None:
        super().__init__(field)
        self.render = functools.partial(render_values, form.render) if form.render else list
        self._parse = form.parse

    def read(self, message: Message, value: object, path: str, problems: Problems) -> None:
        """Append the items."""
        if not isinstance(value, list):
            problems.add(path, "must be a list")
            return
        container = getattr(message, self.name)
        for position, item in enumerate(value):
            try:
                container.append(self._parse(item))
            except Refusal as refusal:
                problems.add(f"{path}[{position}]", str(refusal))


class MessageField(Field):
    """A single message."""

    def __init__(self, field: FieldDescriptor, form: MessageForm) -> None:
        super().__init__(field)
        self.takes_null = form is json_known.VALUE
        self.render = form.render
        self._form = form

    def read(self, message: Message, value: object, path: str, problems: Problems) -> None:
        """Fill the message."""
        child = getattr(message, self.name)
        child.SetInParent()
        self._form.fill(child, value, path, problems)


class MessagesField(Field):
    """A list of messages."""

    def __init__(self, field: FieldDescriptor, form: MessageForm) -> None:
        super().__init__(field)
        self.render = functools.partial(render_values, form.render)
        self._form = form

    def read(self, message: Message, value: object, path: str, problems: Problems) -> None:
        """Append the messages."""
        if not isinstance(value, list):
            problems.add(path, "must be a list")
            return
        container = getattr(message, self.name)
        for position, item in enumerate(value):
            self._form.fill(container.add(), item, f"{path}[{position}]", problems)


class MapField(Field):
    """Values or messages by text keys, printed in the order of their keys."""

    def __init__(self, field: FieldDescriptor, entry: Descriptor) -> None:
        super().__init__(field)
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        if key.type != FieldDescriptor.TYPE_STRING:
            raise TypeError(f"{field.full_name} must have keys of type string")
        self._form = message_form(value.message_type) if value.message_type else None
        self._value = None if value.message_type else value_form(value)
        render_item = self._form.render if self._form else self._value.render if self._value else None
        self.render = functools.partial(render_map, render_item)

    def read(self, message: Message, value: object, path: str, problems: Problems) -> None:
        """Set the entries."""
        if not isinstance(value, dict):
            problems.add(path, "must be an object")
            return
        container = getattr(message, self.name)
        for key, item in value.items():
            place = f"{path}.{shown(key)}"
            try:
                if self._form:
                    self._form.fill(container[parse_text(key)], item, place, problems)
                elif self._value:
                    container[parse_text(key)] = self._value.parse(item)
            except Refusal as refusal:
                problems.add(place, str(refusal))


def compile_field(field: FieldDescriptor) -> Field:
    """Return how a field is rendered and read. Raises TypeError where its type has no JSON form."""
    if field.message_type is None:
        return ValuesField(field, value_form(field)) if field.is_repeated else ValueField(field, value_form(field))
    if field.message_type.GetOptions().map_entry:
        return MapField(field, field.message_type)
    form = message_form(field.message_type)
    return MessagesField(field, form) if field.is_repeated else MessageField(field, form)


def render_values(render: Render, values: Sequence[object]) -> list[object]:
    """Return the items of a list, without those that are left out."""
    return [item for item in map(render, values) if item is not ABSENT]


def render_map(render: Render | None, values: Any) -> dict[str, object]:
    """Return the entries of a map in the order of their keys, without those that are left out."""
    entries = ((key, render(values[key]) if render else values[key]) for key in sorted(values))
    return {key: item for key, item in entries if item is not ABSENT}
