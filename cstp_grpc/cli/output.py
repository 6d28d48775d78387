"""The output of commands: tables and colours for people, JSON for programs."""

from __future__ import annotations

import errno
import functools
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from cstp_grpc.cli.console import Console, Text, open_console
from cstp_grpc.common.unicode_text import escape_invisible, replace_invisible
from cstp_grpc.contract.errors import CstpError, InternalError

if TYPE_CHECKING:
    from google.protobuf.message import Message


AnswerT = TypeVar("AnswerT", bound="Message | Mapping[str, Any]")

JSON_INDENT = 2
"""Columns by which JSON is indented."""


class Output:
    """The output of a command; `json_wanted` selects JSON.

    Colours are for terminals only, and NO_COLOR disables them.
    """

    def __init__(self, *, json_wanted: bool = False) -> None:
        self.json_wanted = json_wanted

    @functools.cached_property
    def console(self) -> Console:
        return open_console(error=False)

    @functools.cached_property
    def notes(self) -> Console:
        """Standard error: progress, notes and failures."""
        return open_console(error=True)

    def answer(self, answer: AnswerT, show: Callable[[Console, AnswerT], object] | str) -> None:
        """Print a response: as the result object of JSON-RPC, or with `show`, which may be a line itself."""
        if self.json_wanted:
            self.document(answer) if isinstance(answer, Mapping) else self.message(answer)
        elif isinstance(show, str):
            self.line(show)
        else:
            with report_unfit_answers() if isinstance(answer, Mapping) else nullcontext():
                self.show(lambda console: show(console, answer))

    def show(self, show: Callable[[Console], object]) -> None:
        """Call `show` with the console of standard output."""
        with report_write_errors():
            show(self.console)

    def message(self, message: Message) -> None:
        # Imported here, because it loads gRPC.
        from cstp_grpc.contract import json_codec

        self.document(json_codec.to_json(message))

    def document(self, content: Any) -> None:
        with report_write_errors():
            write_json(sys.stdout, content)

    def json_line(self, message: Message) -> None:
        """Print a message as JSON on a line of its own."""
        from cstp_grpc.contract import json_codec

        with report_write_errors():
            write_json(sys.stdout, json_codec.to_json(message), indent=None)

    def print_error(self, content: Any) -> None:
        write_json(sys.stderr, {"error": content})

    def line(self, text: str | Text) -> None:
        """Print a line, unless JSON is wanted; it is not wrapped, so that commands in it can be copied."""
        if not self.json_wanted:
            self.show(lambda console: console.print(text, soft_wrap=True))

    def write_verbatim(self, text: str) -> None:
        """Print a text as it is; on a terminal without control characters."""
        with report_write_errors():
            stream = self.console.file
            stream.write(replace_invisible(text) if stream.isatty() else text)
            stream.flush()

    def note(self, text: str | Text) -> None:
        self.notes.print(text, soft_wrap=True)


@contextmanager
def report_unfit_answers() -> Iterator[None]:
    """Raise InternalError where an answer as JSON, which no codec has read, lacks a member or has another type."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        message = f"The answer does not fit the contract: {type(error).__name__}: {error}"
        raise InternalError(message) from error


@contextmanager
def report_write_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            # The reader, such as a pager, was closed: no failure, and click ends the command quietly.
            raise
        # Otherwise the interpreter would flush the same stream at exit, and fail again.
        sys.stdout = io.StringIO()
        raise click.ClickException(f"standard output: {error.strerror}") from error


def write_json(stream: TextIO | None, content: Any, indent: int | None = JSON_INDENT) -> None:
    """Write a JSON value; characters that the stream's encoding lacks are escaped."""
    if stream is None:
        return
    text = json_text(content, indent=indent)
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json_text(content, ascii_only=True, indent=indent)
    stream.write(f"{text}\n")
    stream.flush()


def json_text(content: Any, *, ascii_only: bool = False, indent: int | None = JSON_INDENT) -> str:
    """Return a JSON text, on one line without `indent`; invisible characters are escaped."""
    return escape_invisible(json.dumps(content, indent=indent, ensure_ascii=ascii_only))


def json_members(item: object, *names: str) -> dict[str, Any]:
    """Return attributes as members of a JSON object, by their names in camel case; enums are words."""
    members: dict[str, Any] = {}
    for name in names:
        value = getattr(item, name)
        first, *others = name.split("_")
        members[first + "".join(map(str.capitalize, others))] = value.value if isinstance(value, Enum) else value
    return members


def to_printable(text: str) -> str:
    """Return a text of another agent on one line, so that it cannot forge another; consoles do the rest."""
    return replace_invisible(" ".join(text.splitlines()))


@contextmanager
def progress_bar(out: Output, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal and yield the function that advances it by a number.

    If the total is unknown, the bar shows that there is progress.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out.notes.rich, transient=True, disable=not out.notes.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


class ReconnectNotices:
    """Prints why a watch was interrupted, each failure once until events arrive again."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._told: set[str] = set()

    def report(self, error: CstpError, _: float) -> None:
        """Print the failure, unless it was printed already."""
        if error.message not in self._told:
            self._told.add(error.message)
            self._out.note(f"{to_printable(error.message)}; trying again until Ctrl-C")

    def reset(self) -> None:
        """Forget the printed failures, because events arrive again."""
        self._told.clear()
