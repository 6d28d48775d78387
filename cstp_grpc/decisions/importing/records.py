"""The entries of a YAML or JSON Lines file as records to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cstp_grpc.decisions.importing.fields import FIELDS, FieldError, FieldReader
from cstp_grpc.decisions.importing.file_dates import FileDate, FileDates
from cstp_grpc.decisions.importing.mapping import LINKS, FieldMapping
from cstp_grpc.decisions.importing.plain_yaml import Plain
from cstp_grpc.decisions.importing.results import DateOrigin, Parsed, Unreadable
from cstp_grpc.decisions.importing.sources import Sources, fit
from cstp_grpc.decisions.model import ImportRecord, SourceLinks

LINK_NAMES = {
    "supersedes": "supersedes",
    "supersededBy": "superseded_by",
    "superseded_by": "superseded_by",
    "dependsOn": "depends_on",
    "depends_on": "depends_on",
    "relatesTo": "relates_to",
    "relates_to": "relates_to",
}
GIVEN_BY_THE_SERVER = ("agent", "source", "reviewedDate", "reviewed_date", "distance", "score")
"""Fields of a decision in an answer, which an import cannot set."""
OURS = frozenset(("id", "links", *FIELDS, *GIVEN_BY_THE_SERVER))


class EntryReader:
    """Turns the entries of one file into records, and sees to it that no two have the same identifier."""

    def __init__(self, path: Path, sources: Sources, dates: FileDates, mapping: FieldMapping | None) -> None:
        self._path = path
        self._source = sources.name(path)
        self._dates = dates
        self._mapping = mapping
        self._file_date: FileDate | None = None
        self._lines: dict[str, int] = {}

    def read(self, entry: Plain, line: int, *, alone: bool = False) -> Parsed:
        """Return the record of an entry; one that is `alone` in its file needs no identifier. Raises Unreadable."""
        if not isinstance(entry, dict):
            raise Unreadable("it is no object with fields", line)
        try:
            values, remarks = self._mapping.apply(entry) if self._mapping else _ours(entry)
            reader = FieldReader(values)
            content, identifier = reader.content(), reader.identifier()
            links = {name: reader.identifiers(name) for name in LINKS}
        except FieldError as error:
            raise Unreadable(str(error), line) from None
        source = self._name(identifier, line, alone=alone)
        remarks += reader.remarks
        dated = FileDate(content.date, DateOrigin.FIELD) if content.date else self._dated()
        remarks += [dated.remark] if dated.remark else []
        record = ImportRecord(source, replace(content, date=dated.date), self._links(links, line))
        return Parsed(record, self._path, line, dated.origin, tuple(remarks))

    def _dated(self) -> FileDate:
        if self._file_date is None:
            self._file_date = self._dates.of(self._path)
        return self._file_date

    def _name(self, identifier: str | None, line: int, *, alone: bool) -> str:
        name = identifier or f"L{line}"
        if name in self._lines:
            raise Unreadable(f"the id {name!r} is that of line {self._lines[name]}, too", line)
        source = self._fit(self._source if alone and identifier is None else f"{self._source}#{name}", line)
        self._lines[name] = line
        return source

    def _links(self, links: Mapping[str, tuple[str, ...]], line: int) -> SourceLinks:
        sources = {
            kind: tuple(self._fit(f"{self._source}#{each}", line) for each in ids) for kind, ids in links.items()
        }
        return SourceLinks(**sources)

    def _fit(self, source: str, line: int) -> str:
        try:
            return fit(source)
        except Unreadable as error:
            raise Unreadable(error.reason, line) from None


def is_ours(entry: Mapping[str, Plain]) -> bool:
    """Tell whether an object is meant as a decision: it has a title, and another field of ours or none of others."""
    return "title" in entry and (OURS.issuperset(entry) or len(OURS & entry.keys()) > 1)


def _ours(entry: dict[str, Plain]) -> tuple[dict[str, Plain], list[str]]:
    """Return the values of an entry that uses the names of the contract."""
    if unknown := sorted(entry.keys() - OURS):
        raise FieldError(f"{unknown[0]}: there is no such field; records of another make need a mapping")
    values = {name: value for name, value in entry.items() if name in FIELDS or name == "id"}
    links = entry.get("links") or {}
    if not isinstance(links, dict):
        raise FieldError("links: it is no object")
    for name, ids in links.items():
        if name not in LINK_NAMES:
            raise FieldError(f"links.{name}: there is no such link; possible are {', '.join(LINKS)}")
        values[LINK_NAMES[name]] = ids
    ignored = [name for name in GIVEN_BY_THE_SERVER if entry.get(name) is not None]
    return values, [f"{', '.join(ignored)}: given by the server, not imported"] if ignored else []
