"""Calls with more words than guardrails read at once, which are read in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_DESCRIPTION_CHARACTERS: Final = 8000
"""Maximum length of the description of an action, as the contract has it."""
OVERLAP: Final = 1000
"""How much of a part the next one repeats. Chosen: longer than what rules look for, so that no part cuts it in two."""
MAX_CALL_CHARACTERS: Final = 131_072
"""Maximum length of a call that is judged: that of an argument of a program on Linux (MAX_ARG_STRLEN), so of a command
that a shell is started with."""
MAX_COMMAND_CHARACTERS: Final = 65_536
"""Maximum length of a command, as the contract has it."""


def split_description(text: str) -> Sequence[str]:
    """Return a text in parts that guardrails can read, each of which begins with the end of the one before it."""
    starts = range(0, max(len(text) - OVERLAP, 1), MAX_DESCRIPTION_CHARACTERS - OVERLAP)
    return [text[start : start + MAX_DESCRIPTION_CHARACTERS] for start in starts]
