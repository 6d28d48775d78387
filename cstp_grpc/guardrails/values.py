"""JSON values at the border: which type an input must have, and how much is accepted at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from cstp_grpc.errors import InvalidArgument

MAX_DEPTH = 24
"""How deep a context may be nested, itself included. Far deeper ones end the process inside the engine."""
MAX_VALUES = 10_000
"""How many values a context may hold, nested ones included."""
MAX_CHARACTERS = 200_000
"""How many characters the texts and keys of a context may have together."""

CONTAINERS = (dict, list)


class InputType(StrEnum):
    """What an input holds."""

    BOOL = "bool"
    NUMBER = "number"
    STRING = "string"
    LIST = "list"
    MAP = "map"


class Unusable(Exception):
    """A value cannot be read as what it is declared to be; the text completes `NAME …`."""


def check_bounds(context: Mapping[str, Any], field: str = "action.context") -> int:
    """Return how many values and characters a context has together.

    Raises InvalidArgument if it is nested too deep or too large; `field` names it in the error.
    """
    values, characters = len(context), sum(map(len, context))
    pending: list[tuple[object, int]] = []
    for top in context.values():
        if isinstance(top, str):
            characters += len(top)
        elif isinstance(top, CONTAINERS):
            pending.append((top, 2))
    while pending and values <= MAX_VALUES:
        value, depth = pending.pop()
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, CONTAINERS):
            if depth > MAX_DEPTH:
                raise InvalidArgument.field(field, f"is nested deeper than {MAX_DEPTH} levels")
            values += len(value)
            pending.extend((item, depth + 1) for item in children(value))
    if values > MAX_VALUES:
        raise InvalidArgument.field(field, f"holds more than {MAX_VALUES} values")
    if characters > MAX_CHARACTERS:
        raise InvalidArgument.field(field, f"holds more than {MAX_CHARACTERS} characters of text")
    return values + characters


def children(value: dict[object, object] | list[object]) -> Iterable[object]:
    """Return what a list holds, or the keys and values of a map."""
    return value if isinstance(value, list) else [*value.keys(), *value.values()]


def to_bool(value: object) -> bool:
    """Return true or false as it is; nothing else counts. Raises Unusable."""
    if value is True or value is False:
        return value
    raise Unusable(f"must be a bool, but is {kind(value)}")


def to_number(value: object) -> float:
    """Return a number as a double, which all numbers are in rules. Raises Unusable."""
    if type(value) is float:
        number = value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            raise Unusable("is too large a number") from None
    else:
        raise Unusable(f"must be a number, but is {kind(value)}")
    if not math.isfinite(number):
        raise Unusable("must be a finite number")
    return number


def to_string(value: object) -> str:
    """Return a text that can be written as UTF-8. Raises Unusable."""
    if not isinstance(value, str):
        raise Unusable(f"must be a string, but is {kind(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unusable("holds characters that are not Unicode") from None
    return value


def to_list(value: object) -> list[Any]:
    """Return a list without nulls, its values as rules read them. Raises Unusable."""
    if not isinstance(value, list):
        raise Unusable(f"must be a list, but is {kind(value)}")
    return [nested(item) for item in value if item is not None]


def to_map(value: object) -> dict[str, Any]:
    """Return a map without nulls, its values as rules read them. Raises Unusable."""
    if not isinstance(value, dict):
        raise Unusable(f"must be a map, but is {kind(value)}")
    return {to_string(key): nested(item) for key, item in value.items() if item is not None}


def nested(value: object) -> object:
    """Return a value within a list or map as rules read it. Raises Unusable."""
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
"""How the values of each type are checked and converted; each raises Unusable."""


def kind(value: object) -> str:
    """Return what a value is, in the words of the rulebook format."""
    if value is None:
        return "null"
    names = ((bool, "a bool"), ((int, float), "a number"), (str, "a string"), (list, "a list"), (dict, "a map"))
    return next((name for types, name in names if isinstance(value, types)), "not JSON")
