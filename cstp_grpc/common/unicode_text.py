"""Normalize texts of callers in bounded time, put them on one line, and replace unseen and unstorable characters."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from functools import partial
from typing import Literal

LONG_RUN = re.compile(r"(?:[^\w\s]|[\uff9e\uff9f]){31,}")
"""More signs in a row than a letter has accents in any language: 30 is the limit of Unicode's stream-safe text format
(UAX #15, section 13). All that becomes combining marks only is among them: the two named marks count as letters."""


def normalize_text(text: str, form: Literal["NFKC", "NFKD"]) -> str:
    """Return a text in a normalization form; accents are dropped where there are too many in a row."""
    # The marks behind a letter are sorted by insertion, which takes a second for 30 000 of them.
    return unicodedata.normalize(form, LONG_RUN.sub(drop_marks, text))


def drop_marks(match: re.Match[str]) -> str:
    # One by one: some characters are no marks, but become two of them.
    decomposed = "".join(unicodedata.normalize("NFKD", character) for character in match[0])
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def fold_name(name: str) -> str:
    """Return a category, project or agent as rules compare it: another spelling must not evade a rule."""
    if name.isascii():
        return name.strip().lower()
    # Twice, since folding the case of a normalized text may leave it unnormalized.
    return normalize_text(normalize_text(name, "NFKC").casefold(), "NFKC").strip()


def to_single_line(text: str) -> str:
    """Return a text without line breaks, control characters and direction marks."""
    # str.isprintable is false for control characters, line separators and direction marks (categories Other and
    # Separator), but for the space.
    if not (text.isascii() and text.isprintable()):
        text = "".join(each if each.isprintable() else " " for each in INVISIBLE.sub(" ", text))
    return " ".join(text.split())


def to_printable_line(text: str) -> str:
    """Return a text on one line, with unprintable characters replaced."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def cut_line(text: str, limit: int) -> str:
    """Return a text on one line with at most `limit` characters."""
    # Also cut before it is cleaned, since others choose its length.
    line = to_single_line(text[: 4 * limit])
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def truncate_text(text: str, limit: int) -> str:
    """Return a text with at most `limit` characters, the last one an ellipsis if it was longer."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


INVISIBLE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""Characters that steer terminals, change the direction of writing or hide text: control characters but line feeds and
tabs, line separators, and characters without a glyph. The joiners U+200C and U+200D, which scripts and emoji need, are
not among them.
"""

replace_invisible: Callable[[str], str] = partial(INVISIBLE.sub, "\ufffd")
"""Return a text with U+FFFD for every invisible character; it may have several lines."""


def escape_invisible(json_text: str) -> str:
    return INVISIBLE.sub(lambda match: json.dumps(match[0])[1:-1], json_text)


UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that a database does not keep: NUL, and halves of surrogate pairs."""


def is_storable(text: str) -> bool:
    """Return True if every database stores the text unchanged."""
    return UNSTORABLE.search(text) is None


replace_unstorable: Callable[[str], str] = partial(UNSTORABLE.sub, "\ufffd")
"""Return a text with U+FFFD for every character that a database cannot store.

A partial and not a function, because a row has several texts, and every call writes rows.
"""
