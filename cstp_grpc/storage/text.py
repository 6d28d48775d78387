"""Texts that every database keeps as they are."""

from __future__ import annotations

import re
from typing import overload

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that a database does not keep: NUL, and halves of surrogate pairs."""


def is_storable(text: str) -> bool:
    """Whether every database keeps a text as it is."""
    return UNSTORABLE.search(text) is None


@overload
def storable(text: str) -> str: ...


@overload
def storable(text: str | None) -> str | None: ...


def storable(text: str | None) -> str | None:
    """Return a text with U+FFFD in the place of every character that no database keeps; None stays None."""
    return None if text is None else UNSTORABLE.sub("\ufffd", text)
