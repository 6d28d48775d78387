"""Validation of requests; no other module checks their shape."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import protovalidate
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.errors import FieldViolation, InvalidArgument

NANOS = 1_000_000_000
MAX_VIOLATIONS = 20
"""Maximum number of reported fields. Chosen: errors travel in trailing metadata, of which many clients take 8 KiB."""
TIMESTAMP = Timestamp.DESCRIPTOR.full_name
STRUCT = Struct.DESCRIPTOR.full_name


CLEARER_MESSAGES = {
    # An absent enumeration has the number 0, which is the one that is excluded.
    "must not be in list [0]": "must be given",
    "must be at least 1 characters": "must not be empty",
}
"""What is said instead of messages of protovalidate that speak of numbers where something is missing."""


@dataclass(frozen=True, slots=True)
class StructBounds:
    """Limits of structured data: nesting depth, itself included, and values in total."""

    depth: int
    values: int


@functools.cache
def contract_validator() -> protovalidate.Validator:
    """Return the validator of the annotations; what it compiles of them, it keeps for all servers of the process."""
    return protovalidate.Validator()


class RequestValidator:
    """Validates requests against the annotations of the contract, and limits the depth and size of structured data."""

    def __init__(self, max_depth: int, max_values: int) -> None:
        self._validator = contract_validator()
        self._bounds = StructBounds(max_depth, max_values)

    def warm_up(self, requests: Iterable[type[Message]]) -> None:
        """Compile the rules of message types in a thread, which otherwise delays the first request of each by
        milliseconds.
        """
        threading.Thread(target=self._warm, args=(list(requests),), name="validation", daemon=True).start()

    def _warm(self, requests: Iterable[type[Message]]) -> None:
        for request in requests:
            self._validator.collect_violations(request())

    def validate_numbered(self, request: Message, number: int) -> None:
        """Validate a message of a stream. Raises InvalidArgument with its number and each invalid field."""
        try:
            self.validate(request)
        except InvalidArgument as error:
            violations = [FieldViolation(f"[{number}].{v.field}", v.description) for v in error.violations]
            raise InvalidArgument(f"Message {number}: {error.message}", violations=violations) from error

    def validate(self, request: Message) -> None:
        """Validate a request. Raises InvalidArgument, which names each invalid field."""
        violations = list(find_malformed_fields(request, "", self._bounds))
        if not violations and (found := self._validator.collect_violations(request)):
            violations = [
                FieldViolation(
                    format_field_path(each.proto.field), CLEARER_MESSAGES.get(each.proto.message, each.proto.message)
                )
                for each in found
            ]
        if violations:
            violations = violations[:MAX_VIOLATIONS]
            summary = "; ".join(f"{v.field}: {v.description}" if v.field else v.description for v in violations)
            raise InvalidArgument(summary, violations=violations)


def format_field_path(path: Any) -> str:
    """Return a protovalidate field path as text: `decision.reasons[2].type`."""
    parts = []
    for element in path.elements if path is not None else ():
        index = element.subscript
        parts.append(f"{element.field_name}[{index.value}]" if index is not None else element.field_name)
    return ".".join(parts)


@functools.cache
def inspected_fields(kind: Descriptor) -> tuple[FieldDescriptor, ...]:
    """Return the fields of a message type that contain timestamps or structured data, directly or nested."""
    return tuple(
        field
        for field in kind.fields
        if field.message_type is not None
        and not field.message_type.GetOptions().map_entry
        and (field.message_type.full_name in (TIMESTAMP, STRUCT) or inspected_fields(field.message_type))
    )


def find_malformed_fields(message: Message, prefix: str, bounds: StructBounds) -> Iterator[FieldViolation]:
    """Yield violations that annotations cannot express: invalid timestamps, and structured data beyond its bounds."""
    for field in inspected_fields(message.DESCRIPTOR):
        if field.is_repeated:
            for index, item in enumerate(getattr(message, field.name)):
                yield from find_malformed_value(item, f"{prefix}{field.name}[{index}]", bounds)
        elif message.HasField(field.name):
            yield from find_malformed_value(getattr(message, field.name), prefix + field.name, bounds)


def find_malformed_value(value: Any, path: str, bounds: StructBounds) -> Iterator[FieldViolation]:
    """Yield the violations of the value of a message field."""
    kind = value.DESCRIPTOR.full_name
    if kind == TIMESTAMP:
        if not 0 <= value.nanos < NANOS:
            yield FieldViolation(path, "is not an instant: nanos must be from 0 to 999999999")
    elif kind == STRUCT:
        if flaw := describe_struct_flaw(value, bounds):
            yield FieldViolation(path, flaw)
    else:
        yield from find_malformed_fields(value, f"{path}.", bounds)


def describe_struct_flaw(struct: Struct, bounds: StructBounds) -> str | None:
    """Return why a Struct is not a JSON object within bounds, or None."""
    # A list of its own in place of recursion, which a caller could exhaust.
    pending: list[tuple[Collection[Value], int]] = [(struct.fields.values(), 1)]
    left = bounds.values
    while pending:
        values, depth = pending.pop()
        left -= len(values)
        if left < 0:
            return f"holds more than {bounds.values} values"
        for value in values:
            kind = value.WhichOneof("kind")
            if kind == "number_value":
                if not math.isfinite(value.number_value):
                    return "holds a number that is not finite"
            elif kind in ("struct_value", "list_value"):
                if depth == bounds.depth:
                    return f"is nested deeper than {bounds.depth} levels"
                inner = value.struct_value.fields.values() if kind == "struct_value" else value.list_value.values
                pending.append((inner, depth + 1))
    return None
