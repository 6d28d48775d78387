"""Sanitize reasons received from other agents and servers, so that they can be shown or passed on."""

from __future__ import annotations

from typing import Final

MAX_REASON_CHARACTERS: Final = 500
"""Maximum length of a reason. Chosen: some sentences; it may end up in a log, a notification and an error at once."""
MAX_REASON_BYTES: Final = 1_000
"""Limit in bytes: errors travel in trailing metadata, where a byte takes up to six, and many clients reject more than 8
KiB of it.
"""


def append_reason(what: str, why: str) -> str:
    """Return a message followed by another party's sanitized reason, on one line."""
    # Cut before it is cleaned too, since another party decides how long it is.
    words = (
        to_single_line(why[: 2 * MAX_REASON_CHARACTERS])[:MAX_REASON_CHARACTERS]
        .encode()[:MAX_REASON_BYTES]
        .decode(errors="ignore")
    )
    return f"{what}: {words}" if words else what


def to_single_line(text: str) -> str:
    """Return a text without line breaks, control characters and direction marks."""
    # str.isprintable is false for control characters, line separators and direction marks (categories Other and
    # Separator), but for the space.
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
