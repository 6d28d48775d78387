"""From the params of a call to the message of A2A that they describe.

What is wrong is named by its JSON path. Members that A2A does not have are passed over, as it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast

from a2a.utils.errors import InvalidParamsError
from google.protobuf import json_format, message_factory
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


def read(params: object, kind: type[MessageT]) -> MessageT:
    """Return the message that params describe. Raises InvalidParamsError."""
    problems = Problems()
    check(cast("Descriptor", kind.DESCRIPTOR), params, "", problems)
    if not problems.found:
        try:
            return json_format.ParseDict(cast("dict[str, Any]", params), kind(), ignore_unknown_fields=True)
        except json_format.ParseError:
            problems.add("", "params do not fit the operation")
    raise refused([(item.field, item.description) for item in problems.found])


def refused(found: Sequence[tuple[str, str]]) -> InvalidParamsError:
    """Return the error that names fields and what is wrong with each."""
    return invalid_params(summary(found), *found)


def named(error: InvalidParamsError, kind: type[Message]) -> InvalidParamsError:
    """Return an error about fields of a message with their names in JSON."""
    fields = [(json_path(kind, item["field"]), item["message"]) for item in (error.data or {}).get("errors", ())]
    # The SDK's own text says only that something is wrong.
    return invalid_params(summary(fields), *fields) if fields else error


def check(message: Descriptor, value: object, path: str, problems: Problems) -> None:
    """Note what is wrong with the JSON of a message, or of anything in it."""
    known = json_known.FORMS.get(message.full_name)
    if known is not None:
        known.fill(message_factory.GetMessageClass(message)(), value, path, problems)
        return
    if not isinstance(value, dict):
        problems.add(path, "must be an object" if path else "params must be an object")
        return
    prefix = f"{path}." if path else ""
    fields = {name: field for field in message.fields for name in (field.name, field.json_name)}
    for key, item in value.items():
        field = fields.get(key)
        if field is not None and not is_absent(field, item):
            check_field(field, item, prefix + field.json_name, problems)
    for oneof in message.oneofs:
        check_choice([field for field in oneof.fields if given(field, value)], prefix, problems)


def check_field(field: FieldDescriptor, value: object, path: str, problems: Problems) -> None:
    """Note what is wrong with a field or with its items."""
    if not field.is_repeated:
        check_single(field, value, path, problems)
        return
    if not isinstance(value, list):
        problems.add(path, "must be a list")
        return
    if len(value) > MAX_ITEMS:
        problems.add(path, TOO_MANY)
        return
    for position, item in enumerate(value):
        check_single(field, item, f"{path}[{position}]", problems)


def check_single(field: FieldDescriptor, value: object, path: str, problems: Problems) -> None:
    """Note what is wrong with a value."""
    if field.message_type is not None:
        check(field.message_type, value, path, problems)
        return
    try:
        check_scalar(field, value)
    except Refusal as refusal:
        problems.add(path, str(refusal))


def check_scalar(field: FieldDescriptor, value: object) -> None:
    """Let a value pass that is no message. Raises Refusal."""
    if field.enum_type is not None:
        check_enum(field.enum_type, value)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        check_bytes(value)
    elif field.type == FieldDescriptor.TYPE_INT32:
        json_forms.INT32.parse(int(value) if isinstance(value, str) and DECIMAL.fullmatch(value) else value)
    else:
        json_forms.SCALARS[field.type].parse(value)


def check_enum(enum: EnumDescriptor, value: object) -> None:
    """Let the name or the number of an enum's value pass. Raises Refusal."""
    known = enum.values_by_name if isinstance(value, str) else enum.values_by_number
    if isinstance(value, (bool, dict, list)) or value not in known:
        raise Refusal("must be one of " + ", ".join(f'"{name}"' for name in enum.values_by_name))


def check_bytes(value: object) -> None:
    """Let base64 text of either alphabet pass, padded or not. Raises Refusal."""
    if isinstance(value, str):
        text = value.translate(URL_SAFE).rstrip("=")
        value = text + "=" * (-len(text) % 4)
    json_forms.parse_bytes(value)


def check_choice(fields: list[FieldDescriptor], prefix: str, problems: Problems) -> None:
    """Note a second member of a oneof."""
    for other in fields[1:]:
        problems.add(prefix + other.json_name, f'cannot be set beside "{fields[0].json_name}"')


def given(field: FieldDescriptor, members: dict[str, object]) -> bool:
    """Whether an object sets a field, by either of its names."""
    return any(name in members and not is_absent(field, members[name]) for name in (field.json_name, field.name))


def is_absent(field: FieldDescriptor, value: object) -> bool:
    """Whether a value means that the field is not there: null does, except for free-form data."""
    return value is None and not (field.message_type is not None and field.message_type.full_name == VALUE)
