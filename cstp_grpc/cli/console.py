"""Rich consoles that print text without invisible characters, and tables whose last column is wrapped between words."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from cstp_grpc.common.unicode_text import replace_invisible

COLUMN_GAP: Final = "  "
"""The separator of columns."""
MIN_LAST_COLUMN_WIDTH: Final = 20
"""Columns that the last cell of a row has, also where the others leave it none."""
IDEOGRAPHS: Final = "\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60"
"""Letters between which lines may be broken, since their words have no spaces between them."""
WORD: Final = re.compile(rf"(?:[{IDEOGRAPHS}]|[^\s{IDEOGRAPHS}]+)\s*")


class TextTable:
    """A table without borders; its last column takes the rest of the line.

    Lines are broken only between words, so that identifiers, paths and URLs can be copied whole. A word longer than its
    line is left to the terminal. Lines have no trailing spaces.
    """

    def __init__(self, *headings: str) -> None:
        self._rows: list[list[Text]] = []
        if headings:
            self.add_row(*(Text(heading, style="bold") for heading in headings))

    @property
    def row_count(self) -> int:
        return len(self._rows)

    def add_row(self, *cells: str | Text) -> None:
        """Add a row; its last cell may have several lines."""
        *leading, last = map(visible_text, cells)
        self._rows.append([*(Text(" ").join(cell.split()) for cell in leading), last])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [
            max(cell.cell_len for cell in column) for column in zip(*(row[:-1] for row in self._rows), strict=True)
        ]
        margin = sum(widths) + len(COLUMN_GAP) * len(widths)
        room = max(options.max_width - margin, MIN_LAST_COLUMN_WIDTH)
        for *leading, last in self._rows:
            start = Text(no_wrap=True, overflow="ignore")
            for cell, width in zip(leading, widths, strict=True):
                start.append_text(cell).append(" " * (width - cell.cell_len)).append(COLUMN_GAP)
            for line in break_lines(last, room):
                start.append_text(line).rstrip()
                yield start
                start = Text(" " * margin, no_wrap=True, overflow="ignore")


def visible_text(text: str | Text) -> Text:
    """Return a text without invisible characters, which could steer the terminal; its styles stay in place."""
    shown = Text(text) if isinstance(text, str) else text
    shown.plain = replace_invisible(shown.plain)
    return shown


def wrap_text(text: str | Text) -> TextTable:
    """Return a text as a table of one cell, to wrap its lines in the same way."""
    found = TextTable()
    found.add_row(text)
    return found


def break_lines(text: Text, width: int) -> Iterator[Text]:
    """Yield the lines of a text, broken between words to fit a width."""
    for line in text.split(allow_blank=True):
        line.expand_tabs()
        yield from line.divide(break_offsets(line.plain, width))


def break_offsets(line: str, width: int) -> Iterator[int]:
    """Yield the offsets at which a line is broken to fit a width; a longer single word is not broken."""
    used = begun = len(line) - len(line.lstrip())
    for word in WORD.finditer(line):
        # In cells and not in characters: ideographs take two columns.
        if word.start() > begun and used + cell_len(word[0].rstrip()) > width:
            yield word.start()
            used = 0
        used += cell_len(word[0])


UNBOUNDED: Final = 1_000_000
"""Columns of output that is not for a terminal: more than any line has."""


class WholeWordConsole(Console):
    """A console that breaks lines only between words; a longer word is not broken."""

    def print(self, *objects: Any, crop: bool = False, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print as the base class does; `crop` cuts lines, `soft_wrap` leaves wrapping to the terminal."""
        shown = (visible_text(each) if isinstance(each, (str, Text)) else each for each in objects)
        objects = tuple(wrap_text(each) if isinstance(each, Text) and not soft_wrap else each for each in shown)
        super().print(*objects, crop=crop, soft_wrap=soft_wrap, **options)


def open_console(*, error: bool) -> Console:
    """Return a console that prints text without markup and highlighting.

    Invisible characters and those that its encoding lacks are replaced.
    """
    # sys.stdout is None if the descriptor was closed before Python started.
    stream: TextIO = (sys.stderr if error else sys.stdout) or io.StringIO()
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return WholeWordConsole(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        # Otherwise rich would wrap at 80 columns what goes to a file or to another program.
        width=None if stream.isatty() else UNBOUNDED,
    )
