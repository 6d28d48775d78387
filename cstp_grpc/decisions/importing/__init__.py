"""Readers of decision records as people write them."""

from cstp_grpc.decisions.importing.files import discover
from cstp_grpc.decisions.importing.mapping import FieldMapping
from cstp_grpc.decisions.importing.mapping_file import MappingError, load_mapping
from cstp_grpc.decisions.importing.reader import read
from cstp_grpc.decisions.importing.results import DateOrigin, Parsed, ReadResult, Skipped

__all__ = [
    "DateOrigin",
    "FieldMapping",
    "MappingError",
    "Parsed",
    "ReadResult",
    "Skipped",
    "discover",
    "load_mapping",
    "read",
]
