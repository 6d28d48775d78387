"""Texts with styles, tables of them, and consoles that print them without invisible characters.

Lines are broken between words only. Rich is loaded on terminals alone: it takes longer than most calls.
"""

from __future__ import annotations

import functools
import io
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TextIO

from cstp_grpc.common.unicode_text import replace_invisible
from cstp_grpc.platform.config.environment import inherited_environment

if TYPE_CHECKING:
    import rich.console

COLUMN_GAP: Final = "  "
"""The separator of columns."""
MIN_LAST_COLUMN_WIDTH: Final = 20
"""Columns that the last cell of a row has, also where the others leave it none."""
IDEOGRAPHS: Final = "\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60"
"""Letters between which lines may be broken, since their words have no spaces between them."""
WORD: Final = rf"(?:[{IDEOGRAPHS}]|[^\s{IDEOGRAPHS}]+)\s*"
UNBOUNDED: Final = 1_000_000
"""Columns of output that is not for a terminal: more than any line has."""
DROPPED: Final = dict.fromkeys(map(ord, "\a\b\v\f\r"))
"""Control characters that are left out; others are replaced."""


class Text:
    """A text whose pieces have styles, in the words of rich."""

    def __init__(self, text: str = "", style: str = "") -> None:
        self.style = style
        """The style of all pieces, to which theirs are added."""
        self.pieces = [(text, style)]

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.pieces)

    def append(self, text: str, style: str = "") -> Text:
        """Append a piece, and return this text."""
        self.pieces.append((text, f"{self.style} {style}".strip()))
        return self

    def replace(self, change: Callable[[str], str]) -> Text:
        """Return a text with a function applied to each piece."""
        found = Text()
        found.pieces = [(change(text), style) for text, style in self.pieces]
        return found

    def cut(self, start: int, end: int | None = None) -> Text:
        """Return a part of the text by its offsets."""
        found, begun = Text(), 0
        for text, style in self.pieces:
            found.append(text[max(start - begun, 0) : None if end is None else max(end - begun, 0)], style)
            begun += len(text)
        return found

    def divide(self, offsets: Iterator[int]) -> Iterator[Text]:
        """Yield the parts between offsets."""
        start = 0
        for offset in offsets:
            yield self.cut(start, offset)
            start = offset
        yield self.cut(start)

    def lines(self) -> Iterator[Text]:
        """Yield the lines, with spaces in place of tabs."""
        start = 0
        for line in self.plain.split("\n"):
            yield self.cut(start, start + len(line)).expand_tabs()
            start += len(line) + 1

    def expand_tabs(self) -> Text:
        column = 0

        def expand(text: str) -> str:
            nonlocal column
            expanded = (" " * column + text).expandtabs()[column:]
            column += len(expanded)
            return expanded

        return self.replace(expand) if "\t" in self.plain else self


def cell_len(text: str) -> int:
    """Return how many columns a text takes: ideographs take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len as measure

    return measure(text)


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
        self._rows.append([*(cell.replace(lambda text: text.replace("\n", " ")) for cell in leading), last])

    def lines(self, width: int) -> Iterator[Text]:
        """Yield the lines of the table on a console of a width."""
        columns = zip(*(row[:-1] for row in self._rows), strict=True)
        widths = [max(cell_len(cell.plain) for cell in column) for column in columns]
        margin = sum(widths) + len(COLUMN_GAP) * len(widths)
        room = max(width - margin, MIN_LAST_COLUMN_WIDTH)
        for *leading, last in self._rows:
            start = Text()
            for cell, column_width in zip(leading, widths, strict=True):
                start.pieces += cell.pieces
                start.append(" " * (column_width - cell_len(cell.plain)) + COLUMN_GAP)
            for line in break_lines(last, room):
                start.pieces += line.pieces
                yield start.cut(0, len(start.plain.rstrip()))
                start = Text(" " * margin)


def visible_text(text: str | Text) -> Text:
    """Return a text without invisible characters, which could steer the terminal; its styles stay in place."""
    shown = Text(text) if isinstance(text, str) else text
    return shown.replace(lambda piece: replace_invisible(piece.translate(DROPPED)))


def break_lines(text: Text, width: int) -> Iterator[Text]:
    """Yield the lines of a text, broken between words to fit a width."""
    for line in text.lines():
        yield from line.divide(break_offsets(line.plain, width))


def break_offsets(line: str, width: int) -> Iterator[int]:
    """Yield the offsets at which a line is broken to fit a width; a longer single word is not broken."""
    if 2 * len(line) <= width:
        return
    used = begun = len(line) - len(line.lstrip())
    for word in re.finditer(WORD, line):
        # In cells and not in characters: ideographs take two columns.
        if word.start() > begun and used + cell_len(word[0].rstrip()) > width:
            yield word.start()
            used = 0
        used += cell_len(word[0])


class Console:
    """Prints texts and tables; on terminals with colours. `width` is that of the terminal by default."""

    def __init__(self, file: TextIO, width: int | None = None) -> None:
        self.file = file
        self._width = width
        forced = inherited_environment(["FORCE_COLOR"]).get("FORCE_COLOR")
        self._is_styled = file.isatty() if forced is None else forced != ""

    @functools.cached_property
    def rich(self) -> rich.console.Console:
        """The console of rich, for terminals and progress bars."""
        from rich.console import Console as RichConsole

        # Otherwise rich would wrap at 80 columns what goes to a file or to another program.
        width = self._width if self.file.isatty() else self._width or UNBOUNDED
        return RichConsole(file=self.file, markup=False, emoji=False, highlight=False, width=width)

    @property
    def is_terminal(self) -> bool:
        return self._is_styled

    @property
    def width(self) -> int:
        return self._width or (self.rich.width if self.file.isatty() else UNBOUNDED)

    def print(self, shown: str | Text | TextTable = "", *, soft_wrap: bool = False) -> None:
        """Print on lines of their own; `soft_wrap` leaves wrapping to the terminal."""
        if not soft_wrap and not isinstance(shown, TextTable):
            table = TextTable()
            table.add_row(shown)
            shown = table
        lines = shown.lines(self.width) if isinstance(shown, TextTable) else visible_text(shown).lines()
        for line in lines:
            if self._is_styled:
                from rich.text import Text as RichText

                self.rich.print(RichText.assemble(*line.pieces), soft_wrap=True, crop=False)
            else:
                self.file.write(f"{line.plain}\n")
        self.file.flush()


def open_console(*, error: bool) -> Console:
    """Return a console of a standard stream. Characters that its encoding lacks are replaced."""
    # sys.stdout is None if the descriptor was closed before Python started.
    stream: TextIO = (sys.stderr if error else sys.stdout) or io.StringIO()
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return Console(stream)
