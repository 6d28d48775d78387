"""Which Markdown files are decision records, and which only lie beside them."""

from __future__ import annotations

import re
from collections.abc import Set
from pathlib import Path

from cstp_grpc.decisions.importing.headings import Kind
from cstp_grpc.decisions.importing.names import INDEXES, date_of, identifier_of

OTHERS = ("changelog", "contributing", "license", "code_of_conduct", "security", "toc", "summary", "glossary")
TEMPLATE_WORDS = frozenset(
    ("adr", "madr", "nygard", "decision", "record", "full", "short", "long", "minimal", "bare", "example")
)
RECORD_FOLDER = re.compile(r"adrs?|(?:architectur(?:e|al)[-_ ])?decisions?(?:[-_ ](?:records?|log))?", re.IGNORECASE)


def is_template(path: Path) -> bool:
    """Tell whether a file is the template of records, by its name."""
    words = [word for word in re.split(r"[-_ .]+", path.stem.lower()) if word.strip("0")]
    return "template" in words and TEMPLATE_WORDS.issuperset(word for word in words if word != "template")


def has_name_of_a_record(path: Path) -> bool:
    """Tell whether the name of a file, or of the folder it speaks for, has a number or a date as records have."""
    return identifier_of(path) is not None or date_of(path) is not None


def is_record(path: Path, kinds: Set[Kind]) -> bool:
    """Tell whether a file is a decision record, by its name and by the kinds of the sections it has."""
    sections = kinds - {Kind.DATE, Kind.LINKS}
    telling = bool(sections & {Kind.STATUS, Kind.DECISION})
    named = has_name_of_a_record(path)
    if _usually_is_none(path):
        return Kind.DECISION in sections and (named or bool(sections & {Kind.STATUS, Kind.CONTEXT}))
    if named:
        dated = Kind.DATE in kinds and identifier_of(path) is not None
        return telling or dated or len(sections) > 1 or RECORD_FOLDER.fullmatch(path.parent.name) is not None
    return (telling and len(sections) > 1) or sections >= {Kind.CONTEXT, Kind.CONSEQUENCES}


def _usually_is_none(path: Path) -> bool:
    return path.stem.lower().replace("-", "_") in (*INDEXES, *OTHERS)
