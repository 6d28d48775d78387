"""Reading decision records from files and folders, whatever their format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cstp_grpc.importing.adr import AdrReader
from cstp_grpc.importing.field_mapping import FieldMapping
from cstp_grpc.importing.model import NotADecisionRecord, ReadResult, RecordError, SkippedRecord
from cstp_grpc.importing.record_dates import FileDates
from cstp_grpc.importing.record_files import (
    JSON_LINES_SUFFIXES,
    MARKDOWN_SUFFIXES,
    SUFFIXES,
    YAML_SUFFIXES,
    InputFile,
    SourceNames,
    find_input_files,
    open_file,
)
from cstp_grpc.importing.structured_records import StructuredRecordReader


def read_records(
    paths: Sequence[Path],
    *,
    mapping: FieldMapping | None = None,
    on_file: Callable[[Path], None] | None = None,
) -> Iterator[ReadResult]:
    """Yield the results of files and folders, in the order of `find_record_files`.

    A Markdown file gives one result, a YAML or JSON Lines file one for each entry. A file or entry that cannot be read
    never stops the others. The `mapping` applies to YAML and JSON Lines. `on_file` is called after each file.
    """
    reader = _FileReader(mapping)
    for file in find_input_files(paths):
        yield from reader.read(file)
        if on_file:
            on_file(file.path)


class _FileReader:
    """Reads each file by its extension; the readers share their caches of work trees, histories and records."""

    def __init__(self, mapping: FieldMapping | None) -> None:
        self._mapping = mapping
        self._sources = SourceNames()
        self._dates = FileDates(self._sources)
        self._adrs = AdrReader(self._sources, self._dates)

    def read(self, file: InputFile) -> Iterator[ReadResult]:
        path, suffix = file.path, file.path.suffix.lower()
        try:
            if suffix in MARKDOWN_SUFFIXES:
                yield self._adrs.read(path)
            elif suffix in YAML_SUFFIXES:
                yield from self._structured(path).read_yaml()
            elif suffix in JSON_LINES_SUFFIXES:
                yield from self._structured(path).read_json_lines()
            else:
                open_file(path).close()
                yield SkippedRecord(path, None, f"only {', '.join(SUFFIXES)} can be read", error=file.named)
        except NotADecisionRecord as skipped:
            yield SkippedRecord(path, skipped.line, skipped.reason, error=False)
        except RecordError as error:
            yield SkippedRecord(path, error.line, error.reason, error=True)
        except OSError as error:
            yield SkippedRecord(path, None, f"it cannot be read: {error.strerror}", error=True)

    def _structured(self, path: Path) -> StructuredRecordReader:
        return StructuredRecordReader(path, self._sources, self._dates, self._mapping)
