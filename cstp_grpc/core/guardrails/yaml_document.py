"""Strict YAML for rulebooks: one document, every value with its line, no ambiguous values.

Anchors, aliases and tags are rejected, duplicate keys are errors, and a plain `yes` or `on` is reported as ambiguous.
Problems are reported and replaced by placeholders, so that reading continues and finds the rest; discard the result if
anything was reported.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import TypeVar

from cstp_grpc.common.yaml_with_lines import PlainValue, YamlError, YamlNode, YamlReader, YamlScalar
from cstp_grpc.core.guardrails.inputs import InputValueError, json_type_name, to_number
from cstp_grpc.core.guardrails.rulebook_files import MAX_RULEBOOK_BYTES

MAX_YAML_DEPTH = 40
"""Maximum nesting of a file: MAX_CONTEXT_DEPTH, and the levels around the context of a test."""

# The core schema of YAML 1.2.2, section 10.3.2, without octal, hexadecimal, infinity and NaN. The counts bound the time
# that int() and float() take.
NULL_PATTERN = re.compile(r"|~|null|Null|NULL")
BOOL_PATTERN = re.compile(r"true|True|TRUE|false|False|FALSE")
AMBIGUOUS_BOOL_PATTERN = re.compile(r"yes|no|on|off", re.IGNORECASE)
INT_PATTERN = re.compile(r"[-+]?(0|[1-9][0-9]{0,300})")
FLOAT_PATTERN = re.compile(r"[-+]?([0-9]{1,300}(\.[0-9]{0,300})?|\.[0-9]{1,300})([eE][-+]?[0-9]{1,4})?")
# The characters of YAML 1.2.2, section 5.1. A byte order mark is removed by decoding.
PRINTABLE_PATTERN = re.compile(r"[\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")

ReportLine = Callable[[int, str], None]
"""Takes a problem with its line, counted from 1."""


class _RulebookReader(YamlReader):
    """Reads YAML without ambiguous values; reports problems that need not stop the reading."""

    max_depth = MAX_YAML_DEPTH
    key_problem = "a key must be a text"
    syntax_problem = "is not YAML"

    def __init__(self, report: ReportLine) -> None:
        super().__init__()
        self._report = report

    def start_document(self, number: int, line: int) -> None:
        if number:
            raise YamlError("contains more than one document", line)

    def read_alias(self, name: str, line: int) -> YamlNode:  # noqa: ARG002 - no alias is resolved
        self._report(line, "aliases are not supported: write the value out")
        return YamlNode(line, None)

    def check_properties(self, anchor: str | None, tag: str | None, line: int) -> None:
        if anchor:
            self._report(line, "anchors are not supported")
        if tag:
            self._report(line, "tags are not supported")

    def accepts_repeated_key(self, key: str, line: int, first_line: int) -> bool:
        self._report(line, f"the key `{key}` is given twice; the first is on line {first_line}")
        return False

    def read_scalar(self, text: str, line: int) -> YamlScalar:
        if NULL_PATTERN.fullmatch(text):
            return None
        if BOOL_PATTERN.fullmatch(text):
            return text.lower() == "true"
        if INT_PATTERN.fullmatch(text):
            return int(text)
        if FLOAT_PATTERN.fullmatch(text):
            return float(text)
        if AMBIGUOUS_BOOL_PATTERN.fullmatch(text):
            self._report(line, f"`{text}` may be a bool or a text: write true or false, or put it in quotes")
        return text


def read_document(content: bytes, report: ReportLine) -> YamlNode | None:
    """Return the one document in a file, or None if it cannot be read; problems are reported."""
    try:
        documents = _RulebookReader(report).read(decode_text(content))
    except YamlError as error:
        # The parser reports a missing end on the line after the last, which editors do not have.
        last_line = max(1, len(content.splitlines()))
        report(min(error.line or 1, last_line), error.reason.removeprefix("it "))
        return None
    if not documents:
        report(1, "is empty")
        return None
    return documents[0]


def decode_text(content: bytes) -> str:
    if len(content) > MAX_RULEBOOK_BYTES:
        raise YamlError(f"is larger than {MAX_RULEBOOK_BYTES} bytes", 1)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlError("is not UTF-8", content.count(b"\n", 0, error.start) + 1) from None
    match = PRINTABLE_PATTERN.match(text)
    if match and match.end() < len(text):
        raise YamlError(f"contains the character {text[match.end()]!r}", text.count("\n", 0, match.end()) + 1)
    return text


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
        node: YamlNode,
        where: str,
        report: ReportProblem,
        required: Collection[str],
        optional: Collection[str] = (),
    ) -> None:
        self.line = node.line
        self.where = where
        self._report = report
        entries = mapping_entries(node, where, report)
        self._entries = {key: item for key, item in entries.items() if item.value is not None}
        known = tuple(dict.fromkeys((*required, *optional)))
        # Also without a value: an author of an unknown key expects it to have a meaning.
        for key in entries.keys() - set(known):
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(known)}"
            report(entries[key].line, where, f"unknown key `{key}`; {hint}")
        # Anything else is reported by mapping_entries already, and every key would be missing.
        if isinstance(node.value, dict):
            for key in required:
                if key not in self._entries:
                    self.report_problem(f"`{key}` is missing")

    def section(self, key: str, required: Collection[str], optional: Collection[str]) -> YamlFields | None:
        """Return the fields of a map, or None without the key."""
        node = self._entries.get(key)
        if node is None:
            return None
        if node.value == {}:
            self.report_problem(f"`{key}` is empty", key)
        return YamlFields(node, self.where, self._report, required, optional)

    def report_problem(self, reason: str, key: str | None = None) -> None:
        line = self._entries[key].line if key in self._entries and key is not None else self.line
        self._report(line, self.where, reason)

    def report_at(self, line: int, reason: str) -> None:
        self._report(line, self.where, reason)

    def get(self, key: str) -> YamlNode | None:
        return self._entries.get(key)

    def text(self, key: str, max_length: int = MAX_TEXT_CHARACTERS) -> str:
        return self.optional_text(key, max_length) or ""

    def optional_text(self, key: str, max_length: int = MAX_TEXT_CHARACTERS) -> str | None:
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
        stand_in = default or next(iter(words))
        if key not in self._entries:
            return stand_in
        text = self.text(key)
        # In a list, because before Python 3.12 an enum raises TypeError if it is asked for a text.
        if text in list(words):
            return words(text)
        if text:
            self.report_problem(f"`{key}` must be one of {', '.join(words)}, not {text}", key)
        return stand_in

    def boolean(self, key: str) -> bool | None:
        node = self._entries.get(key)
        value = node.value if node else None
        if value is None or isinstance(value, bool):
            return value
        self.report_problem(f"`{key}` must be a bool, but is {json_type_name(value)}", key)
        return None

    def number(self, key: str) -> float | None:
        node = self._entries.get(key)
        if node is None:
            return None
        try:
            return to_number(node.value)
        except InputValueError as error:
            self.report_problem(f"`{key}` {error}", key)
            return None

    def items(self, key: str) -> list[YamlNode]:
        node = self._entries.get(key)
        if node is None:
            return []
        if isinstance(node.value, list):
            return node.value
        self.report_problem(f"`{key}` must be a list, but is {json_type_name(node.value)}", key)
        return []

    def texts_or_text(self, key: str) -> frozenset[str]:
        """Return the strings of a list that is not empty, or a single string as such a list; empty without the key."""
        node = self._entries.get(key)
        if node is None:
            return frozenset()
        items = node.value if isinstance(node.value, list) else [node]
        if not items:
            self.report_problem(f"`{key}` is an empty list, which nothing matches", key)
        for item in items:
            if not isinstance(item.value, str) or not item.value.strip():
                self.report_at(item.line, f"`{key}` must be a string or a list of strings, none of them blank")
                return frozenset()
        return frozenset(item.value for item in items if isinstance(item.value, str))

    def identifiers(self, key: str) -> tuple[str, ...]:
        """Return the strings of a list, each short and without spaces."""
        found = self.lined_texts(key)
        for line, text in found:
            if not IDENTIFIER_PATTERN.fullmatch(text):
                self.report_at(
                    line, f"`{key}` contains {text!r}, not 1 to 100 letters, digits, dots, dashes or underscores"
                )
        return tuple(text for _, text in found)

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(text for _, text in self.lined_texts(key))

    def lined_texts(self, key: str) -> list[tuple[int, str]]:
        """Return the strings of a list, each with its line."""
        found = []
        for item in self.items(key):
            if isinstance(item.value, str):
                found.append((item.line, item.value))
            else:
                self.report_at(item.line, f"`{key}` contains {json_type_name(item.value)}, but must contain strings")
        return found

    def plain(self, key: str) -> PlainValue:
        """Return a value of any type without its lines, or None without the key."""
        node = self._entries.get(key)
        return None if node is None else node.plain

    def entries(self, key: str, where: str | None = None) -> Mapping[str, YamlNode]:
        """Return the entries of a map, empty without the key; problems name the map by `where`."""
        node = self._entries.get(key)
        return {} if node is None else mapping_entries(node, where or self.where, self._report)

    def check_words(self, key: str, found: frozenset[str], words: type[Word]) -> frozenset[Word]:
        """Return those of the strings of a list that are words of an enum; report the others."""
        for word in sorted(found.difference(words)):
            self.report_problem(f"`{key}` must be of {', '.join(words)}, not {word}", key)
        return frozenset(words(word) for word in found.intersection(words))


def mapping_entries(node: YamlNode, where: str, report: ReportProblem) -> Mapping[str, YamlNode]:
    """Return the entries of a map; report anything else and return an empty map."""
    if isinstance(node.value, dict):
        return node.value
    report(node.line, where, f"must be a map, but is {json_type_name(node.value)}")
    return {}
