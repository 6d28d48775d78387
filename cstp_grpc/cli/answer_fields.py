"""The fields of answers as texts for people, and the entries and tables that are made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from cstp_grpc.cli.console import Console, Text, TextTable
from cstp_grpc.cli.output import json_text, to_printable
from cstp_grpc.common.lazy_imports import LazyModule

if TYPE_CHECKING:
    from google.protobuf import struct_pb2, timestamp_pb2
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper
    from google.protobuf.message import Message

    from cstp_grpc.contract import json_codec
else:
    # For messages alone: answers as JSON need none of them.
    json_codec = LazyModule("cstp_grpc.contract.json_codec")
    struct_pb2 = LazyModule("google.protobuf.struct_pb2")
    timestamp_pb2 = LazyModule("google.protobuf.timestamp_pb2")

NumberT = TypeVar("NumberT", bound=int)
ItemT = TypeVar("ItemT")

Rows: TypeAlias = Mapping[str, str | Callable[[Any], str | Text]]
"""The rows of a table of fields: by label a template, or a function of the message."""

OUTCOME_STYLES = {"success": "green", "failure": "red", "partial": "yellow", "abandoned": "dim"}
"""By outcome."""
MAX_LESSON = 400
"""Characters of a lesson in a list; `cstp show` prints all of it."""


def enum_word(enum: _EnumTypeWrapper[NumberT], number: NumberT) -> str:
    """Return the lower-case word of an enum value, or empty if unspecified."""
    return word_of_enum(enum.DESCRIPTOR, number)


def word_of_enum(descriptor: Any, number: int) -> str:
    # Every enum of the contract begins with `..._UNSPECIFIED`, by which the prefix of its values is known.
    prefix = descriptor.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return descriptor.values_by_number[number].name.removeprefix(prefix).lower() if number else ""


def format_date(stamp: timestamp_pb2.Timestamp) -> str:
    return stamp.ToDatetime().date().isoformat()


def format_instant(stamp: timestamp_pb2.Timestamp) -> str:
    return stamp.ToDatetime().isoformat(sep=" ", timespec="seconds") + "Z"


def struct_to_line(content: struct_pb2.Struct | Mapping[str, object]) -> str:
    """Return a JSON object on one line, or empty if it has no members."""
    members = json_codec.to_json(content) if isinstance(content, struct_pb2.Struct) else content
    return json_text(members, indent=None) if members else ""


def field_text(message: Any, path: str) -> str:
    """Return a field as text, empty if it is absent.

    Enums are words, instants are in UTC, and lists are joined by commas. A path of several names leads into messages.
    """
    *outer, name = path.split(".")
    message = functools.reduce(getattr, outer, message)
    field: FieldDescriptor = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    if field.has_presence and not message.HasField(name):
        return ""
    if field.is_repeated:
        return ", ".join(value)
    if field.enum_type:
        return word_of_enum(field.enum_type, value)
    match value:
        case timestamp_pb2.Timestamp():
            return format_instant(value)
        case struct_pb2.Struct():
            return struct_to_line(value)
        case float():
            return f"{value:g}"
    return str(value)


def field_texts(message: Message, *templates: str) -> list[str]:
    """Return templates such as `request {request_id}` with their fields filled in, but for those with an empty one."""
    return list(filter(None, (fill_template(message, template) for template in templates)))


def fill_template(message: Message, template: str) -> str:
    """Return a template with its fields filled in, or empty if one of these is empty."""
    # Imported here: only messages need it.
    from string import Formatter

    names = [name for _, name, _, _ in Formatter().parse(template) if name]
    texts = [field_text(message, name) for name in names]
    parts = (text for text, *_ in Formatter().parse(template))
    if not all(texts):
        return ""
    return "".join(part + value for part, value in zip(parts, [*texts, ""], strict=False))


def shorten_line(text: str) -> str:
    # Imported here: most answers have no lesson.
    import textwrap

    return textwrap.shorten(text, MAX_LESSON, placeholder=" …")


def entry_text(headline: str, details: Iterable[str], lesson: str = "") -> Text:
    text = Text(to_printable(headline))
    text.append(f"\n{to_printable(', '.join(filter(None, details)))}", style="dim")
    if lesson:
        text.append(f"\nLesson: {to_printable(shorten_line(lesson))}", style="italic")
    return text


def revision_text(revision: int, previous: int = 0) -> str:
    """Return the revision of an intent and the one it replaced, or empty for the first."""
    after = f", after {previous}" if previous else ""
    return f"revision {revision}{after}" if revision > 1 else ""


def print_listing(
    console: Console, items: Sequence[ItemT], row: Callable[[ItemT], tuple[str | Text, ...]], otherwise: str
) -> None:
    if items:
        print_table(console, map(row, items))
    else:
        console.print(otherwise)


def print_table(console: Console, rows: Iterable[tuple[str | Text, ...]], heading: str = "") -> None:
    """Print rows as a table, below a heading if there is one; without rows, print nothing."""
    table = TextTable()
    for row in rows:
        table.add_row(*row)
    if table.row_count and heading:
        console.print(Text(heading, style="bold"))
    if table.row_count:
        console.print(table)


def field_table(rows: Iterable[tuple[str, str | Text]], indent: str = "  ") -> TextTable:
    """Return a table of names and values, without empty ones."""
    table = TextTable()
    for name, value in rows:
        if value:
            table.add_row(Text(f"{indent}{name}", style="dim"), value)
    return table


def rows_of(message: Message, rows: Rows) -> list[tuple[str, str | Text]]:
    return [
        (label, fill_template(message, value) if isinstance(value, str) else value(message))
        for label, value in rows.items()
    ]
