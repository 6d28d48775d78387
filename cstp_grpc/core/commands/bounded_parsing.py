"""Parse text within a bound of time: the recovery from errors is quadratic in their number."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tree_sitter import Parser, Tree

MAX_PARSE_SECONDS: Final = 0.1
"""CPU time of one parse. Chosen: three times that of a valid text of the maximum length."""


MAX_PIPES: Final = 2_000
"""Maximum number of stages of a pipeline. Chosen: an unfinished one of that length takes 0.2 s, and four times as long
one with twice as many, in a step of the parser that cannot be stopped."""


def parse_bounded(parser: Parser, source: bytes) -> Tree | None:
    """Return the syntax tree of a text, or None if it takes too long."""
    if count_stages(source) > MAX_PIPES:
        return None
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


def count_stages(source: bytes) -> int:
    """Return an upper bound of the stages of the longest pipeline, which may go on behind a line break."""
    joined = re.sub(rb"\|&?\s+", b"|", source)
    return max(part.count(b"|") for part in re.split(rb"[;\n]", joined))
