"""YAML files of decisions: a list of them, a key `decisions` with a list, or one decision a document."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cstp_grpc.decisions.importing.plain_yaml import Plain, Sequence, Table, load_documents
from cstp_grpc.decisions.importing.records import is_ours
from cstp_grpc.decisions.importing.results import NoDecision, Unreadable

LIST_KEY = "decisions"
TITLE = re.compile(r"""\btitle["']?\s*:""")


def yaml_entries(text: str, *, mapped: bool) -> list[tuple[int, Plain]]:
    """Return the entries of a file, each with the line it begins in.

    Without a mapping, what has none of our fields is no decision: folders hold YAML of all kinds. Raises NoDecision
    and Unreadable.
    """
    try:
        documents = load_documents(text)
    except Unreadable as error:
        if mapped or TITLE.search(text):
            raise
        raise NoDecision(f"it holds no title and so no decisions: {error.reason}", error.line) from None
    entries = [entry for line, document in documents for entry in _entries(line, document)]
    if not any(isinstance(value, Table) and (mapped or is_ours(value)) for _, value in entries):
        raise NoDecision("it holds no decisions")
    return entries


def _entries(line: int, document: Plain) -> Iterator[tuple[int, Plain]]:
    if isinstance(document, Table) and isinstance(document.get(LIST_KEY), Sequence):
        document = document[LIST_KEY]
    if isinstance(document, Sequence):
        yield from zip(document.lines, document, strict=True)
    elif document is not None:
        yield line, document
