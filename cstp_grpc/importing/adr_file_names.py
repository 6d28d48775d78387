"""File names and titles of architecture decision records: their numbers, dates and placeholders."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cstp_grpc.importing.adr_words import ADR_WORDS, SectionKind
from cstp_grpc.importing.model import collapse_spaces
from cstp_grpc.importing.record_dates import DateError, find_date

SERIES = r"(?P<series>adr|madr|rfc|edr|ddr|tdr|decision)"
DATED_NAME = re.compile(r"(?P<date>\d{4}-\d\d-\d\d|(?:19|20)\d{6})(?:[-_ .]+|$)")
YEAR = re.compile(r"(?:19|20)\d\d(?!\d)")
"""Numbers that are taken for a year, not for the number of a record: 1900 to 2099."""
NUMBERED_NAME = re.compile(rf"(?:{SERIES}[-_ ]*)?0*(?P<number>\d{{1,5}})(?:[-_ .]+|$)", re.IGNORECASE)
WRITTEN_NUMBER = re.compile(rf"\W?{SERIES}[-_ #]*0*(?P<number>\d{{1,5}})\b", re.IGNORECASE)
BARE_NUMBER = re.compile(r"#?0*(?P<number>\d{1,5})(?P<mark>\s*[.:)|]\s+|\s*[-–—]\s+|\s+)(?=\S)")
PLACEHOLDER = re.compile(
    r"(?:adr[-.: ]*)?(?:(?:number|n{1,6}|x{1,6}|\d{1,6})[-.: ]*)?"
    r"(?:\{.*\}|\[.*\]|<.*>|(?:short |adr |decision |record )?title(?: of .*| here)?|short noun phrase)[.…]*",
    re.IGNORECASE,
)
PREFIX = re.compile(r"(?:adr\s*:|(?:architectur(?:e|al) )?decision record\s*[:–—-])\s*(?=\S)", re.IGNORECASE)
RECORD_FOLDER = re.compile(r"adrs?|(?:architectur(?:e|al)[-_ ])?decisions?(?:[-_ ](?:records?|log))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AdrNumber:
    """The number of a record in its series, such as 12 of `adr`."""

    series: str
    number: int

    def __str__(self) -> str:
        return f"{self.series}:{self.number}"


@dataclass(frozen=True, slots=True)
class AdrTitle:
    """A title without a bare number at its beginning; `written` is that number, or one in words like ADR-12."""

    text: str
    written: AdrNumber | None = None


def name_stem(path: Path) -> str:
    """Return a file's name without its ending; for a README or an index, the name of its folder."""
    return path.parent.name if path.stem.lower() in ADR_WORDS["index_files"] else path.stem


def number_in_name(path: Path) -> AdrNumber | None:
    """Return the number in the name of a file."""
    stem = name_stem(path)
    match = None if DATED_NAME.match(stem) or YEAR.match(stem) else NUMBERED_NAME.match(stem)
    return _to_number(match) if match else None


def slug_in_name(path: Path) -> str:
    """Return the words of a file's name without its number or date, in lower case and joined by dashes."""
    stem = name_stem(path)
    match = DATED_NAME.match(stem) or (None if YEAR.match(stem) else NUMBERED_NAME.match(stem))
    return "-".join(re.findall(r"[^\W_]+", (stem[match.end() :] if match else stem).lower()))


def date_in_name(path: Path) -> datetime | None:
    """Return the date at the beginning of a file's name."""
    match = DATED_NAME.match(name_stem(path))
    try:
        return find_date(match["date"]) if match else None
    except DateError:
        return None


def title_from_name(path: Path) -> str:
    """Return a title made from the name of a file."""
    stem = name_stem(path)
    match = DATED_NAME.match(stem) or NUMBERED_NAME.match(stem)
    words = collapse_spaces(re.sub(r"[-_]+", " ", stem[match.end() :] if match else stem))
    return words[:1].upper() + words[1:] if words else stem


def parse_title(heading: str, expected: AdrNumber | None) -> AdrTitle:
    """Return the title in a heading, without words that only say that it is a decision record.

    A bare number, as in `3 ways to log in`, is taken off only if it is the `expected` one.
    """
    text = collapse_spaces(heading)
    text = text[prefix.end() :] if (prefix := PREFIX.match(text)) else text
    if match := WRITTEN_NUMBER.match(text):
        return AdrTitle(text, _to_number(match))
    match = BARE_NUMBER.match(text)
    if match:
        number = int(match["number"])
        if match["mark"].strip() or match[0][0] in "#0" or (expected and expected.number == number):
            return AdrTitle(text[match.end() :], AdrNumber("adr", number))
    return AdrTitle(text)


def is_placeholder(title: str) -> bool:
    """Return whether a title is that of a template and was never filled in."""
    return PLACEHOLDER.fullmatch(title.strip()) is not None


def is_generic_title(title: str) -> bool:
    """Return whether a title only says that this is a decision record."""
    return title.strip(" :.#").lower() in ADR_WORDS["generic_titles"]


def is_template_name(path: Path) -> bool:
    """Return whether a file is the template of records, by its name."""
    words = [word for word in re.split(r"[-_ .]+", path.stem.lower()) if word.strip("0")]
    return "template" in words and set(words) <= {"template", *ADR_WORDS["template_words"]}


def is_record_name(path: Path) -> bool:
    """Return whether the name of a file, or of its folder for an index, has a number or a date as records have."""
    return number_in_name(path) is not None or date_in_name(path) is not None


def is_record(path: Path, kinds: Set[SectionKind]) -> bool:
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


def _to_number(match: re.Match[str]) -> AdrNumber:
    series = (match["series"] or "adr").lower()
    return AdrNumber("adr" if series in ("madr", "decision") else series, int(match["number"]))
