"""Inputs of guardrails: their names and spellings, their values and types, and limits on the whole context.

The snake case and the camel case of a declared name are the same name: `affects_production` gives `affectsProduction`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import InvalidArgument

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
    TIMESTAMP = "timestamp"
    DURATION = "duration"


class InputValueError(Exception):
    """A value does not have its declared type; the text completes `NAME …`."""


@dataclass(frozen=True, slots=True)
class ContradictoryInput:
    """Stands for an input that is given under two spellings of its name, with different values."""

    spelling: str
    name: str


@dataclass(frozen=True, slots=True)
class IgnoredInput:
    """An undeclared key of the context; `closest` is the declared name that resembles it, or None."""

    name: str
    closest: str | None = None


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
            items = value if isinstance(value, list) else [*value.keys(), *value.values()]
            pending.extend((item, depth + 1) for item in items)
    if values > MAX_CONTEXT_VALUES:
        raise InvalidArgument.field(field, f"contains more than {MAX_CONTEXT_VALUES} values")
    if characters > MAX_CONTEXT_CHARACTERS:
        raise InvalidArgument.field(field, f"contains more than {MAX_CONTEXT_CHARACTERS} characters of text")
    return values + characters


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
            raise InputValueError("contains characters that are not Unicode") from None
    return value


# RFC 3339, whose instants always name their offset.
TIMESTAMP_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)
DURATION_PATTERN = re.compile(r"-?(\d{1,9}(\.\d{1,9})?(d|h|ms|m|s))+", re.ASCII)
DURATION_PART = re.compile(r"([0-9.]+)(d|h|ms|m|s)")
SECONDS_OF_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def to_timestamp(value: object) -> datetime:
    """Return an instant in UTC. Raises InputValueError."""
    if isinstance(value, str) and TIMESTAMP_PATTERN.fullmatch(value):
        try:
            return datetime.fromisoformat(value.upper()).astimezone(UTC)
        except (ValueError, OverflowError):
            raise InputValueError("must be an instant that exists, in the years 1 to 9999") from None
    found = "a string" if isinstance(value, str) else json_type_name(value)
    raise InputValueError(f'must be a timestamp such as "2026-03-01T12:00:00Z", but is {found}')


def to_duration(value: object) -> timedelta:
    """Return a length of time. Raises InputValueError."""
    if isinstance(value, str) and len(value) <= MAX_DURATION_CHARACTERS and DURATION_PATTERN.fullmatch(value):
        seconds = sum(float(count) * SECONDS_OF_UNITS[unit] for count, unit in DURATION_PART.findall(value))
        if seconds > MAX_DURATION_SECONDS:
            raise InputValueError("must be a duration of at most 10 000 years")
        return timedelta(seconds=-seconds if value[0] == "-" else seconds)
    found = "a string" if isinstance(value, str) else json_type_name(value)
    raise InputValueError(f'must be a duration such as "90s", "1h30m" or "7d", but is {found}')


MAX_DURATION_CHARACTERS = 100
MAX_DURATION_SECONDS = 315_576_000_000
"""As long as the engine's durations may be (CEL language definition, section Timezones: about 10 000 years)."""


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


ConvertValue = Callable[[object], object]
"""Checks and converts a value. Raises InputValueError."""

CONVERTERS: Mapping[InputType, ConvertValue] = {
    InputType.BOOL: to_bool,
    InputType.NUMBER: to_number,
    InputType.STRING: to_string,
    InputType.LIST: to_list,
    InputType.MAP: to_map,
    InputType.TIMESTAMP: to_timestamp,
    InputType.DURATION: to_duration,
}
"""The function that checks and converts the values of each type; each raises InputValueError."""


def accept_values(convert: ConvertValue, values: Collection[str]) -> ConvertValue:
    """Return a conversion that accepts only these texts, also as the items of a list."""
    accepted = frozenset(values)

    def convert_accepted(value: object) -> object:
        converted = convert(value)
        for item in converted if isinstance(converted, list) else [converted]:
            # Items may be lists themselves, which cannot be looked up.
            if not isinstance(item, str) or item not in accepted:
                raise InputValueError(f"must be one of {', '.join(values)}")
        return converted

    return convert_accepted


def json_type_name(value: object) -> str:
    """Return the type of a value, in the words of the rulebook format."""
    if value is None:
        return "null"
    if isinstance(value, ContradictoryInput):
        return f"given with different values as {value.name} and {value.spelling}"
    names = ((bool, "a bool"), ((int, float), "a number"), (str, "a string"), (list, "a list"), (dict, "a map"))
    return next((name for types, name in names if isinstance(value, types)), "not JSON")


CONFIRMED_CHECKS_KEY = "confirmedChecks"
"""The key of an announcement's metadata that lists the texts of the checks that were made. The server reads it, so that
it is known even if no guardrail reads it."""
MAX_IGNORED = 100
"""Maximum number of ignored keys that a verdict lists. Chosen: an answer need not repeat a context of 10 000 keys."""
MAX_KEY_CHARACTERS = 100
"""Maximum length of an ignored key in a verdict, and of one that is compared with declared names: as long as those."""
MAX_CACHED_KEYS = 1_000
"""Maximum number of ignored keys whose closest names are kept: at most a few hundred kilobytes."""
MIN_SIMILARITY = 0.45
"""The least share of common trigrams (Dice's coefficient) of names that resemble each other. Chosen by trying:
`production` and `affectsProduction` have 0.58, `code_reviewed` and `codeReviewCompleted` 0.63, other pairs of the
default rulebook's words less than 0.3."""
MAX_COMPARED_NAMES = 40
"""Maximum number of declared names with which a key is compared. Measured: 40 take about 30 us, however many are
declared and however much they resemble each other; a call may send keys that nobody knows by the thousand."""

WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
UNDERSCORED_WORD = re.compile(r"(?<=[A-Za-z0-9])_+([A-Za-z0-9])")


def name_spellings(name: str) -> frozenset[str]:
    """Return a name in snake case, in camel case, and as it is."""
    snake = WORD_START.sub("_", name).lower()
    camel = UNDERSCORED_WORD.sub(lambda match: match[1].upper(), snake)
    return frozenset({name, snake, camel})


def find_spelling_clashes(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of different names that have a spelling in common."""
    first: dict[str, str] = {}
    for name in names:
        others = {first.setdefault(spelling, name) for spelling in sorted(name_spellings(name))}
        yield from ((name, other) for other in sorted(others - {name}))


class InputNames:
    """The declared inputs; `others` are further keys that a context may have, which the server itself reads."""

    def __init__(self, declared: Iterable[str], others: frozenset[str] = frozenset()) -> None:
        self._declared = frozenset(declared)
        self._known = self._declared | others
        self._canonical = {spelling: name for name in self._declared for spelling in name_spellings(name) - {name}}
        self._names_by_trigram: dict[str, list[str]] = {}
        self._trigrams = {name: trigrams_of(name) for name in sorted(self._declared)}
        for name, trigrams in self._trigrams.items():
            for trigram in trigrams:
                self._names_by_trigram.setdefault(trigram, []).append(name)
        # Callers send the same keys again and again.
        self.describe_unknown = lru_cache(MAX_CACHED_KEYS)(self._describe_unknown)
        """Return a key that is not declared, with the declared name that resembles it, if any does."""

    def knows_all(self, context: Mapping[str, Any]) -> bool:
        """Return whether every key is the name of a declared input, as it is written."""
        return self._known.issuperset(context)

    def resolve(self, context: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[IgnoredInput, ...]]:
        """Return a context with declared names for other spellings, and the keys that no guardrail knows."""
        resolved: dict[str, Any] | None = None
        ignored = []
        for key, value in context.items():
            if key in self._known or value is None:
                continue
            name = self._canonical.get(key)
            if name is None:
                ignored.append(key)
                continue
            # Copied only where it changes, since contexts often have keys that no rule knows.
            resolved = dict(context) if resolved is None else resolved
            if resolved.get(name) is None:
                resolved[name] = value
            elif resolved[name] != value or type(resolved[name]) is not type(value):
                # Fail closed: which of the two is true cannot be known.
                resolved[name] = ContradictoryInput(key, name)
        named = tuple(map(self.describe_unknown, sorted(ignored)[:MAX_IGNORED]))
        return context if resolved is None else resolved, named

    def find_given_key(self, context: Mapping[str, Any], name: str) -> str | None:
        """Return the key by which a context gives a declared input, or None if it does not."""
        if context.get(name) is not None:
            return name
        found = (key for key, value in context.items() if value is not None and self._canonical.get(key) == name)
        return next(found, None)

    def _describe_unknown(self, key: str) -> IgnoredInput:
        if len(key) > MAX_KEY_CHARACTERS:
            return IgnoredInput(f"{key[:MAX_KEY_CHARACTERS]}…")
        return IgnoredInput(key, self._find_closest(key))

    def _find_closest(self, key: str) -> str | None:
        """Return the declared name with the largest share of common trigrams, or None if none resembles the key."""
        trigrams = trigrams_of(key)
        similarities = [
            (2 * len(trigrams & self._trigrams[name]) / (len(trigrams) + len(self._trigrams[name])), name)
            for name in self._likely_names(trigrams)
        ]
        similarity, name = max(similarities, default=(0.0, ""))
        return name if similarity >= MIN_SIMILARITY else None

    def _likely_names(self, trigrams: Collection[str]) -> Collection[str]:
        """Return at most MAX_COMPARED_NAMES declared names to compare with.

        Names that share a rare trigram come first: it says more than a prefix that all names have.
        """
        # Sorted, so that the result does not depend on the order of a set.
        found = [self._names_by_trigram[each] for each in sorted(trigrams) if each in self._names_by_trigram]
        likely: dict[str, None] = {}
        for names in sorted(found, key=len):
            likely |= dict.fromkeys(names[: MAX_COMPARED_NAMES - len(likely)])
            if len(likely) >= MAX_COMPARED_NAMES:
                break
        return likely


def trigrams_of(name: str) -> frozenset[str]:
    text = f"  {name.replace('_', '').casefold()} "
    return frozenset(text[start : start + 3] for start in range(len(text) - 2))
