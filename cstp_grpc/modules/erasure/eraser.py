"""Erases the data of an agent, batch by batch, and records that in the audit trail."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from datetime import datetime
from typing import Final

from cstp_grpc.common.counted_nouns import count_audit_contents, count_nouns
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.caller import Caller
from cstp_grpc.contract.enums import DEFAULT_TENANT, SERVER_AGENTS
from cstp_grpc.contract.errors import InvalidArgument, PermissionDenied
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink, truncate_action
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.model import RemovalFilter
from cstp_grpc.modules.erasure.audit_contents import AuditContentEraser
from cstp_grpc.modules.erasure.sql_store import ERASED_AGENT, ErasureReport, SqlAgentRecordStore
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

DECISIONS_AT_ONCE: Final = 50
"""Decisions erased in one transaction, each with its reviews, vectors and links. Chosen: other writes wait for it."""
ROWS_AT_ONCE: Final = 200
"""Rows of other kinds erased in one transaction."""


class AgentEraser:
    """Erases the data of agents; `on_erased` are called when it is gone from the database.

    `find_tenants` returns the tenants that an agent is known to belong to.
    """

    def __init__(
        self,
        store: SqlAgentRecordStore,
        journal: Journal,
        sink: AuditSink,
        writer: GroupCommitWriter,
        clock: Callable[[], datetime],
        audit_contents: AuditContentEraser,
        on_erased: Sequence[Callable[[], object]],
        find_tenants: Callable[[str], Set[str]],
    ) -> None:
        self._store = store
        self._journal = journal
        self._sink = sink
        self._writer = writer
        self._clock = clock
        self._audit_contents = audit_contents
        self._on_erased = on_erased
        self._find_tenants = find_tenants

    def erase(self, caller: Caller, agent: str) -> ErasureReport:
        """Erase the data of an agent. If it is interrupted, a repetition continues.

        Raises InvalidArgument for a name of the server's own, PermissionDenied for an agent of another tenant,
        QueryFailed and Unavailable.
        """
        agent, store = self._require_erasable(caller, agent), self._store
        # The audit trail first: its entries about decisions and requests are found by these, which go next.
        contents = self._audit_contents.erase(caller, lambda last: store.find_audit_contents(agent, last, ROWS_AT_ONCE))
        report = ErasureReport(
            # Before the decisions, with which the database deletes those about them.
            thoughts=self._repeat(lambda unit_of_work: store.erase_thoughts(unit_of_work, agent, ROWS_AT_ONCE)),
            decisions=self._erase_decisions(caller, agent),
            reviews=self._repeat(lambda unit_of_work: store.erase_reviews(unit_of_work, agent, ROWS_AT_ONCE)),
            intents=self._repeat(
                lambda unit_of_work: store.erase_intents(unit_of_work, agent, self._clock(), ROWS_AT_ONCE)
            ),
            approvals=self._repeat(lambda unit_of_work: store.erase_approvals(unit_of_work, agent, ROWS_AT_ONCE)),
            tasks=self._repeat(lambda unit_of_work: store.erase_tasks(unit_of_work, agent, ROWS_AT_ONCE)),
            callbacks=self._repeat(lambda unit_of_work: store.erase_callbacks(unit_of_work, agent, ROWS_AT_ONCE)),
            audit_entries=contents,
        )
        self._repeat(lambda unit_of_work: store.forget_owner(unit_of_work, agent, ROWS_AT_ONCE))
        for notify in self._on_erased:
            notify()
        # Last, so that it records the finished work. If killed before, the repetition records the rest.
        self._sink.record(erasure_entry(caller, agent, report, self._clock()))
        return report

    def count(self, caller: Caller, agent: str) -> ErasureReport:
        """Return how much `erase` would take now. Raises InvalidArgument, PermissionDenied and QueryFailed."""
        return self._store.count_records(self._require_erasable(caller, agent))

    def _require_erasable(self, caller: Caller, agent: str) -> str:
        """Return the name of an agent as it is stored. Raises InvalidArgument and PermissionDenied."""
        if agent == ERASED_AGENT or agent in SERVER_AGENTS:
            raise InvalidArgument.field("agent", "is a name that the server itself uses")
        # Nothing that an agent has left names its tenant. One that is not known any more is for the default tenant.
        if (self._find_tenants(agent) or {DEFAULT_TENANT}) != {caller.tenant}:
            raise PermissionDenied(
                f"agent: {agent} is not known as an agent of your tenant; ask an admin of its tenant"
            )
        return replace_unstorable(agent)

    def _erase_decisions(self, caller: Caller, agent: str) -> int:
        erased = 0
        while count := self._journal.remove(
            RemovalFilter(agent=agent), DECISIONS_AT_ONCE, "erased", caller.agent, caller.request_id, ERASED_AGENT
        ):
            erased += count
        return erased

    def _repeat(self, job: Callable[[UnitOfWork], int]) -> int:
        """Run a job until it leaves nothing, in a transaction each time, and return how much it took."""
        taken = 0
        while True:
            count = self._writer.run(job)
            taken += count
            if count < ROWS_AT_ONCE:
                return taken


def erasure_entry(caller: Caller, agent: str, report: ErasureReport, at: datetime) -> AuditEntry:
    """Return the audit entry of an erasure: the caller, the agent, and the numbers."""
    erased = count_nouns(
        (report.decisions, "decision"),
        (report.reviews, "review"),
        (report.intents, "intent"),
        (report.approvals, "approval request"),
        (report.tasks, "task"),
        (report.callbacks, "callback"),
        (report.thoughts, "thought"),
    )
    text = f"erase what {agent} left: {erased}; {count_audit_contents(report.audit_entries)}"
    return AuditEntry(
        timestamp=at,
        event=AuditEvent.AGENT_ERASED,
        requesting_agent=caller.agent,
        request_id=caller.request_id,
        action=truncate_action(text),
    )
