"""A journal on a real database, with everything that it tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cstp_grpc.contract.enums import DecisionStatus
from cstp_grpc.core.audit.model import AuditEntry, NullAuditSink
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.journal_transaction import JournalStores
from cstp_grpc.core.decisions.model import Decision, DecisionContent, ImportRecord, Links, Reason, SourceLinks
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_history import SqlHistoryStore
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import ErasedRow, IndexRow
from cstp_grpc.platform.embedding.embedder import Vectors
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

WHOLE = DecisionContent(
    title="put jobs on a queue",
    context="the nightly run takes too long",
    notes="measure first",
    reasons=(Reason("analysis", "it scales", 0.5),),
    tags=("ops", "data"),
)


class Clock:
    """Tells an instant that is a second later each time."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


class Recorder(NullAuditSink):
    """A trail that remembers."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []

    def append(self, unit_of_work: UnitOfWork, entry: AuditEntry) -> None:
        self.entries.append(entry)


class Hearer:
    """A listener that keeps the newest row of each decision."""

    def __init__(self) -> None:
        self.rows: dict[str, IndexRow] = {}
        self.erased: dict[str, int] = {}

    def __call__(self, rows: Sequence[IndexRow]) -> None:
        for row in rows:
            known = self.rows.get(row.decision_id)
            if known is None or row.revision >= known.revision:
                self.rows[row.decision_id] = row

    def forget(self, erased: Sequence[ErasedRow]) -> None:
        for row in erased:
            self.rows.pop(row.decision_id, None)
            self.erased[row.decision_id] = row.revision


class CountingEmbedder(LexicalEmbedder):
    """An embedder that remembers its texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        return super().embed(texts)


class JournalKit:
    """A journal and its surroundings."""

    def __init__(self, database: Database, writer: GroupCommitWriter, sharing: ReadPolicy = SHARE_WITH_ALL) -> None:
        self.clock = Clock()
        self.trail = Recorder()
        self.heard = Hearer()
        self.embedder = CountingEmbedder()
        self.outbox = SqlChangeLog(database)
        self.store = SqlDecisionStore(database, sharing)
        self.history = SqlHistoryStore(database)
        self.writer = writer
        self.journal = self.build_journal(self.store)

    def build_journal(self, store: SqlDecisionStore) -> Journal:
        """Return a journal that writes to a store."""
        return Journal(
            JournalStores(store, self.history, self.outbox),
            self.writer,
            self.embedder,
            self.trail,
            self.clock,
            self.heard,
            erasure_listener=self.heard.forget,
        )


def plain(row: IndexRow) -> tuple[object, ...]:
    """A row that can be compared."""
    values = [getattr(row, name) for name in IndexRow.__slots__ if name not in ("passages", "terms")]
    return (*values, row.passages.vectors.tobytes(), row.passages.has_lesson, row.terms.tobytes())


def record(kit: JournalKit, caller: str = "alice", key: str | None = None, **fields: Any) -> Decision:
    """Record a decision; `fields` are those of its content."""
    content = replace(WHOLE, **fields)
    return kit.journal.record(content, Links(), caller, "request-1", key)


def bring(kit: JournalKit, source: str, links: SourceLinks | None = None, caller: str = "alice", **fields: Any) -> str:
    """Import one decision and return its id."""
    content = replace(WHOLE, **fields)
    (result,) = kit.journal.import_batch([ImportRecord(source, content, links or SourceLinks())], caller, "request-1")
    return result.decision_id


def decision_status(kit: JournalKit, decision_id: str) -> DecisionStatus:
    return kit.journal.get(decision_id, "alice").status


def update(kit: JournalKit, key: str, *names: str, revision: int | None = None, **fields: Any) -> Decision:
    """Update a decision of alice's; `fields` are those of its content, which are set, and `names` others."""
    content = replace(DecisionContent(title=""), **fields)
    return kit.journal.update(key, content, [*fields, *names], revision, "alice", "request-2")[0]
