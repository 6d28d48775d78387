"""Convert between dataclasses and messages of the contract by the names and type hints of their fields.

A `MessageMapper` writes the conversion of one pair as Python source and compiles it with its first use, as
`dataclasses` writes `__init__`. The source sets one field after another, which is faster than the constructor of a
message and than a loop over descriptors.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar, cast

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from cstp_grpc.contract import proto_values

ModelT = TypeVar("ModelT")
MessageT = TypeVar("MessageT", bound=Message)

SCALAR_TYPES: Final[Mapping[int, tuple[type, ...]]] = {
    FieldDescriptor.CPPTYPE_BOOL: (bool,),
    FieldDescriptor.CPPTYPE_DOUBLE: (float, int),
    FieldDescriptor.CPPTYPE_FLOAT: (float, int),
    FieldDescriptor.CPPTYPE_INT32: (int,),
    FieldDescriptor.CPPTYPE_INT64: (int,),
    FieldDescriptor.CPPTYPE_UINT32: (int,),
    FieldDescriptor.CPPTYPE_UINT64: (int,),
    FieldDescriptor.CPPTYPE_STRING: (str, bytes),
}
"""The types of Python that fields without a message or an enum accept."""
WELL_KNOWN: Final[Mapping[str, tuple[type, str, str]]] = {
    "google.protobuf.Timestamp": (datetime, "write_timestamp({target}, {value})", "{}.ToDatetime(UTC)"),
    "google.protobuf.Duration": (timedelta, "{target}.FromTimedelta({value})", "{}.ToTimedelta()"),
    "google.protobuf.Struct": (Mapping, "{target}.update(dict({value}))", "struct_to_dict({})"),
}
"""The type of Python for each well-known message, and how a value is written to it and read from it."""


class MessageMapper(Generic[ModelT, MessageT]):
    """Converts between a dataclass and a message whose fields have the same names.

    A `bool` may lack the prefix `is_` in the message. The exceptions, by names of message fields: `fields` maps a field
    to the path of another attribute, such as `identity.name`, or to a function of the model; `parts` are attributes
    whose own attributes count as those of the model; `unset` are fields that are not written. `given` are the fields of
    the target, of either direction, that are passed to `encode`, `write` or `decode` by name. `nested` are the mappers
    of pairs below this one that have exceptions too. Every field of a message, and every field of a dataclass without a
    default, must be accounted for: the first use raises TypeError if it is not.

    Written: None and empty collections leave a field unset, and sets are sorted. Read: an absent field or an
    unspecified enum is the default of the dataclass field, else None if its type allows that.
    """

    def __init__(
        self,
        model: type[ModelT],
        message: type[MessageT],
        fields: Mapping[str, str | Callable[[ModelT], Any]] | None = None,
        *,
        parts: Collection[str] = (),
        given: Collection[str] = (),
        unset: Collection[str] = (),
        nested: Collection[MessageMapper[Any, Any]] = (),
    ) -> None:
        self.model: Any = model
        self.message = message
        self.fields = fields or {}
        self.parts = parts
        self.given = given
        self.unset = unset
        self.nested = {(each.model, each.descriptor.full_name): each for each in nested}

    @property
    def descriptor(self) -> Descriptor:
        return cast(Descriptor, self.message.DESCRIPTOR)

    @functools.cached_property
    def write(self) -> Callable[..., None]:
        """Set the fields of an empty message: `write(message, model, **given)`."""
        write: Callable[..., None] = self._encoder["convert"]
        return write

    @functools.cached_property
    def encode(self) -> Callable[..., MessageT]:
        """Convert a model to a new message: `encode(model, **given)`."""
        encode: Callable[..., MessageT] = self._encoder["encode"]
        return encode

    @functools.cached_property
    def decode(self) -> Callable[..., ModelT]:
        """Convert a message to a model: `decode(message, **given)`."""
        decode: Callable[..., ModelT] = DecoderSource(self).compile()["convert"]
        return decode

    @functools.cached_property
    def _encoder(self) -> Mapping[str, Any]:
        return EncoderSource(self).compile()

    def mapper_below(self, hint: Any, descriptor: Descriptor) -> MessageMapper[Any, Any]:
        return self.nested.get((hint, descriptor.full_name)) or plain_mapper(hint, descriptor)

    def source_of(self, field: str) -> str | Callable[[ModelT], Any] | None:
        """Return the path of the attribute that a message field is written from, or its function; None without one."""
        if field in self.fields:
            return self.fields[field]
        owners = {"": self.model} | {f"{part}.": bare_type(hints_of(self.model)[part]) for part in self.parts}
        names = (field, f"is_{field}")
        return next((part + name for part, owner in owners.items() for name in names if name in hints_of(owner)), None)


@functools.cache
def plain_mapper(model: type, descriptor: Descriptor) -> MessageMapper[Any, Any]:
    """Return the mapper of a pair without exceptions."""
    return MessageMapper(model, message_factory.GetMessageClass(descriptor))


class MapperSource:
    """The source of a function that a mapper consists of, and the names it uses."""

    def __init__(self, mapper: MessageMapper[Any, Any], head: str, tail: str = "") -> None:
        self._mapper = mapper
        self._tail = tail
        self._lines: list[str] = []
        self._head = head
        self._names: dict[str, Any] = {
            "UTC": UTC,
            "write_timestamp": proto_values.write_timestamp,
            "struct_to_dict": proto_values.struct_to_dict,
        }

    def compile(self) -> Mapping[str, Any]:
        """Return the functions by name."""
        try:
            self._write_body()
        except TypeError as error:
            raise TypeError(f"{self._mapper.model.__name__} and {self._mapper.descriptor.name}: {error}") from error
        source = "\n    ".join([self._head, *self._lines]) + self._tail
        # The source has only names of fields in it, which are ours.
        exec(compile(source, f"<{self._mapper.model.__name__}>", "exec"), self._names)  # noqa: S102
        return self._names

    def _write_body(self) -> None:
        raise NotImplementedError

    def _bind(self, value: Any) -> str:
        """Return a name by which the source refers to a value."""
        name = f"bound_{len(self._names)}"
        self._names[name] = value
        return name


class EncoderSource(MapperSource):
    """The source of a function that sets the fields of a message to those of a model."""

    def __init__(self, mapper: MessageMapper[Any, Any]) -> None:
        given = [name for name in mapper.given if name in mapper.descriptor.fields_by_name]
        parameters = "".join(f", {name}=None" for name in given)
        arguments = "".join(f", {name}" for name in given)
        super().__init__(
            mapper,
            f"def convert(message, item{parameters}):",
            f"\ndef encode(item{parameters}):"
            f"\n    message = kind()\n    convert(message, item{arguments})\n    return message",
        )
        self._names["kind"] = mapper.message

    def _write_body(self) -> None:
        mapper = self._mapper
        for field in mapper.descriptor.fields:
            if field.name in mapper.given:
                self._write_given(field)
            elif field.name not in mapper.unset:
                source = mapper.source_of(field.name)
                if source is None:
                    raise TypeError(f"the model has no {field.name}")
                if isinstance(source, str):
                    self._write_attribute(field, source)
                else:
                    self._lines.append(f"{field.name} = {self._bind(source)}(item)")
                    self._write_given(field)

    def _write_given(self, field: FieldDescriptor) -> None:
        """Write a value that is one of the contract already."""
        target = f"message.{field.name}"
        statement = f"{target}.CopyFrom({field.name})" if field.message_type else f"{target} = {field.name}"
        if field.is_repeated:
            statement = f"{target}.{'update' if map_value(field) else 'extend'}({field.name})"
        self._lines.append(f"if {field.name} is not None: {statement}")

    def _write_attribute(self, field: FieldDescriptor, path: str) -> None:
        expression, hint, is_optional = "item", self._mapper.model, False
        for name in path.split("."):
            if is_optional:
                self._lines.append(f"value = {expression}")
                self._lines.append(f"value = None if value is None else value.{name}")
                expression = "value"
            else:
                expression = f"{expression}.{name}"
            attribute = hints_of(bare_type(hint))[name]
            hint, is_optional = attribute, is_optional or allows_none(attribute)
        if field.is_repeated:
            self._write_repeated(field, expression, bare_type(hint))
        elif is_optional:
            self._lines.append(f"value = {expression}")
            self._lines.append(f"if value is not None: {self._assignment(field, 'value', bare_type(hint))}")
        else:
            self._lines.append(self._assignment(field, expression, hint))

    def _assignment(self, field: FieldDescriptor, value: str, hint: Any) -> str:
        target = f"message.{field.name}"
        if field.message_type is None:
            return f"{target} = {self._scalar(field, value, hint)}"
        # Presence first, because a nested message may have no field to set.
        return f"{target}.SetInParent(); {self._message_statement(field.message_type, target, value, hint)}"

    def _write_repeated(self, field: FieldDescriptor, values: str, hint: Any) -> None:
        target = f"message.{field.name}"
        self._lines.append(f"values = {values}")
        if value_field := map_value(field):
            item_hint = typing.get_args(hint)[1]
            if value_field.message_type is None:
                value = self._scalar(value_field, "each", item_hint)
                loop = f"{target}[key] = {value}"
            else:
                loop = self._message_statement(value_field.message_type, f"{target}[key]", "each", item_hint)
            self._lines.append(f"for key, each in (values or {{}}).items(): {loop}")
            return
        item_hint = item_type(hint)
        items = "sorted(values)" if issubclass(typing.get_origin(hint), collections.abc.Set) else "values"
        if field.message_type is None:
            scalar = self._scalar(field, "each", item_hint)
            items = items if scalar == "each" else f"[{scalar} for each in {items}]"
            self._lines.append(f"if values: {target}.extend({items})")
        else:
            loop = self._message_statement(field.message_type, f"{target}.add()", "each", item_hint)
            self._lines.append(f"for each in {items} or (): {loop}")

    def _scalar(self, field: FieldDescriptor, value: str, hint: Any) -> str:
        if field.enum_type:
            return f"{self._bind(numbers_of(field, hint))}[{value}]"
        # The word of an enum that is a text in the contract is one already.
        require_scalar(field, str if isinstance(hint, type) and issubclass(hint, StrEnum) else hint)
        return value

    def _message_statement(self, descriptor: Descriptor, target: str, value: str, hint: Any) -> str:
        known = WELL_KNOWN.get(descriptor.full_name)
        if known is None:
            mapper = self._mapper.mapper_below(hint, descriptor)
            return f"{self._bind(mapper.write)}({target}, {value})"
        require_well_known(descriptor, hint)
        return known[1].format(target=target, value=value)


class DecoderSource(MapperSource):
    """The source of a function that makes a model of a message."""

    def __init__(self, mapper: MessageMapper[Any, Any]) -> None:
        given = "".join(f", {each.name}" for each in dataclasses.fields(mapper.model) if each.name in mapper.given)
        super().__init__(mapper, f"def convert(message, *{given}):" if given else "def convert(message):")

    def _write_body(self) -> None:
        mapper = self._mapper
        sources = {path: name for name, path in mapper.fields.items() if isinstance(path, str)}
        hints = hints_of(mapper.model)
        arguments = []
        for each in dataclasses.fields(mapper.model):
            name = sources.get(each.name, each.name)
            field = mapper.descriptor.fields_by_name.get(name, None)
            field = field or mapper.descriptor.fields_by_name.get(name.removeprefix("is_"))
            if each.name in mapper.given:
                arguments.append(f"{each.name}={each.name}")
            elif field is not None and field.name not in mapper.unset:
                arguments.append(f"{each.name}={self._value(field, each, hints[each.name])}")
            elif default_of(each) is dataclasses.MISSING:
                raise TypeError(f"the message has no {each.name}")
        self._lines.append(f"return {self._bind(mapper.model)}({', '.join(arguments)})")

    def _value(self, field: FieldDescriptor, each: dataclasses.Field[Any], hint: Any) -> str:
        """Return the expression for the value of a dataclass field."""
        source, bare = f"message.{field.name}", bare_type(hint)
        if field.is_repeated:
            return self._collection(field, source, bare)
        default = default_of(each)
        if field.enum_type:
            words = self._words(field, bare)
            if default is dataclasses.MISSING and not allows_none(hint):
                return f"{words}[{source}]"
            return f"{words}.get({source}, {self._bind(None if default is dataclasses.MISSING else default)})"
        value = source
        if field.message_type:
            value = self._message_expression(field.message_type, source, bare)
        else:
            require_scalar(field, bare)
        has_default = default is not dataclasses.MISSING
        if allows_none(hint) or (has_default and not field.message_type and field.has_presence):
            absent = self._bind(default) if has_default and default is not None else "None"
            return (
                f'{value} if message.HasField("{field.name}") else {absent}'
                if field.has_presence
                else f"{value} or None"
            )
        return value

    def _collection(self, field: FieldDescriptor, source: str, hint: Any) -> str:
        if value_field := map_value(field):
            value = self._item(value_field, "value", typing.get_args(hint)[1])
            return f"{{key: {value} for key, value in {source}.items()}}"
        item = self._item(field, "each", item_type(hint))
        items = source if item == "each" else f"[{item} for each in {source}]"
        kind = "frozenset" if issubclass(typing.get_origin(hint), collections.abc.Set) else "tuple"
        return f"{kind}({items})"

    def _item(self, field: FieldDescriptor, value: str, hint: Any) -> str:
        if field.enum_type:
            return f"{self._words(field, hint)}[{value}]"
        if field.message_type:
            return self._message_expression(field.message_type, value, hint)
        require_scalar(field, hint)
        return value

    def _words(self, field: FieldDescriptor, hint: Any) -> str:
        numbers = numbers_of(field, hint)
        return self._bind({number: word for word, number in numbers.items()})

    def _message_expression(self, descriptor: Descriptor, source: str, hint: Any) -> str:
        known = WELL_KNOWN.get(descriptor.full_name)
        if known is None:
            return f"{self._bind(self._mapper.mapper_below(hint, descriptor).decode)}({source})"
        require_well_known(descriptor, hint)
        return known[2].format(source)


@functools.cache
def hints_of(model: Any) -> Mapping[str, Any]:
    """Return the types of the fields and properties of a class by name."""
    hints: dict[str, Any] = {}
    for name in dir(model):
        attribute = getattr(model, name)
        if isinstance(attribute, property):
            hints[name] = typing.get_type_hints(attribute.fget).get("return", Any)
    return hints | typing.get_type_hints(model)


def bare_type(hint: Any) -> Any:
    """Return a type without None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [each for each in typing.get_args(hint) if each is not types.NoneType]
        return others[0] if len(others) == 1 else hint
    return hint


def allows_none(hint: Any) -> bool:
    return types.NoneType in typing.get_args(hint)


def item_type(hint: Any) -> Any:
    """Return the type of the items of a collection. Raises TypeError for other types."""
    if typing.get_origin(hint) is None:
        raise TypeError(f"{hint} is not a collection with a type of its items")
    return typing.get_args(hint)[0]


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def map_value(field: FieldDescriptor) -> FieldDescriptor | None:
    """Return the field of the values of a map, or None for other fields."""
    entry = field.message_type
    return entry.fields_by_name["value"] if entry and entry.GetOptions().map_entry else None


def require_scalar(field: FieldDescriptor, hint: Any) -> None:
    if field.message_type or hint not in SCALAR_TYPES[field.cpp_type]:
        raise TypeError(f"{field.name} cannot be a {hint}")


def numbers_of(field: FieldDescriptor, hint: Any) -> Mapping[Any, int]:
    """Return the numbers of the words of an enum field."""
    if field.enum_type is None or not isinstance(hint, type) or not issubclass(hint, StrEnum):
        raise TypeError(f"{field.name} cannot be a {hint}")
    return proto_values.enum_numbers(field.enum_type, hint)


def require_well_known(descriptor: Descriptor, hint: Any) -> None:
    kind = WELL_KNOWN[descriptor.full_name][0]
    if not issubclass(typing.get_origin(hint) or hint, kind):
        raise TypeError(f"a {descriptor.name} cannot be a {hint}")
