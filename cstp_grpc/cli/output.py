"""What commands print: tables and colours for people, JSON for programs.

Consoles are loaded when something is printed on them, so that programs do not wait for what people need.
"""

from __future__ import annotations

import errno
import functools
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import Console
    from rich.text import Text

INDENT = 2
"""Columns by which JSON is indented."""
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but line feeds and tabs, and what overrides the direction of writing."""


class Output:
    """Where a command prints; `json_wanted` asks for JSON. Colours are for terminals alone, and NO_COLOR stops them."""

    def __init__(self, *, json_wanted: bool = False) -> None:
        self.json_wanted = json_wanted

    @functools.cached_property
    def console(self) -> Console:
        """Standard output."""
        from cstp_grpc.cli.console import console

        return console(error=False)

    @functools.cached_property
    def notes(self) -> Console:
        """Standard error: progress, notes and failures."""
        from cstp_grpc.cli.console import console

        return console(error=True)

    def answer(self, message: Message, show: Callable[[Console], None]) -> None:
        """Print an answer: as the result object of JSON-RPC, or as `show` prints it."""
        if self.json_wanted:
            self.message(message)
        else:
            self.show(show)

    def show(self, show: Callable[[Console], None]) -> None:
        """Print as `show` does."""
        with writing():
            show(self.console)

    def message(self, message: Message) -> None:
        """Print a message as the result object of JSON-RPC."""
        # Not loaded before it is needed: it brings gRPC along.
        from cstp_grpc.client import codec

        self.document(codec.to_json(message))

    def document(self, content: Any) -> None:
        """Print a JSON value."""
        with writing():
            write_json(sys.stdout, content)

    def json_line(self, message: Message) -> None:
        """Print a message as JSON on a line of its own."""
        from cstp_grpc.client import codec

        with writing():
            write_json(sys.stdout, codec.to_json(message), indent=None)

    def problem(self, content: Any) -> None:
        """Print a failure as JSON on standard error."""
        write_json(sys.stderr, {"error": content})

    def line(self, text: str | Text) -> None:
        """Print a line, unless JSON is wanted. It is not broken, so that commands in it can be copied."""
        if not self.json_wanted:
            self.show(lambda console: console.print(text, soft_wrap=True))

    def verbatim(self, text: str) -> None:
        """Print a text as it is; on a terminal without what could steer it."""
        with writing():
            stream = self.console.file
            stream.write(printable(text) if stream.isatty() else text)
            stream.flush()

    def note(self, text: str | Text) -> None:
        """Print a line on standard error."""
        self.notes.print(text, soft_wrap=True)


@contextmanager
def writing() -> Iterator[None]:
    """Tell where standard output takes no more. Raises ClickException."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            # A pager that was closed is no failure; click ends the command quietly.
            raise
        # What the stream still holds would fail again when the process ends.
        sys.stdout = io.StringIO()
        raise click.ClickException(f"standard output: {error.strerror}") from error


def write_json(stream: TextIO | None, content: Any, indent: int | None = INDENT) -> None:
    """Write a JSON value; letters that the stream's encoding does not have are escaped."""
    if stream is None:
        return
    text = json_text(content, indent=indent)
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json_text(content, ascii_only=True, indent=indent)
    stream.write(f"{text}\n")
    stream.flush()


def json_text(content: Any, *, ascii_only: bool = False, indent: int | None = INDENT) -> str:
    """Return JSON for people and programs, on one line without `indent`; what could steer a terminal is escaped."""
    text = json.dumps(content, indent=indent, ensure_ascii=ascii_only)
    return STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def printable(text: str) -> str:
    """Return a text that other agents wrote without what could steer the terminal or turn its direction."""
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", text)
