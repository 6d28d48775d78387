"""Approval requests: their subjects, and the decisions of people on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from cstp_grpc.common.canonical_json import hash_canonical_json
from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.enums import ApprovalStatus, Stakes
from cstp_grpc.contract.errors import Conflict, InvalidArgument, PermissionDenied
from cstp_grpc.core.commands.model import NO_INVOCATION, Invocation
from cstp_grpc.core.guardrails.model import Action, VerdictApproval, Violation
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

DIGEST_VERSION: Final = 1
"""The version of the statement whose hash is the digest; another form of it needs another version."""
UNDECIDED: Final = frozenset({ApprovalStatus.PENDING, ApprovalStatus.GRANTED})
"""The states that end with the time of a request."""


@dataclass(frozen=True, slots=True)
class ApprovalSubject:
    """The next action of an agent, as the agent stated it.

    `description` is None, and the following are empty, if contents are not kept. Listings leave out
    `announced_context` and `context`.
    """

    stakes: Stakes
    category: str | None = None
    confidence: float | None = None
    description: str | None = None
    project: str | None = None
    paths: tuple[str, ...] = ()
    announced_context: str = ""
    context: Mapping[str, Any] | None = None
    invocation: Invocation = NO_INVOCATION

    @classmethod
    def of(cls, action: Action, *, keeps_content: bool) -> ApprovalSubject:
        """Return the subject of an action; with `keeps_content=False` only the parts that are not contents."""
        subject = cls(action.stakes, action.category, action.confidence)
        if not keeps_content:
            return subject
        return replace(
            subject,
            description=action.description,
            project=action.project,
            paths=action.code.paths,
            announced_context=action.announced_context,
            context=action.context,
            invocation=action.invocation,
        )


def digest_of_action(action: Action, on_behalf_of: str | None) -> str:
    """Return the SHA-256, in hex, of an agent and everything that it states of its action.

    It hashes the RFC 8785 text of one JSON object, without missing members and without the facts that the server adds:
    permissions, the time, intents and outcomes of other agents, the nodes of the code. Raises InvalidArgument for
    numbers that JSON does not have.
    """
    statement = {
        "version": DIGEST_VERSION,
        "agent": action.agent,
        "onBehalfOf": on_behalf_of,
        "description": action.description,
        "category": action.category,
        "stakes": action.stakes.value,
        "confidence": action.confidence,
        "project": action.project,
        "paths": list(action.code.paths) or None,
        "announcedContext": action.announced_context or None,
        "context": dict(action.context) or None,
        "invocation": action.invocation.to_json() or None,
    }
    try:
        return hash_canonical_json({name: value for name, value in statement.items() if value is not None})
    except ValueError:
        raise InvalidArgument.field("context", "has a number that is not finite and cannot be approved") from None


@dataclass(frozen=True, slots=True)
class AskingGuardrail:
    """A guardrail that asks for an approval, and who granted it.

    Of the agents with the permission, `approvers` may decide, or all if that is empty. Who granted it for a time says
    `reusable_until`.
    """

    id: str
    name: str
    message: str
    approvers: tuple[str, ...] = ()
    granted_by: str | None = None
    granted_at: datetime | None = None
    reusable_until: datetime | None = None

    def may_be_decided_by(self, agent: str) -> bool:
        return not self.approvers or agent in self.approvers

    def at(self, instant: datetime) -> AskingGuardrail:
        """Return it as it counts at an instant: without a grant for a time that is over."""
        is_over = self.reusable_until is not None and self.reusable_until <= instant
        return replace(self, granted_by=None, granted_at=None, reusable_until=None) if is_over else self

    def ask_again(self, now: AskingGuardrail | None) -> AskingGuardrail:
        """Return the guardrail as it asks now, None if it does not; a grant of who may not decide any more is gone."""
        if now is None or now.approvers == self.approvers:
            return self
        if self.granted_by is not None and now.may_be_decided_by(self.granted_by):
            return replace(self, approvers=now.approvers)
        return replace(self, approvers=now.approvers, granted_by=None, granted_at=None, reusable_until=None)


@dataclass(frozen=True, slots=True)
class Approval:
    """A request that people approve an action of `agent`, which acts for `on_behalf_of` if that is not None.

    Instants are in UTC, with an offset. `change` is the number of its last change, which the store sets. While it
    `is_current`, checks of its digest find it. `decided_by`, `decided_at` and `comment` are those of the last grant,
    the denial or the revocation.
    """

    id: str
    digest: str
    agent: str
    subject: ApprovalSubject
    guardrails: tuple[AskingGuardrail, ...]
    created_at: datetime
    expires_at: datetime
    check_id: str
    rule_set_version: str
    on_behalf_of: str | None = None
    correlation_id: str | None = None
    callback_url: str | None = None
    status: ApprovalStatus = ApprovalStatus.PENDING
    decided_by: str | None = None
    decided_at: datetime | None = None
    comment: str | None = None
    reusable_until: datetime | None = None
    uses: int = 0
    used_at: datetime | None = None
    used_by: str | None = None
    is_current: bool = True
    change: int = 0

    def is_over(self, at: datetime) -> bool:
        return self.expires_at <= at

    def status_at(self, at: datetime) -> ApprovalStatus:
        """Return its status at an instant, whether or not its expiry was noticed."""
        return ApprovalStatus.EXPIRED if self.status in UNDECIDED and self.is_over(at) else self.status

    def ask(self, guardrails: Sequence[AskingGuardrail]) -> Approval:
        now = {each.id: each for each in guardrails}
        known = tuple(each.ask_again(now.pop(each.id, None)) for each in self.guardrails)
        asked = (*known, *now.values())
        if all(each.granted_by is not None for each in asked):
            return replace(self, guardrails=asked)
        return replace(self, guardrails=asked, status=ApprovalStatus.PENDING, reusable_until=None)

    def grant(
        self, by: str, at: datetime, comment: str | None, reusable_until: datetime | None, lifetime: timedelta
    ) -> Approval:
        """Return the approval granted for the guardrails that an agent may decide on; itself if it was by then.

        It is granted as a whole once all guardrails are; from then on it is good for `lifetime`, and until the earliest
        instant that was named. Raises PermissionDenied, and Conflict if it is neither pending nor granted.
        """
        self._require_decidable_by(by)
        if self.status_at(at) not in UNDECIDED:
            raise self._wrong_status_error("is not pending", at)
        counted = [each.at(at) for each in self.guardrails]
        mine = [each for each in counted if each.may_be_decided_by(by) and each.granted_by is None]
        if not mine:
            return self
        granted = tuple(
            replace(each, granted_by=by, granted_at=at, reusable_until=reusable_until) if each in mine else each
            for each in counted
        )
        decided = replace(self, guardrails=granted, decided_by=by, decided_at=at, comment=comment)
        if any(each.granted_by is None for each in granted):
            return decided
        instants = [each.reusable_until for each in granted if each.reusable_until is not None]
        # One that somebody granted for a single use is good for one use, whatever the others said; but for all of them
        # only as long as they said.
        is_reusable = len(instants) == len(granted)
        until = min(instants if is_reusable else [*instants, at + lifetime])
        return replace(
            decided, status=ApprovalStatus.GRANTED, reusable_until=until if is_reusable else None, expires_at=until
        )

    def deny(self, by: str, at: datetime, comment: str | None) -> Approval:
        """Return the approval denied; itself if it is. Raises PermissionDenied, and Conflict if it is not pending."""
        self._require_decidable_by(by)
        status = self.status_at(at)
        if status is ApprovalStatus.DENIED:
            return self
        if status is not ApprovalStatus.PENDING:
            raise self._wrong_status_error("is not pending", at)
        return replace(self, status=ApprovalStatus.DENIED, decided_by=by, decided_at=at, comment=comment)

    def revoke(self, by: str, at: datetime, comment: str | None) -> Approval:
        """Return the approval revoked; itself if it is.

        Raises PermissionDenied, and Conflict if it is neither granted nor denied.
        """
        self._require_decidable_by(by)
        status = self.status_at(at)
        if status is ApprovalStatus.REVOKED:
            return self
        if status not in (ApprovalStatus.GRANTED, ApprovalStatus.DENIED):
            raise self._wrong_status_error("is neither granted nor denied", at)
        return replace(
            self, status=ApprovalStatus.REVOKED, decided_by=by, decided_at=at, comment=comment, is_current=False
        )

    def use(self, at: datetime, check_id: str) -> Approval:
        """Return a granted approval after it has let its action through for a check; once unless it is reusable."""
        is_spent = self.reusable_until is None
        return replace(
            self,
            status=ApprovalStatus.USED if is_spent else ApprovalStatus.GRANTED,
            uses=self.uses + 1,
            used_at=at,
            used_by=check_id,
            is_current=not is_spent,
        )

    def expire(self) -> Approval:
        """Return the request after its time; one that was denied stays so."""
        status = ApprovalStatus.EXPIRED if self.status in UNDECIDED else self.status
        return replace(self, status=status, is_current=False)

    def stated_as(self, status: ApprovalStatus) -> VerdictApproval:
        return VerdictApproval(self.id, self.digest, status, self.expires_at, self.comment)

    def _require_decidable_by(self, agent: str) -> None:
        # Also requests of a peer for it, or `peer/agent`: the same person may have a token there and one here.
        if agent == self.agent or f"/{self.on_behalf_of}".endswith(f"/{agent}"):
            raise PermissionDenied("you cannot decide on your own request; ask another agent")
        if not any(each.may_be_decided_by(agent) for each in self.guardrails):
            approvers = sorted({approver for each in self.guardrails for approver in each.approvers})
            raise PermissionDenied(f"the guardrails that ask name their approvers: {', '.join(approvers)}")

    def _wrong_status_error(self, problem: str, at: datetime) -> Conflict:
        return Conflict(f"the approval {self.id} {problem}: it is {self.status_at(at).value}")


def asking_guardrails(violations: Sequence[Violation], *, keeps_content: bool) -> tuple[AskingGuardrail, ...]:
    return tuple(
        AskingGuardrail(each.guardrail_id, each.name, each.message if keeps_content else "", each.approvers)
        for each in violations
    )


@dataclass(frozen=True, slots=True)
class ApprovalFilter:
    """Conditions that approvals must all meet; None or empty does not restrict. `statuses` means any of."""

    statuses: tuple[ApprovalStatus, ...] = ()
    agent: str | None = None
    digest: str | None = None
    id_prefix: str | None = None


class ApprovalNotifier(Protocol):
    """Notifies agents of decisions on their requests."""

    def queue_decision(self, unit_of_work: UnitOfWork, approval: Approval) -> None:
        """Queue within a transaction a notice for the agent of an approval, if its request named an allowed address."""
