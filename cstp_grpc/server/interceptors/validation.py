"""The shape of requests is judged here and nowhere else."""

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
TIMESTAMP = Timestamp.DESCRIPTOR.full_name
STRUCT = Struct.DESCRIPTOR.full_name


@dataclass(frozen=True, slots=True)
class Bounds:
    """What structured data may have: levels, itself included, and values in all."""

    depth: int
    values: int


class Validation:
    """Holds every request to the annotations of the contract, and its structured data to some levels and values."""

    def __init__(self, max_depth: int, max_values: int) -> None:
        self._validator = protovalidate.Validator()
        self._max_depth = max_depth
        self._max_values = max_values

    def begin_to_warm(self, requests: Iterable[type[Message]]) -> None:
        """Have a thread compile the rules of message types, which costs the first request of each milliseconds else."""
        threading.Thread(target=self._warm, args=(list(requests),), name="validation", daemon=True).start()

    def _warm(self, requests: Iterable[type[Message]]) -> None:
        for request in requests:
            self._validator.collect_violations(request())

    def judge_numbered(self, request: Message, number: int) -> None:
        """Let a well-formed message of a stream pass. Raises InvalidArgument with its number and each field."""
        try:
            self.judge(request)
        except InvalidArgument as error:
            violations = [FieldViolation(f"[{number}].{v.field}", v.description) for v in error.violations]
            raise InvalidArgument(f"Message {number}: {error.message}", violations=violations) from error

    def judge(self, request: Message) -> None:
        """Let a well-formed request pass. Raises InvalidArgument, which names each field."""
        violations = list(malformed(request, "", Bounds(self._max_depth, self._max_values)))
        if not violations:
            violations = [
                FieldViolation(dotted(found.proto.field), found.proto.message)
                for found in self._validator.collect_violations(request)
            ]
        if violations:
            # Trailing metadata, in which errors travel, has little room.
            violations = violations[:MAX_VIOLATIONS]
            summary = "; ".join(f"{v.field}: {v.description}" if v.field else v.description for v in violations)
            raise InvalidArgument(summary, violations=violations)


def dotted(path: Any) -> str:
    """Return a protovalidate field path as text: `decision.reasons[2].type`."""
    parts = []
    for element in path.elements if path is not None else ():
        index = element.subscript
        parts.append(f"{element.field_name}[{index.value}]" if index is not None else element.field_name)
    return ".".join(parts)


@functools.cache
def watched(kind: Descriptor) -> tuple[FieldDescriptor, ...]:
    """Return the fields of a message type that are, or lead to, instants or structured data."""
    return tuple(
        field
        for field in kind.fields
        if field.message_type is not None
        and not field.message_type.GetOptions().map_entry
        and (field.message_type.full_name in (TIMESTAMP, STRUCT) or watched(field.message_type))
    )


def malformed(message: Message, prefix: str, bounds: Bounds) -> Iterator[FieldViolation]:
    """Yield what annotations cannot say: instants that are none, and structured data nested too deep."""
    for field in watched(message.DESCRIPTOR):
        if field.is_repeated:
            for index, item in enumerate(getattr(message, field.name)):
                yield from malformed_value(item, f"{prefix}{field.name}[{index}]", bounds)
        elif message.HasField(field.name):
            yield from malformed_value(getattr(message, field.name), prefix + field.name, bounds)


def malformed_value(value: Any, path: str, bounds: Bounds) -> Iterator[FieldViolation]:
    """Yield what is wrong with the value of a message field."""
    kind = value.DESCRIPTOR.full_name
    if kind == TIMESTAMP:
        if not 0 <= value.nanos < NANOS:
            yield FieldViolation(path, "is not an instant: nanos must be from 0 to 999999999")
    elif kind == STRUCT:
        if flaw := struct_flaw(value, bounds):
            yield FieldViolation(path, flaw)
    else:
        yield from malformed(value, f"{path}.", bounds)


def struct_flaw(struct: Struct, bounds: Bounds) -> str | None:
    """Return what keeps a Struct from being a JSON object within bounds."""
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
