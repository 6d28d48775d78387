"""Closes announced intents."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import Outcome
from cstp_grpc.contract.errors import Conflict, NotFound
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.intents.model import Intent, IntentClosing, IntentContended
from cstp_grpc.core.intents.related_intents import RecentIntents
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.platform.storage.background_work import WorkPool
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter


class DecisionReader(Protocol):
    """Reads decisions as an agent may read them."""

    def get(self, decision_id: str, caller: str) -> Decision:
        """Return a decision. Raises NotFound if it does not exist or the caller may not read it."""


@dataclass(frozen=True, slots=True)
class ClosingRequest:
    """How the caller's intent ended; `revision` None means the latest."""

    correlation_id: str
    outcome: Outcome
    notes: str | None = None
    decision_id: str | None = None
    revision: int | None = None


class IntentCloser:
    """Closes intents: closing and audit entry are one transaction, on disk before the answer.

    `pool` reads decisions.
    """

    def __init__(
        self,
        intents: SqlIntentStore,
        recent: RecentIntents,
        decisions: DecisionReader,
        sink: AuditSink,
        writer: GroupCommitWriter,
        clock: Callable[[], datetime],
        pool: WorkPool,
    ) -> None:
        self._intents = intents
        self._recent = recent
        self._decisions = decisions
        self._sink = sink
        self._writer = writer
        self._clock = clock
        self._pool = pool

    async def close(self, request: ClosingRequest, caller: str, request_id: str) -> Intent:
        """Close an intent of the caller and return it; one that is closed in the same way is returned as it is.

        Raises NotFound for an unknown intent or revision and for a decision that the caller may not read, and Conflict
        if the intent is closed in another way.
        """
        if request.decision_id is not None:
            await self._pool.run(self._decisions.get, request.decision_id, caller)
        notes = None if request.notes is None else replace_unstorable(request.notes)
        closing = IntentClosing(self._clock(), request.outcome, notes, request.decision_id)

        def job(unit_of_work: UnitOfWork) -> Intent:
            found = self._intents.find_to_close(unit_of_work, caller, request.correlation_id, request.revision)
            if found is None:
                revision = "" if request.revision is None else f" with a revision {request.revision}"
                raise NotFound(f"you announced no intent {request.correlation_id}{revision}")
            if found.closing is not None:
                return require_same_closing(found, found.closing, closing)
            self._intents.close(unit_of_work, found.key, closing)
            self._recent.note_change(unit_of_work, found.key)
            self._sink.append(unit_of_work, closing_entry(found, closing, request_id))
            return replace(found, closing=closing)

        # As for announcements: a transaction of its own first waits for the lock, and contains no other job whose locks
        # could be waited for in return.
        def job_alone(unit_of_work: UnitOfWork) -> Intent:
            self._intents.hold(unit_of_work, caller, request.correlation_id)
            return job(unit_of_work)

        try:
            closed = await self._writer.write(job)
        except IntentContended:
            closed = await self._writer.write(job_alone, alone=True)
        assert closed.closing is not None
        self._recent.close(closed.key, closed.closing)
        return closed


def closing_entry(intent: Intent, closing: IntentClosing, request_id: str) -> AuditEntry:
    return AuditEntry(
        timestamp=closing.closed_at,
        event=AuditEvent.INTENT_CLOSED,
        requesting_agent=intent.agent,
        request_id=request_id,
        action=intent.intent,
        correlation_id=intent.correlation_id,
        intent_revision=intent.revision,
        decision_id=closing.decision_id,
    )


def require_same_closing(intent: Intent, known: IntentClosing, closing: IntentClosing) -> Intent:
    """Return a closed intent. Raises Conflict if it is to be closed in another way."""
    if not known.repeats(closing):
        raise Conflict(f"the intent is closed already, with the outcome {known.outcome}")
    return intent
