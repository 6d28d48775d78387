"""Text that every database can store unchanged."""

from __future__ import annotations

import re
from typing import overload

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that a database does not keep: NUL, and halves of surrogate pairs."""


def is_storable(text: str) -> bool:
    """Return True if every database stores the text unchanged."""
    return UNSTORABLE.search(text) is None


@overload
def replace_unstorable(text: str) -> str: ...


@overload
def replace_unstorable(text: str | None) -> str | None: ...


def replace_unstorable(text: str | None) -> str | None:
    """Return a text with U+FFFD for every character that a database cannot store; None stays None."""
    return None if text is None else UNSTORABLE.sub("\ufffd", text)
