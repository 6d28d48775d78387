"""What the sections of a decision record tell: the circumstances, the reasons and the lesson."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cstp_grpc.decisions.importing.headings import Kind, kind_of
from cstp_grpc.decisions.importing.markdown import Block, Section
from cstp_grpc.decisions.importing.preamble import describes
from cstp_grpc.decisions.importing.text import CONTEXT_LIMIT, NOTES_LIMIT, REASON_LIMIT, REASONS_LIMIT, clip, one_line
from cstp_grpc.decisions.model import Reason

LESSON_LENGTH = 1000
"""Characters after which the lesson takes no further paragraph; it is quoted in answers, the whole stays in context."""
UNFILLED = re.compile(
    r"\W*(?:tbc|tbd|todo|to do|to be (?:confirmed|decided|done|determined)|n/?a|none|unknown)?\W*", re.I
)
LAST = (Kind.STATUS, Kind.DATE, Kind.LINKS)
"""Sections that say little of the matter: they end the context, so that it begins with the matter."""


def kind(section: Section) -> Kind | None:
    """Return what a section is about."""
    return kind_of(section.heading.text) if section.heading else None


def extents(sections: Sequence[Section], wanted: Kind) -> Iterator[list[Section]]:
    """Yield each section of a kind with those beneath it that are of no kind themselves."""
    extent: list[Section] = []
    for section in sections:
        if extent and section.level > extent[0].level and not kind(section):
            extent.append(section)
            continue
        if extent:
            yield extent
        extent = [section] if kind(section) is wanted else []
    if extent:
        yield extent


def read_context(
    lines: Sequence[str], sections: Sequence[Section], preamble: Sequence[Section], people: Sequence[str]
) -> str:
    """Return the body of a record as it is written, without its title; what merely describes it comes last.

    The `preamble` is the sections up to the title's, whose heading is the title.
    """
    title = preamble[-1]
    last = [(section.start, section.end) for section in sections if kind(section) in LAST]
    last += [(block.start, block.end) for section in preamble for block in section.blocks if _only_describes(block)]
    moved = {number for start, end in last for number in range(start, end)}
    moved.update(range(title.start, title.body))
    matter = "\n".join(line for number, line in enumerate(lines) if number not in moved)
    parts = [matter, *("\n".join(lines[start:end]) for start, end in sorted(last)), "\n".join(people)]
    return clip("\n\n".join(part.strip() for part in parts if part.strip()), CONTEXT_LIMIT)


def _only_describes(block: Block) -> bool:
    return block.kind == "html_block" or describes(block)


def read_lesson(sections: Sequence[Section]) -> str | None:
    """Return the first paragraphs of the consequences as plain text; None where there are none."""
    paragraphs = [
        text
        for extent in extents(sections, Kind.CONSEQUENCES)
        for section in extent
        for text in _paragraphs(section)
        if UNFILLED.fullmatch(text) is None
    ]
    taken: list[str] = []
    length = 0
    for paragraph in paragraphs:
        if taken and length + len(paragraph) > LESSON_LENGTH:
            break
        taken.append(paragraph)
        length += len(paragraph)
    return clip("\n".join(taken), NOTES_LIMIT) or None


def _paragraphs(section: Section) -> Iterator[str]:
    for block in section.blocks:
        for lines in block.paragraphs:
            text = one_line(" ".join(line.text for line in lines))
            if text:
                yield f"- {text}" if lines[0].item else text


def read_reasons(sections: Sequence[Section]) -> tuple[Reason, ...]:
    """Return the decision drivers and the considered options of a record, where they are listed."""
    found = [
        Reason(name, clip(text, REASON_LIMIT))
        for name, wanted in (("driver", Kind.DRIVERS), ("option", Kind.OPTIONS))
        for extent in extents(sections, wanted)
        for text in _listed(extent)
    ]
    return tuple(found[:REASONS_LIMIT])


def _listed(extent: Sequence[Section]) -> list[str]:
    """Return the items of the section's list, or the headings beneath it where it has no list."""
    items = [
        text.removeprefix("- ")
        for text in _paragraphs(extent[0])
        if text.startswith("- ") and not UNFILLED.fullmatch(text)
    ]
    level = min((section.level for section in extent[1:]), default=0)
    return items or [
        one_line(section.heading.text) for section in extent[1:] if section.heading and section.level == level
    ]
