"""What other agents and servers say of their reasons, made fit to be told on."""

from __future__ import annotations

from typing import Final

MAX_CHARACTERS: Final = 500
MAX_BYTES: Final = 1_000
"""Errors travel in trailing metadata, where a byte takes up to six, and many clients refuse more than 8 KiB of it."""


def told(what: str, why: str) -> str:
    """Return what happened and somebody's words on it, on one line."""
    words = one_line(why[: 2 * MAX_CHARACTERS])[:MAX_CHARACTERS].encode()[:MAX_BYTES].decode(errors="ignore")
    return f"{what}: {words}" if words else what


def one_line(text: str) -> str:
    """Return a text without what ends a line, steers a terminal or turns its direction."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
