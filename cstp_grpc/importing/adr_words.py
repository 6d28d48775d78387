"""The words by which decision records in Markdown are recognised, and the kinds of sections that they name."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from cstp_grpc.yaml_with_lines import YamlReader

EDGES = re.compile(r"^[\W\d_]+|[\W\d_]+$")


def _load_words() -> Any:
    (document,) = YamlReader().read(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return document.plain


ADR_WORDS: Final = _load_words()
"""The tables of `adr_words.yaml`, whose comments describe them."""


class SectionKind(Enum):
    """The subject of a section of a decision record, by its name in `adr_words.yaml`."""

    STATUS = "status"
    DATE = "date"
    CONTEXT = "context"
    DECISION = "decision"
    CONSEQUENCES = "consequences"
    DRIVERS = "drivers"
    OPTIONS = "options"
    LINKS = "links"


KINDS_BY_HEADING = {heading: SectionKind(kind) for kind, names in ADR_WORDS["sections"].items() for heading in names}


# Cached: each heading is classified several times, and most records have the same headings.
@lru_cache(maxsize=1024)
def section_kind(heading: str) -> SectionKind | None:
    """Return the subject of a section by its heading, or None if the heading is not a usual one."""
    name = _without_edges(heading)
    if kind := KINDS_BY_HEADING.get(name):
        return kind
    # `Status: accepted` holds the status itself; after any other heading a colon begins the title of something else.
    kind = KINDS_BY_HEADING.get(_without_edges(name.partition(":")[0]))
    return kind if kind in (SectionKind.STATUS, SectionKind.DATE) else None


def _without_edges(heading: str) -> str:
    """Return a heading without the numbers, emoji and punctuation around it."""
    return EDGES.sub("", heading.lower().replace("(optional)", ""))
