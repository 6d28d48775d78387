"""YAML as plain values with line numbers: the core schema of YAML 1.2, so that `0012`, `no` and dates stay text.

It is built from the parser's events and not by its constructors: deep nesting, tags and repeated aliases in a file of
unknown origin can neither exhaust memory nor run anything, and a key given twice is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from cstp_grpc.decisions.importing.results import Unreadable

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]

MAX_DEPTH = 24
MERGE = "<<"
"""A key of YAML 1.1 that may be repeated; it has no meaning here."""
INTEGER = re.compile(r"[-+]?(?:0|[1-9]\d{0,17})")
NUMBER = re.compile(r"[-+]?(?:0|[1-9]\d*)?(?:\.\d+|(?<=\d)\.|(?<=\d))(?:[eE][-+]?\d{1,3})?")
WORDS: dict[str, Plain] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}


class Table(dict[str, Plain]):
    """A mapping; `line` is where it starts and `lines` where each of its keys stands, from 1."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class Sequence(list[Plain]):
    """A sequence; `lines` is where each of its items starts, from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []


def load_documents(text: str, first_line: int = 1) -> list[tuple[int, Plain]]:
    """Return the documents of a text whose first line counts as `first_line`, each with the line it starts in.

    Mappings are Tables and sequences Sequences. Raises Unreadable.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return list(_Builder(yaml.parse(text, Loader=loader), first_line).documents())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + first_line
        raise Unreadable(f"broken YAML: {error.problem or error.context}", line) from None
    except yaml.YAMLError as error:
        raise Unreadable(f"broken YAML: {str(error).splitlines()[0]}") from None


class _Builder:
    """Puts values together from a parser's events."""

    def __init__(self, events: Iterator[Event], first_line: int) -> None:
        self._events = events
        self._first_line = first_line
        self._anchors: dict[str, Plain] = {}

    def documents(self) -> Iterator[tuple[int, Plain]]:
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                self._anchors.clear()
                root = next(self._events)
                yield self._line(root), self._value(root, 0)

    def _line(self, event: Event) -> int:
        return self._first_line + (event.start_mark.line if event.start_mark else 0)

    def _value(self, event: Event, depth: int) -> Plain:
        if depth > MAX_DEPTH:
            raise Unreadable(f"it is nested deeper than {MAX_DEPTH} levels", self._line(event))
        if isinstance(event, AliasEvent):
            return self._alias(event)
        value: Plain
        if isinstance(event, ScalarEvent):
            value = _scalar(event)
        elif isinstance(event, MappingStartEvent):
            value = self._table(event, depth)
        elif isinstance(event, SequenceStartEvent):
            value = self._sequence(depth)
        else:
            raise TypeError(f"no node begins with {event}")
        if isinstance(event, NodeEvent) and event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _alias(self, event: AliasEvent) -> Plain:
        if event.anchor is None or event.anchor not in self._anchors:
            raise Unreadable(f"the alias *{event.anchor} stands for nothing", self._line(event))
        return self._anchors[event.anchor]

    def _table(self, start: MappingStartEvent, depth: int) -> Table:
        table = Table(self._line(start))
        while not isinstance(event := next(self._events), MappingEndEvent):
            line = self._line(event)
            if not isinstance(event, ScalarEvent):
                raise Unreadable("a key must be a plain text", line)
            if event.value in table and event.value != MERGE:
                raise Unreadable(f"the key {event.value!r} is given twice", line)
            table[event.value] = self._value(next(self._events), depth + 1)
            table.lines[event.value] = line
        return table

    def _sequence(self, depth: int) -> Sequence:
        sequence = Sequence()
        while not isinstance(event := next(self._events), SequenceEndEvent):
            sequence.lines.append(self._line(event))
            sequence.append(self._value(event, depth + 1))
        return sequence


def _scalar(event: ScalarEvent) -> Plain:
    text = event.value
    if not event.implicit[0]:
        return text
    if text in WORDS:
        return WORDS[text]
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else text
