"""Request the approvals that verdicts need, let actions through that have one, and record both."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from cstp_grpc.contract.enums import ApprovalStatus
from cstp_grpc.contract.errors import RateLimited
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink, truncate_action
from cstp_grpc.core.guardrails.checker import ApprovalQuestion
from cstp_grpc.core.guardrails.model import Verdict
from cstp_grpc.modules.approvals.model import (
    Approval,
    ApprovalNotifier,
    ApprovalSubject,
    asking_guardrails,
    digest_of_action,
)
from cstp_grpc.modules.approvals.sql_store import SqlApprovalStore
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter


class NullApprovalNotifier:
    """Sends nothing; for servers without callbacks."""

    def queue_decision(self, unit_of_work: UnitOfWork, approval: Approval) -> None:
        """Do nothing."""


class ApprovalRecorder:
    """Stores new and changed requests within transactions, each with its audit entry.

    `notify` is called after transactions that recorded any.
    """

    def __init__(
        self, store: SqlApprovalStore, sink: AuditSink, notifier: ApprovalNotifier | None, notify: Callable[[], None]
    ) -> None:
        self._store = store
        self._sink = sink
        self._notifier = notifier or NullApprovalNotifier()
        self._notify = notify

    def add(self, unit_of_work: UnitOfWork, approval: Approval, at: datetime) -> None:
        self._store.add(unit_of_work, approval, at)
        self._append_entry(unit_of_work, approval, AuditEvent.APPROVAL_REQUESTED, at, approval.agent, approval.check_id)

    def change(
        self, unit_of_work: UnitOfWork, approval: Approval, event: AuditEvent, at: datetime, agent: str, request_id: str
    ) -> None:
        """Store a change of a request, which an agent caused. Raises Conflict if it has changed since it was read."""
        self._store.update(unit_of_work, approval, at)
        self._append_entry(unit_of_work, approval, event, at, agent, request_id)

    def decide(
        self, unit_of_work: UnitOfWork, approval: Approval, event: AuditEvent, at: datetime, agent: str, request_id: str
    ) -> None:
        """Store a decision on a request as `change` does, and notify its agent unless it is still pending."""
        self.change(unit_of_work, approval, event, at, agent, request_id)
        if approval.status is not ApprovalStatus.PENDING:
            self._notifier.queue_decision(unit_of_work, approval)

    def end(self, unit_of_work: UnitOfWork, found: Approval, at: datetime, request_id: str = "") -> None:
        """End an expired request; an earlier decision on it was sent already."""
        ended = found.expire()
        if ended.status is ApprovalStatus.EXPIRED:
            self.decide(unit_of_work, ended, AuditEvent.APPROVAL_EXPIRED, at, ended.agent, request_id)
        else:
            self._store.update(unit_of_work, ended, at)

    def _append_entry(
        self, unit_of_work: UnitOfWork, approval: Approval, event: AuditEvent, at: datetime, agent: str, request_id: str
    ) -> None:
        self._sink.append(unit_of_work, approval_entry(approval, event, at, agent, request_id))
        # Once the transaction has ended: the woken readers read its commit.
        unit_of_work.call_at_end(self._notify)


def approval_entry(approval: Approval, event: AuditEvent, at: datetime, agent: str, request_id: str) -> AuditEntry:
    """Return the entry of an event, which an agent caused by a request; an expiry may have no request."""
    is_grant = event is AuditEvent.APPROVAL_GRANTED
    # Of a grant, the guardrails for which it was given: others may still be missing.
    guardrails = [
        each for each in approval.guardrails if not is_grant or (each.granted_at, each.granted_by) == (at, agent)
    ]
    description = approval.subject.description
    return AuditEntry(
        timestamp=at,
        event=event,
        requesting_agent=agent,
        request_id=request_id,
        claimed_agent=approval.on_behalf_of,
        action=None if description is None else truncate_action(description),
        violations=tuple(each.id for each in guardrails),
        rule_set_version=approval.rule_set_version,
        correlation_id=approval.correlation_id,
        approval_id=approval.id,
    )


ResultT = TypeVar("ResultT")

MAX_PENDING_SETTING = "approvals.max_pending_per_agent"


class ApprovalRequester:
    """Settles the questions of checks and announcements, each in the transaction that records its verdict.

    An undecided request expires after `lifetime`; an agent has at most `max_pending` of them.
    `instructions` tell it how to have one decided, with `{id}` for the request.
    """

    def __init__(
        self,
        store: SqlApprovalStore,
        recorder: ApprovalRecorder,
        writer: GroupCommitWriter,
        clock: Callable[[], datetime],
        lifetime: timedelta,
        max_pending: int,
        instructions: str | None = None,
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._writer = writer
        self._clock = clock
        self._lifetime = lifetime
        self._max_pending = max_pending
        self._instructions = instructions

    def prepare(self, question: ApprovalQuestion) -> Callable[[UnitOfWork], Verdict]:
        """Return a function that settles a question within the transaction of the verdict; see `ApprovalGate`."""
        # Hashed here: a context may be large, and transactions of all callers wait for each other.
        digest = digest_of_action(question.action, question.on_behalf_of)
        return lambda unit_of_work: self._settle(unit_of_work, question, digest)

    async def write(self, job: Callable[[UnitOfWork], ResultT]) -> ResultT:
        """Run a job in a transaction and return its result once that is on disk. Raises Unavailable."""
        return await self._writer.write(job)

    def _settle(self, unit_of_work: UnitOfWork, question: ApprovalQuestion, digest: str) -> Verdict:
        # Before any read: found requests do not change until the verdict is on record, on any server.
        self._store.hold(unit_of_work)
        at = self._clock()
        found = self._store.find_current(unit_of_work, digest)
        if found is not None and found.is_over(at):
            self._recorder.end(unit_of_work, found, at, question.check_id)
            found = None
        if found is None:
            found = self._request(unit_of_work, question, digest, at)
        elif found.status is not ApprovalStatus.DENIED:
            found = self._ask_again(unit_of_work, found, question, at)
        if found.status is ApprovalStatus.GRANTED:
            used = found.use(at, question.check_id)
            self._recorder.change(
                unit_of_work, used, AuditEvent.APPROVAL_USED, at, question.action.agent, question.check_id
            )
            return question.verdict.approved_by(used.stated_as(ApprovalStatus.USED))
        stated = found.stated_as(found.status)
        if self._instructions is not None and found.status is ApprovalStatus.PENDING:
            stated = replace(stated, instructions=self._instructions.replace("{id}", found.id))
        return replace(question.verdict, approval=stated)

    def _request(self, unit_of_work: UnitOfWork, question: ApprovalQuestion, digest: str, at: datetime) -> Approval:
        """Store a new request. Raises RateLimited."""
        action, verdict = question.action, question.verdict
        if self._store.count_pending(unit_of_work, action.agent, at) >= self._max_pending:
            raise too_many_pending_error(action.agent, self._max_pending)
        requested = Approval(
            id=f"apr-{secrets.token_hex(10)}",
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
        self._recorder.add(unit_of_work, requested, at)
        return requested

    def _ask_again(
        self, unit_of_work: UnitOfWork, found: Approval, question: ApprovalQuestion, at: datetime
    ) -> Approval:
        """Return a request after another check of its action, for which other guardrails and approvers may ask."""
        asked = found.ask(asking_guardrails(question.verdict.violations, keeps_content=question.keeps_content))
        if asked.status is ApprovalStatus.GRANTED:
            # Stored when it is used, which is next.
            return asked
        if question.callback_url is not None:
            asked = replace(asked, callback_url=question.callback_url, correlation_id=question.correlation_id)
        if asked.guardrails != found.guardrails:
            self._recorder.change(
                unit_of_work, asked, AuditEvent.APPROVAL_REQUESTED, at, asked.agent, question.check_id
            )
        elif asked != found:
            self._store.update(unit_of_work, asked, at)
        return asked


def too_many_pending_error(agent: str, limit: int) -> RateLimited:
    """Return the error for a request beyond the limit; without a time to retry, since people end it."""
    return RateLimited(
        f"{agent} has {limit} approval requests pending, which is the limit ({MAX_PENDING_SETTING}); "
        "the action needs an approval, and cannot request one until others are decided",
        metadata={"limit": str(limit)},
    )
