"""Parse text within a bound of time: the recovery from errors is quadratic in their number."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tree_sitter import Parser, Tree

MAX_PARSE_SECONDS: Final = 0.1
"""CPU time of one parse. Chosen: three times that of a valid text of the maximum length."""


def parse_bounded(parser: Parser, source: bytes) -> Tree | None:
    """Return the syntax tree of a text, or None if it takes too long."""
    end = time.thread_time() + MAX_PARSE_SECONDS
    try:
        return parser.parse(
            lambda offset, _: source[offset:], progress_callback=lambda _offset, _error: time.thread_time() > end
        )
    except ValueError:
        # As the parser reports that it was stopped.
        return None
    finally:
        # One that was stopped would go on with the former text.
        parser.reset()
