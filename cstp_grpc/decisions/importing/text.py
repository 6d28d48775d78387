"""What the journal can hold of a text, and how a longer one is cut."""

from __future__ import annotations

import re
import unicodedata

TITLE_LIMIT = 500
CONTEXT_LIMIT = 200_000
NOTES_LIMIT = 5_000
REASON_LIMIT = 20_000
NAME_LIMIT = 100
"""Characters of a category, a tag or the type of a reason."""
PROJECT_LIMIT = 200
SOURCE_LIMIT = 1_000
REASONS_LIMIT = 100
TAGS_LIMIT = 50
LINKS_LIMIT = 100

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def flaw(text: str) -> str | None:
    """Return what keeps a text from being stored, or None."""
    match = UNSTORABLE.search(text)
    if match is None:
        return None
    return "it holds a NUL character" if match[0] == "\0" else "it holds half of a surrogate pair"


def clip(text: str, limit: int) -> str:
    """Return the text, cut to `limit` characters with an ellipsis at the end where it is longer."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def one_line(text: str) -> str:
    """Return the text with every run of white space as one space."""
    return " ".join(text.split())


def is_blank(text: str) -> bool:
    """Tell whether nothing in a text can be seen."""
    return all(unicodedata.category(character)[0] in "ZC" for character in text)
