"""A journal with a supervised index."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.journal_transaction import JournalStores
from cstp_grpc.core.decisions.model import DecisionContent, DecisionFilter, ImportRecord
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.search.chroma_index import ChromaIndex
from cstp_grpc.core.decisions.search.chroma_process import ChildChromaServer, ChromaServer
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch, IndexUse
from cstp_grpc.core.decisions.search.index_supervisor import IndexFeeder, IndexSupervisor
from cstp_grpc.core.decisions.search.matrix_sync import MatrixSync
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_history import SqlHistoryStore
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.platform.embedding.embedder import UncachedEmbedder, Vectors
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import Recorder
from tests.waiting import wait_until

FEED_INTERVAL = 0.02
NOW = datetime(2026, 3, 1, tzinfo=UTC)


class SpreadEmbedder(UncachedEmbedder):
    """Gives every word a direction of its own.

    Unlike hashed words, such vectors are spread as those of a real model are, which an approximate index relies on.
    """

    model = "spread v1"
    dimensions = 64

    def embed(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for word in text.split():
                vector += direction_of(word, self.dimensions)
            vector /= np.linalg.norm(vector)
        return vectors


@functools.cache
def direction_of(word: str, dimensions: int) -> NDArray[np.float64]:
    return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(dimensions)


class IndexedJournal:
    """A journal, a search that always asks the index, and the index's supervisor."""

    def __init__(self, database: Database, writer: GroupCommitWriter, folder: Path) -> None:
        self.folder = folder
        self.embedder = SpreadEmbedder()
        self.store = SqlDecisionStore(database, SHARE_WITH_ALL)
        self.outbox = SqlChangeLog(database, writer)
        self.matrix = VectorMatrix(self.embedder.dimensions, SHARE_WITH_ALL)
        self.mirror = MatrixSync(self.store, self.embedder.model, self.matrix)
        self.journal = Journal(
            JournalStores(self.store, SqlHistoryStore(database), self.outbox),
            writer,
            self.embedder,
            Recorder(),
            lambda: NOW,
            self.matrix.apply,
        )
        self.chroma = ChildChromaServer(folder)
        self.server: ChromaServer = self.chroma
        self.supervisor = self.new_supervisor()
        self.started: list[IndexSupervisor] = []

    def new_supervisor(self, start_size: int = 0) -> IndexSupervisor:
        feeder, embedder = IndexFeeder(self.store, self.outbox, self.embedder.model), self.embedder
        return IndexSupervisor(
            self.server, feeder, self.matrix, embedder.model, embedder.dimensions, FEED_INTERVAL, start_size
        )

    def record(self, *titles: str) -> None:
        records = [ImportRecord(title, DecisionContent(title=title, visibility=Visibility.SHARED)) for title in titles]
        self.journal.import_batch(records, "alice", "req-1")

    def start(self, start_size: int = 0) -> None:
        self.mirror.refresh()
        self.supervisor = self.new_supervisor(start_size)
        self.started.append(self.supervisor)
        self.supervisor.start()

    def stop(self) -> None:
        for supervisor in self.started:
            supervisor.stop()

    def wait_for(self, state: str) -> None:
        wait_until(lambda: self.supervisor.state().startswith(state), f"the index is {state}")

    def wait_until_complete(self) -> None:
        """Wait until the index is ready and has taken every change."""
        newest = max((row.revision for row in self.store.index_rows(self.embedder.model)), default=-1)
        self.wait_for("ready")
        wait_until(lambda: self.supervisor.revision >= newest, "the index has taken everything")

    def proposals(self, query: str, count: int) -> list[str]:
        """The titles that the index itself proposes."""
        ids = self.supervisor.propose(self.embedder.embed([query])[0], count)
        found = self.store.get_readable(ids, "bob", DecisionFilter())
        return [found[decision_id].title for decision_id in ids if decision_id in found]

    def found(self, query: str, limit: int = 1) -> list[str]:
        """The titles that a search finds, by way of the index while it is ready."""
        search = DecisionSearch(self.store, self.matrix, self.embedder, IndexUse(self.supervisor, 0, 50))
        return [item.decision.title for item in search.search(query, DecisionFilter(), "bob", limit, 0.9)]

    def open_index(self, url: str) -> ChromaIndex:
        return ChromaIndex.open(url, self.embedder.model, self.embedder.dimensions)
