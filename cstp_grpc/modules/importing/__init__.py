"""Reads decision records from files: architecture decision records in Markdown, YAML and JSON Lines."""

from cstp_grpc.modules.importing.field_mapping import FieldMapping, MappingError, load_mapping
from cstp_grpc.modules.importing.model import DateOrigin, ParsedRecord, ReadResult, SkippedRecord
from cstp_grpc.modules.importing.read_records import read_records
from cstp_grpc.modules.importing.record_files import find_record_files

__all__ = [
    "DateOrigin",
    "FieldMapping",
    "MappingError",
    "ParsedRecord",
    "ReadResult",
    "SkippedRecord",
    "find_record_files",
    "load_mapping",
    "read_records",
]
