"""Whether a request has all that A2A requires, and no endless lists.

The SDK has such a check too, but it also looks into free-form data, which requires nothing: that takes seconds for what
fits into one message.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from google.api import field_behavior_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from bridge.a2a import params
from cstp_grpc.client.json_forms import MAX_VIOLATIONS

WELL_KNOWN: Final = "google.protobuf."


@dataclass(frozen=True, slots=True)
class Field:
    """What has to be judged of a field."""

    name: str
    is_required: bool
    is_list: bool
    has_presence: bool
    has_fields: bool
    """Whether its values are messages with fields to judge."""


def check(message: Message) -> None:
    """Let a request pass that has what is required. Raises InvalidParamsError."""
    found = list(islice(wrong_fields(message, ""), MAX_VIOLATIONS))
    if found:
        raise params.refused(found)


def wrong_fields(message: Message, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the paths of wrong fields, and what is wrong with each."""
    for field in fields_of(message.DESCRIPTOR):
        value, place = getattr(message, field.name), f"{prefix}{field.name}"
        is_given = message.HasField(field.name) if field.has_presence else bool(value)
        if not is_given:
            if field.is_required:
                yield place, "is required"
        elif not field.is_list:
            if field.has_fields:
                yield from wrong_fields(value, f"{place}.")
        elif len(value) > params.MAX_ITEMS:
            yield place, params.TOO_MANY
        elif field.has_fields:
            for position, item in enumerate(value):
                yield from wrong_fields(item, f"{place}[{position}].")


@functools.cache
def fields_of(kind: Descriptor) -> tuple[Field, ...]:
    """Return the fields of a message that have to be judged."""
    return tuple(
        field for field in map(field_of, kind.fields) if field.is_required or field.is_list or field.has_fields
    )


def field_of(field: FieldDescriptor) -> Field:
    """Return what has to be judged of a field."""
    required = field_behavior_pb2.FieldBehavior.Value("REQUIRED")
    return Field(
        name=field.name,
        is_required=required in field.GetOptions().Extensions[field_behavior_pb2.field_behavior],
        is_list=field.is_repeated,
        has_presence=field.has_presence,
        has_fields=field.message_type is not None and not field.message_type.full_name.startswith(WELL_KNOWN),
    )
