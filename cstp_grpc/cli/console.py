"""Consoles that print texts as they are, with lines broken between words."""

from __future__ import annotations

import io
import sys
from typing import Any, Final, TextIO

from rich.console import Console
from rich.text import Text

from cstp_grpc.cli.listing import paragraph

UNBOUNDED: Final = 1_000_000
"""Columns of what is not printed on a terminal: more than any line has."""


class WholeWordConsole(Console):
    """A console that breaks lines between words alone; a longer word is printed to its end."""

    def print(self, *objects: Any, crop: bool = False, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print as the base class does; `crop` cuts lines, `soft_wrap` leaves breaking them to the terminal."""
        if not soft_wrap:
            objects = tuple(paragraph(each) if isinstance(each, (str, Text)) else each for each in objects)
        super().print(*objects, crop=crop, soft_wrap=soft_wrap, **options)


def console(*, error: bool) -> Console:
    """Return a console that takes texts as they are: no markup, no guessed highlights.

    Letters that its encoding does not have are replaced.
    """
    # Python has None for a stream that was closed before it started.
    stream: TextIO = (sys.stderr if error else sys.stdout) or io.StringIO()
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return WholeWordConsole(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        width=None if stream.isatty() else UNBOUNDED,
    )
