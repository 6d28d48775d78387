"""How the well-known messages look in JSON: instants, lengths of time and free-form data."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.client.json_forms import Problems, Refusal, is_rounded, parse_exact_double, parse_text, shown

MAX_DEPTH: Final = 24
"""How many objects and lists free-form data may nest, its outermost one counted."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
RFC3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])([01]\d|2[0-3]):([0-5]\d))", re.ASCII
)
EARLIEST: Final = -62_135_596_800
LATEST: Final = 253_402_300_799
LENGTH: Final = re.compile(r"(-?)(\d{1,12})(?:\.(\d{1,9}))?s", re.ASCII)
LONGEST: Final = 315_576_000_000
"""Seconds that a length of time has at the most: 10,000 years."""
INTEGER_LIMIT: Final = 1e21
"""Whole numbers below it are written without an exponent, as JavaScript and RFC 8785 write them."""


class MessageForm(Protocol):
    """How one type of message looks in JSON."""

    def render(self, message: Any) -> object:
        """Return the JSON value. Raises ValueError where JSON cannot express the message."""
        ...

    def fill(self, message: Any, value: object, path: str, problems: Problems) -> None:
        """Set an empty message from a JSON value, noting what is wrong below `path`."""
        ...


class TimestampForm:
    """RFC 3339 text."""

    def render(self, message: Timestamp) -> str:
        """Return the instant in UTC with 0, 3, 6 or 9 digits of fractions, as ProtoJSON does."""
        if not EARLIEST <= message.seconds <= LATEST or not 0 <= message.nanos < 10**9:
            raise ValueError("an instant outside the years 1 to 9999 has no form in JSON")
        text = (EPOCH + timedelta(seconds=message.seconds)).isoformat()[:19]
        return f"{text}{render_fraction(message.nanos)}Z"

    def fill(self, message: Timestamp, value: object, path: str, problems: Problems) -> None:
        """Set the instant that RFC 3339 text with an offset names."""
        match = RFC3339.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            problems.add(path, 'must be an RFC 3339 instant such as "2026-01-31T08:00:00Z"')
            return
        text, fraction, sign, hours, minutes = match.groups()
        try:
            seconds = (datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH) // timedelta(seconds=1)
        except ValueError:
            problems.add(path, "must name a day and a time that exist")
            return
        if sign:
            offset = int(hours) * 3600 + int(minutes) * 60
            seconds += offset if sign == "-" else -offset
        if not EARLIEST <= seconds <= LATEST:
            problems.add(path, "must be an instant of the years 1 to 9999")
            return
        message.seconds = seconds
        message.nanos = parse_fraction(fraction)


class DurationForm:
    """Seconds as text, followed by `s`."""

    def render(self, message: Duration) -> str:
        """Return the seconds with 0, 3, 6 or 9 digits of fractions, as ProtoJSON does."""
        seconds, nanos = message.seconds, message.nanos
        if abs(seconds) > LONGEST or abs(nanos) >= 10**9 or seconds * nanos < 0:
            raise ValueError("a length of time beyond 10,000 years, or of two signs, has no form in JSON")
        sign = "-" if seconds < 0 or nanos < 0 else ""
        return f"{sign}{abs(seconds)}{render_fraction(abs(nanos))}s"

    def fill(self, message: Duration, value: object, path: str, problems: Problems) -> None:
        """Set the length of time that decimal seconds name."""
        match = LENGTH.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            problems.add(path, 'must be a length of time in seconds such as "1.5s"')
            return
        sign, seconds, fraction = match.groups()
        if int(seconds) > LONGEST:
            problems.add(path, f"must be a length of time from -{LONGEST}s to {LONGEST}s")
            return
        direction = -1 if sign else 1
        message.seconds = direction * int(seconds)
        message.nanos = direction * parse_fraction(fraction)


def render_fraction(nanos: int) -> str:
    """Return nanoseconds as 0, 3, 6 or 9 digits behind a point."""
    if not nanos:
        return ""
    if nanos % 1_000_000 == 0:
        return f".{nanos // 1_000_000:03}"
    return f".{nanos // 1000:06}" if nanos % 1000 == 0 else f".{nanos:09}"


def parse_fraction(digits: str | None) -> int:
    """Return the nanoseconds that up to 9 digits behind a point name."""
    return int(digits.ljust(9, "0")) if digits else 0


class FreeForm:
    """Free-form data: an object, a list or any JSON value.

    Whole numbers are printed as integers, and keys in their order, since a Struct keeps none. An integer that a double
    would round is refused.
    """

    def __init__(self, render: Callable[[Any], object], put: Callable[[Any, object, str, Problems, int], None]) -> None:
        self.render = render
        self._put = put

    def fill(self, message: Message, value: object, path: str, problems: Problems) -> None:
        """Set the message from a JSON value at most 24 levels deep."""
        try:
            self._put(message, value, path, problems, 1)
        except Refusal as refusal:
            problems.add(path, str(refusal))


def put_struct(struct: Struct, value: object, path: str, problems: Problems, depth: int) -> None:
    """Set the members of an object."""
    if not isinstance(value, dict):
        raise Refusal("must be an object")
    require_depth(depth)
    fields = struct.fields
    for key, item in value.items():
        place = f"{path}.{shown(key)}" if isinstance(item, (dict, list)) else path
        try:
            put_value(fields[parse_text(key)], item, place, problems, depth + 1)
        except Refusal as refusal:
            problems.add(f"{path}.{shown(key)}", str(refusal))


def put_list(container: ListValue, value: object, path: str, problems: Problems, depth: int) -> None:
    """Set the items of a list."""
    if not isinstance(value, list):
        raise Refusal("must be a list")
    require_depth(depth)
    values = container.values
    for position, item in enumerate(value):
        place = f"{path}[{position}]" if isinstance(item, (dict, list)) else path
        try:
            put_value(values.add(), item, place, problems, depth + 1)
        except Refusal as refusal:
            problems.add(f"{path}[{position}]", str(refusal))


def put_value(target: Value, value: object, path: str, problems: Problems, depth: int) -> None:
    """Set any JSON value."""
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, str):
        target.string_value = parse_text(value)
    elif isinstance(value, (int, float)):
        target.number_value = parse_exact_double(value)
    elif value is None:
        target.null_value = 0  # type: ignore[assignment]
    elif isinstance(value, dict):
        target.struct_value.SetInParent()
        put_struct(target.struct_value, value, path, problems, depth)
    elif isinstance(value, list):
        target.list_value.SetInParent()
        put_list(target.list_value, value, path, problems, depth)
    else:
        raise Refusal("must be a JSON value")


def fill_struct(struct: Struct, members: Mapping[str, Any]) -> None:
    """Set the members of an object that is known to be JSON a message can hold, such as one rendered here."""
    fields = struct.fields
    for key, item in members.items():
        fill_value(fields[key], item)


def fill_value(target: Value, value: Any) -> None:
    """Set a value that is known to be JSON a message can hold. Raises ValueError for a number that is not."""
    if isinstance(value, str):
        target.string_value = value
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, (int, float)):
        target.number_value = render_number(float(value))
    elif value is None:
        target.null_value = 0  # type: ignore[assignment]
    elif isinstance(value, Mapping):
        target.struct_value.SetInParent()
        fill_struct(target.struct_value, value)
    else:
        target.list_value.SetInParent()
        values = target.list_value.values
        for item in value:
            fill_value(values.add(), item)


def require_depth(depth: int) -> None:
    """Refuse data that is nested too deeply."""
    if depth > MAX_DEPTH:
        raise Refusal(f"is nested more than {MAX_DEPTH} levels deep")


def render_struct(struct: Struct) -> dict[str, object]:
    """Return an object with its keys in order."""
    fields = struct.fields
    return {key: render_value(fields[key]) for key in sorted(fields)}


def render_list(container: ListValue) -> list[object]:
    """Return a list."""
    return [render_value(item) for item in container.values]


def render_value(value: Value) -> object:
    """Return any JSON value; one that was never set is null."""
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "bool_value":
        return value.bool_value
    if kind == "number_value":
        return render_number(value.number_value)
    if kind == "struct_value":
        return render_struct(value.struct_value)
    return render_list(value.list_value) if kind == "list_value" else None


def render_number(number: float) -> int | float:
    """Return a whole number as an integer. Raises ValueError for what JSON cannot express."""
    if not math.isfinite(number):
        raise ValueError(f"{number} has no form in JSON")
    return int(number) if number.is_integer() and abs(number) < INTEGER_LIMIT else number


def with_integers(value: Any) -> Any:
    """Return a JSON value with whole numbers as integers. Raises ValueError for what JSON cannot express."""
    if isinstance(value, dict):
        return {key: with_integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_integers(item) for item in value]
    return render_number(value) if isinstance(value, float) else value


def find_rounded_integer(value: object, path: str) -> str | None:
    """Return the path of the first integer of a JSON value that a double would round, or None."""
    if isinstance(value, Mapping):
        children = ((item, f"{path}.{shown(key)}") for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        children = ((item, f"{path}[{position}]") for position, item in enumerate(value))
    else:
        return path if isinstance(value, int) and is_rounded(value) else None
    return next((found for item, place in children if (found := find_rounded_integer(item, place))), None)


VALUE: Final = FreeForm(render_value, put_value)
FORMS: Final[dict[str, MessageForm]] = {
    "google.protobuf.Timestamp": TimestampForm(),
    "google.protobuf.Duration": DurationForm(),
    "google.protobuf.Struct": FreeForm(render_struct, put_struct),
    "google.protobuf.ListValue": FreeForm(render_list, put_list),
    "google.protobuf.Value": VALUE,
}
"""By the full name of the message."""
WITHOUT_FORM: Final = re.compile(r"google\.protobuf\.(Any|FieldMask|\w+Value)")
"""Well-known messages whose JSON is special and that the contract does not use."""
