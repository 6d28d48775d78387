"""YAML as plain values with line numbers: the core schema of YAML 1.2, in which `0012`, `no` and dates are texts.

Values are built from the parser's events instead of its constructors, so that deep nesting, tags and repeated aliases
in a file of unknown origin can neither exhaust memory nor run anything, and a repeated key is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import copy

import yaml

from cstp_grpc.common.lazy_dataclass import dataclass, field

YamlScalar = str | int | float | bool | None
PlainValue = YamlScalar | list["PlainValue"] | dict[str, "PlainValue"]

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser of libyaml, which is several times faster, if PyYAML was built with it."""
MERGE_KEY = "<<"
"""A key of YAML 1.1 that may be repeated; it has no meaning here."""
# The core schema, YAML 1.2.2, section 10.3.2, with bounds: 18 digits fit into 64 bits, and an exponent of 3 digits
# covers every double. Longer numbers are texts, because reading them as numbers would change them.
INTEGER = re.compile(r"[-+]?(?:0|[1-9]\d{0,17})")
NUMBER = re.compile(r"[-+]?(?:0|[1-9]\d*)?(?:\.\d+|(?<=\d)\.|(?<=\d))(?:[eE][-+]?\d{1,3})?")
NULLS = frozenset(("", "~", "null", "Null", "NULL"))
BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class YamlError(Exception):
    """A text is not the YAML that is expected; `line` counts from 1 and is None if it is unknown."""

    def __init__(self, reason: str, line: int | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


@dataclass(slots=True)
class YamlNode:
    """A value and the line that it, or its key in a mapping, is on; `plain` is the value without lines."""

    line: int
    value: YamlScalar | list[YamlNode] | dict[str, YamlNode]
    plain: PlainValue = field(init=False)

    # Computed now from the finished parts, not recursively on demand: a long chain of aliases would exhaust the stack.
    def __post_init__(self) -> None:
        if isinstance(self.value, dict):
            self.plain = {key: node.plain for key, node in self.value.items()}
        elif isinstance(self.value, list):
            self.plain = [node.plain for node in self.value]
        else:
            self.plain = self.value

    def at_line(self, line: int) -> YamlNode:
        """Return the same value on another line. It is shared, because copies of aliases could exhaust memory."""
        node = copy(self)
        node.line = line
        return node


class YamlReader:
    """Reads the documents of one text; subclasses may add errors."""

    # Chosen: deeper than records and rulebooks are, and far from the recursion limit of Python, as `_node` recurses.
    max_depth = 24
    key_problem = "a key must be a plain text"
    syntax_problem = "broken YAML"

    def __init__(self, first_line: int = 1) -> None:
        self._first_line = first_line
        self._anchors: dict[str, YamlNode] = {}

    def read(self, text: str) -> list[YamlNode]:
        """Return the documents of a text. Raises YamlError."""
        events = yaml.parse(text, Loader=LOADER)
        documents: list[YamlNode] = []
        try:
            for event in events:
                if isinstance(event, yaml.DocumentStartEvent):
                    self.start_document(len(documents), self.line_of(event))
                    documents.append(self._node(next(events), events, 0))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = None if mark is None else mark.line + self._first_line
            raise YamlError(f"{self.syntax_problem}: {error.problem or error.context}", line) from None
        except yaml.YAMLError as error:
            raise YamlError(f"{self.syntax_problem}: {str(error).splitlines()[0]}", None) from None
        return documents

    def line_of(self, event: yaml.Event) -> int:
        return self._first_line + (event.start_mark.line if event.start_mark else 0)

    def start_document(self, number: int, line: int) -> None:  # noqa: ARG002 - for subclasses
        """Prepare for a document, numbered from 0. Raises YamlError if it may not be there."""
        self._anchors.clear()

    def read_alias(self, name: str, line: int) -> YamlNode:
        """Return the node that an alias repeats. Raises YamlError."""
        # An alias within its own anchor is unknown as well, because a node is registered once it is complete.
        if name not in self._anchors:
            raise YamlError(f"the alias *{name} stands for nothing", line)
        return self._anchors[name]

    def check_properties(self, anchor: str | None, tag: str | None, line: int) -> None:
        """Accept the anchor and the tag of a value; tags have no meaning here."""

    def accepts_repeated_key(self, key: str, line: int, first_line: int) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether a repeated key replaces the first one. Raises YamlError."""
        if key == MERGE_KEY:
            return True
        raise YamlError(f"the key {key!r} is given twice", line)

    def read_scalar(self, text: str, line: int) -> YamlScalar:  # noqa: ARG002 - for subclasses
        """Return the value of a scalar without quotes."""
        if text in NULLS:
            return None
        if text in BOOLEANS:
            return BOOLEANS[text]
        if INTEGER.fullmatch(text):
            return int(text)
        return float(text) if NUMBER.fullmatch(text) else text

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> YamlNode:
        line = self.line_of(event)
        if depth > self.max_depth:
            raise YamlError(f"it is nested deeper than {self.max_depth} levels", line)
        if isinstance(event, yaml.AliasEvent):
            return self.read_alias(event.anchor or "", line).at_line(line)
        if not isinstance(event, yaml.ScalarEvent | yaml.MappingStartEvent | yaml.SequenceStartEvent):
            raise TypeError(f"no value starts with {event}")
        self.check_properties(event.anchor, event.tag, line)
        if isinstance(event, yaml.ScalarEvent):
            # implicit[0] is True for a plain scalar without a tag; a quoted one stays a text.
            node = YamlNode(line, self.read_scalar(event.value, line) if event.implicit[0] else event.value)
        elif isinstance(event, yaml.MappingStartEvent):
            node = YamlNode(line, self._entries(events, depth))
        else:
            node = YamlNode(line, self._items(events, depth))
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _entries(self, events: Iterator[yaml.Event], depth: int) -> dict[str, YamlNode]:
        entries: dict[str, YamlNode] = {}
        while not isinstance(key := next(events), yaml.MappingEndEvent):
            line = self.line_of(key)
            if not isinstance(key, yaml.ScalarEvent):
                raise YamlError(self.key_problem, line)
            known = entries.get(key.value)
            replaces = known is None or self.accepts_repeated_key(key.value, line, known.line)
            node = self._node(next(events), events, depth + 1)
            if replaces:
                # Every use of an alias has a node of its own, so only this one gets the line of its key.
                node.line = line
                entries[key.value] = node
        return entries

    def _items(self, events: Iterator[yaml.Event], depth: int) -> list[YamlNode]:
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self._node(event, events, depth + 1))
        return items
