"""Reading decision records from files and folders, whatever their format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cstp_grpc.decisions.importing.adr_reader import AdrReader
from cstp_grpc.decisions.importing.file_dates import FileDates
from cstp_grpc.decisions.importing.files import JSON_LINES, MARKDOWN, YAML, Found, find_files, open_file, read_text
from cstp_grpc.decisions.importing.history import FirstCommits
from cstp_grpc.decisions.importing.json_lines import numbered_lines, parse_line
from cstp_grpc.decisions.importing.mapping import FieldMapping
from cstp_grpc.decisions.importing.records import EntryReader
from cstp_grpc.decisions.importing.results import NoDecision, ReadResult, Skipped, Unreadable
from cstp_grpc.decisions.importing.sources import Sources
from cstp_grpc.decisions.importing.yaml_records import yaml_entries

SUFFIXES = (*MARKDOWN, *YAML, *JSON_LINES)


def read(
    paths: Sequence[Path],
    *,
    mapping: FieldMapping | None = None,
    on_file: Callable[[Path], None] | None = None,
) -> Iterator[ReadResult]:
    """Yield what is in files and folders, in the order of `discover`.

    A Markdown file gives one result, a YAML or JSON Lines file one for each entry, and one file or entry that cannot be
    read never stops the others. The `mapping` is for YAML and JSON Lines. `on_file` is called after each file.
    """
    reader = _Reader(mapping)
    for found in find_files(paths):
        yield from reader.read(found)
        if on_file:
            on_file(found.path)


class _Reader:
    def __init__(self, mapping: FieldMapping | None) -> None:
        self._mapping = mapping
        self._sources = Sources()
        self._dates = FileDates(self._sources, FirstCommits(SUFFIXES))
        self._adrs = AdrReader(self._sources, self._dates)

    def read(self, found: Found) -> Iterator[ReadResult]:
        path = found.path
        suffix = path.suffix.lower()
        try:
            if suffix in MARKDOWN:
                yield self._adrs.read(path)
            elif suffix in YAML:
                yield from self._yaml(path)
            elif suffix in JSON_LINES:
                yield from self._json_lines(path)
            else:
                open_file(path).close()
                yield Skipped(path, None, f"only {', '.join(SUFFIXES)} can be read", error=found.named)
        except NoDecision as none:
            yield Skipped(path, none.line, none.reason, error=False)
        except Unreadable as error:
            yield Skipped(path, error.line, error.reason, error=True)
        except OSError as error:
            yield Skipped(path, None, f"it cannot be read: {error.strerror}", error=True)

    def _yaml(self, path: Path) -> Iterator[ReadResult]:
        entries = self._entry_reader(path)
        found = yaml_entries(read_text(path), mapped=self._mapping is not None)
        for line, entry in found:
            try:
                yield entries.read(entry, line, alone=len(found) == 1)
            except Unreadable as error:
                yield Skipped(path, line, error.reason, error=True)

    def _json_lines(self, path: Path) -> Iterator[ReadResult]:
        entries = self._entry_reader(path)
        with open_file(path) as file:
            number = 0
            for number, data in numbered_lines(file):
                try:
                    yield entries.read(parse_line(data), number)
                except Unreadable as error:
                    yield Skipped(path, number, error.reason, error=True)
            if number == 0:
                raise NoDecision("it is empty")

    def _entry_reader(self, path: Path) -> EntryReader:
        return EntryReader(path, self._sources, self._dates, self._mapping)
