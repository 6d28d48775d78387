"""Strict YAML for rulebooks: one document, every value with its line, no ambiguous values.

Anchors, aliases and tags are rejected, duplicate keys are errors, and a plain `yes` or `on` is reported as ambiguous.
Problems are
reported and replaced by stand-ins, so that reading continues and finds the rest; discard the result if anything was
reported.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import yaml

from cstp_grpc.guardrails.input_values import InputValueError, json_type_name, to_number
from cstp_grpc.guardrails.rulebook_files import MAX_RULEBOOK_BYTES

MAX_YAML_DEPTH = 40
"""Maximum nesting of a file; leaves room for a test whose context has the greatest depth."""

YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
NULL_PATTERN = re.compile(r"|~|null|Null|NULL")
BOOL_PATTERN = re.compile(r"true|True|TRUE|false|False|FALSE")
AMBIGUOUS_BOOL_PATTERN = re.compile(r"yes|no|on|off", re.IGNORECASE)
INT_PATTERN = re.compile(r"[-+]?(0|[1-9][0-9]{0,300})")
FLOAT_PATTERN = re.compile(r"[-+]?([0-9]{1,300}(\.[0-9]{0,300})?|\.[0-9]{1,300})([eE][-+]?[0-9]{1,4})?")
PRINTABLE_PATTERN = re.compile(r"[\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")

ReportLine = Callable[[int, str], None]
"""Reports a problem and its line, counted from 1."""


class MalformedYaml(Exception):
    """Parsing cannot continue after `line`."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


@dataclass(slots=True)
class RulebookNode:
    """A value and its line, or that of its key."""

    line: int
    value: str | int | float | bool | list[RulebookNode] | dict[str, RulebookNode] | None

    def plain(self) -> Any:
        """Return the value without line numbers."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def read_document(content: bytes, report: ReportLine) -> RulebookNode | None:
    """Parse the one document of a file; report problems, and return None if it cannot be parsed."""
    try:
        text = decode_text(content)
        return compose_document(yaml.parse(text, Loader=YAML_LOADER), report)
    except MalformedYaml as error:
        report(error.line, error.reason)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # What is missing at the end of a file is found on the line after its last.
        line = min(mark.line + 1, len(content.splitlines())) if mark else 1
        report(line, f"is not YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        report(1, f"is not YAML: {error}")
    return None


def decode_text(content: bytes) -> str:
    """Decode the text of a file. Raises MalformedYaml."""
    if len(content) > MAX_RULEBOOK_BYTES:
        raise MalformedYaml(1, f"is larger than {MAX_RULEBOOK_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedYaml(content.count(b"\n", 0, error.start) + 1, "is not UTF-8") from None
    match = PRINTABLE_PATTERN.match(text)
    if match and match.end() < len(text):
        raise MalformedYaml(text.count("\n", 0, match.end()) + 1, f"holds the character {text[match.end()]!r}")
    return text


def compose_document(events: Iterator[yaml.Event], report: ReportLine) -> RulebookNode:
    """Return the only document of an event stream. Raises MalformedYaml and YAMLError."""
    next(events)
    start = next(events)
    if isinstance(start, yaml.StreamEndEvent):
        raise MalformedYaml(1, "is empty")
    node = compose_node(next(events), events, report, 1)
    next(events)
    after = next(events)
    if not isinstance(after, yaml.StreamEndEvent):
        raise MalformedYaml(line_of(after), "holds more than one document")
    return node


def compose_node(event: yaml.Event, events: Iterator[yaml.Event], report: ReportLine, depth: int) -> RulebookNode:
    """Return the value that starts with `event`. Raises MalformedYaml and YAMLError."""
    line = line_of(event)
    if depth > MAX_YAML_DEPTH:
        raise MalformedYaml(line, f"is nested deeper than {MAX_YAML_DEPTH} levels")
    if isinstance(event, yaml.AliasEvent):
        report(line, "aliases are not supported: write the value out")
        return RulebookNode(line, None)
    if getattr(event, "anchor", None):
        report(line, "anchors are not supported")
    if getattr(event, "tag", None):
        report(line, "tags are not supported")
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            items.append(compose_node(item, events, report, depth + 1))
        return RulebookNode(line, items)
    if isinstance(event, yaml.MappingStartEvent):
        return RulebookNode(line, compose_mapping(events, report, depth))
    if not isinstance(event, yaml.ScalarEvent):
        raise MalformedYaml(line, "a value is missing")
    return RulebookNode(line, resolve_scalar(event, report))


def compose_mapping(events: Iterator[yaml.Event], report: ReportLine, depth: int) -> dict[str, RulebookNode]:
    """Return the entries of a mapping, each with the line of its key. Raises MalformedYaml and YAMLError."""
    entries: dict[str, RulebookNode] = {}
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        line = line_of(key)
        if not isinstance(key, yaml.ScalarEvent):
            raise MalformedYaml(line, "a key must be a text")
        node = compose_node(next(events), events, report, depth + 1)
        if key.value in entries:
            report(line, f"the key `{key.value}` is given twice; the first is on line {entries[key.value].line}")
        else:
            entries[key.value] = RulebookNode(line, node.value)
    return entries


def resolve_scalar(event: yaml.ScalarEvent, report: ReportLine) -> str | int | float | bool | None:
    """Return the value of a scalar; a quoted one is always a string."""
    text: str = event.value
    plain: bool = event.implicit[0]
    if not plain:
        return text
    if NULL_PATTERN.fullmatch(text):
        return None
    if BOOL_PATTERN.fullmatch(text):
        return text.lower() == "true"
    if INT_PATTERN.fullmatch(text):
        return int(text)
    if FLOAT_PATTERN.fullmatch(text):
        return float(text)
    if AMBIGUOUS_BOOL_PATTERN.fullmatch(text):
        report(line_of(event), f"`{text}` may be a bool or a text: write true or false, or put it in quotes")
    return text


def line_of(event: yaml.Event) -> int:
    """Return the line of an event, counted from 1."""
    return event.start_mark.line + 1 if event.start_mark else 1


IDENTIFIER_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MAX_TEXT_CHARACTERS = 2_000
"""Default maximum length of a string, in characters."""

Word = TypeVar("Word", bound=StrEnum)
ReportProblem = Callable[[int, str, str], None]
"""Reports a problem: the line, the guardrail or part of the file, and the reason."""


class YamlFields:
    """Reads a map with known keys; null counts as absent."""

    def __init__(
        self,
        node: RulebookNode,
        where: str,
        report: ReportProblem,
        required: Sequence[str],
        optional: Sequence[str] = (),
    ) -> None:
        self.line = node.line
        self.where = where
        self._report = report
        self._entries = {
            key: item for key, item in mapping_entries(node, where, report).items() if item.value is not None
        }
        known = (*required, *optional)
        for key in self._entries.keys() - set(known):
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(known)}"
            self.report_problem(f"unknown key `{key}`; {hint}", key)
        if isinstance(node.value, dict):
            for key in required:
                if key not in self._entries:
                    self.report_problem(f"`{key}` is missing")

    def report_problem(self, reason: str, key: str | None = None) -> None:
        """Report a problem with a key, or with the map."""
        line = self._entries[key].line if key in self._entries and key is not None else self.line
        self._report(line, self.where, reason)

    def get(self, key: str) -> RulebookNode | None:
        """Return a value, or None if absent."""
        return self._entries.get(key)

    def text(self, key: str, max_length: int = MAX_TEXT_CHARACTERS) -> str:
        """Return a non-blank string."""
        return self.optional_text(key, max_length) or ""

    def optional_text(self, key: str, max_length: int = MAX_TEXT_CHARACTERS) -> str | None:
        """Return a non-blank string, or None if absent."""
        node = self._entries.get(key)
        if node is None:
            return None
        if not isinstance(node.value, str):
            hint = "; put it in quotes" if isinstance(node.value, bool | int | float) else ""
            self.report_problem(f"`{key}` must be a string, but is {json_type_name(node.value)}{hint}", key)
        elif not node.value.strip():
            self.report_problem(f"`{key}` is blank", key)
        elif len(node.value) > max_length:
            self.report_problem(f"`{key}` is longer than {max_length} characters", key)
        else:
            return node.value
        return None

    def identifier(self, key: str) -> str:
        """Return a short string without spaces that is safe in responses and logs."""
        text = self.text(key)
        if text and not IDENTIFIER_PATTERN.fullmatch(text):
            self.report_problem(f"`{key}` must be 1 to 100 letters, digits, dots, dashes or underscores", key)
        return text

    def enum_word(self, key: str, words: type[Word], default: Word | None = None) -> Word:
        """Return one of the words of an enum."""
        stand_in = default or next(iter(words))
        if key not in self._entries:
            return stand_in
        text = self.text(key)
        if text in list(words):
            return words(text)
        if text:
            self.report_problem(f"`{key}` must be one of {', '.join(words)}, not {text}", key)
        return stand_in

    def boolean(self, key: str) -> bool | None:
        """Return a boolean, or None if absent."""
        node = self._entries.get(key)
        value = node.value if node else None
        if value is None or isinstance(value, bool):
            return value
        self.report_problem(f"`{key}` must be a bool, but is {json_type_name(value)}", key)
        return None

    def number(self, key: str) -> float | None:
        """Return a finite number, or None if absent."""
        node = self._entries.get(key)
        if node is None:
            return None
        try:
            return to_number(node.value)
        except InputValueError as error:
            self.report_problem(f"`{key}` {error}", key)
            return None

    def items(self, key: str) -> list[RulebookNode]:
        """Return the values of a list, empty if absent."""
        node = self._entries.get(key)
        if node is None:
            return []
        if isinstance(node.value, list):
            return node.value
        self.report_problem(f"`{key}` must be a list, but is {json_type_name(node.value)}", key)
        return []

    def texts(self, key: str) -> list[tuple[int, str]]:
        """Return the strings of a list, each with its line."""
        found = []
        for item in self.items(key):
            if isinstance(item.value, str):
                found.append((item.line, item.value))
            else:
                self._report(
                    item.line, self.where, f"`{key}` holds {json_type_name(item.value)}, but must hold strings"
                )
        return found


def mapping_entries(node: RulebookNode, where: str, report: ReportProblem) -> Mapping[str, RulebookNode]:
    """Return the entries of a map; report anything else and return an empty map."""
    if isinstance(node.value, dict):
        return node.value
    report(node.line, where, f"must be a map, but is {json_type_name(node.value)}")
    return {}
