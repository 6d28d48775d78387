"""Reading decision records from files and folders of any format, and from YAML and JSON Lines."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from cstp_grpc.common.yaml_with_lines import PlainValue, YamlError, YamlNode, YamlReader
from cstp_grpc.contract import json_codec
from cstp_grpc.core.decisions import messages
from cstp_grpc.core.decisions.model import ImportRecord, LinkType, SourceLinks
from cstp_grpc.modules.importing import field_mapping, model, record_files
from cstp_grpc.modules.importing.adr import AdrReader

MAX_LINE_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a line of JSON Lines: 4 MiB. Chosen: such files may have any size, and are read line by line."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LIST_KEY = "decisions"
TITLE_KEY = re.compile(r"""\btitle["']?\s*:""")
SERVER_FIELDS = ("agent", "source", "reviewedDate", "reviewed_date", "distance", "score", "history", "journalRevision")
"""Fields of a decision in an answer that an import cannot set."""
CONTENT_FIELDS = {name: name for name in ("id", *field_mapping.FIELDS)} | {"reviewBy": "review_by"}
"""Our name of each field of a record that is imported."""
LINK_NAMES = {
    "supersedes": "supersedes",
    "superseded_by": "supersededBy",
    "depends_on": "dependsOn",
    "relates_to": "relatesTo",
}
"""How files spell our names of links."""
EXPORTED_KEYS = frozenset(("provenance", "deletedDate"))
"""The keys by which a decision that `cstp export` wrote, or a deletion, is recognised."""
ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
CONTRACT_FIELDS = frozenset(("links", *CONTENT_FIELDS, *SERVER_FIELDS))


class StructuredRecordReader:
    """Reads the entries of one file as records; no two of them may have the same identifier."""

    def __init__(
        self,
        path: Path,
        sources: record_files.SourceNames,
        dates: record_files.FileDates,
        mapping: field_mapping.FieldMapping | None,
    ) -> None:
        self._path = path
        self._source = sources.source_of(path)
        self._dates = dates
        self._mapping = mapping
        self._file_date: record_files.RecordDate | None = None
        self._lines_by_id: dict[str, int] = {}
        self._entries: Callable[[], Iterable[tuple[int, PlainValue | bytes]]] = tuple
        """Reads all entries of the file, each with its line."""

    def read_yaml(self) -> Iterator[model.ReadResult]:
        """Yield the result of each entry. Raises NotADecisionRecord and RecordError."""
        entries = self._yaml_entries(record_files.read_text(self._path))
        self._entries = lambda: ((node.line, node.plain) for node in entries)
        for node in entries:
            yield self._read_entry(node.line, node.plain, alone=len(entries) == 1)

    def read_json_lines(self) -> Iterator[model.ReadResult]:
        """Yield the result of each line that is not blank. Raises NotADecisionRecord and RecordError."""
        self._entries = self._read_lines
        with record_files.open_file(self._path) as file:
            number = 0
            for number, line in _numbered_lines(file):
                yield self._read_entry(number, line)
            if number == 0:
                raise model.NotADecisionRecord("it is empty")

    def _yaml_entries(self, text: str) -> list[YamlNode]:
        """Return the entries of a file: of a list, of a list under `decisions`, or one for each document.

        Without a mapping, a file without any of our fields is ignored: folders contain YAML of all kinds.
        """
        try:
            documents = YamlReader().read(text)
        except YamlError as error:
            # Folders hold broken YAML of other programs, too; only what seems to have titles, or was named, is worth an
            # error.
            if self._mapping or TITLE_KEY.search(text):
                raise model.RecordError(error.reason, error.line) from None
            reason = f"it contains no title and so no decisions: {error.reason}"
            raise model.NotADecisionRecord(reason, error.line) from None
        entries: list[YamlNode] = []
        for document in documents:
            listed = document.value.get(LIST_KEY, document) if isinstance(document.value, dict) else document
            if isinstance(listed.value, list):
                entries += listed.value
            elif document.value is not None:
                entries.append(document)
        # One entry of ours makes the file one of decisions, so that the others in it are reported, not passed over.
        values = [node.plain for node in entries if isinstance(node.plain, dict)]
        if not any(self._mapping or _is_decision(value) for value in values):
            raise model.NotADecisionRecord("it contains no decisions")
        return entries

    def _read_entry(self, line: int, entry: PlainValue | bytes, *, alone: bool = False) -> model.ReadResult:
        """Return the result of an entry; one that is `alone` in its file needs no identifier."""
        try:
            return self._parse(line, _parse_json(entry) if isinstance(entry, bytes) else entry, alone=alone)
        except (model.RecordError, field_mapping.FieldError) as error:
            return model.SkippedRecord(self._path, line, str(error), error=True)

    def _parse(self, line: int, entry: PlainValue, *, alone: bool) -> model.ParsedRecord:
        if not isinstance(entry, dict):
            raise model.RecordError("it is not an object with fields")
        if self._mapping is None and not EXPORTED_KEYS.isdisjoint(entry):
            return self._parse_exported(line, entry)
        values, remarks = self._read_values(entry)
        reader = field_mapping.FieldReader(values)
        content, identifier, links = reader.read_content(), reader.read_id(), reader.read_links()
        source = self._source_of_entry(identifier, line, alone=alone)
        date = record_files.RecordDate(content.date, model.DateOrigin.FIELD) if content.date else self._date_of_file()
        remarks += [*reader.remarks, *([date.remark] if date.remark else [])]
        for kind, ids in links.items():
            unknown = [each for each in ids if each not in self._names]
            remarks += [f"links.{LINK_NAMES[kind]}: there is no record {each!r} in this file" for each in unknown]
        targets = {
            kind: tuple(record_files.check_source(f"{self._source}#{each}") for each in ids)
            for kind, ids in links.items()
        }
        record = ImportRecord(source, replace(content, date=date.date), SourceLinks(**targets))
        return model.ParsedRecord(record, self._path, line, date.origin, tuple(remarks))

    def _parse_exported(self, line: int, entry: dict[str, PlainValue]) -> model.ParsedRecord:
        """Return the record of a decision, or of a deletion, as `cstp export` writes it. Raises RecordError."""
        # Not corrected as hand-written entries are: exported again it must be the same. No server exports NUL.
        if ESCAPED_NUL.search(json.dumps(entry)):
            raise model.RecordError("it is not an exported decision: it contains NUL")
        try:
            identity, content, links, agent = messages.decode_exported(entry)
        except json_codec.CodecError as error:
            raise model.RecordError(f"it is not an exported decision: {error}") from None
        source = self._source_of_entry(identity.id, line, alone=False)
        targets = {
            kind.value: tuple(record_files.check_source(f"{self._source}#{key}") for key in getattr(links, kind))
            for kind in LinkType
            if kind is not LinkType.SUMMARIZES
        }
        record = ImportRecord(source, content, SourceLinks(**targets), identity=identity)
        return model.ParsedRecord(record, self._path, line, model.DateOrigin.FIELD, agent=agent)

    def _read_values(self, entry: dict[str, PlainValue]) -> tuple[dict[str, PlainValue], list[str]]:
        return self._mapping.apply(entry) if self._mapping else _read_contract_fields(entry)

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        """The identifiers of all entries of the file; read when the first link needs them."""
        return frozenset(name for line, entry in self._entries() for name in self._names_of_entry(line, entry))

    def _names_of_entry(self, line: int, entry: PlainValue | bytes) -> Iterator[str]:
        """Yield the identifier of an entry; nothing for one that cannot be read, which its own result says."""
        try:
            value = _parse_json(entry) if isinstance(entry, bytes) else entry
            if isinstance(value, dict):
                yield field_mapping.FieldReader(self._read_values(value)[0]).read_id() or f"L{line}"
        except (model.RecordError, field_mapping.FieldError):
            return

    def _read_lines(self) -> Iterator[tuple[int, bytes]]:
        with record_files.open_file(self._path) as file:
            yield from _numbered_lines(file)

    def _date_of_file(self) -> record_files.RecordDate:
        if self._file_date is None:
            self._file_date = self._dates.date_of(self._path)
        return self._file_date

    def _source_of_entry(self, identifier: str | None, line: int, *, alone: bool) -> str:
        name = identifier or f"L{line}"
        if name in self._lines_by_id:
            raise model.RecordError(f"the id {name!r} is that of line {self._lines_by_id[name]}, too")
        source = record_files.check_source(self._source if alone and identifier is None else f"{self._source}#{name}")
        self._lines_by_id[name] = line
        return source


def _is_decision(entry: Mapping[str, PlainValue]) -> bool:
    """Return whether an object has a title, and another field of ours or none of others."""
    return "title" in entry and (CONTRACT_FIELDS.issuperset(entry) or len(CONTRACT_FIELDS & entry.keys()) > 1)


def _read_contract_fields(entry: dict[str, PlainValue]) -> tuple[dict[str, PlainValue], list[str]]:
    """Return the values of an entry with the names of the contract, and remarks. Raises FieldError."""
    if unknown := sorted(entry.keys() - CONTRACT_FIELDS):
        raise field_mapping.FieldError(f"{unknown[0]}: there is no such field; records of another make need a mapping")
    values = {CONTENT_FIELDS[name]: value for name, value in entry.items() if name in CONTENT_FIELDS}
    links = entry.get("links") or {}
    if not isinstance(links, dict):
        raise field_mapping.FieldError("links: it is not an object")
    for name, ids in links.items():
        if field_mapping.to_snake_case(name) not in field_mapping.LINKS:
            raise field_mapping.FieldError(
                f"links.{name}: there is no such link; possible are {', '.join(field_mapping.LINKS)}"
            )
        values[field_mapping.to_snake_case(name)] = ids
    ignored = [name for name in SERVER_FIELDS if entry.get(name) is not None]
    return values, [f"{', '.join(ignored)}: given by the server, not imported"] if ignored else []


def _numbered_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers; of a line that is too long, only the beginning."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        # The rest of an overlong line is read in pieces and dropped, so that memory stays bounded.
        rest = line
        while len(line) > MAX_LINE_BYTES and rest and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE_BYTES)
        if len(line) > MAX_LINE_BYTES or line.removeprefix(BYTE_ORDER_MARK if number == 1 else b"").strip():
            yield number, line


def _parse_json(line: bytes) -> PlainValue:
    if len(line) > MAX_LINE_BYTES:
        raise model.RecordError(f"the line is longer than {MAX_LINE_BYTES // 1024 // 1024} MiB")
    text = record_files.decode_text(line.rstrip(b"\r\n"))
    try:
        value: PlainValue = json.loads(text, object_pairs_hook=_to_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise model.RecordError(f"it is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise model.RecordError("it is nested too deeply") from None
    except ValueError as error:
        raise model.RecordError(f"it is not JSON: {error}") from None
    return value


def _to_object(pairs: list[tuple[str, PlainValue]]) -> dict[str, PlainValue]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} is given twice")
    return members


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def read_records(
    paths: Sequence[Path],
    *,
    mapping: field_mapping.FieldMapping | None = None,
    as_records: bool = False,
    on_file: Callable[[Path], None] | None = None,
) -> Iterator[model.ReadResult]:
    """Yield the results of files and folders, in the order of `find_record_files`.

    A Markdown file gives one result, a YAML or JSON Lines file one for each entry. A file or entry that cannot be read
    never stops the others. The `mapping` applies to YAML and JSON Lines; `as_records` takes Markdown of any
    form. `on_file` is called after each file.
    """
    # All readers share the caches of work trees, histories and records.
    sources = record_files.SourceNames()
    dates = record_files.FileDates(sources)
    adrs = AdrReader(sources, dates, as_records=as_records)
    for file in record_files.find_input_files(paths):
        path, suffix = file.path, file.path.suffix.lower()
        try:
            if suffix in record_files.MARKDOWN_SUFFIXES:
                yield adrs.read(path)
            elif suffix in record_files.YAML_SUFFIXES:
                yield from StructuredRecordReader(path, sources, dates, mapping).read_yaml()
            elif suffix in record_files.JSON_LINES_SUFFIXES:
                yield from StructuredRecordReader(path, sources, dates, mapping).read_json_lines()
            else:
                record_files.open_file(path).close()
                yield model.SkippedRecord(
                    path, None, f"only {', '.join(record_files.SUFFIXES)} can be read", error=file.named
                )
        except model.NotADecisionRecord as skipped:
            yield model.SkippedRecord(path, skipped.line, skipped.reason, error=False)
        except model.RecordError as error:
            yield model.SkippedRecord(path, error.line, error.reason, error=True)
        except OSError as error:
            yield model.SkippedRecord(path, None, f"it cannot be read: {error.strerror}", error=True)
        if on_file:
            on_file(path)
