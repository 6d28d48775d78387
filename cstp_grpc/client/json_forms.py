"""How single values of the contract look in JSON. A form renders a value and parses it back, strictly."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from cstp_grpc.errors import FieldViolation

MAX_VIOLATIONS: Final = 100
"""How many wrong fields are named at the most, so that a bad request cannot cause an answer far larger than itself."""
MAX_KEY: Final = 64
"""How many characters of a caller's own key are shown."""


ROUNDED: Final = "is an integer that a double would round; send it as a string"
"""What is wrong with an integer that a message could only hold as another one."""


class Absent:
    """The rendering of a value that is left out."""


ABSENT: Final = Absent()


class Refusal(ValueError):
    """A value is not what its field takes; the message says what it must be."""


@dataclass(slots=True)
class Problems:
    """The wrong fields found so far."""

    found: list[FieldViolation] = field(default_factory=list)

    def add(self, path: str, description: str) -> None:
        """Note what is wrong with the field at a JSON path."""
        if len(self.found) < MAX_VIOLATIONS:
            self.found.append(FieldViolation(path, description))


@dataclass(frozen=True, slots=True)
class ValueForm:
    """How a value that is no message looks in JSON."""

    parse: Callable[[object], Any]
    """Returns the value for a field; raises Refusal."""
    render: Callable[[Any], object] | None = None
    """Returns the JSON value, or ABSENT; None where a value is its own JSON."""


def shown(key: object) -> str:
    """Return a caller's key as it may appear in a path: valid Unicode and not endless."""
    text = str(key)
    text = text if len(text) <= MAX_KEY else text[:MAX_KEY] + "…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def parse_text(value: object) -> str:
    """Return a string of valid Unicode."""
    if not isinstance(value, str):
        raise Refusal("must be a string")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise Refusal("must be valid Unicode, without lone surrogates") from None
    return value


def parse_bool(value: object) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise Refusal("must be true or false")
    return value


def parse_double(value: object) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refusal("must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Refusal("must be a finite number within the range of a double")
    return number


def parse_exact_double(value: object) -> float:
    """Return a finite number that is what was given, not an integer rounded to the nearest double."""
    number = parse_double(value)
    if isinstance(value, int) and is_rounded(value):
        raise Refusal(ROUNDED)
    return number


def is_rounded(value: int) -> bool:
    """Return whether a double cannot hold an integer exactly; one beyond its range counts as well."""
    try:
        return int(float(value)) != value
    except OverflowError:
        return True


def render_double(value: float) -> float:
    """Return a finite number. Raises ValueError for any other, which JSON cannot express."""
    if not math.isfinite(value):
        raise ValueError(f"{value} has no form in JSON")
    return value


def parse_bytes(value: object) -> bytes:
    """Return what standard base64 text holds."""
    if not isinstance(value, str):
        raise Refusal("must be base64 text")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise Refusal("must be base64 text") from None


def render_bytes(value: bytes) -> str:
    """Return bytes as standard base64 text."""
    return base64.b64encode(value).decode("ascii")


def integer_form(low: int, high: int) -> ValueForm:
    """Return the form of whole numbers in a range; 3 and 3.0 are the same number."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Refusal("must be a whole number")
        if isinstance(value, float):
            if not value.is_integer():
                raise Refusal("must be a whole number")
            value = int(value)
        if not low <= value <= high:
            raise Refusal(f"must be a whole number from {low} to {high}")
        return value

    return ValueForm(parse)


def long_form(low: int, high: int) -> ValueForm:
    """Return the form of 64-bit whole numbers: decimal text, as ProtoJSON writes them; numbers are taken too."""
    number = integer_form(low, high)
    longest = max(len(str(low)), len(str(high)))

    def parse(value: object) -> int:
        if isinstance(value, str):
            digits = value.removeprefix("-")
            if len(value) > longest or not (digits.isascii() and digits.isdigit()):
                raise Refusal("must be a whole number")
            value = int(value)
        return int(number.parse(value))

    return ValueForm(parse, str)


def enum_form(enum: EnumDescriptor) -> ValueForm:
    """Return the form of an enum: the names of its values without their prefix, in lower case.

    The value 0 means that nothing was stated; it has no word and is left out. Raises TypeError for an enum whose value
    0 does not end in `UNSPECIFIED`, since its prefix cannot be told.
    """
    unspecified = enum.values_by_number[0].name
    if not unspecified.endswith("UNSPECIFIED"):
        raise TypeError(f"{enum.full_name} has no unspecified value, so its words cannot be told")
    prefix = unspecified.removesuffix("UNSPECIFIED")
    numbers = {value.name.removeprefix(prefix).lower(): value.number for value in enum.values if value.number}
    words: dict[int, object] = {number: word for word, number in numbers.items()}
    words[0] = ABSENT
    expected = "must be one of " + ", ".join(f'"{word}"' for word in numbers)

    def parse(value: object) -> int:
        number = numbers.get(value) if isinstance(value, str) else None
        if number is None:
            raise Refusal(expected)
        return number

    def render(number: int) -> object:
        # A newer server may send a value that this contract does not know; ProtoJSON prints its number.
        return words.get(number, number)

    return ValueForm(parse, render)


INT32 = integer_form(-(2**31), 2**31 - 1)
UINT32 = integer_form(0, 2**32 - 1)
INT64 = long_form(-(2**63), 2**63 - 1)
UINT64 = long_form(0, 2**64 - 1)

SCALARS: Final = {
    FieldDescriptor.TYPE_STRING: ValueForm(parse_text),
    FieldDescriptor.TYPE_BOOL: ValueForm(parse_bool),
    FieldDescriptor.TYPE_DOUBLE: ValueForm(parse_double, render_double),
    FieldDescriptor.TYPE_BYTES: ValueForm(parse_bytes, render_bytes),
    FieldDescriptor.TYPE_INT32: INT32,
    FieldDescriptor.TYPE_SINT32: INT32,
    FieldDescriptor.TYPE_SFIXED32: INT32,
    FieldDescriptor.TYPE_UINT32: UINT32,
    FieldDescriptor.TYPE_FIXED32: UINT32,
    FieldDescriptor.TYPE_INT64: INT64,
    FieldDescriptor.TYPE_SINT64: INT64,
    FieldDescriptor.TYPE_SFIXED64: INT64,
    FieldDescriptor.TYPE_UINT64: UINT64,
    FieldDescriptor.TYPE_FIXED64: UINT64,
}


def value_form(field: FieldDescriptor) -> ValueForm:
    """Return the form of a field's single value. Raises TypeError for a type that has none here, such as float."""
    if field.enum_type is not None:
        return enum_form(field.enum_type)
    form = SCALARS.get(field.type)
    if form is None:
        raise TypeError(f"{field.full_name} has a type without a JSON form; use double, int32 or string")
    return form
