"""Progress bars of commands that take long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cstp_grpc.cli.output import Output


@contextmanager
def progress_bar(out: Output, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal and yield the function that advances it by a number."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out.notes, transient=True, disable=not out.notes.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
