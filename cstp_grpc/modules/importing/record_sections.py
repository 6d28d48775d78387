"""The sections of a record by their subjects, and the notes and reasons in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from cstp_grpc.common.unicode_text import truncate_text
from cstp_grpc.core.decisions.model import Reason
from cstp_grpc.modules.importing.adr_conventions import SectionKind, section_kind
from cstp_grpc.modules.importing.markdown_sections import MarkdownSection
from cstp_grpc.modules.importing.model import MAX_LENGTHS, MAX_REASONS, collapse_spaces
from cstp_grpc.modules.importing.record_forms import DECISION_KINDS, RecordForm

NOTES_LENGTH = 1000
"""Characters of notes after which no paragraph is added. Chosen: answers quote notes; the context has everything."""
UNFILLED = re.compile(
    r"\W*(?:tbc|tbd|todo|to do|to be (?:confirmed|decided|done|determined)|n/?a|none|unknown)?\W*", re.IGNORECASE
)
NOTE_KINDS: Mapping[RecordForm, Sequence[SectionKind]] = {
    RecordForm.DECISION: (SectionKind.CONSEQUENCES,),
    RecordForm.INCIDENT: (SectionKind.LESSONS, SectionKind.ACTIONS),
    RecordForm.DESIGN: (SectionKind.CONSEQUENCES, SectionKind.DRAWBACKS),
    RecordForm.OTHER: (),
}
"""The kinds of sections that notes are taken from, the first that says something."""
PROSE_REASONS: Mapping[RecordForm, Mapping[str, SectionKind]] = {
    RecordForm.INCIDENT: {"cause": SectionKind.CAUSES},
    RecordForm.DESIGN: {"rationale": SectionKind.RATIONALE},
}
"""The types of reasons that may be prose, with their sections."""


def kind_of_section(section: MarkdownSection) -> SectionKind | None:
    return section_kind(section.heading.text) if section.heading else None


def section_groups(sections: Sequence[MarkdownSection], wanted: SectionKind) -> Iterator[list[MarkdownSection]]:
    """Yield each section of a kind together with those beneath it that are of no kind themselves."""
    group: list[MarkdownSection] = []
    for section in sections:
        if group and section.level > group[0].level and kind_of_section(section) not in (*DECISION_KINDS, wanted):
            group.append(section)
            continue
        if group:
            yield group
        group = [section] if kind_of_section(section) is wanted else []
    if group:
        yield group


def read_notes(sections: Sequence[MarkdownSection], form: RecordForm) -> str | None:
    for kind in NOTE_KINDS[form]:
        taken: list[str] = []
        for paragraph in (each for group in section_groups(sections, kind) for each in _filled_paragraphs(group)):
            if taken and sum(map(len, taken)) + len(paragraph) > NOTES_LENGTH:
                break
            taken.append(paragraph)
        if taken:
            return truncate_text("\n".join(taken), MAX_LENGTHS["notes"])
    return None


def read_reasons(sections: Sequence[MarkdownSection], form: RecordForm) -> tuple[Reason, ...]:
    """Return the decision drivers and the considered options, if they are listed or have headings of their own.

    Causes of incidents and the rationale of a design may also be prose; its first paragraph is taken.
    """
    found = []
    prose = PROSE_REASONS.get(form, {})
    for name, kind in {"driver": SectionKind.DRIVERS, "option": SectionKind.OPTIONS, **prose}.items():
        for group in section_groups(sections, kind):
            # Only the list of the section itself: lists under its headings are about one option each.
            listed = [text.removeprefix("- ") for text in _filled_paragraphs(group[:1]) if text.startswith("- ")]
            level = min((section.level for section in group[1:]), default=0)
            headings = [section.heading.text for section in group[1:] if section.heading and section.level == level]
            texts = listed or [collapse_spaces(heading) for heading in headings]
            texts = texts or (list(islice(_filled_paragraphs(group), 1)) if name in prose else [])
            found += [Reason(name, truncate_text(text, MAX_LENGTHS["reasons.text"])) for text in texts]
    return tuple(found[:MAX_REASONS])


def _filled_paragraphs(sections: Sequence[MarkdownSection]) -> Iterator[str]:
    for section in sections:
        for block in section.blocks:
            for lines in block.paragraphs:
                text = collapse_spaces(" ".join(line.text for line in lines))
                text = f"- {text}" if text and lines[0].item else text
                if text and not UNFILLED.fullmatch(text):
                    yield text
