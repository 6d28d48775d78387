"""The sections of a decision record, by the headings that people give them."""

from __future__ import annotations

import re
from enum import Enum, auto

EDGES = re.compile(r"^[\W\d_]+|[\W\d_]+$")


class Kind(Enum):
    """What a section of a decision record is about."""

    STATUS = auto()
    DATE = auto()
    CONTEXT = auto()
    DECISION = auto()
    CONSEQUENCES = auto()
    DRIVERS = auto()
    OPTIONS = auto()
    LINKS = auto()


NAMES: dict[str, Kind] = {
    name: kind
    for kind, names in {
        Kind.STATUS: ("status", "state", "decision status", "adr status", "current status"),
        Kind.DATE: ("date", "decision date", "date of decision"),
        Kind.CONTEXT: (
            "context",
            "context and problem statement",
            "context and problem",
            "problem",
            "problem statement",
            "issue",
            "background",
            "context and background",
            "motivation",
        ),
        Kind.DECISION: (
            "decision",
            "decisions",
            "the decision",
            "decision outcome",
            "decision made",
            "our decision",
            "proposed decision",
            "resolution",
        ),
        Kind.CONSEQUENCES: (
            "consequences",
            "consequence",
            "consequences of the decision",
            "positive consequences",
            "negative consequences",
            "neutral consequences",
            "implications",
            "impact",
        ),
        Kind.DRIVERS: ("decision drivers", "drivers", "decision criteria", "forces"),
        Kind.OPTIONS: (
            "considered options",
            "options considered",
            "options",
            "alternatives",
            "alternatives considered",
            "considered alternatives",
            "positions",
        ),
        Kind.LINKS: (
            "links",
            "relations",
            "related",
            "related decisions",
            "related adrs",
            "related architecture decision records",
            "supersedes",
            "superseded by",
            "replaces",
            "replaced by",
            "amends",
            "amended by",
            "depends on",
        ),
    }.items()
    for name in names
}


def kind_of(heading: str) -> Kind | None:
    """Return what the section under a heading is about; None where the heading is none of the usual ones."""
    name = _plain(heading)
    if kind := NAMES.get(name):
        return kind
    kind = NAMES.get(_plain(name.partition(":")[0]))
    return kind if kind in (Kind.STATUS, Kind.DATE) else None


def _plain(heading: str) -> str:
    """Return it without numbering, emoji and punctuation around it."""
    return EDGES.sub("", heading.lower().replace("(optional)", ""))
