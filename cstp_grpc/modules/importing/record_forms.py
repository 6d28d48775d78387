"""The forms of records in Markdown: decision records, post-mortems, design documents."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from cstp_grpc.modules.importing.adr_conventions import ADR_WORDS, SectionKind, is_record_name, number_in_name

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
