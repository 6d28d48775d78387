"""The lines that describe a record rather than say what was decided: `Date: 2017-09-04`, `* Status: accepted`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cstp_grpc.decisions.importing.markdown import Block, Line
from cstp_grpc.decisions.importing.relations import LONGEST_LINE, VERB

ENTRY = re.compile(r"\W*(?P<key>[A-Za-z][A-Za-z /-]{1,40}?)\W*?::?\s*(?P<value>.*)", re.DOTALL)
STATUS_KEYS = ("status", "state", "decision status", "adr status")
DATE_KEYS = (
    "date",
    "decision date",
    "date of decision",
    "date decided",
    "decided",
    "decided on",
    "accepted on",
    "approved on",
    "created",
    "created on",
    "date created",
)
TAG_KEYS = ("tags", "keywords", "labels")
CATEGORY_KEYS = ("category",)
PROJECT_KEYS = ("project",)
PEOPLE_KEYS = ("deciders", "decision makers", "decision-makers", "consulted", "informed", "author", "authors", "owner")
OTHER_KEYS = (*PEOPLE_KEYS, "last updated", "last modified", "updated", "reviewers", "approvers")
KNOWN_KEYS = frozenset((*STATUS_KEYS, *DATE_KEYS, *TAG_KEYS, *CATEGORY_KEYS, *PROJECT_KEYS, *OTHER_KEYS))


@dataclass(frozen=True, slots=True)
class Entry:
    """A line with a known key; `key` is in lower case and empty for a line that says how records relate."""

    key: str
    value: str
    line: Line


def entries_of(lines: Sequence[Line]) -> list[Entry]:
    """Return the lines that have a known key."""
    return [entry for line in lines if (entry := _entry(line))]


def describes(block: Block) -> bool:
    """Tell whether a block begins with a line that has a known key."""
    lines = block.lines()
    return bool(lines) and _entry(lines[0]) is not None


def values_of(entries: Sequence[Entry], keys: Sequence[str]) -> list[str]:
    """Return the values of the keys that are not blank, those of the first key first."""
    return [entry.value.strip() for key in keys for entry in entries if entry.key == key and entry.value.strip(" -–—?")]


def _entry(line: Line) -> Entry | None:
    match = ENTRY.fullmatch(line.text) if len(line.text) <= LONGEST_LINE else None
    if match is None:
        return None
    key = " ".join(match["key"].lower().split())
    if key in KNOWN_KEYS:
        return Entry(key, match["value"], line)
    return Entry("", match["value"], line) if VERB.fullmatch(key) else None
