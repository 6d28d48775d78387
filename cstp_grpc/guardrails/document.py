"""YAML as rulebooks use it: one document, every value with its line, and nothing that may be read in two ways.

Anchors, aliases and tags are refused, duplicate keys are errors, and a plain `yes` or `on` is neither bool nor text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from cstp_grpc.guardrails.rulebook_files import MAX_BYTES

MAX_DEPTH = 40
"""How deep a file may be nested: room for a test's context of the greatest depth."""

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
NULL = re.compile(r"|~|null|Null|NULL")
BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
UNCLEAR = re.compile(r"yes|no|on|off", re.IGNORECASE)
INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,300})")
FLOAT = re.compile(r"[-+]?([0-9]{1,300}(\.[0-9]{0,300})?|\.[0-9]{1,300})([eE][-+]?[0-9]{1,4})?")
PRINTABLE = re.compile(r"[\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")

Report = Callable[[int, str], None]
"""Takes down what is wrong, with the line, counted from 1."""


class Malformed(Exception):
    """A document cannot be read on from `line`."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


@dataclass(slots=True)
class Node:
    """A value and the line that it, or its key, stands on."""

    line: int
    value: str | int | float | bool | list[Node] | dict[str, Node] | None

    def plain(self) -> Any:
        """Return the value without the lines."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def read_document(content: bytes, report: Report) -> Node | None:
    """Return the one document in a file, or None where it cannot be read; what is wrong is reported."""
    try:
        text = decode(content)
        return compose(yaml.parse(text, Loader=LOADER), report)
    except Malformed as error:
        report(error.line, error.reason)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # What is missing at the end of a file is found on the line after its last.
        line = min(mark.line + 1, len(content.splitlines())) if mark else 1
        report(line, f"is not YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        report(1, f"is not YAML: {error}")
    return None


def decode(content: bytes) -> str:
    """Return a file's text. Raises Malformed."""
    if len(content) > MAX_BYTES:
        raise Malformed(1, f"is larger than {MAX_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Malformed(content.count(b"\n", 0, error.start) + 1, "is not UTF-8") from None
    match = PRINTABLE.match(text)
    if match and match.end() < len(text):
        raise Malformed(text.count("\n", 0, match.end()) + 1, f"holds the character {text[match.end()]!r}")
    return text


def compose(events: Iterator[yaml.Event], report: Report) -> Node:
    """Return the only document of a stream. Raises Malformed and YAMLError."""
    next(events)
    start = next(events)
    if isinstance(start, yaml.StreamEndEvent):
        raise Malformed(1, "is empty")
    node = compose_node(next(events), events, report, 1)
    next(events)
    after = next(events)
    if not isinstance(after, yaml.StreamEndEvent):
        raise Malformed(line_of(after), "holds more than one document")
    return node


def compose_node(event: yaml.Event, events: Iterator[yaml.Event], report: Report, depth: int) -> Node:
    """Return the value that starts with `event`. Raises Malformed and YAMLError."""
    line = line_of(event)
    if depth > MAX_DEPTH:
        raise Malformed(line, f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(event, yaml.AliasEvent):
        report(line, "aliases are not supported: write the value out")
        return Node(line, None)
    if getattr(event, "anchor", None):
        report(line, "anchors are not supported")
    if getattr(event, "tag", None):
        report(line, "tags are not supported")
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            items.append(compose_node(item, events, report, depth + 1))
        return Node(line, items)
    if isinstance(event, yaml.MappingStartEvent):
        return Node(line, compose_mapping(events, report, depth))
    if not isinstance(event, yaml.ScalarEvent):
        raise Malformed(line, "a value is missing")
    return Node(line, resolve(event, report))


def compose_mapping(events: Iterator[yaml.Event], report: Report, depth: int) -> dict[str, Node]:
    """Return the entries of a mapping, each on the line of its key. Raises Malformed and YAMLError."""
    entries: dict[str, Node] = {}
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        line = line_of(key)
        if not isinstance(key, yaml.ScalarEvent):
            raise Malformed(line, "a key must be a text")
        node = compose_node(next(events), events, report, depth + 1)
        if key.value in entries:
            report(line, f"the key `{key.value}` is given twice; the first is on line {entries[key.value].line}")
        else:
            entries[key.value] = Node(line, node.value)
    return entries


def resolve(event: yaml.ScalarEvent, report: Report) -> str | int | float | bool | None:
    """Return the value of a scalar; a quoted one is always a text."""
    text: str = event.value
    plain: bool = event.implicit[0]
    if not plain:
        return text
    if NULL.fullmatch(text):
        return None
    if BOOL.fullmatch(text):
        return text.lower() == "true"
    if INT.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        return float(text)
    if UNCLEAR.fullmatch(text):
        report(line_of(event), f"`{text}` may be a bool or a text: write true or false, or put it in quotes")
    return text


def line_of(event: yaml.Event) -> int:
    """Return the line that an event starts on, counted from 1."""
    return event.start_mark.line + 1 if event.start_mark else 1
