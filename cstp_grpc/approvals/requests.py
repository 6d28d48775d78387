"""Requests the approvals that verdicts need, and lets actions through that have one."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from cstp_grpc.approvals.audit_entries import approval_entry
from cstp_grpc.approvals.model import (
    Approval,
    ApprovalStore,
    ApprovalSubject,
    asking_guardrails,
    digest_of_action,
)
from cstp_grpc.audit.model import AuditEvent, AuditSink
from cstp_grpc.enums import ApprovalStatus
from cstp_grpc.errors import RateLimited
from cstp_grpc.guardrails.checker import ApprovalQuestion
from cstp_grpc.guardrails.model import Verdict
from cstp_grpc.storage.unit_of_work import UnitOfWork
from cstp_grpc.storage.writer import GroupCommitWriter

ResultT = TypeVar("ResultT")

MAX_PENDING_SETTING = "approvals.max_pending_per_agent"


class ApprovalRequester:
    """Settles the questions of checks and announcements, each in the transaction that records its verdict.

    A request that nobody decides on expires after `lifetime`; an agent has at most `max_pending` of them. `notify` is
    called after transactions that changed any.
    """

    def __init__(
        self,
        store: ApprovalStore,
        sink: AuditSink,
        writer: GroupCommitWriter,
        clock: Callable[[], datetime],
        lifetime: timedelta,
        max_pending: int,
        notify: Callable[[], None],
    ) -> None:
        self._store = store
        self._sink = sink
        self._writer = writer
        self._clock = clock
        self._lifetime = lifetime
        self._max_pending = max_pending
        self._notify = notify

    def prepare(self, question: ApprovalQuestion) -> Callable[[UnitOfWork], Verdict]:
        """Return what settles a question within the transaction that records the verdict; see `ApprovalGate`."""
        # Hashed here: a context may be large, and transactions of all callers wait for each other.
        digest = digest_of_action(question.action, question.on_behalf_of)
        return lambda unit_of_work: self._settle(unit_of_work, question, digest)

    async def write(self, job: Callable[[UnitOfWork], ResultT]) -> ResultT:
        """Run a job in a transaction and return its result once that is on disk. Raises Unavailable."""
        return await self._writer.write(job)

    def _settle(self, unit_of_work: UnitOfWork, question: ApprovalQuestion, digest: str) -> Verdict:
        # Before anything is read: what is found stays as it is until the verdict is on record, on whichever server.
        self._store.hold(unit_of_work)
        at = self._clock()
        found = self._store.find_current(unit_of_work, digest)
        if found is not None and found.is_over(at):
            self._end(unit_of_work, found, at, question)
            found = None
        if found is None:
            found = self._request(unit_of_work, question, digest, at)
        elif found.status is not ApprovalStatus.DENIED:
            found = self._ask_again(unit_of_work, found, question, at)
        if found.status is ApprovalStatus.GRANTED:
            used = found.use(at, question.check_id)
            self._record(unit_of_work, used, AuditEvent.APPROVAL_USED, at, question)
            return question.verdict.approved_by(used.stated_as(ApprovalStatus.USED))
        return replace(question.verdict, approval=found.stated_as(found.status))

    def _end(self, unit_of_work: UnitOfWork, found: Approval, at: datetime, question: ApprovalQuestion) -> None:
        """End a request whose time has run out, in whose place another one comes."""
        ended = found.expire()
        if ended.status is ApprovalStatus.EXPIRED:
            self._record(unit_of_work, ended, AuditEvent.APPROVAL_EXPIRED, at, question)
        else:
            self._store.update(unit_of_work, ended, at)

    def _request(self, unit_of_work: UnitOfWork, question: ApprovalQuestion, digest: str, at: datetime) -> Approval:
        """Store a new request. Raises RateLimited."""
        action, verdict = question.action, question.verdict
        if self._store.count_pending(unit_of_work, action.agent, at) >= self._max_pending:
            raise too_many_pending_error(action.agent, self._max_pending)
        requested = Approval(
            id=new_approval_id(),
            digest=digest,
            agent=action.agent,
            subject=ApprovalSubject.of(action, keeps_content=question.keeps_content),
            guardrails=asking_guardrails(verdict.violations, keeps_content=question.keeps_content),
            created_at=at,
            expires_at=at + self._lifetime,
            check_id=question.check_id,
            rule_set_version=verdict.rule_set_version,
            on_behalf_of=question.on_behalf_of,
            correlation_id=question.correlation_id,
            callback_url=question.callback_url,
        )
        self._store.add(unit_of_work, requested, at)
        self._append_entry(unit_of_work, requested, AuditEvent.APPROVAL_REQUESTED, at, question)
        return requested

    def _ask_again(
        self, unit_of_work: UnitOfWork, found: Approval, question: ApprovalQuestion, at: datetime
    ) -> Approval:
        """Return a request after another check of its action, which may add guardrails that ask."""
        guardrails = asking_guardrails(question.verdict.violations, keeps_content=question.keeps_content)
        asked = found.ask(guardrails)
        if asked is not found:
            # Others ask, or name other approvers, than when it was requested or granted: it does not cover them.
            self._record(unit_of_work, asked, AuditEvent.APPROVAL_REQUESTED, at, question)
            return self._reload(unit_of_work, asked)
        waits_elsewhere = question.callback_url is not None and (
            (question.callback_url, question.correlation_id) != (found.callback_url, found.correlation_id)
        )
        if waits_elsewhere and found.status is ApprovalStatus.PENDING:
            moved = replace(found, callback_url=question.callback_url, correlation_id=question.correlation_id)
            self._store.update(unit_of_work, moved, at)
            return moved
        return found

    def _reload(self, unit_of_work: UnitOfWork, approval: Approval) -> Approval:
        stored = self._store.load(unit_of_work, approval.id)
        assert stored is not None, "it was stored in this transaction"
        return stored

    def _record(
        self, unit_of_work: UnitOfWork, approval: Approval, event: AuditEvent, at: datetime, question: ApprovalQuestion
    ) -> None:
        """Store a change of a request with its audit entry."""
        self._store.update(unit_of_work, approval, at)
        self._append_entry(unit_of_work, approval, event, at, question)

    def _append_entry(
        self, unit_of_work: UnitOfWork, approval: Approval, event: AuditEvent, at: datetime, question: ApprovalQuestion
    ) -> None:
        entry = approval_entry(approval, event, at, approval.agent, question.check_id)
        self._sink.append(unit_of_work, entry)
        # Once the transaction has ended: whoever is woken reads what it has committed.
        unit_of_work.call_at_end(self._notify)


def new_approval_id() -> str:
    """Return a new id for an approval request, which cannot be guessed."""
    return f"apr-{secrets.token_hex(10)}"


def too_many_pending_error(agent: str, limit: int) -> RateLimited:
    """Return the error for a request beyond the limit; without a time to retry, since people end it."""
    return RateLimited(
        f"{agent} has {limit} approval requests pending, which is the limit ({MAX_PENDING_SETTING}); "
        "the action needs an approval, and cannot request one until others are decided",
        metadata={"limit": str(limit)},
    )
