"""Check and convert the inputs of guardrails: types, and limits on the whole context."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cstp_grpc.errors import InvalidArgument

MAX_CONTEXT_DEPTH = 24
"""Maximum nesting of a context, itself included; the same as MAX_NESTING of the JSON codec. Security: the engine
recurses, and far deeper ones crash the process."""
MAX_CONTEXT_VALUES = 10_000
"""Maximum number of values in a context, nested ones included. Chosen: to convert so many takes some milliseconds."""
MAX_CONTEXT_CHARACTERS = 200_000
"""Maximum number of characters of a context's strings and keys together. Chosen: an action is described, not
attached."""

CONTAINER_TYPES = (dict, list)


class InputType(StrEnum):
    """The type of an input."""

    BOOL = "bool"
    NUMBER = "number"
    STRING = "string"
    LIST = "list"
    MAP = "map"


class InputValueError(Exception):
    """A value does not have its declared type; the text completes `NAME …`."""


@dataclass(frozen=True, slots=True)
class ContradictoryInput:
    """In the place of an input that is given as `name` and under another spelling of it, with different values."""

    spelling: str
    name: str


def check_context_bounds(context: Mapping[str, Any], field: str = "action.context") -> int:
    """Return the number of values and characters of a context.

    Raises InvalidArgument if it is nested too deeply or too large; `field` names it in the error.
    """
    values, characters = len(context), sum(map(len, context))
    pending: list[tuple[object, int]] = []
    # The top level apart: most contexts are flat, and nothing is pending for them.
    for top in context.values():
        if isinstance(top, str):
            characters += len(top)
        elif isinstance(top, CONTAINER_TYPES):
            pending.append((top, 2))
    # A list of its own in place of recursion, which a caller could exhaust.
    while pending and values <= MAX_CONTEXT_VALUES:
        value, depth = pending.pop()
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, CONTAINER_TYPES):
            if depth > MAX_CONTEXT_DEPTH:
                raise InvalidArgument.field(field, f"is nested deeper than {MAX_CONTEXT_DEPTH} levels")
            values += len(value)
            pending.extend((item, depth + 1) for item in child_values(value))
    if values > MAX_CONTEXT_VALUES:
        raise InvalidArgument.field(field, f"holds more than {MAX_CONTEXT_VALUES} values")
    if characters > MAX_CONTEXT_CHARACTERS:
        raise InvalidArgument.field(field, f"holds more than {MAX_CONTEXT_CHARACTERS} characters of text")
    return values + characters


def child_values(value: dict[object, object] | list[object]) -> Iterable[object]:
    """Return the items of a list, or the keys and values of a map."""
    return value if isinstance(value, list) else [*value.keys(), *value.values()]


def to_bool(value: object) -> bool:
    """Return a boolean; no other type is converted. Raises InputValueError."""
    # `is`, since 1 == True.
    if value is True or value is False:
        return value
    raise InputValueError(f"must be a bool, but is {json_type_name(value)}")


def to_number(value: object) -> float:
    """Return a number as a double, the only number type in rules. Raises InputValueError."""
    # The exact type first, the cheapest test, since this runs for each number of each check.
    if type(value) is float:
        number = value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            raise InputValueError("is too large a number") from None
    else:
        raise InputValueError(f"must be a number, but is {json_type_name(value)}")
    if not math.isfinite(number):
        raise InputValueError("must be a finite number")
    return number


def to_string(value: object) -> str:
    """Return a string that can be encoded as UTF-8. Raises InputValueError."""
    if not isinstance(value, str):
        raise InputValueError(f"must be a string, but is {json_type_name(value)}")
    # Only a lone surrogate, which JSON can escape, cannot be encoded; ASCII, the usual case, holds none.
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InputValueError("holds characters that are not Unicode") from None
    return value


def to_list(value: object) -> list[Any]:
    """Return a list without nulls, with converted values. Raises InputValueError."""
    if not isinstance(value, list):
        raise InputValueError(f"must be a list, but is {json_type_name(value)}")
    # Null means absent, as for whole inputs, so that no rule has to test for it.
    return [convert_nested(item) for item in value if item is not None]


def to_map(value: object) -> dict[str, Any]:
    """Return a map without nulls, with converted values. Raises InputValueError."""
    if not isinstance(value, dict):
        raise InputValueError(f"must be a map, but is {json_type_name(value)}")
    return {to_string(key): convert_nested(item) for key, item in value.items() if item is not None}


def convert_nested(value: object) -> object:
    """Convert a value within a list or map. Raises InputValueError."""
    if isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return to_map(value)
    if isinstance(value, list):
        return to_list(value)
    if isinstance(value, str):
        return to_string(value)
    return to_number(value)


CONVERTERS: Mapping[InputType, Callable[[object], object]] = {
    InputType.BOOL: to_bool,
    InputType.NUMBER: to_number,
    InputType.STRING: to_string,
    InputType.LIST: to_list,
    InputType.MAP: to_map,
}
"""The function that checks and converts the values of each type; each raises InputValueError."""


def json_type_name(value: object) -> str:
    """Return the type of a value, in the words of the rulebook format."""
    if value is None:
        return "null"
    if isinstance(value, ContradictoryInput):
        return f"given with different values as {value.name} and {value.spelling}"
    names = ((bool, "a bool"), ((int, float), "a number"), (str, "a string"), (list, "a list"), (dict, "a map"))
    return next((name for types, name in names if isinstance(value, types)), "not JSON")
