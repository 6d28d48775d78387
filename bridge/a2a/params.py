"""From the params of a call to the message of A2A that they describe.

They are ProtoJSON: names in either spelling, members that A2A does not have are passed over. Unlike the parser of
protobuf this one names everything that is wrong by its path, and passes over no word that an enum does not have.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from a2a.utils.errors import InvalidParamsError
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from bridge.a2a.errors import invalid_params
from bridge.status import summary
from cstp_grpc.client import json_forms, json_known
from cstp_grpc.client.codec import json_path
from cstp_grpc.client.json_forms import Problems, Refusal

MessageT = TypeVar("MessageT", bound=Message)

DECIMAL: Final = re.compile(r"-?[0-9]{1,10}", re.ASCII)
URL_SAFE: Final = str.maketrans("-_", "+/")
VALUE: Final = "google.protobuf.Value"
MAX_ITEMS: Final = 1000
"""How many items a list of a request may have, free-form data aside: to judge each takes time that is everybody's."""
TOO_MANY: Final = f"must have at most {MAX_ITEMS} items"


@dataclass(frozen=True, slots=True)
class KnownField:
    """A field of a message, and how params may give it."""

    field: FieldDescriptor
    names: tuple[str, ...]
    """Its name in JSON, and the one in the contract if that is another."""
    takes_null: bool
    """Whether null is a value and does not mean that the field is absent: so it is for free-form data."""

    def spellings_in(self, members: Mapping[str, object]) -> list[str]:
        """Return the names by which an object sets the field."""
        return [name for name in self.names if name in members and (self.takes_null or members[name] is not None)]


@functools.cache
def shape_of(kind: Descriptor) -> tuple[tuple[KnownField, ...], tuple[tuple[KnownField, ...], ...]]:
    """Return the fields of a type of message, and those of which only one may be set."""
    fields = {
        field.name: KnownField(
            field,
            tuple(dict.fromkeys((field.json_name, field.name))),
            field.message_type is not None and field.message_type.full_name == VALUE,
        )
        for field in kind.fields
    }
    # An optional field is a choice of its own to protobuf.
    choices = [tuple(fields[field.name] for field in oneof.fields) for oneof in kind.oneofs if len(oneof.fields) > 1]
    return tuple(fields.values()), tuple(choices)


def read(params: object, kind: type[MessageT]) -> MessageT:
    """Return the message that params describe. Raises InvalidParamsError."""
    message = kind()
    problems = Problems()
    fill(message, params, "", problems)
    if problems.found:
        raise refused([(item.field, item.description) for item in problems.found])
    return message


def refused(found: Sequence[tuple[str, str]]) -> InvalidParamsError:
    """Return the error that names fields and what is wrong with each."""
    return invalid_params(summary(found), *found)


def named(error: InvalidParamsError, kind: type[Message]) -> InvalidParamsError:
    """Return an error about fields of a message with their names in JSON."""
    fields = [(json_path(kind, item["field"]), item["message"]) for item in (error.data or {}).get("errors", ())]
    # The SDK's own text says only that something is wrong.
    return invalid_params(summary(fields), *fields) if fields else error


def fill(message: Message, value: object, path: str, problems: Problems) -> None:
    """Set an empty message from JSON, and note what is wrong with it or with anything in it."""
    known = json_known.FORMS.get(message.DESCRIPTOR.full_name)
    if known is not None:
        known.fill(message, value, path, problems)
        return
    if not isinstance(value, dict):
        problems.add(path, "must be an object" if path else "params must be an object")
        return
    prefix = f"{path}." if path else ""
    fields, choices = shape_of(cast("Descriptor", message.DESCRIPTOR))
    for each in fields:
        spellings = each.spellings_in(value)
        if len(spellings) > 1:
            problems.add(prefix + spellings[1], f'cannot be set beside "{spellings[0]}"')
        elif spellings:
            fill_field(message, each.field, value[spellings[0]], prefix + each.field.json_name, problems)
    for choice in choices:
        check_choice([each.field for each in choice if each.spellings_in(value)], prefix, problems)


def fill_field(message: Message, field: FieldDescriptor, value: object, path: str, problems: Problems) -> None:
    """Set a field, and note what is wrong with it or with its items."""
    if field.is_repeated:
        fill_list(getattr(message, field.name), field, value, path, problems)
    elif field.message_type is not None:
        child = getattr(message, field.name)
        child.SetInParent()
        fill(child, value, path, problems)
    else:
        try:
            setattr(message, field.name, parse(field, value))
        except Refusal as refusal:
            problems.add(path, str(refusal))


def fill_list(container: Any, field: FieldDescriptor, value: object, path: str, problems: Problems) -> None:
    """Append the items of a list, and note what is wrong with each."""
    if not isinstance(value, list):
        problems.add(path, "must be a list")
        return
    if len(value) > MAX_ITEMS:
        problems.add(path, TOO_MANY)
        return
    for position, item in enumerate(value):
        place = f"{path}[{position}]"
        if field.message_type is not None:
            fill(container.add(), item, place, problems)
            continue
        try:
            container.append(parse(field, item))
        except Refusal as refusal:
            problems.add(place, str(refusal))


def parse(field: FieldDescriptor, value: object) -> Any:
    """Return a value that is no message. Raises Refusal."""
    if field.enum_type is not None:
        return parse_enum(field.enum_type, value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return parse_bytes(value)
    if field.type == FieldDescriptor.TYPE_INT32:
        return json_forms.INT32.parse(int(value) if isinstance(value, str) and DECIMAL.fullmatch(value) else value)
    return json_forms.SCALARS[field.type].parse(value)


def parse_enum(enum: EnumDescriptor, value: object) -> int:
    """Return the value of an enum that is given by its name or its number. Raises Refusal."""
    numbers = numbers_of(enum)
    if isinstance(value, str) and value in numbers:
        return numbers[value]
    if isinstance(value, int) and not isinstance(value, bool) and value in numbers.values():
        return value
    raise Refusal("must be one of " + ", ".join(f'"{name}"' for name in numbers))


@functools.cache
def numbers_of(enum: EnumDescriptor) -> Mapping[str, int]:
    """Return the values of an enum by their names; protobuf's own look-up raises for text that has no UTF-8."""
    return {item.name: int(item.number) for item in enum.values}


def parse_bytes(value: object) -> bytes:
    """Return what base64 text of either alphabet holds, padded or not. Raises Refusal."""
    if isinstance(value, str):
        text = value.translate(URL_SAFE).rstrip("=")
        value = text + "=" * (-len(text) % 4)
    return json_forms.parse_bytes(value)


def check_choice(fields: list[FieldDescriptor], prefix: str, problems: Problems) -> None:
    """Note a second member of a oneof."""
    for other in fields[1:]:
        problems.add(prefix + other.json_name, f'cannot be set beside "{fields[0].json_name}"')
