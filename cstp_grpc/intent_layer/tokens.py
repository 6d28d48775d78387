"""How many tokens a text has."""

from __future__ import annotations

CHARACTERS_PER_TOKEN = 4


def count_tokens(text: str) -> int:
    """Return one token for every four characters, rounded up.

    An approximation, and meant to be one: it says the same on every machine and for every model, so that a node that
    is within its budget here is within it everywhere.
    """
    return -(-len(text) // CHARACTERS_PER_TOKEN)
