"""Markdown files as records to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cstp_grpc.decisions.importing.adr import Adr, parse_adr
from cstp_grpc.decisions.importing.fields import FieldError, FieldReader
from cstp_grpc.decisions.importing.file_dates import FileDate, FileDates
from cstp_grpc.decisions.importing.files import read_text, real_path
from cstp_grpc.decisions.importing.markdown import MarkdownReader
from cstp_grpc.decisions.importing.plain_yaml import Plain
from cstp_grpc.decisions.importing.references import References
from cstp_grpc.decisions.importing.relations import Relation, RelationKind
from cstp_grpc.decisions.importing.results import Parsed, Unreadable
from cstp_grpc.decisions.importing.sources import Sources
from cstp_grpc.decisions.importing.status import DECIDED, SUPERSEDED, Standing
from cstp_grpc.decisions.importing.text import LINKS_LIMIT
from cstp_grpc.decisions.model import DecisionContent, ImportRecord, SourceLinks

MAX_BYTES = 1024 * 1024
DEFAULT_CATEGORY = "architecture"
STATED = ("stakes", "confidence", "outcome", "visibility")
"""Fields of ours that a front matter may state."""


class AdrReader:
    """Reads Markdown decision records; remembers which files are some."""

    def __init__(self, sources: Sources, dates: FileDates) -> None:
        self._sources = sources
        self._dates = dates
        self._markdown = MarkdownReader()
        self._references = References(sources, self.is_record)
        self._known: dict[Path, bool] = {}

    def read(self, path: Path) -> Parsed:
        """Return the record in a file. Raises NoDecision and Unreadable."""
        real = real_path(path)
        source = self._sources.name(real)
        self._known[real] = False
        adr = parse_adr(read_text(real, MAX_BYTES), real, self._markdown)
        self._known[real] = True
        remarks = list(adr.remarks)
        links = self._links(real, adr, remarks)
        content = _content(adr, _standing(adr, links, remarks), remarks)
        dated = FileDate(*adr.date) if adr.date else self._dates.of(real)
        remarks += [dated.remark] if dated.remark else []
        record = ImportRecord(source, replace(content, date=dated.date), links)
        return Parsed(record, path, None, dated.origin, tuple(dict.fromkeys(remarks)))

    def is_record(self, path: Path) -> bool:
        """Tell whether a file, by its path without symbolic links, is a decision record."""
        if path not in self._known:
            try:
                parse_adr(read_text(path, MAX_BYTES), path, self._markdown)
                self._known[path] = True
            except Unreadable:
                self._known[path] = False
        return self._known[path]

    def _links(self, path: Path, adr: Adr, remarks: list[str]) -> SourceLinks:
        """Return the links to the records that are there; a record that is named twice gets the stronger link."""
        kinds: dict[str, RelationKind] = {}
        for relation in sorted(dict.fromkeys(adr.relations), key=_rank):
            if relation.reference is None:
                continue
            source = self._references.source(path, relation.reference)
            if source:
                kinds.setdefault(source, _kind(relation))
            elif relation.kind is not RelationKind.RELATES_TO and self._references.is_local(relation.reference):
                remarks.append(
                    f"{relation.kind.replace('_', ' ')} {relation.reference.text!r}: there is no such record"
                )
        by_kind = {kind: [source for source, each in kinds.items() if each is kind] for kind in RelationKind}
        for kind, found in by_kind.items():
            if len(found) > LINKS_LIMIT:
                remarks.append(f"links: the first {LINKS_LIMIT} of {len(found)} of {kind} are taken")
        return SourceLinks(**{kind.value: tuple(found[:LINKS_LIMIT]) for kind, found in by_kind.items()})


def _kind(relation: Relation) -> RelationKind:
    return RelationKind.RELATES_TO if relation.partly else relation.kind


def _rank(relation: Relation) -> int:
    return list(RelationKind).index(_kind(relation))


def _standing(adr: Adr, links: SourceLinks, remarks: list[str]) -> Standing:
    """Return where the record stands, and add to the remarks what of it is not literally written."""
    status = adr.status
    if status is None:
        remarks.append("no status: taken as decided")
    elif status.standing is None and status.chosen:
        remarks.append(f"the status {status.text!r} is unknown: taken as decided")
    elif status.standing is None:
        remarks.append(f"the status {status.text!r} still lists the choices of a template: taken as decided")
    standing = (status.standing if status else None) or DECIDED
    if links.superseded_by and standing is not SUPERSEDED:
        remarks.append("taken as superseded, since a link says by what")
        return SUPERSEDED
    if standing.outcome and status:
        remarks.append(f"outcome {standing.outcome}: taken from the status {status.text!r}")
    return standing


def _content(adr: Adr, standing: Standing, remarks: list[str]) -> DecisionContent:
    tags: list[Plain] = [str(adr.identifier)] if adr.identifier else []
    stated: dict[str, Plain] = {name: adr.front.text(name) for name in STATED}
    stated |= {"tags": [*tags, *adr.tags], "category": adr.category, "project": adr.project}
    values = {name: value for name, value in stated.items() if _fits(name, value, remarks)}
    reader = FieldReader({"title": adr.title, "context": adr.context, "notes": adr.lesson, **values})
    content = reader.content()
    remarks += reader.remarks
    return replace(
        content,
        category=content.category or DEFAULT_CATEGORY,
        status=standing.status,
        outcome=content.outcome or standing.outcome,
        reasons=adr.reasons,
    )


def _fits(name: str, value: Plain, remarks: list[str]) -> bool:
    values: Mapping[str, Plain] = {"title": "any", name: value}
    try:
        FieldReader(values).content()
    except FieldError as error:
        remarks.append(f"front matter, {error}: left out")
        return False
    return True
