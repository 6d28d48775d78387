"""Numbers with their nouns, as people read them."""

from __future__ import annotations


def count_noun(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, in the plural if needed: `2 entries`. By default the plural ends in s."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def count_nouns(*counts: tuple[int, str]) -> str:
    """Return numbers with their nouns as a list: `1 decision, 2 reviews`."""
    return ", ".join(count_noun(count, noun) for count, noun in counts)


def count_audit_contents(entries: int) -> str:
    """Return the phrase for the contents of some audit entries."""
    return f"the contents of {count_noun(entries, 'audit entry', 'audit entries')}"
