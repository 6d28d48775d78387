"""Names the case in which a test that loops over a table fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named_case(*values: object) -> Iterator[None]:
    """Add the values of a case to the failure of a block; tables whose items cost little need no test for each item."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"The case: {', '.join(map(repr, values))}")
        raise
