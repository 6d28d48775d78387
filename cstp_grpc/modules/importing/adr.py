"""Records in Markdown: decision records (Nygard's format, MADR and variations), post-mortems and design documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import truncate_text
from cstp_grpc.common.yaml_with_lines import PlainValue
from cstp_grpc.contract.enums import Outcome
from cstp_grpc.core.decisions.model import DecisionContent, ImportRecord, SourceLinks
from cstp_grpc.modules.importing import adr_conventions as conventions
from cstp_grpc.modules.importing import markdown_sections, model, record_files, record_forms
from cstp_grpc.modules.importing.field_mapping import FieldReader, check_field
from cstp_grpc.modules.importing.record_forms import RecordForm, kind_of_section, section_groups

MAX_BYTES = 1024 * 1024
"""Maximum bytes of a Markdown record: 1 MiB. Chosen: five times the longest context that the contract allows."""
STATED_FIELDS = ("stakes", "confidence", "outcome", "visibility")
"""Fields of a decision that only a front matter may state."""
FRONT_FIELDS = conventions.ADR_WORDS["front_matter"]
LINE_KEYS = conventions.ADR_WORDS["line_keys"]
KNOWN_KEYS = frozenset(key for keys in LINE_KEYS.values() for key in keys)
# Emphasis may stand around the key, as in `**Status**: accepted`, and Obsidian writes `status:: accepted`.
KEYED_LINE = re.compile(r"\W*(?P<key>[A-Za-z][A-Za-z /-]{1,40}?)\W*?::?\s*(?P<value>.*)", re.DOTALL)


class AdrReader:
    """Reads Markdown records; remembers which files are records. With `as_records` all that say anything are."""

    def __init__(
        self, sources: record_files.SourceNames, dates: record_files.FileDates, *, as_records: bool = False
    ) -> None:
        self._sources = sources
        self._as_records = as_records
        self._dates = dates
        self._markdown = markdown_sections.MarkdownReader()
        self._resolver = conventions.LinkResolver(sources, self._is_record)
        self._known: dict[Path, bool] = {}

    def read(self, path: Path) -> model.ParsedRecord:
        """Return the record in a file. Raises NotADecisionRecord and RecordError."""
        # False until it is parsed: a file that cannot be read is then no target of links from others either.
        real = record_files.real_path(path)
        source = self._sources.source_of(real)
        self._known[real] = False
        adr = self._parse(real)
        self._known[real] = True
        remarks = adr.remarks
        links = self._resolve_links(real, adr.relations, remarks)
        content = _read_content(adr, _status_meaning(adr, links, remarks), remarks)
        date = adr.date or self._dates.date_of(real)
        remarks += [date.remark] if date.remark else []
        record = ImportRecord(source, replace(content, date=date.date), links)
        return model.ParsedRecord(record, path, None, date.origin, tuple(dict.fromkeys(remarks)))

    def _parse(self, path: Path) -> AdrDocument:
        return AdrDocument(record_files.read_text(path, MAX_BYTES), path, self._markdown, as_record=self._as_records)

    def _is_record(self, path: Path) -> bool:
        """Return whether a file, by its path without symbolic links, is a decision record."""
        if path not in self._known:
            try:
                self._parse(path)
                self._known[path] = True
            except model.RecordError:
                self._known[path] = False
        return self._known[path]

    def _resolve_links(
        self, path: Path, relations: Sequence[conventions.RecordRelation], remarks: list[str]
    ) -> SourceLinks:
        """Return the links to the records that exist; a record that is named twice gets the stronger link."""
        kinds: dict[str, conventions.RelationKind] = {}
        # By name, because every link is a relation in addition to the one that its line states.
        missing: dict[str, conventions.RecordRelation] = {}
        strength = list(conventions.RelationKind).index
        # The strongest first: `setdefault` keeps the first relation to each record.
        for relation in sorted(dict.fromkeys(relations), key=lambda each: strength(each.link_kind)):
            target = self._resolver.find_file(path, relation)
            source = self._resolver.source_of(target) if target and target != path else None
            if source:
                kinds.setdefault(source, relation.link_kind)
            # A mere link to a file that exists, such as a guide, need not lead to a record.
            elif conventions.should_exist(relation) and (
                target is None or relation.kind is not conventions.RelationKind.RELATES_TO
            ):
                missing.setdefault(relation.href or relation.text, relation)
        for name, relation in missing.items():
            remarks.append(f"{relation.kind.replace('_', ' ')} {relation.text or name!r}: there is no such record")
        by_kind = {
            kind: [source for source, each in kinds.items() if each is kind] for kind in conventions.RelationKind
        }
        for kind, targets in by_kind.items():
            if len(targets) > model.MAX_LINKS:
                remarks.append(f"links: the first {model.MAX_LINKS} of {len(targets)} of {kind} are taken")
        return SourceLinks(**{kind.value: tuple(targets[: model.MAX_LINKS]) for kind, targets in by_kind.items()})


def _status_meaning(adr: AdrDocument, links: SourceLinks, remarks: list[str]) -> conventions.StatusMeaning:
    """Return the meaning of the status for the decision, and add guesses to the remarks."""
    status = adr.status
    meaning = (status.meaning if status else None) or conventions.StatusMeaning.DECIDED
    if status is None:
        meaning = conventions.StatusMeaning.PROPOSED if adr.form is RecordForm.DESIGN else meaning
        remarks.append(f"no status: taken as {meaning.status}")
    elif status.meaning is None and status.chosen:
        remarks.append(f"the status {status.text!r} is unknown: taken as decided")
    elif status.meaning is None:
        remarks.append(f"the status {status.text!r} still lists the choices of a template: taken as decided")
    if links.superseded_by and meaning is not conventions.StatusMeaning.SUPERSEDED:
        remarks.append("taken as superseded, since a link names the successor")
        return conventions.StatusMeaning.SUPERSEDED
    if meaning.outcome and status:
        remarks.append(f"outcome {meaning.outcome}: taken from the status {status.text!r}")
    return meaning


def _read_content(adr: AdrDocument, meaning: conventions.StatusMeaning, remarks: list[str]) -> DecisionContent:
    tags: list[PlainValue] = [*([str(adr.number)] if adr.number else []), *adr.tags]
    stated: dict[str, PlainValue] = {name: adr.front.text(name) for name in STATED_FIELDS}
    stated |= {"tags": tags, "category": adr.category, "project": adr.project}
    values: dict[str, PlainValue] = {"title": adr.title, "context": adr.context, "notes": adr.notes}
    for tag in [tag for tag in tags if len(str(tag)) > model.MAX_LENGTHS["tags"]]:
        remarks.append(
            f"tags: {model.quote_start(str(tag))} is longer than {model.MAX_LENGTHS['tags']} characters: left out"
        )
        tags.remove(tag)
    for name, value in stated.items():
        if problem := check_field(name, value):
            remarks.append(f"front matter, {problem}: left out")
        else:
            values[name] = value
    reader = FieldReader(values)
    content = reader.read_content()
    remarks += reader.remarks
    outcome = content.outcome or meaning.outcome
    if adr.form is RecordForm.INCIDENT and outcome is None and meaning is conventions.StatusMeaning.DECIDED:
        outcome = Outcome.FAILURE
        remarks.append(f"outcome {outcome}: it is a post-mortem")
    return replace(
        content,
        category=content.category or adr.form.value,
        status=meaning.status,
        outcome=outcome,
        reasons=adr.reasons,
    )


class AdrDocument:
    """The parts of a Markdown record; `remarks` lists guesses and omissions."""

    def __init__(
        self, text: str, path: Path, markdown: markdown_sections.MarkdownReader, *, as_record: bool = False
    ) -> None:
        """Take the text of a file apart; `path` is absolute. With `as_record` the file may have any form.

        Raises NotADecisionRecord and RecordError.
        """
        if conventions.is_template_name(path):
            raise model.NotADecisionRecord("it is a template, by its name")
        if model.is_blank(text):
            raise model.NotADecisionRecord("it is empty")
        self.remarks: list[str] = []
        lines = text.split("\n")
        self.front = markdown_sections.parse_front_matter(lines)
        self._path = path
        self._markdown = markdown
        self._sections = markdown.read_sections("\n".join(lines[self.front.end :]))
        self._preamble = _find_preamble(self._sections)
        self._status_lines = self._lines_of(conventions.SectionKind.STATUS)
        # The order of what follows counts: whether it is a record depends on its status, and its title on the number in
        # its name.
        described = _describing_lines(self._sections, self._preamble)
        self._keyed = _keyed_lines([*described, *self._status_lines])
        self.status = conventions.parse_status(self._all_status_lines())
        self.form = self._recognize_form(as_record=as_record)
        self.number = conventions.number_in_name(path)
        title = self._read_title(as_record=as_record)
        self.title = title.text
        self.number = self.number or title.written
        self.date = self._read_date()
        unread = self.front.structured(*FRONT_FIELDS["summary"], *FRONT_FIELDS["tags"])
        self.remarks += [
            f"front matter, {name}: values that are neither a text nor a list of texts are left out" for name in unread
        ]
        summary = "\n".join(self.front.texts(*FRONT_FIELDS["summary"])) or None
        self.context = _read_context(lines[self.front.end :], self._sections, self._preamble, self._people(), summary)
        self.notes = record_forms.read_notes(self._sections, self.form)
        self.reasons = record_forms.read_reasons(self._sections, self.form)
        self.relations = self._read_relations()
        tags = [text for name in FRONT_FIELDS["tags"] for text in self.front.texts(name)] + self._line_values("tags")
        self.tags = [tag for text in tags for tag in _split_tags(text)]
        self.category = self._stated_text("category")
        self.project = self._stated_text("project")

    def _recognize_form(self, *, as_record: bool) -> RecordForm:
        kinds = {kind for section in self._sections if (kind := kind_of_section(section))}
        if self.status and (self.status.meaning or not self.status.chosen):
            kinds.add(conventions.SectionKind.STATUS)
        if any(line.key in LINE_KEYS["date"] for line in self._keyed):
            kinds.add(conventions.SectionKind.DATE)
        title = heading.text if (heading := self._first_heading()) else ""
        has_author = bool(self._line_values("author") or self.front.texts("author", "authors"))
        if form := record_forms.recognize_form(record_forms.RecordSigns(self._path, title, kinds, has_author)):
            return form
        if not as_record:
            raise model.NotADecisionRecord("it is not a decision record: it has neither a status nor usual sections")
        return RecordForm.OTHER

    def _first_heading(self) -> markdown_sections.MarkdownLine | None:
        return next((section.heading for section in self._sections if section.heading), None)

    def _read_title(self, *, as_record: bool) -> conventions.AdrTitle:
        heading = self._preamble[-1].heading
        generic = heading is None or conventions.is_generic_title(heading.text)
        written = self.front.text("title") if generic or heading is None else heading.text
        if written is None:
            return self._title_from_name()
        title = conventions.parse_title(written, self.number)
        unfilled = self.status is not None and not self.status.chosen and "template" in title.text.lower()
        if unfilled or conventions.is_placeholder(title.text):
            in_use = self.status is not None and self.status.meaning is not None
            if not (conventions.is_record_name(self._path) or in_use or as_record):
                raise model.NotADecisionRecord(f"it is a template, by its title {model.quote_start(title.text)}")
            return self._title_from_name()
        if self.number and title.written and title.written.number != self.number.number:
            self.remarks.append(
                f"its title says {title.written.number}; {self.number.number} is taken from the file name"
            )
        return title

    def _title_from_name(self) -> conventions.AdrTitle:
        self.remarks.append("the title is taken from the file name")
        title = conventions.parse_title(conventions.title_from_name(self._path), self.number)
        heading = self._first_heading()
        # `ADR-0012` alone is no title, but it says the number.
        written = (
            conventions.parse_title(heading.text, None).written
            if heading and conventions.is_generic_title(heading.text)
            else None
        )
        return replace(title, written=title.written or written)

    def _all_status_lines(self) -> list[markdown_sections.MarkdownLine]:
        front = [line for text in self.front.texts(*FRONT_FIELDS["status"]) for line in self._inline_lines(text)]
        keyed = [
            line.line if line.line.links else markdown_sections.MarkdownLine(line.value)
            for line in self._keyed
            if line.key in LINE_KEYS["status"]
        ]
        # Below a status there may be lines with a key of their own, such as its date, which state no status.
        others = [line for line in self._status_lines if not any(each.key for each in _keyed_lines([line]))]
        return [*front, *keyed, *others]

    def _inline_lines(self, text: str) -> list[markdown_sections.MarkdownLine]:
        return [line for section in self._markdown.read_sections(text) for line in section.lines()]

    def _lines_of(self, wanted: conventions.SectionKind) -> list[markdown_sections.MarkdownLine]:
        """Return the lines of the sections of a kind, with headings such as `Status: accepted` and `Superseded by`."""
        lines: list[markdown_sections.MarkdownLine] = []
        for group in section_groups(self._sections, wanted):
            heading = group[0].heading
            lines += [heading] if heading and (":" in heading.text or wanted is conventions.SectionKind.LINKS) else []
            lines += [line for section in group for line in section.lines()]
        return lines

    def _read_date(self) -> record_files.RecordDate | None:
        updated = self._line_values("updated") if self.form is RecordForm.DESIGN else []
        dated = [
            *self._line_values("date"),
            *updated,
            *(line.text for line in self._lines_of(conventions.SectionKind.DATE)),
        ]
        stated = [*([self.status.text] if self.status else []), *(line.text for line in self._status_lines)]
        for origin, texts in (
            (model.DateOrigin.FRONT_MATTER, self.front.texts(*FRONT_FIELDS["date"])),
            (model.DateOrigin.DATE_LINE, dated),
            (model.DateOrigin.STATUS, stated),
        ):
            for text in texts:
                try:
                    if date := record_files.find_date(text):
                        return record_files.RecordDate(date, origin)
                    # A status need not have a date in it; where one is expected, another text is worth a remark.
                    if origin is not model.DateOrigin.STATUS:
                        self.remarks.append(
                            f"{model.quote_start(model.collapse_spaces(text))} is not a date; it is not used"
                        )
                except record_files.DateError as error:
                    self.remarks.append(f"{error}; it is not used as the date")
        date = conventions.date_in_name(self._path)
        return record_files.RecordDate(date, model.DateOrigin.FILE_NAME) if date else None

    def _read_relations(self) -> list[conventions.RecordRelation]:
        relations = list(self.status.relations) if self.status else []
        for name, kind in conventions.ADR_WORDS["front_matter_links"].items():
            for text in self.front.texts(name):
                relations += self._relate_field(conventions.RelationKind(kind), text)
        keyed = [line.line for line in self._keyed if not line.key]
        relations += conventions.parse_relations([*keyed, *self._lines_of(conventions.SectionKind.LINKS)])
        links = [link for section in self._sections for line in section.lines() for link in line.links]
        return relations + [
            conventions.RecordRelation(conventions.RelationKind.RELATES_TO, link.href) for link in links
        ]

    def _relate_field(self, kind: conventions.RelationKind, text: str) -> list[conventions.RecordRelation]:
        relations: list[conventions.RecordRelation] = []
        for part in text.split(","):
            # The verb is only there so that the line parser accepts a bare number; `kind` replaces its meaning.
            line = markdown_sections.MarkdownLine(f"supersedes {part.strip()}")
            line = self._inline_lines(f"supersedes {part}")[0] if "](" in part else line
            named = [
                each for each in conventions.parse_relations([line]) if each.href is not None or each.number is not None
            ]
            named = named or [conventions.RecordRelation(kind, part.strip(), text=part.strip())]
            relations += [replace(each, kind=kind, partly=False) for each in named]
        return relations

    def _people(self) -> list[str]:
        people = {name: self.front.texts(name) for name in FRONT_FIELDS["people"]}
        return [f"{name.replace('_', ' ').capitalize()}: {', '.join(texts)}" for name, texts in people.items() if texts]

    def _stated_text(self, name: str) -> str | None:
        """Return the text of a field of the front matter, otherwise that of a line with its key."""
        return next(iter(self.front.texts(*FRONT_FIELDS[name]) or self._line_values(name)), None)

    def _line_values(self, name: str) -> list[str]:
        """Return the values of the lines with the keys of a field that are not blank, those of the first key first."""
        return [
            line.value.strip()
            for key in LINE_KEYS[name]
            for line in self._keyed
            if line.key == key and line.value.strip(" -–—?")
        ]


@dataclass(frozen=True, slots=True)
class KeyedLine:
    """A line such as `Date: 2017-09-04`; `key` is in lower case, and empty if it says how records relate."""

    key: str
    value: str
    line: markdown_sections.MarkdownLine


def _keyed_lines(lines: Sequence[markdown_sections.MarkdownLine]) -> list[KeyedLine]:
    found = []
    for line in markdown_sections.turn_columns(lines, KNOWN_KEYS):
        match = (
            KEYED_LINE.fullmatch(line.text.replace("(s)", "s", 1))
            if len(line.text) <= conventions.LONGEST_LINE
            else None
        )
        key = " ".join(match["key"].lower().split()) if match else ""
        if match and (key in KNOWN_KEYS or conventions.VERB.fullmatch(key)):
            found.append(KeyedLine(key if key in KNOWN_KEYS else "", match["value"], line))
    return found


def _find_preamble(
    sections: Sequence[markdown_sections.MarkdownSection],
) -> Sequence[markdown_sections.MarkdownSection]:
    """Return the sections up to the one whose heading is the title, or only the text before any heading.

    The title is the first heading of the first level before the usual sections of records, otherwise the first of any.
    """
    leading = list(takewhile(lambda section: not kind_of_section(section), sections))
    titles = [
        number
        for number, section in enumerate(leading)
        if section.heading
        and not model.is_blank(section.heading.text)
        and not conventions.is_generic_title(section.heading.text)
    ]
    best = min(titles, key=lambda number: (leading[number].level > 1, number), default=0)
    return sections[: best + 1]


def _describing_lines(
    sections: Sequence[markdown_sections.MarkdownSection], preamble: Sequence[markdown_sections.MarkdownSection]
) -> list[markdown_sections.MarkdownLine]:
    leading = takewhile(lambda section: not kind_of_section(section), sections[len(preamble) :])
    rows = [line for section in leading for line in section.lines() if line.cells]
    return [*(line for section in preamble for line in section.lines()), *rows]


def _read_context(
    lines: Sequence[str],
    sections: Sequence[markdown_sections.MarkdownSection],
    preamble: Sequence[markdown_sections.MarkdownSection],
    people: Sequence[str],
    summary: str | None,
) -> str:
    """Return the body as it is written, without its title, so that it begins with the summary or the matter.

    Descriptions of the record itself come last. Hashes of contents depend on this order: another one would update every
    record that is imported again.
    """
    title = preamble[-1]
    describing = (conventions.SectionKind.STATUS, conventions.SectionKind.DATE, conventions.SectionKind.LINKS)
    last = [(section.start, section.end) for section in sections if kind_of_section(section) in describing]
    last += [(block.start, block.end) for section in preamble for block in section.blocks if _describes_record(block)]
    moved = {number for start, end in last for number in range(start, end)}
    moved.update(range(title.start, title.body))
    matter = "\n".join(line for number, line in enumerate(lines) if number not in moved)
    parts = [summary if summary and model.collapse_spaces(summary) not in model.collapse_spaces(matter) else "", matter]
    parts += [*("\n".join(lines[start:end]) for start, end in sorted(last)), "\n".join(people)]
    return truncate_text("\n\n".join(part.strip() for part in parts if part.strip()), model.MAX_LENGTHS["context"])


def _split_tags(text: str) -> list[str]:
    """Return the tags in a text, which commas separate; blanks do where each tag has a number sign."""
    words = text.split()
    parts = words if words and all(word.startswith("#") for word in words) else text.split(",")
    return [tag for part in parts if (tag := part.strip().strip(",").removeprefix("#"))]


def _describes_record(block: markdown_sections.MarkdownBlock) -> bool:
    return block.kind == "html_block" or any(_keyed_lines(lines[:1]) for lines in block.paragraphs[:1])
