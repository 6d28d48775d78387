"""Approvals on a database, with a clock that tests set."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

from cstp_grpc.contract.caller import Caller
from cstp_grpc.contract.enums import Permission, Severity
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.guardrails.checker import ApprovalQuestion
from cstp_grpc.core.guardrails.model import Action, Verdict, Violation
from cstp_grpc.modules.approvals.model import Approval
from cstp_grpc.modules.approvals.requests import ApprovalRecorder, ApprovalRequester
from cstp_grpc.modules.approvals.review import ApprovalReviewer
from cstp_grpc.modules.approvals.sql_store import SqlApprovalStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
LIFETIME = timedelta(hours=1)
MAX_REUSE = timedelta(days=7)
MANY_ROWS = Violation("many-rows", "Many Rows", "A person approves this", Severity.APPROVE)
PRICES = Violation("prices", "Prices", "Bob approves prices", Severity.APPROVE, approvers=("bob",))
ACTION = Action("Update prices", agent="alice", context={"rows": 5000})


def approver(name: str) -> Caller:
    """Return an agent that may approve."""
    return Caller(name, name, frozenset({Permission.APPROVE}), f"r-{name}")


@dataclass
class Notices:
    """Notes what agents are told of decisions."""

    queued: list[Approval] = field(default_factory=list)

    def queue_decision(self, unit_of_work: UnitOfWork, approval: Approval) -> None:
        self.queued.append(approval)


class ApprovalKit:
    """Approvals of one server on a database, whose clock tests set."""

    def __init__(self, database: Database, writer: GroupCommitWriter, max_pending: int = 100) -> None:
        self.now = NOON
        self.writer = writer
        self.notices = Notices()
        self.wakes = 0
        self.store = SqlApprovalStore(database)
        self.trail = SqlAuditTrail(database, writer)
        recorder = ApprovalRecorder(self.store, self.trail, self.notices, self._note_wake)
        self.requester = ApprovalRequester(self.store, recorder, writer, self.clock, LIFETIME, max_pending)
        self.reviewer = ApprovalReviewer(
            self.store, recorder, writer, self.clock, lifetime=LIFETIME, max_reuse=MAX_REUSE
        )
        self._checks = count(1)

    def clock(self) -> datetime:
        """Return the instant that the test has set."""
        return self.now

    def check(
        self,
        action: Action = ACTION,
        *violations: Violation,
        url: str | None = None,
        on_behalf_of: str | None = None,
    ) -> Verdict:
        """Return the verdict on an action for which guardrails ask, many rows unless others are given."""
        asked = violations or (MANY_ROWS,)
        verdict = Verdict(asked, (), len(asked), "rules@1+abc", allowed=False)
        question = ApprovalQuestion(action, verdict, f"check-{next(self._checks)}", on_behalf_of, "c-1", url)
        return self.writer.run(self.requester.prepare(question))

    def request(self, action: Action = ACTION, *violations: Violation) -> str:
        """Return the id of the request for an action."""
        approval = self.check(action, *violations).approval
        assert approval is not None
        return approval.id

    def read(self, approval_id: str) -> Approval:
        """Return a request."""
        return self.reviewer.get(approval_id, approver("auditor"))

    def _note_wake(self) -> None:
        self.wakes += 1
