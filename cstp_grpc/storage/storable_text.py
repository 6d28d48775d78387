"""Text that every database can store unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that a database does not keep: NUL, and halves of surrogate pairs."""


def is_storable(text: str) -> bool:
    """Return True if every database stores the text unchanged."""
    return UNSTORABLE.search(text) is None


replace_unstorable: Callable[[str], str] = partial(UNSTORABLE.sub, "\ufffd")
"""Return a text with U+FFFD for every character that a database cannot store.

A partial and not a function, because a row has several texts, and every call writes rows.
"""
