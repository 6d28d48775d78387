"""Journals on SQLite, with an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cstp_grpc.core.decisions.search import chroma_index
from cstp_grpc.platform.storage.database import open_database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.index.indexed import IndexedJournal
from tests.databases import POOL_SIZE, write_journal

OpenJournal = Callable[[str], IndexedJournal]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for an answer than a search does, for servers that have just started on a busy machine."""
    monkeypatch.setattr(chroma_index, "QUERY_SECONDS", 20.0)


@pytest.fixture
def open_journal(tmp_path: Path) -> Iterator[OpenJournal]:
    """Opens journals by their names, which exist or are made, each with the same index folder beside them.

    The kind of the database makes no difference to the index.
    """
    with ExitStack() as opened:

        def open_named(name: str) -> IndexedJournal:
            path = tmp_path / f"{name}.db"
            if not path.exists():
                write_journal(path)
            database = open_database(f"sqlite:///{path}", POOL_SIZE)
            opened.callback(database.close)
            writer = GroupCommitWriter(database, timeout=10.0)
            opened.callback(writer.close)
            journal = IndexedJournal(database, writer, tmp_path / "index")
            opened.callback(journal.stop)
            return journal

        yield open_named


@pytest.fixture
def journal(open_journal: OpenJournal) -> IndexedJournal:
    """A journal whose index is not started yet."""
    return open_journal("journal")
