"""What commands print: tables and colours for people, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from rich.console import Console
from rich.text import Text

from cstp_grpc.client import codec

PIPED_WIDTH = 160
"""Columns of what is not printed on a terminal."""
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but line feeds and tabs, and what overrides the direction of writing."""


class Output:
    """Where a command prints; `json_wanted` asks for JSON. Colours are for terminals alone, and NO_COLOR stops them."""

    def __init__(self, *, json_wanted: bool = False) -> None:
        self.json_wanted = json_wanted
        self.console = console(error=False)
        self.notes = console(error=True)
        """Standard error: progress, notes and failures."""

    def answer(self, message: Message, show: Callable[[Console], None]) -> None:
        """Print an answer: as the result object of JSON-RPC, or as `show` prints it."""
        if self.json_wanted:
            self.document(codec.to_json(message))
        else:
            show(self.console)

    def document(self, content: Any) -> None:
        """Print a JSON value."""
        self.console.file.write(f"{json_text(content)}\n")

    def problem(self, content: Any) -> None:
        """Print a failure as JSON on standard error."""
        self.notes.file.write(f"{json_text({'error': content})}\n")

    def line(self, text: str | Text) -> None:
        """Print a line, unless JSON is wanted. It is not broken, so that commands in it can be copied."""
        if not self.json_wanted:
            self.console.print(text, soft_wrap=True)

    def note(self, text: str | Text) -> None:
        """Print a line on standard error."""
        self.notes.print(text, soft_wrap=True)


def console(*, error: bool) -> Console:
    """Return a console that takes texts as they are: no markup, no guessed highlights."""
    stream = sys.stderr if error else sys.stdout
    return Console(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        width=None if stream.isatty() else PIPED_WIDTH,
    )


def json_text(content: Any) -> str:
    """Return JSON for people and programs; what could steer a terminal is escaped."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def printable(text: str) -> str:
    """Return a text that other agents wrote without what could steer the terminal or turn its direction."""
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", text)
