"""The estimate by which texts are cut to budgets of tokens."""

from __future__ import annotations

CHARACTERS_PER_TOKEN = 4
"""A usual approximation for English text."""


def count_tokens(text: str) -> int:
    """Return one token for every four characters, rounded up.

    An approximation on purpose: it is the same on every machine and for every model, so that a text within a budget
    here is within it everywhere.
    """
    # Floor division of the negative number rounds up.
    return -(-len(text) // CHARACTERS_PER_TOKEN)
