"""Learnings that an agent states in its last message, in fenced blocks of the language `cstp-learning`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass

BLOCK: Final = re.compile(r"^```cstp-learning[ \t]*\r?\n(.*?)^```[ \t]*\r?$", re.MULTILINE | re.DOTALL)
LINE: Final = re.compile(r"(type|path|title|detail):[ \t]*(.*)")
TYPES: Final = ("pitfall", "check", "pattern", "insight")
"""The kinds of learnings of the contract."""
MAX_BLOCKS: Final = 5
"""Maximum number of learnings that are filed at a time. Chosen: people review each of them."""


@dataclass(frozen=True, slots=True)
class StatedLearning:
    """A learning as the agent states it, or the problem with its block."""

    type: str = ""
    path: str = ""
    title: str = ""
    detail: str = ""
    """The full text; it may have several lines."""
    problem: str = ""
    """The problem with the block; empty if it is valid."""


def read_learnings(message: str) -> Iterator[StatedLearning]:
    for number, block in enumerate(BLOCK.finditer(message)):
        if number == MAX_BLOCKS:
            yield StatedLearning(problem=f"only {MAX_BLOCKS} learnings are filed at a time")
            return
        yield parse_block(block[1])


def parse_block(text: str) -> StatedLearning:
    """Return the learning in a block; a line that begins with no key belongs to the key before it."""
    values: dict[str, list[str]] = {}
    key = ""
    for line in text.splitlines():
        # The detail is the last key: its text may contain lines that look like keys.
        if key != "detail" and (found := LINE.match(line)):
            key = found[1]
            values[key] = [found[2]]
        elif key:
            values[key].append(line)
    found_values = {name: "\n".join(lines).strip() for name, lines in values.items()}
    if missing := [name for name in ("type", "path", "title", "detail") if not found_values.get(name)]:
        return StatedLearning(problem=f"`{missing[0]}` is missing")
    if found_values["type"] not in TYPES:
        return StatedLearning(problem=f"`type` must be one of {', '.join(TYPES)}")
    return StatedLearning(**found_values)
