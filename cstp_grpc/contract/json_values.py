"""Convert the well-known messages of the contract to JSON and back, strictly: instants, durations, free-form data."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.contract.json_scalars import (
    InvalidValue,
    ViolationCollector,
    is_rounded,
    parse_exact_double,
    parse_text,
    printable_key,
)

MAX_NESTING: Final = 24
"""Maximum nesting of objects and lists in free-form data, counting the outermost. Chosen: the parsers of protobuf
refuse 100 levels of messages, of which each level here takes three (Struct, entry, Value)."""

NAIVE_EPOCH: Final = datetime(1970, 1, 1)
"""In UTC; without an offset, so that instants computed from it are printed without one."""
EPOCH: Final = NAIVE_EPOCH.replace(tzinfo=UTC)
NANOS_A_SECOND: Final = 1_000_000_000
RFC3339_PATTERN: Final = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])([01]\d|2[0-3]):([0-5]\d))", re.ASCII
)
# The years 1 to 9999, the range of google.protobuf.Timestamp.
MIN_TIMESTAMP_SECONDS: Final = -62_135_596_800
MAX_TIMESTAMP_SECONDS: Final = 253_402_300_799
FIELD_MASK_PATTERN: Final = re.compile(r"[A-Za-z][A-Za-z0-9.]*(?:,[A-Za-z][A-Za-z0-9.]*)*", re.ASCII)
CAPITAL_PATTERN: Final = re.compile(r"[A-Z]", re.ASCII)
DURATION_PATTERN: Final = re.compile(r"-?\d{1,12}(?:\.\d{1,9})?s", re.ASCII)
MAX_DURATION_SECONDS: Final = 315_576_000_000
"""The largest google.protobuf.Duration, 10 000 years."""
INTEGER_LIMIT: Final = 1e21
"""Whole numbers below it are written without an exponent, as JavaScript and RFC 8785, section 3.2.2.3, write them."""


class MessageCodec(Protocol):
    """Converts one message type to JSON and back."""

    def render(self, message: Any) -> object:
        """Return the JSON value. Raises ValueError where JSON cannot express the message."""
        ...

    def fill(self, message: Any, value: object, path: str, problems: ViolationCollector) -> None:
        """Set an empty message from a JSON value; add violations for invalid parts below `path`."""
        ...


class TimestampCodec:
    """The codec of timestamps: RFC 3339 text."""

    def render(self, message: Timestamp) -> str:
        """Return the timestamp in UTC. Raises ValueError outside the years 1 to 9999."""
        nanos = message.nanos
        try:
            # Protobuf's own method prints the same, by much more code, which is slow where a call is made now and then.
            text = (NAIVE_EPOCH + timedelta(seconds=message.seconds)).isoformat()
        except OverflowError:
            raise ValueError("a timestamp beyond the years 1 to 9999 has no form in JSON") from None
        if not nanos:
            return f"{text}Z"
        if not 0 < nanos < NANOS_A_SECOND:
            raise ValueError("a timestamp whose nanoseconds are not within a second has no form in JSON")
        if nanos % 1_000_000 == 0:
            return f"{text}.{nanos // 1_000_000:03d}Z"
        return f"{text}.{nanos // 1000:06d}Z" if nanos % 1000 == 0 else f"{text}.{nanos:09d}Z"

    def fill(self, message: Timestamp, value: object, path: str, problems: ViolationCollector) -> None:
        """Parse RFC 3339 text with an offset."""
        # Protobuf's own parser also accepts 2026-1-31, and reports a day that does not exist as one out of range.
        match = RFC3339_PATTERN.fullmatch(value) if isinstance(value, str) else None
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
            # Local time is UTC plus the offset, so that UTC is local time minus it.
            seconds += offset if sign == "-" else -offset
        if not MIN_TIMESTAMP_SECONDS <= seconds <= MAX_TIMESTAMP_SECONDS:
            problems.add(path, "must be an instant of the years 1 to 9999")
            return
        message.seconds = seconds
        message.nanos = int(fraction.ljust(9, "0")) if fraction else 0


class FieldMaskCodec:
    """The codec of field masks: paths of JSON names, separated by commas."""

    def render(self, message: FieldMask) -> str:
        """Return the paths by JSON names. Raises ValueError for one that JSON names cannot express."""
        return message.ToJsonString()

    def fill(self, message: FieldMask, value: object, path: str, problems: ViolationCollector) -> None:
        """Parse paths of JSON names."""
        if not isinstance(value, str) or (value and not FIELD_MASK_PATTERN.fullmatch(value)):
            problems.add(path, 'must be names of fields, separated by commas, such as "title,reviewBy"')
            return
        names = value.split(",") if value else []
        message.paths.extend([CAPITAL_PATTERN.sub(lambda match: f"_{match[0].lower()}", name) for name in names])


class DurationCodec:
    """The codec of durations: decimal seconds followed by `s`."""

    def render(self, message: Duration) -> str:
        """Return the seconds. Raises ValueError beyond 10,000 years, and for a length of two signs."""
        return message.ToJsonString()

    def fill(self, message: Duration, value: object, path: str, problems: ViolationCollector) -> None:
        """Parse decimal seconds."""
        if not isinstance(value, str) or not DURATION_PATTERN.fullmatch(value):
            problems.add(path, 'must be a length of time in seconds such as "1.5s"')
            return
        try:
            message.FromJsonString(value)
        except ValueError:
            problems.add(path, f"must be a length of time from -{MAX_DURATION_SECONDS}s to {MAX_DURATION_SECONDS}s")


class JsonValueCodec:
    """The codec of free-form data: an object, a list or any JSON value.

    Whole numbers are printed as integers, and keys in sorted order, since a Struct has no order. An integer that a
    double would round is rejected.
    """

    def __init__(
        self, render: Callable[[Any], object], put: Callable[[Any, object, str, ViolationCollector, int], None]
    ) -> None:
        self.render = render
        self._put = put

    def fill(self, message: Message, value: object, path: str, problems: ViolationCollector) -> None:
        """Set the message from a JSON value with at most MAX_NESTING levels."""
        try:
            self._put(message, value, path, problems, 1)
        except InvalidValue as refusal:
            problems.add(path, str(refusal))


class BoundedObjectCodec(JsonValueCodec):
    """The codec of an object with at most `limit` values, nested ones included."""

    def __init__(self, limit: int) -> None:
        super().__init__(render_struct, set_struct)
        self._limit = limit

    def fill(self, message: Message, value: object, path: str, problems: ViolationCollector) -> None:
        # First, since converting a value takes far longer than counting it.
        if has_more_members(value, self._limit):
            problems.add(path, describe_excess(self._limit))
        else:
            super().fill(message, value, path, problems)


def describe_excess(limit: int) -> str:
    """Return the violation of structured data with more values than a limit."""
    return f"contains more than {limit} values"


def has_more_members(value: object, limit: int) -> bool:
    """Return whether a JSON value contains more values than a limit, nested ones included."""
    pending, left = [value], limit
    while pending:
        found = pending.pop()
        members = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
        left -= len(members)
        if left < 0:
            return True
        pending += (each for each in members if isinstance(each, dict | list))
    return False


def set_struct(struct: Struct, value: object, path: str, problems: ViolationCollector, depth: int) -> None:
    if not isinstance(value, dict):
        raise InvalidValue("must be an object")
    set_container(struct, value, path, problems, depth)


def set_list(container: ListValue, value: object, path: str, problems: ViolationCollector, depth: int) -> None:
    if not isinstance(value, list):
        raise InvalidValue("must be a list")
    set_container(container, value, path, problems, depth)


def set_value(target: Value, value: object, path: str, problems: ViolationCollector, depth: int) -> None:
    if isinstance(value, (dict, list)):
        set_container(open_container(target, value), value, path, problems, depth)
    else:
        set_scalar(target, value)


def set_container(
    container: Any, value: dict[Any, Any] | list[Any], path: str, problems: ViolationCollector, depth: int
) -> None:
    """Validate the members of an object or the items of a list, and set those of a Struct or of a ListValue."""
    if depth > MAX_NESTING:
        raise InvalidValue(f"is nested more than {MAX_NESTING} levels deep")
    is_object = isinstance(value, dict)
    members = container.fields if is_object else container.values
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        try:
            target = members[parse_text(key)] if is_object else members.add()
            if isinstance(item, (dict, list)):
                # Called directly, for one frame per level of nesting; and the path is built only where it is needed, as
                # that would take longer than setting a scalar.
                place = item_path(path, key, is_object=is_object)
                set_container(open_container(target, item), item, place, problems, depth + 1)
            else:
                set_scalar(target, item)
        except InvalidValue as refusal:
            problems.add(item_path(path, key, is_object=is_object), str(refusal))


def item_path(path: str, key: object, *, is_object: bool) -> str:
    return f"{path}.{printable_key(key)}" if is_object else f"{path}[{key}]"


def open_container(target: Value, value: object) -> Struct | ListValue:
    """Make a Value an object or a list, as a JSON value is one, and return it empty."""
    container = target.struct_value if isinstance(value, Mapping) else target.list_value
    # Without it an empty object would leave the Value unset, which is null.
    container.SetInParent()
    return container


def set_scalar(target: Value, value: object) -> None:
    """Validate a JSON value that is neither an object nor a list and set a Value."""
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, str):
        # Fast path: ASCII text has no surrogates.
        target.string_value = value if value.isascii() else parse_text(value)
    elif isinstance(value, (int, float)):
        target.number_value = parse_exact_double(value)
    elif value is None:
        target.null_value = 0  # type: ignore[assignment]
    else:
        raise InvalidValue("must be a JSON value")


def set_trusted_struct(struct: Struct, content: Mapping[str, Any]) -> None:
    """Set the members of a Struct from data already known to be valid, such as data rendered here.

    Raises ValueError for NaN and infinity.
    """
    # Nested objects and lists are appended while the list is iterated, so that the stack does not grow with the
    # nesting.
    pending: list[tuple[Any, Any]] = [(struct, content)]
    for container, value in pending:
        is_object = isinstance(value, Mapping)
        members = container.fields if is_object else container.values
        for key, item in value.items() if is_object else enumerate(value):
            target = members[key] if is_object else members.add()
            if isinstance(item, str):
                target.string_value = item
            elif isinstance(item, bool):
                target.bool_value = item
            elif isinstance(item, (int, float)):
                target.number_value = render_number(float(item))
            elif item is None:
                target.null_value = 0
            else:
                pending.append((open_container(target, item), item))


def render_struct(struct: Struct) -> dict[str, object]:
    """Return an object with sorted keys."""
    rendered: dict[str, object] = {}
    render_containers([(struct, rendered)])
    return rendered


def render_list(container: ListValue) -> list[object]:
    rendered: list[object] = []
    render_containers([(container, rendered)])
    return rendered


def render_value(value: Value) -> object:
    """Return any JSON value; an unset one is null."""
    pending: list[PendingContainer] = []
    rendered = render_item(value, pending)
    render_containers(pending)
    return rendered


PendingContainer = tuple[Any, dict[str, object] | list[object]]
"""A Struct and the empty object, or a ListValue and the empty list, that its items fill."""


def render_containers(pending: list[PendingContainer]) -> None:
    """Fill objects and lists with their rendered items.

    Nested objects and lists are appended and filled in turn, so that the stack does not grow with the nesting.
    """
    for container, rendered in pending:
        if isinstance(rendered, dict):
            fields = container.fields
            for key in sorted(fields):
                value = fields[key]
                # Most values are texts.
                rendered[key] = value.string_value or render_item(value, pending)
        else:
            rendered += [value.string_value or render_item(value, pending) for value in container.values]


def render_item(value: Value, pending: list[PendingContainer]) -> object:
    """Return a JSON value; an object or list is returned empty and appended to `pending`."""
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "bool_value":
        return value.bool_value
    if kind == "number_value":
        return render_number(value.number_value)
    rendered: dict[str, object] | list[object]
    if kind == "struct_value":
        rendered = {}
        pending.append((value.struct_value, rendered))
        return rendered
    if kind == "list_value":
        rendered = []
        pending.append((value.list_value, rendered))
        return rendered
    return None


def render_number(number: float) -> int | float:
    """Return a whole number as an int. Raises ValueError for NaN and infinity."""
    if not math.isfinite(number):
        raise ValueError(f"{number} has no form in JSON")
    return int(number) if number.is_integer() and abs(number) < INTEGER_LIMIT else number


def restore_integers(value: Any) -> Any:
    """Convert whole floats of a JSON value to ints. Raises ValueError for NaN and infinity."""
    if isinstance(value, dict):
        return {key: restore_integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [restore_integers(item) for item in value]
    return render_number(value) if isinstance(value, float) else value


def find_rounded_integer(value: object, path: str) -> str | None:
    """Return the path of the first integer that a double would round, or None."""
    if isinstance(value, Mapping):
        children = ((item, f"{path}.{printable_key(key)}") for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        children = ((item, f"{path}[{position}]") for position, item in enumerate(value))
    else:
        return path if isinstance(value, int) and is_rounded(value) else None
    return next((found for item, place in children if (found := find_rounded_integer(item, place))), None)


VALUE_CODEC: Final = JsonValueCodec(render_value, set_value)
WELL_KNOWN_CODECS: Final[dict[str, MessageCodec]] = {
    "google.protobuf.Timestamp": TimestampCodec(),
    "google.protobuf.Duration": DurationCodec(),
    "google.protobuf.FieldMask": FieldMaskCodec(),
    "google.protobuf.Struct": JsonValueCodec(render_struct, set_struct),
    "google.protobuf.ListValue": JsonValueCodec(render_list, set_list),
    "google.protobuf.Value": VALUE_CODEC,
}
"""The codecs by full message name."""
UNSUPPORTED_WELL_KNOWN: Final = re.compile(r"google\.protobuf\.(Any|\w+Value)")
"""Well-known messages with a special JSON form that the contract does not use."""
