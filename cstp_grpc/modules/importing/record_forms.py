"""The forms of records in Markdown (decision records, post-mortems, design documents), their notes and reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import truncate_text
from cstp_grpc.core.decisions.model import Reason
from cstp_grpc.modules.importing.adr_conventions import (
    ADR_WORDS,
    SectionKind,
    is_record_name,
    number_in_name,
    section_kind,
)
from cstp_grpc.modules.importing.markdown_sections import MarkdownSection
from cstp_grpc.modules.importing.model import MAX_LENGTHS, MAX_REASONS, collapse_spaces

RECORD_FOLDER = re.compile(r"adrs?|(?:architectur(?:e|al)[-_ ])?decisions?(?:[-_ ](?:records?|log))?", re.IGNORECASE)
DESIGN_FOLDER = re.compile(
    r"(?:design|enhancement)s?(?:[-_ ](?:docs?|documents?))?|proposals?|rfcs?|keps?", re.IGNORECASE
)
DESIGN_TITLE = re.compile(r"\W*(?:proposal|design(?: doc(?:ument)?)?|rfc|kep)\b[^:]{0,20}:", re.IGNORECASE)
INCIDENT_NAME = re.compile(r"post[-_ ]?mortem|incident|outage|\brca\b|root[-_ ]cause", re.IGNORECASE)

INCIDENT_KINDS: Final = {SectionKind.CAUSES, SectionKind.LESSONS, SectionKind.ACTIONS, SectionKind.TIMELINE}
DESIGN_KINDS: Final = {
    SectionKind.DESIGN,
    SectionKind.RATIONALE,
    SectionKind.PLAN,
    SectionKind.SUMMARY,
    SectionKind.DRAWBACKS,
    SectionKind.CONTEXT,
    SectionKind.OPTIONS,
}
DECISION_KINDS: Final = set(SectionKind) - INCIDENT_KINDS - (DESIGN_KINDS - {SectionKind.CONTEXT, SectionKind.OPTIONS})
"""The kinds of sections that decision records have."""


class RecordForm(Enum):
    """The form of a record; its value is the category of a decision that states none."""

    DECISION = "architecture"
    INCIDENT = "incident"
    DESIGN = "design"
    OTHER = None
    """Any other page, imported on demand."""


@dataclass(frozen=True, slots=True)
class RecordSigns:
    """The signs by which the form of a record is recognised."""

    path: Path
    title: str
    kinds: Set[SectionKind]
    has_author: bool


def recognize_form(signs: RecordSigns) -> RecordForm | None:
    """Return the form of a record, or None if a file is not a record."""
    path, kinds = signs.path, signs.kinds
    decision = is_decision_record(path, kinds & DECISION_KINDS)
    if path.stem.lower().replace("-", "_") in (*ADR_WORDS["index_files"], *ADR_WORDS["other_files"]):
        return RecordForm.DECISION if decision else None
    named = bool(INCIDENT_NAME.search(path.stem) or INCIDENT_NAME.search(signs.title))
    incident = kinds & INCIDENT_KINDS
    # `Resolution` alone, as post-mortems have it, is not the decision of a decision record.
    if not kinds >= {SectionKind.CONTEXT, SectionKind.DECISION} and (
        (SectionKind.CAUSES in kinds and len(kinds) > 1) or (named and incident)
    ):
        return RecordForm.INCIDENT
    strict = SectionKind.DESIGN in kinds and len(kinds & DESIGN_KINDS) > 2
    if strict and not kinds & {SectionKind.STATUS, SectionKind.DECISION, SectionKind.CONSEQUENCES}:
        return RecordForm.DESIGN
    if decision:
        return RecordForm.DECISION
    # `Impact` is a heading of consequences.
    if SectionKind.CONSEQUENCES in kinds and (len(incident) > 1 or (named and SectionKind.SUMMARY in kinds)):
        return RecordForm.INCIDENT
    return RecordForm.DESIGN if strict or _is_short_design(signs) else None


def is_decision_record(path: Path, kinds: Set[SectionKind]) -> bool:
    """Return whether a file is a decision record, by its name and the kinds of its sections."""
    sections = kinds - {SectionKind.DATE, SectionKind.LINKS}
    # A status or a decision section hardly occurs in other documents; context and consequences count together only.
    characteristic = bool(sections & {SectionKind.STATUS, SectionKind.DECISION})
    named = is_record_name(path)
    if path.stem.lower().replace("-", "_") in (*ADR_WORDS["index_files"], *ADR_WORDS["other_files"]):
        described = bool(sections & {SectionKind.STATUS, SectionKind.CONTEXT})
        return SectionKind.DECISION in sections and (named or described)
    if named:
        dated = SectionKind.DATE in kinds and number_in_name(path) is not None
        return characteristic or dated or len(sections) > 1 or RECORD_FOLDER.fullmatch(path.parent.name) is not None
    return (characteristic and len(sections) > 1) or sections >= {SectionKind.CONTEXT, SectionKind.CONSEQUENCES}


def _is_short_design(signs: RecordSigns) -> bool:
    sections = signs.kinds & DESIGN_KINDS
    hinted = (
        number_in_name(signs.path) is not None
        or DESIGN_FOLDER.fullmatch(signs.path.parent.name) is not None
        or DESIGN_TITLE.match(signs.title) is not None
    )
    return hinted and (signs.has_author or SectionKind.DESIGN in sections or len(sections) > 1)


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
