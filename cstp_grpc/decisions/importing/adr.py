"""One Markdown decision record: Nygard's, MADR's and their many relatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path

from cstp_grpc.decisions.importing import names, preamble
from cstp_grpc.decisions.importing.dates import DateError, find_date
from cstp_grpc.decisions.importing.front_matter import FrontMatter, read_front_matter
from cstp_grpc.decisions.importing.headings import Kind
from cstp_grpc.decisions.importing.markdown import Line, MarkdownReader, Section
from cstp_grpc.decisions.importing.names import Identifier, Title
from cstp_grpc.decisions.importing.preamble import entries_of
from cstp_grpc.decisions.importing.prose import extents, kind, read_context, read_lesson, read_reasons
from cstp_grpc.decisions.importing.recognition import has_name_of_a_record, is_record, is_template
from cstp_grpc.decisions.importing.relations import Reference, Relation, RelationKind, read_relations
from cstp_grpc.decisions.importing.results import DateOrigin, NoDecision
from cstp_grpc.decisions.importing.status import StatusReading, read_status
from cstp_grpc.decisions.importing.text import clip, is_blank, one_line
from cstp_grpc.decisions.model import Reason

FRONT_DATES = (
    "date",
    "decided",
    "decided_on",
    "decision_date",
    "date_decided",
    "created",
    "created_at",
    "date_created",
)
FRONT_PEOPLE = ("deciders", "decision_makers", "consulted", "informed", "author", "authors")
FRONT_RELATIONS = {
    "supersedes": RelationKind.SUPERSEDES,
    "replaces": RelationKind.SUPERSEDES,
    "superseded_by": RelationKind.SUPERSEDED_BY,
    "replaced_by": RelationKind.SUPERSEDED_BY,
    "depends_on": RelationKind.DEPENDS_ON,
    "requires": RelationKind.DEPENDS_ON,
    "amends": RelationKind.RELATES_TO,
    "amended_by": RelationKind.RELATES_TO,
    "related": RelationKind.RELATES_TO,
    "related_to": RelationKind.RELATES_TO,
    "relates_to": RelationKind.RELATES_TO,
}


@dataclass(frozen=True, slots=True)
class Adr:
    """What a Markdown decision record says by itself; `remarks` tells what was guessed or left out."""

    title: str
    identifier: Identifier | None
    status: StatusReading | None
    date: tuple[datetime, DateOrigin] | None
    context: str
    lesson: str | None
    reasons: tuple[Reason, ...]
    relations: tuple[Relation, ...]
    tags: tuple[str, ...]
    category: str | None
    project: str | None
    front: FrontMatter
    remarks: tuple[str, ...]


def parse_adr(text: str, path: Path, markdown: MarkdownReader) -> Adr:
    """Return what the text of a file says; `path` is absolute and gives its name. Raises NoDecision and Unreadable."""
    if is_template(path):
        raise NoDecision("it is a template, by its name")
    if is_blank(text):
        raise NoDecision("it is empty")
    lines = text.split("\n")
    front = read_front_matter(lines)
    return _Parser(path, front, lines[front.end :], markdown).parse()


class _Parser:
    def __init__(self, path: Path, front: FrontMatter, lines: Sequence[str], markdown: MarkdownReader) -> None:
        self._path = path
        self._front = front
        self._lines = lines
        self._markdown = markdown
        self._remarks: list[str] = []
        self._sections = markdown.sections("\n".join(lines))
        self._preamble = _preamble(self._sections)
        self._status_lines = self._section_lines(Kind.STATUS)
        described = [line for section in self._preamble for line in section.lines()]
        self._entries = entries_of([*described, *self._status_lines])
        self._status = read_status(self._all_status_lines())

    def parse(self) -> Adr:
        self._must_be_a_record()
        expected = names.identifier_of(self._path)
        title = self._title(expected)
        return Adr(
            title=title.text,
            identifier=expected or title.written,
            status=self._status,
            date=self._date(),
            context=read_context(self._lines, self._sections, self._preamble, self._people()),
            lesson=read_lesson(self._sections),
            reasons=read_reasons(self._sections),
            relations=tuple(self._relations()),
            tags=tuple(self._texts(("tags", "keywords", "labels", "categories"), preamble.TAG_KEYS)),
            category=self._text(("category",), preamble.CATEGORY_KEYS),
            project=self._text(("project",), preamble.PROJECT_KEYS),
            front=self._front,
            remarks=tuple(self._remarks),
        )

    def _must_be_a_record(self) -> None:
        kinds = {found for section in self._sections if (found := kind(section))}
        if self._status and (self._status.standing or not self._status.chosen):
            kinds.add(Kind.STATUS)
        if any(entry.key in preamble.DATE_KEYS for entry in self._entries):
            kinds.add(Kind.DATE)
        if not is_record(self._path, kinds):
            raise NoDecision("it is no decision record: it has neither a status nor the sections of one")

    def _title(self, expected: Identifier | None) -> Title:
        heading = self._preamble[-1].heading
        written = self._front.text("title") if heading is None or names.is_generic(heading.text) else heading.text
        if written is None:
            return self._named_title(expected)
        title = names.read_title(written, expected)
        unfilled = self._status is not None and not self._status.chosen and "template" in title.text.lower()
        if unfilled or names.is_placeholder(title.text):
            if not has_name_of_a_record(self._path):
                raise NoDecision(f"it is a template, by its title {clip(title.text, 60)!r}")
            return self._named_title(expected)
        if expected and title.written and title.written.number != expected.number:
            self._remark(f"its title says {title.written.number}; {expected.number} is taken from the file name")
        return title

    def _named_title(self, expected: Identifier | None) -> Title:
        self._remark("the title is taken from the file name")
        return names.read_title(names.title_of_name(self._path), expected)

    def _all_status_lines(self) -> list[Line]:
        front = [line for text in self._front.texts("status", "state") for line in self._inline(text)]
        keyed = [entry.line for entry in self._entries if entry.key in preamble.STATUS_KEYS]
        others = [line for line in self._status_lines if not any(entry.key for entry in entries_of([line]))]
        return [*front, *keyed, *others]

    def _inline(self, text: str) -> list[Line]:
        return [line for section in self._markdown.sections(text) for line in section.lines()]

    def _section_lines(self, wanted: Kind) -> list[Line]:
        """Return the lines of the sections of a kind, with what their headings say after a colon."""
        lines: list[Line] = []
        for extent in extents(self._sections, wanted):
            heading = extent[0].heading
            if heading and ":" in heading.text:
                lines.append(heading)
            lines += [line for section in extent for line in section.lines()]
        return lines

    def _date(self) -> tuple[datetime, DateOrigin] | None:
        dated = preamble.values_of(self._entries, preamble.DATE_KEYS)
        dated += [line.text for line in self._section_lines(Kind.DATE)]
        for origin, texts in (
            (DateOrigin.FRONT_MATTER, self._front.texts(*FRONT_DATES)),
            (DateOrigin.DATE_LINE, dated),
        ):
            for text in texts:
                if date := self._read_date(text, must=True):
                    return date, origin
        stated = [self._status.text] if self._status else []
        for text in [*stated, *(line.text for line in self._status_lines)]:
            if date := self._read_date(text, must=False):
                return date, DateOrigin.STATUS
        date = names.date_of(self._path)
        return (date, DateOrigin.FILE_NAME) if date else None

    def _read_date(self, text: str, *, must: bool) -> datetime | None:
        try:
            date = find_date(text)
        except DateError as error:
            self._remark(f"{error}; it is not used as the date")
            return None
        if date is None and must:
            self._remark(f"{clip(one_line(text), 60)!r} is no date; it is not used")
        return date

    def _remark(self, remark: str) -> None:
        if remark not in self._remarks:
            self._remarks.append(remark)

    def _relations(self) -> list[Relation]:
        relations = list(self._status.relations) if self._status else []
        for name, relation in FRONT_RELATIONS.items():
            for text in self._front.texts(name):
                relations += [Relation(relation, reference) for reference in self._references(text)]
        lines = [entry.line for entry in self._entries if not entry.key]
        for extent in extents(self._sections, Kind.LINKS):
            lines += [extent[0].heading] if extent[0].heading else []
            lines += [line for section in extent for line in section.lines()]
        relations += read_relations(lines)
        links = [link for section in self._sections for line in section.lines() for link in line.links]
        return relations + [Relation(RelationKind.RELATES_TO, Reference(link.href)) for link in links]

    def _references(self, text: str) -> list[Reference]:
        """Return the records that a field of the front matter names: links, numbers or paths, separated by commas."""
        references: list[Reference] = []
        for part in text.split(","):
            line = Line(f"supersedes {part.strip()}") if "](" not in part else self._inline(f"supersedes {part}")[0]
            named = [relation.reference for relation in read_relations([line]) if relation.reference]
            references += named or [Reference(part.strip(), text=part.strip())]
        return references

    def _people(self) -> list[str]:
        found = {name: self._front.texts(name) for name in FRONT_PEOPLE}
        return [f"{name.replace('_', ' ').capitalize()}: {', '.join(texts)}" for name, texts in found.items() if texts]

    def _texts(self, fields: Sequence[str], keys: Sequence[str]) -> list[str]:
        texts = [text for field in fields for text in self._front.texts(field)]
        texts += preamble.values_of(self._entries, keys)
        return [part.strip() for text in texts for part in text.split(",") if part.strip()]

    def _text(self, fields: Sequence[str], keys: Sequence[str]) -> str | None:
        texts = self._front.texts(*fields) or preamble.values_of(self._entries, keys)
        return texts[0] if texts else None


def _preamble(sections: Sequence[Section]) -> Sequence[Section]:
    """Return the sections up to the one whose heading is the title, or only what stands before any heading.

    The title is the first heading of the first level before the sections that records have, else the first of any.
    """
    leading = list(takewhile(lambda section: not kind(section), sections))
    titles = [number for number, section in enumerate(leading) if section.heading and _says_something(section.heading)]
    best = min(titles, key=lambda number: (leading[number].level > 1, number), default=0)
    return sections[: best + 1]


def _says_something(heading: Line) -> bool:
    return not is_blank(heading.text) and not names.is_generic(heading.text)
