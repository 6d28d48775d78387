"""Rows as people read them: columns that stay whole, and a last one that takes the rest of the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

GAP: Final = "  "
"""What is between two columns."""
LEAST_WIDTH: Final = 20
"""Columns that the last cell of a row has, also where the others leave it none."""
IDEOGRAPHS: Final = "\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60"
"""Letters between which lines may be broken, since their words have no spaces between them."""
WORD: Final = re.compile(rf"(?:[{IDEOGRAPHS}]|[^\s{IDEOGRAPHS}]+)\s*")


class Listing:
    """Rows of cells, with headings if there are any.

    Lines are broken between words alone, so that identifiers, paths and URLs can be copied whole. A word that is longer
    than its line is left to the terminal. Nothing is filled up with spaces at its end.
    """

    def __init__(self, *headings: str) -> None:
        self._rows: list[list[Text]] = []
        if headings:
            self.add_row(*(Text(heading, style="bold") for heading in headings))

    @property
    def row_count(self) -> int:
        """How many rows there are, that of the headings included."""
        return len(self._rows)

    def add_row(self, *cells: str | Text) -> None:
        """Add a row; its last cell may have several lines."""
        *leading, last = (Text(cell) if isinstance(cell, str) else cell for cell in cells)
        self._rows.append([*(Text(" ").join(cell.split()) for cell in leading), last])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        widths = [
            max(cell.cell_len for cell in column) for column in zip(*(row[:-1] for row in self._rows), strict=True)
        ]
        margin = sum(widths) + len(GAP) * len(widths)
        room = max(options.max_width - margin, LEAST_WIDTH)
        for *leading, last in self._rows:
            start = Text(no_wrap=True, overflow="ignore")
            for cell, width in zip(leading, widths, strict=True):
                start.append_text(cell).append(" " * (width - cell.cell_len)).append(GAP)
            for line in broken_lines(last, room):
                start.append_text(line).rstrip()
                yield start
                start = Text(" " * margin, no_wrap=True, overflow="ignore")


def paragraph(text: str | Text) -> Listing:
    """Return a text by itself, whose lines are broken in the same way."""
    found = Listing()
    found.add_row(text)
    return found


def broken_lines(text: Text, width: int) -> Iterator[Text]:
    """Yield the lines of a text, broken between words where they are wider than a width."""
    for line in text.split(allow_blank=True):
        line.expand_tabs()
        yield from line.divide(break_offsets(line.plain, width))


def break_offsets(line: str, width: int) -> Iterator[int]:
    """Yield where a line is broken so that no part is wider than a width, unless a single word is."""
    used = begun = len(line) - len(line.lstrip())
    for word in WORD.finditer(line):
        if word.start() > begun and used + cell_len(word[0].rstrip()) > width:
            yield word.start()
            used = 0
        used += cell_len(word[0])
