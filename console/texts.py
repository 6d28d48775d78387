"""Short texts for people, made of the values of answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from cstp_grpc.common.typed_times import parse_time
from cstp_grpc.contract.errors import InvalidArgument

MISSING: Final = "–"


def parse_instant(text: str) -> datetime:
    """Return the instant of a timestamp in an answer, in UTC. Raises ValueError."""
    return datetime.fromisoformat(text).astimezone(UTC)


def format_instant(text: str) -> str:
    return f"{parse_instant(text):%Y-%m-%d %H:%M} UTC"


def format_day(text: str) -> str:
    return f"{parse_instant(text):%Y-%m-%d}"


def format_age(text: str, now: datetime | None = None) -> str:
    """Return how long ago an instant was, or how far it is ahead, such as `3 h ago` or `in 5 min`."""
    seconds = ((now or datetime.now(UTC)) - parse_instant(text)).total_seconds()
    amount = abs(seconds)
    size, unit = next((each for each in ((86400, "d"), (3600, "h"), (60, "min")) if amount >= each[0]), (1, "s"))
    span = f"{amount / size:.0f} {unit}"
    return f"{span} ago" if seconds >= 0 else f"in {span}"


def format_percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def format_word(word: Any) -> str:
    """Return a word of an enumeration for a reader: `not_matched` becomes `not matched`."""
    return str(word).replace("_", " ")


FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "": lambda value: {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value),
    "age": format_age,
    "count": lambda value: f"{int(value):,}",
    "day": format_day,
    "instant": format_instant,
    "list": lambda value: ", ".join(map(str, value)),
    "json": lambda value: json.dumps(value, ensure_ascii=False, indent=2),
    "mb": lambda value: f"{int(value) / 1e6:.1f} MB",
    "ms": lambda value: f"{value:.1f} ms",
    "percent": format_percent,
    "s": lambda value: f"{value:.0f} s",
    "word": format_word,
    "words": lambda value: ", ".join(map(format_word, value)),
}
"""The formats of values in answers by their names."""


def read_path(answer: Any, path: str) -> Any:
    """Return the value of a field, such as `counts.checks`; None if it is absent."""
    for name in path.split("."):
        answer = answer.get(name) if isinstance(answer, Mapping) else None
    return answer


def format_field(answer: Mapping[str, Any], field: str) -> str:
    """Return the text of a field with the name of its format, such as `counts.checks|count`; empty if it is absent."""
    path, _, name = field.partition("|")
    value = read_path(answer, path)
    return "" if value is None or value == "" else FORMATS[name](value)


def fill_url(template: str, answer: Mapping[str, Any]) -> str:
    """Return a URL whose parts in braces are replaced by fields of an answer."""
    return re.sub(r"\{([\w.]+)\}", lambda part: quote(str(read_path(answer, part[1]) or ""), safe=""), template)


def page_url(path: str, /, **arguments: Any) -> str:
    """Return the URL of a page; arguments that are empty are left out."""
    given = {name: value for name, value in arguments.items() if value not in (None, "", ())}
    return f"{path}?{urlencode(given)}" if given else path


def parse_since(text: str | None) -> datetime | None:
    """Return the instant that a filter names, such as `7d` or a date; None without one. Raises InvalidArgument."""
    if not text:
        return None
    try:
        return parse_time(text, datetime.now(UTC), is_future=False).instant
    except ValueError as error:
        raise InvalidArgument.field("since", str(error)) from error


def describe_action(subject: Mapping[str, Any]) -> str:
    """Return an action in words: its description, or else its command."""
    return str(subject.get("description") or subject.get("command") or "An action whose content is not kept")
