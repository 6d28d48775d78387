"""Convert scalar values of the contract to JSON and back, strictly, and collect violations."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.errors import FieldViolation

MAX_VIOLATIONS: Final = 100
"""Maximum number of reported fields, so that a small invalid request cannot cause a huge response."""
MAX_KEY_CHARACTERS: Final = 64
"""Maximum length of a caller's key in an error message. Chosen: a path stays readable, and a response small."""


ROUNDED_INTEGER_TEXT: Final = "is an integer that a double would round; send it as a string"
"""The error text for an integer that a double cannot represent exactly."""


# A type of its own, because None and every other plain value has a form in JSON.
class OmittedValue:
    """The type of OMITTED."""


OMITTED: Final = OmittedValue()


class InvalidValue(ValueError):
    """A value is invalid for its field; the message states the requirement."""


@dataclass(slots=True)
class ViolationCollector:
    """Collects the violations found so far."""

    found: list[FieldViolation] = field(default_factory=list)

    def add(self, path: str, description: str) -> None:
        if len(self.found) < MAX_VIOLATIONS:
            self.found.append(FieldViolation(path, description))


@dataclass(frozen=True, slots=True)
class ScalarCodec:
    """How a scalar is parsed from JSON and rendered to it."""

    parse: Callable[[object], Any]
    """Returns the field's value; raises InvalidValue."""
    render: Callable[[Any], object] | None = None
    """Returns the JSON value, or OMITTED; None if a value is its own JSON."""


def printable_key(key: object) -> str:
    """Return a caller's key for use in a path: valid Unicode, truncated to MAX_KEY_CHARACTERS."""
    text = str(key)
    text = text if len(text) <= MAX_KEY_CHARACTERS else text[:MAX_KEY_CHARACTERS] + "…"
    # A lone surrogate cannot be put into a protobuf string, nor into an HTTP body.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValue("must be a string")
    # Most texts are ASCII, which needs no trial encoding; protobuf itself would raise a ValueError without a path.
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidValue("must be valid Unicode, without lone surrogates") from None
    return value


def parse_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("must be true or false")
    return value


def parse_double(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidValue("must be a number")
    try:
        number = float(value)
    # float() raises it for an integer beyond the range of a double.
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidValue("must be a finite number within the range of a double")
    return number


def parse_exact_double(value: object) -> float:
    """Return a finite number; reject integers that a double would round."""
    number = parse_double(value)
    if isinstance(value, int) and is_rounded(value):
        raise InvalidValue(ROUNDED_INTEGER_TEXT)
    return number


def is_rounded(value: int) -> bool:
    """Return True if a double cannot represent an integer exactly, or at all."""
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
    if not isinstance(value, str):
        raise InvalidValue("must be base64 text")
    try:
        # Without `validate` Python skips characters that are not base64.
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise InvalidValue("must be base64 text") from None


def render_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def integer_codec(low: int, high: int) -> ScalarCodec:
    """Return the codec of whole numbers in a range; 3 and 3.0 are the same number."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidValue("must be a whole number")
        if isinstance(value, float):
            if not value.is_integer():
                raise InvalidValue("must be a whole number")
            value = int(value)
        if not low <= value <= high:
            raise InvalidValue(f"must be a whole number from {low} to {high}")
        return value

    return ScalarCodec(parse)


def long_codec(low: int, high: int) -> ScalarCodec:
    """Return the codec of 64-bit integers: decimal strings as in ProtoJSON; numbers are accepted too."""
    number = integer_codec(low, high)
    # Checked before int(), which takes quadratic time in the number of digits.
    longest = max(len(str(low)), len(str(high)))

    def parse(value: object) -> int:
        if isinstance(value, str):
            digits = value.removeprefix("-")
            if len(value) > longest or not (digits.isascii() and digits.isdigit()):
                raise InvalidValue("must be a whole number")
            value = int(value)
        return int(number.parse(value))

    return ScalarCodec(parse, str)


def enum_codec(enum: EnumDescriptor) -> ScalarCodec:
    """Return the codec of an enum: the names of its values in lower case, without their prefix.

    The value 0 means unspecified; it has no word and is omitted. Raises TypeError if the name of value 0 does not end
    in `UNSPECIFIED`, since the prefix is derived from it.
    """
    unspecified = enum.values_by_number[0].name
    if not unspecified.endswith("UNSPECIFIED"):
        raise TypeError(f"{enum.full_name} has no unspecified value, so its words cannot be derived")
    prefix = unspecified.removesuffix("UNSPECIFIED")
    numbers = {value.name.removeprefix(prefix).lower(): value.number for value in enum.values if value.number}
    words: dict[int, object] = {number: word for word, number in numbers.items()}
    words[0] = OMITTED
    expected = "must be one of " + ", ".join(f'"{word}"' for word in numbers)

    def parse(value: object) -> int:
        number = numbers.get(value) if isinstance(value, str) else None
        if number is None:
            raise InvalidValue(expected)
        return number

    def render(number: int) -> object:
        # A newer server may send a value that this contract does not know; ProtoJSON prints its number.
        return words.get(number, number)

    return ScalarCodec(parse, render)


INT32_CODEC = integer_codec(-(2**31), 2**31 - 1)
UINT32_CODEC = integer_codec(0, 2**32 - 1)
INT64_CODEC = long_codec(-(2**63), 2**63 - 1)
UINT64_CODEC = long_codec(0, 2**64 - 1)

SCALAR_CODECS: Final = {
    FieldDescriptor.TYPE_STRING: ScalarCodec(parse_text),
    FieldDescriptor.TYPE_BOOL: ScalarCodec(parse_bool),
    FieldDescriptor.TYPE_DOUBLE: ScalarCodec(parse_double, render_double),
    FieldDescriptor.TYPE_BYTES: ScalarCodec(parse_bytes, render_bytes),
    FieldDescriptor.TYPE_INT32: INT32_CODEC,
    FieldDescriptor.TYPE_SINT32: INT32_CODEC,
    FieldDescriptor.TYPE_SFIXED32: INT32_CODEC,
    FieldDescriptor.TYPE_UINT32: UINT32_CODEC,
    FieldDescriptor.TYPE_FIXED32: UINT32_CODEC,
    FieldDescriptor.TYPE_INT64: INT64_CODEC,
    FieldDescriptor.TYPE_SINT64: INT64_CODEC,
    FieldDescriptor.TYPE_SFIXED64: INT64_CODEC,
    FieldDescriptor.TYPE_UINT64: UINT64_CODEC,
    FieldDescriptor.TYPE_FIXED64: UINT64_CODEC,
}


def scalar_codec(field: FieldDescriptor) -> ScalarCodec:
    """Return the codec of a field's scalar value. Raises TypeError for unsupported types, such as float."""
    if field.enum_type is not None:
        return enum_codec(field.enum_type)
    form = SCALAR_CODECS.get(field.type)
    if form is None:
        raise TypeError(f"{field.full_name} has a type without a JSON form; use double, int32 or string")
    return form
