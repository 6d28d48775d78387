"""A store of decisions beside what writes to it, and what the contract says of listings."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from sqlalchemy import text

from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.decisions.lifecycle import new_entry
from cstp_grpc.core.decisions.model import (
    Decision,
    DecisionContent,
    DecisionFilter,
)
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import DeclaredLinks, JournalEntry, PassageVectors
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.example_counts import examples

MODEL = "model-a"


NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


EVERYTHING = DecisionFilter()


# Examples share a database; each brings agents of its own, so that none sees another's private decisions.
slow = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Shelf:
    """A store beside what writes to it."""

    def __init__(
        self, open_store: Callable[[ReadPolicy], SqlDecisionStore], writer: GroupCommitWriter, outbox: SqlChangeLog
    ) -> None:
        self.open_store = open_store
        self.store = open_store(SHARE_WITH_ALL)
        self._writer = writer
        self._outbox = outbox

    def add(self, *entries: JournalEntry, vectors: bool = True) -> None:
        """Add decisions, with a vector each."""

        def job(unit_of_work: UnitOfWork) -> None:
            self.store.insert(unit_of_work, self._revised(unit_of_work, entries), NOW)
            if vectors:
                ids = [entry.decision.id for entry in entries]
                self.store.put_vectors(unit_of_work, MODEL, [(key, passages_of(key)) for key in ids])

        self._writer.run(job)

    def replace(self, *entries: JournalEntry) -> None:
        """Replace decisions."""
        self._writer.run(
            lambda unit_of_work: self.store.update(unit_of_work, self._revised(unit_of_work, entries), NOW)
        )

    def declare(self, *declarations: DeclaredLinks) -> set[str]:
        """Replace the links that decisions declare."""
        return self._writer.run(lambda unit_of_work: self.store.declare(unit_of_work, declarations))

    def superseded(self, ids: Sequence[str]) -> set[str]:
        """Return those that are superseded."""
        return self._writer.run(lambda unit_of_work: self.store.find_superseded(unit_of_work, ids))

    def load(self, ids: Sequence[str]) -> dict[str, JournalEntry]:
        """Return entries by id."""
        return self._writer.run(lambda unit_of_work: self.store.load(unit_of_work, ids))

    def find_recorded(self, agent: str, key: str) -> JournalEntry | None:
        """Return the decision that an agent recorded under a key."""
        return self._writer.run(lambda unit_of_work: self.store.find_recorded(unit_of_work, agent, key))

    def put_vectors(self, model: str, *ids: str) -> None:
        """Set vectors."""
        pairs = [(key, passages_of(key)) for key in ids]
        self._writer.run(lambda unit_of_work: self.store.put_vectors(unit_of_work, model, pairs))

    def run(self, statement: str) -> None:
        """Run a statement of SQL."""
        self._writer.run(lambda unit_of_work: unit_of_work.execute(text(statement)))

    def _revised(self, unit_of_work: UnitOfWork, entries: Sequence[JournalEntry]) -> list[tuple[JournalEntry, int]]:
        return [(entry, self._outbox.append(unit_of_work, entry.decision.id)) for entry in entries]


def vector_of(key: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(len(key)).random(8, dtype=np.float32)


def passages_of(key: str) -> PassageVectors:
    """Two passages, the second of the lesson."""
    return PassageVectors(np.stack([vector_of(key), -vector_of(key)]), has_lesson=True)


def entry(agent: str = "alice", content: DecisionContent | None = None, **changes: Any) -> JournalEntry:
    """A new decision of an agent; `changes` are fields of its content."""
    said = replace(content or DecisionContent(title="use a queue"), **changes)
    return new_entry(f"dec-{uuid.uuid4().hex[:20]}", said, "hash", agent, NOW)


def shared(decision: Decision) -> bool:
    return decision.visibility is Visibility.SHARED


def all_pages(store: SqlDecisionStore, caller: str, wanted: DecisionFilter, size: int) -> list[Decision]:
    """Every decision of a listing, page by page."""
    found: list[Decision] = []
    token = ""
    while True:
        page = store.page(caller, wanted, PageRequest(size, token))
        assert len(page.items) <= size
        found += page.items
        assert len({item.id for item in found}) == len(found)
        token = page.next_token
        if not token:
            return found
        assert len(page.items) == size


def without_private(decision: Decision, *, source: bool) -> Decision:
    reasons = tuple(replace(reason, text="") for reason in decision.reasons)
    if not source:
        decision = replace(decision, source=None, review_by=None)
    return replace(decision, context=None, reasons=reasons)


def meets(decision: Decision, wanted: DecisionFilter) -> bool:
    """The contract's words on filters, one by one."""
    rules: Iterable[bool] = (
        wanted.category is None or decision.category == wanted.category,
        wanted.project is None or decision.project == wanted.project,
        wanted.agent is None or decision.agent == wanted.agent,
        wanted.without_agent is None or decision.agent != wanted.without_agent,
        wanted.min_confidence is None
        or (decision.confidence is not None and decision.confidence >= wanted.min_confidence),
        wanted.max_confidence is None
        or (decision.confidence is not None and decision.confidence <= wanted.max_confidence),
        wanted.date_after is None or decision.date >= wanted.date_after,
        wanted.date_before is None or decision.date <= wanted.date_before,
        not wanted.stakes or decision.stakes in wanted.stakes,
        not wanted.status or decision.status in wanted.status,
        not wanted.outcome or decision.outcome in wanted.outcome,
        set(wanted.tags) <= set(decision.tags),
    )
    return all(rules)
