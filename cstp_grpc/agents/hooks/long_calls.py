"""Calls that are longer than guardrails read at once, and are read in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_DESCRIPTION_CHARACTERS: Final = 8000
"""Maximum length of the description of an action, by the contract."""
OVERLAP: Final = 1000
"""Characters that a part repeats from the one before. Chosen: longer than any match of a rule, so that none is cut."""
MAX_CALL_CHARACTERS: Final = 131_072
"""Maximum length of a call that is checked: the limit for an argument of a program on Linux (MAX_ARG_STRLEN), and so
for the command of a shell."""
MAX_COMMAND_CHARACTERS: Final = 65_536
"""Maximum length of a command, by the contract."""


def split_description(text: str) -> Sequence[str]:
    """Split a text into parts that guardrails can read; each part begins with the end of the one before it."""
    starts = range(0, max(len(text) - OVERLAP, 1), MAX_DESCRIPTION_CHARACTERS - OVERLAP)
    return [text[start : start + MAX_DESCRIPTION_CHARACTERS] for start in starts]
