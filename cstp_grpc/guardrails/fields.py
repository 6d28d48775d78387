"""The keys of a map in a rulebook, read one by one and strictly.

What is wrong is reported, and a stand-in returned, so that reading goes on and finds the rest. Nothing that was read
counts once anything has been reported.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from cstp_grpc.guardrails.document import Node
from cstp_grpc.guardrails.values import Unusable, kind, to_number

IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MAX_TEXT = 2_000
"""How many characters a text may have, unless stated."""

Word = TypeVar("Word", bound=StrEnum)
Report = Callable[[int, str, str], None]
"""Takes down a problem: the line, the guardrail or part of the file, and what is wrong."""


class Fields:
    """A map with known keys; a null counts as absent."""

    def __init__(
        self, node: Node, where: str, report: Report, required: Sequence[str], optional: Sequence[str] = ()
    ) -> None:
        self.line = node.line
        self.where = where
        self._report = report
        self._entries = {key: item for key, item in entries(node, where, report).items() if item.value is not None}
        known = (*required, *optional)
        for key in self._entries.keys() - set(known):
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(known)}"
            self.wrong(f"unknown key `{key}`; {hint}", key)
        if isinstance(node.value, dict):
            for key in required:
                if key not in self._entries:
                    self.wrong(f"`{key}` is missing")

    def wrong(self, reason: str, key: str | None = None) -> None:
        """Report a problem with a key, or with the whole."""
        line = self._entries[key].line if key in self._entries and key is not None else self.line
        self._report(line, self.where, reason)

    def get(self, key: str) -> Node | None:
        """Return a value, or None where it is absent."""
        return self._entries.get(key)

    def text(self, key: str, max_length: int = MAX_TEXT) -> str:
        """Return a text that is not blank."""
        return self.maybe_text(key, max_length) or ""

    def maybe_text(self, key: str, max_length: int = MAX_TEXT) -> str | None:
        """Return a text that is not blank, or None where it is absent."""
        node = self._entries.get(key)
        if node is None:
            return None
        if not isinstance(node.value, str):
            hint = "; put it in quotes" if isinstance(node.value, bool | int | float) else ""
            self.wrong(f"`{key}` must be a string, but is {kind(node.value)}{hint}", key)
        elif not node.value.strip():
            self.wrong(f"`{key}` is blank", key)
        elif len(node.value) > max_length:
            self.wrong(f"`{key}` is longer than {max_length} characters", key)
        else:
            return node.value
        return None

    def identifier(self, key: str) -> str:
        """Return a short text without spaces, fit for answers and logs."""
        text = self.text(key)
        if text and not IDENTIFIER.fullmatch(text):
            self.wrong(f"`{key}` must be 1 to 100 letters, digits, dots, dashes or underscores", key)
        return text

    def word(self, key: str, words: type[Word], default: Word | None = None) -> Word:
        """Return one of several words."""
        stand_in = default or next(iter(words))
        if key not in self._entries:
            return stand_in
        text = self.text(key)
        if text in list(words):
            return words(text)
        if text:
            self.wrong(f"`{key}` must be one of {', '.join(words)}, not {text}", key)
        return stand_in

    def boolean(self, key: str) -> bool | None:
        """Return true or false, or None where it is absent."""
        node = self._entries.get(key)
        value = node.value if node else None
        if value is None or isinstance(value, bool):
            return value
        self.wrong(f"`{key}` must be a bool, but is {kind(value)}", key)
        return None

    def number(self, key: str) -> float | None:
        """Return a finite number, or None where it is absent."""
        node = self._entries.get(key)
        if node is None:
            return None
        try:
            return to_number(node.value)
        except Unusable as error:
            self.wrong(f"`{key}` {error}", key)
            return None

    def items(self, key: str) -> list[Node]:
        """Return the values of a list; none where it is absent."""
        node = self._entries.get(key)
        if node is None:
            return []
        if isinstance(node.value, list):
            return node.value
        self.wrong(f"`{key}` must be a list, but is {kind(node.value)}", key)
        return []

    def texts(self, key: str) -> list[tuple[int, str]]:
        """Return the texts in a list, each with its line."""
        found = []
        for item in self.items(key):
            if isinstance(item.value, str):
                found.append((item.line, item.value))
            else:
                self._report(item.line, self.where, f"`{key}` holds {kind(item.value)}, but must hold strings")
        return found


def entries(node: Node, where: str, report: Report) -> Mapping[str, Node]:
    """Return the entries of a map; none where it is something else."""
    if isinstance(node.value, dict):
        return node.value
    report(node.line, where, f"must be a map, but is {kind(node.value)}")
    return {}
