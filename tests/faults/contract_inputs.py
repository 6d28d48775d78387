"""Inputs made from the contract at random: messages, JSON, and bytes that are nearly right.

They are for volume, at a few microseconds each; properties that say what holds are tested with Hypothesis elsewhere.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import random
from collections.abc import Sequence
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from cstp_grpc.contract.json_codec import from_json, to_json
from cstp_grpc.contract.methods import RpcMethod

TEXTS = (
    *("", " ", "a", "\x00", "\n", "\u2028", "é" * 60, "\U0001f9d1", "\u202e", "../../x", "%s%n", "{{7*7}}", "a" * 129),
    *(
        "a" * 5000,
        "-1",
        "true",
        "null",
        "c-1",
        "prod; --",
        "[" * 200,
        "\ufeff",
        "1e999",
        "2026-13-45T99:99:99Z",
        "${x}",
    ),
)
NUMBERS = (0, -1, 1, 2, 2**31 - 1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63, 10**400, 0.5, -0.0, 1e308, 1e-320)
JSON_LEAVES: tuple[Any, ...] = (*TEXTS, *NUMBERS, math.nan, math.inf, None, True, False, [], {}, [[]], {"": {}})
INTEGER_BITS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), 2**31 - 1),
}
LONGEST = 200_000
"""Characters of the longest mutated text: mutations of mutations would otherwise grow without a bound."""


@functools.cache
def serialized_examples(method: RpcMethod) -> tuple[bytes, ...]:
    """Return the examples that the contract has for a method."""
    return tuple(from_json(json.loads(example), method.request).SerializeToString() for example in method.examples)


class InputGenerator:
    """Makes inputs; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self, kind: type[Message], examples: Sequence[bytes]) -> Message:
        """Return a message: a serialized example with fields changed, or one of random fields."""
        made = kind()
        if examples and self.random.random() < 0.7:
            made.ParseFromString(self.random.choice(examples))
        self._fill(made, 4, 0.15 if made.ByteSize() else 0.5)
        return made

    def serialized(self, kind: type[Message], examples: Sequence[bytes]) -> bytes:
        """Return a serialized message, in half of the cases with some of its bytes changed."""
        content = self.message(kind, examples).SerializeToString()
        return content if self.random.random() < 0.5 else self.mutated_bytes(content)

    def params(self, method: RpcMethod) -> Any:
        """Return JSON params of a method, in most cases with some of their values changed."""
        try:
            made = to_json(self.message(method.request, serialized_examples(method)))
        except (ValueError, DecodeError):
            # Some messages have no JSON, such as timestamps beyond the year 9999.
            made = {}
        return made if self.random.random() < 0.3 else self.mutated_json(made)

    def mutated_json(self, value: Any) -> Any:
        """Return JSON in which a few values, keys or items are others."""
        changed = copy.deepcopy(value)
        for _ in range(self.random.randint(1, 3)):
            changed = self._replace(changed)
        return changed

    def mutated_bytes(self, content: bytes) -> bytes:
        """Return bytes of which some are changed, repeated, missing or new."""
        changed = bytearray(content)
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randint(0, len(changed))
            until = min(len(changed), at + self.random.choice((1, 1, 2, 8, 64)))
            match self.random.randrange(5):
                case 0 if at < len(changed):
                    changed[at] = self.random.randrange(256)
                case 1:
                    del changed[at:until]
                case 2:
                    changed[at:at] = changed[at:until] * self.random.choice((1, 2, 50))
                case 3:
                    changed[at:at] = self.random.randbytes(self.random.choice((1, 2, 10)))
                case _:
                    del changed[at:]
        return bytes(changed[:LONGEST])

    def mutated_lines(self, text: str, parts: Sequence[str]) -> str:
        """Return a text whose lines are changed, repeated, moved or missing, and to which parts of it are added."""
        lines = text.split("\n")
        for _ in range(self.random.randint(1, 5)):
            at = self.random.randrange(len(lines))
            match self.random.randrange(6):
                case 0:
                    lines[at] = self.random.choice(parts)
                case 1 if len(lines) > 1:
                    del lines[at]
                case 2:
                    lines.insert(at, self.random.choice(lines))
                case 3:
                    lines[at] = self.mutated_bytes(lines[at].encode()).decode("utf-8", "replace")
                case 4:
                    lines[at] = " " * self.random.randrange(8) + lines[at].strip()
                case _:
                    lines[at] += self.random.choice((*parts, *TEXTS))
        return "\n".join(lines)[:LONGEST]

    def _fill(self, message: Message, depth: int, share: float) -> None:
        for field in cast("Descriptor", message.DESCRIPTOR).fields:
            if self.random.random() < share:
                self._set(message, field, depth)

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            return
        current = getattr(message, field.name)
        if field.message_type is not None:
            if depth == 0:
                return
            for _ in range(self.random.choice((1, 1, 2, 5)) if field.is_repeated else 1):
                self._fill(current.add() if field.is_repeated else current, depth - 1, 0.4)
            if not field.is_repeated:
                current.SetInParent()
        elif field.is_repeated:
            current.extend(self._scalar(field) for _ in range(self.random.choice((1, 2, 70))))
        else:
            setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: FieldDescriptor) -> Any:
        bounds = INTEGER_BITS.get(field.type)
        if bounds is not None:
            return self.random.choice((0, 1, 2, 3, self.random.randint(*bounds), *bounds))
        match field.type:
            case FieldDescriptor.TYPE_STRING:
                return self.random.choice(TEXTS)
            case FieldDescriptor.TYPE_BOOL:
                return self.random.random() < 0.5
            case FieldDescriptor.TYPE_BYTES:
                return self.random.randbytes(self.random.choice((0, 1, 100)))
        return self.random.choice((0.0, 0.5, -1.0, 1e308, math.nan, math.inf, -math.inf))

    def _replace(self, value: Any) -> Any:
        """Return JSON in which one value is another; the deeper, the rarer."""
        if isinstance(value, dict) and value and self.random.random() < 0.8:
            key = self.random.choice(list(value))
            if self.random.random() < 0.15:
                value[self.random.choice(("x", "", "id", key.upper()))] = value.pop(key)
            else:
                value[key] = self._replace(value[key])
            return value
        if isinstance(value, list) and value and self.random.random() < 0.8:
            at = self.random.randrange(len(value))
            value[at] = self._replace(value[at])
            return value * 30 if self.random.random() < 0.02 else value
        return copy.deepcopy(self.random.choice(JSON_LEAVES))
