"""Evaluate actions with the rule set and record each check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, TypeAlias, TypeVar

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.errors import CstpError, GuardrailEvalFailed, InvalidArgument, RateLimited, error_reason
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink, JudgedAction
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.history import (
    HistoryFacts,
    HistoryMeasure,
    HistoryQuery,
    HistoryReader,
    HistoryRequest,
    HistorySubject,
)
from cstp_grpc.core.guardrails.model import NO_INTENTS, Action, CheckResult, IntentFacts, Verdict
from cstp_grpc.platform.storage.background_work import RunBlocking
from cstp_grpc.platform.storage.pagination import ITEM_BYTES, estimate_message_bytes
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class CheckIdentity:
    """The id, time and caller of a check; `is_relayed` says that the caller asks for another agent."""

    check_id: str
    evaluated_at: datetime
    caller: str
    claimed_agent: str | None
    is_relayed: bool


def verdict_audit_fields(verdict: Verdict | None) -> dict[str, Any]:
    """Return the fields of an audit entry that record a verdict; none without one."""
    if verdict is None:
        return {}
    return {
        "allowed": verdict.allowed,
        "violations": verdict.violations and tuple(map(GUARDRAIL_ID, verdict.violations)),
        "warnings": verdict.warnings and tuple(map(GUARDRAIL_ID, verdict.warnings)),
        "dryrun": verdict.dryrun and tuple(map(GUARDRAIL_ID, verdict.dryrun)),
        "evaluated": verdict.evaluated,
        "rule_set_version": verdict.rule_set_version,
        "approval_id": verdict.approval and verdict.approval.id,
    }


GUARDRAIL_ID = attrgetter("guardrail_id")


def judged_audit_fields(action: Action, verdict: Verdict | None) -> dict[str, Any]:
    """Return the fields of an audit entry that record a verdict and its action; empty without a verdict."""
    if verdict is None:
        return {}
    fields = verdict_audit_fields(verdict)
    fields["judged"] = JudgedAction(
        category=action.category,
        stakes=action.stakes,
        confidence=action.confidence,
        context=action.context,
        project=action.project,
        announced_context=action.announced_context,
        paths=action.code.paths,
        permissions=action.permissions,
        invocation=action.invocation,
        # Also where a person has decided by now: rules say that an approval is needed, and not whether there is one.
        approval_required=verdict.approval is not None or (not verdict.allowed and verdict.approval_required),
    )
    return fields


@dataclass(frozen=True, slots=True)
class ApprovalQuestion:
    """An action that needs an approval by its verdict, and the check or announcement that it is part of.

    `check_id` identifies the verdict, `on_behalf_of` is the agent for which a peer asks, as the peer states it. The
    decision is sent to `callback_url`, the address of the announcement with this correlation id. If `keeps_content` is
    False, the request has no contents of the action.
    """

    action: Action
    verdict: Verdict
    check_id: str
    on_behalf_of: str | None = None
    correlation_id: str | None = None
    callback_url: str | None = None
    keeps_content: bool = True


class ApprovalGate(Protocol):
    """Requests approvals, and lets actions through that have one."""

    def prepare(self, question: ApprovalQuestion) -> Callable[[UnitOfWork], Verdict]:
        """Return a function that settles a question within the transaction that records the verdict.

        It returns the verdict with its approval: a pending or denied one, or one that is used up by it, so that the
        verdict allows the action. Raises InvalidArgument if the action has no canonical form; what is returned raises
        RateLimited if the agent has too many requests pending.
        """

    async def write(self, job: Callable[[UnitOfWork], ResultT]) -> ResultT:
        """Run a job in a transaction and return its result once that is on disk. Raises Unavailable."""


class IntentFactsReader(Protocol):
    """Looks up which intents of other agents resemble an action."""

    async def read_facts(self, text: str, caller: str, reader: str) -> IntentFacts:
        """Return the facts for an action in words.

        The intents are those of other agents than `caller` that `reader` may read. Facts that cannot be read say why.
        """


class VerdictObserver(Protocol):
    """Observes verdicts, on any thread. It must neither block nor raise."""

    def measure_judgement(self) -> AbstractContextManager[object]:
        """Measure the block, in which an action is evaluated."""

    def observe_verdict(self, verdict: Verdict) -> None:
        """Count a verdict."""

    def observe_failure(self) -> None:
        """Count an action without a verdict."""


@dataclass(frozen=True, slots=True)
class RuleSnapshot:
    """The rules at one instant, for an answer of several steps that must all come from one version."""

    evaluator: GuardrailEvaluator | None
    clock: Callable[[], datetime]
    history: HistoryReader | None = None
    observer: VerdictObserver | None = None

    @property
    def reads_intents(self) -> bool:
        """Whether any guardrail reads the related intents, which the action must have then."""
        return self.evaluator is not None and self.evaluator.reads_intents

    @property
    def reads_history(self) -> bool:
        return self.evaluator is not None and self.evaluator.longest_history > 0

    def judge(self, action: Action) -> Verdict:
        """Return the verdict without recording it. Raises GuardrailEvalFailed and InvalidArgument."""
        if self.observer is None:
            return self._evaluate(action)
        try:
            with self.observer.measure_judgement():
                verdict = self._evaluate(action)
        except Exception:
            self.observer.observe_failure()
            raise
        self.observer.observe_verdict(verdict)
        return verdict

    def _evaluate(self, action: Action) -> Verdict:
        if self.evaluator is None:
            raise GuardrailEvalFailed("There is no usable rule set")
        if action.now is None and self.evaluator.reads_time:
            action = replace(action, now=self.clock())
        return self.evaluator.evaluate(action)

    async def add_histories(self, actions: Sequence[Action], reader: str) -> Sequence[Action]:
        """Return the actions with their histories for guardrails, as far as `reader` may read them."""
        requests = self._make_history_requests(actions, reader)
        if self.history is None or not requests:
            return actions
        return join_histories(actions, await self.history.read(requests))

    def judge_blocking(self, action: Action, reader: str) -> Verdict:
        """Return the verdict without recording it; may block, to read the history for guardrails.

        Raises GuardrailEvalFailed and InvalidArgument.
        """
        requests = self._make_history_requests([action], reader)
        if self.history is not None and requests:
            (action,) = join_histories([action], self.history.read_blocking(requests))
        return self.judge(action)

    def _make_history_requests(self, actions: Sequence[Action], reader: str) -> Sequence[HistoryRequest]:
        """Return the questions of guardrails about the past of actions; empty if no guardrail has any."""
        if self.evaluator is None or not self.evaluator.longest_history:
            return []
        requests = [
            HistoryRequest(action.history_subject, reader, tuple(self.evaluator.find_history_queries(action)))
            for action in actions
        ]
        return requests if any(request.queries for request in requests) else []

    def try_to_judge(self, action: Action) -> Verdict | Exception:
        try:
            return self.judge(action)
        except Exception as error:  # noqa: BLE001 - recorded, and then answered or raised
            return error


class GuardrailChecker:
    """Evaluates actions against the rule set, if there is one, and records the checks.

    `approvals` requests the approvals that verdicts need; without it they are just missing.
    """

    def __init__(
        self,
        evaluator: GuardrailEvaluator | None,
        sink: AuditSink,
        clock: Callable[[], datetime],
        intents: IntentFactsReader | None = None,
        history: HistoryReader | None = None,
        approvals: ApprovalGate | None = None,
        observer: VerdictObserver | None = None,
    ) -> None:
        # Replaced by one assignment, which is atomic; code that takes several steps reads it once.
        self._rules = RuleSnapshot(evaluator, clock, history, observer)
        self._sink = sink
        self._clock = clock
        self._intents = intents
        self._approvals = approvals

    def use_evaluator(self, evaluator: GuardrailEvaluator) -> None:
        """Use another rule set from now on; from any thread, and may block."""
        if self._rules.history is not None:
            prepare_history(evaluator, self._rules.history)
        self._rules = replace(self._rules, evaluator=evaluator)

    def take_snapshot(self) -> RuleSnapshot:
        return self._rules

    @property
    def reads_history(self) -> bool:
        return self._rules.reads_history

    def judge_blocking(self, action: Action, reader: str) -> Verdict:
        """Return the verdict as `RuleSnapshot.judge_blocking` does."""
        return self._rules.judge_blocking(action, reader)

    async def add_facts(
        self, rules: RuleSnapshot, actions: Sequence[Action], caller: str, reader: str
    ) -> Sequence[Action]:
        """Return actions of a caller with related intents and histories for guardrails.

        Only intents and decisions that `reader` may read count.
        """
        # The lookup is a search, which rule sets that do not ask for intents need not wait for.
        if rules.reads_intents:
            found = [
                NO_INTENTS
                if self._intents is None
                else await self._intents.read_facts(action.description, caller, reader)
                for action in actions
            ]
            actions = [replace(action, intents=facts) for action, facts in zip(actions, found, strict=True)]
        return await rules.add_histories(actions, reader)

    async def judge_and_record(
        self, action: Action, caller: str, claimed_agent: str | None, request_id: str, reader: str | None = None
    ) -> CheckResult:
        """Return the verdict after recording it; a failed check is recorded too, with the reason.

        `caller` is the authenticated agent, `claimed_agent` the one that the request names, which is never trusted.
        Related intents and outcomes are those that `reader` may read; None means the caller. The evaluation is short
        enough to run on the event loop; the record is awaited. Raises GuardrailEvalFailed, InvalidArgument, RateLimited
        if too many approvals are pending, and Unavailable if the record cannot be written.
        """
        rules = self._rules
        reader = caller if reader is None else reader
        outcome: Verdict | Exception
        try:
            if rules.reads_intents or rules.reads_history:
                (action,) = await self.add_facts(rules, [action], caller, reader)
            outcome = rules.judge(action)
        except Exception as error:  # noqa: BLE001 - it is raised once it is on record
            outcome = error
        identity = CheckIdentity(request_id, self._clock(), caller, claimed_agent, is_relayed(caller, reader))
        # Recorded before the caller gets the verdict: if this fails or the process is killed, the action was not
        # allowed.
        if needs_approval(outcome) and self._approvals is not None:
            (outcome,) = await self._record_with_approvals(self._approvals, [(identity, action, outcome)])
        else:
            await self._sink.write(check_entry(identity, action, outcome))
        if isinstance(outcome, Exception):
            raise outcome
        return CheckResult(outcome, identity.evaluated_at)

    async def judge_and_record_batch(
        self,
        actions: Sequence[Action],
        caller: str,
        claimed_agent: str | None,
        request_id: str,
        reader: str,
        run_blocking: RunBlocking,
        max_bytes: int,
    ) -> Sequence[CheckResult | CstpError]:
        """Return the result for each action, or its error if it cannot be evaluated, after recording all of them.

        The request id of an entry is that of `batch_check_id`. The evaluation, which may take long for hundreds of
        actions, runs by `run_blocking`; all entries are one durable write. Raises InvalidArgument, and records nothing,
        if the verdicts take more than `max_bytes`, by estimate; Unavailable if the entries cannot be written; and an
        unexpected error once it is on record.
        """
        rules = self._rules
        actions = await self.add_facts(rules, actions, caller, reader)
        outcomes = await run_blocking(lambda: [rules.try_to_judge(action) for action in actions])
        # Before the checks are on record: an answer that does not fit into a message would never arrive.
        if sum(estimate_verdict_bytes(each) for each in outcomes if isinstance(each, Verdict)) > max_bytes:
            raise InvalidArgument.field("actions", "have verdicts that are too long for one answer; send fewer actions")
        evaluated_at, relayed = self._clock(), is_relayed(caller, reader)
        judged = [
            (CheckIdentity(batch_check_id(request_id, place), evaluated_at, caller, claimed_agent, relayed), *each)
            for place, each in enumerate(zip(actions, outcomes, strict=True))
        ]
        if self._approvals is not None and any(map(needs_approval, outcomes)):
            outcomes = await self._record_with_approvals(self._approvals, judged)
        else:
            await self._sink.write_all([check_entry(*each) for each in judged])
        results: list[CheckResult | CstpError] = []
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, CstpError):
                raise outcome
            results.append(CheckResult(outcome, evaluated_at) if isinstance(outcome, Verdict) else outcome)
        return results

    async def _record_with_approvals(
        self, gate: ApprovalGate, judged: Sequence[JudgedCheck]
    ) -> list[Verdict | Exception]:
        """Record checks with the approvals that they request or use, and return the result of each."""
        prepared = [prepare_approval(gate, *each) for each in judged]

        def job(unit_of_work: UnitOfWork) -> list[Verdict | Exception]:
            outcomes = [settle(unit_of_work) for settle in prepared]
            for (identity, action, _), outcome in zip(judged, outcomes, strict=True):
                self._sink.append(unit_of_work, check_entry(identity, action, outcome))
            return outcomes

        # One transaction: an approval is used if and only if the verdict that it changes is on record.
        return await gate.write(job)


JudgedCheck: TypeAlias = tuple[CheckIdentity, Action, Verdict | Exception]
"""A check with its verdict, or with the reason why it has no verdict."""


def is_relayed(caller: str, reader: str | None) -> bool:
    """Return whether a caller, whose reader is given, asks for somebody else."""
    return reader is not None and reader != caller


def needs_approval(outcome: Verdict | Exception) -> bool:
    # Nearly all actions are allowed, and lack none.
    return isinstance(outcome, Verdict) and not outcome.allowed and outcome.approval_required


def prepare_approval(
    gate: ApprovalGate, identity: CheckIdentity, action: Action, outcome: Verdict | Exception
) -> Callable[[UnitOfWork], Verdict | Exception]:
    """Return a function that decides within a transaction whether a check has an approval that it needs."""
    if not isinstance(outcome, Verdict) or not outcome.approval_required:
        return lambda _: outcome
    on_behalf_of = identity.claimed_agent if identity.is_relayed else None
    try:
        settle = gate.prepare(ApprovalQuestion(action, outcome, identity.check_id, on_behalf_of))
    except CstpError as error:
        refused = error
        return lambda _: refused
    return partial(settle_or_refuse, settle)


def settle_or_refuse(settle: Callable[[UnitOfWork], Verdict], unit_of_work: UnitOfWork) -> Verdict | Exception:
    """Return the result of a settlement within a transaction, or the error if it is refused.

    It is returned, because it is recorded in the same transaction.
    """
    try:
        return settle(unit_of_work)
    except RateLimited as error:
        return error


def check_entry(identity: CheckIdentity, action: Action, outcome: Verdict | Exception) -> AuditEntry:
    """Return the audit entry of a check with its verdict, or with the reason why it has no verdict."""
    return AuditEntry(
        timestamp=identity.evaluated_at,
        event=AuditEvent.GUARDRAIL_CHECK,
        requesting_agent=identity.caller,
        request_id=identity.check_id,
        claimed_agent=identity.claimed_agent,
        action=action.description,
        error=error_reason(outcome) if isinstance(outcome, Exception) else None,
        **judged_audit_fields(action, outcome if isinstance(outcome, Verdict) else None),
    )


def estimate_verdict_bytes(verdict: Verdict) -> int:
    """Return about how many bytes a verdict takes in a message."""
    found = (*verdict.violations, *verdict.warnings, *verdict.dryrun)
    missing = [each for violation in found for each in violation.missing_inputs]
    return ITEM_BYTES * (1 + len(found)) + estimate_message_bytes(
        (
            *verdict.assumed,
            *(text for each in found for text in (each.guardrail_id, each.name, each.message, each.suggestion)),
            *(text for each in missing for text in (each.name, each.type, each.description, *each.values)),
            *(text for each in verdict.ignored for text in (each.name, each.closest)),
        )
    )


def batch_check_id(request_id: str, place: int) -> str:
    return f"{request_id}/{place}"


def prepare_history(evaluator: GuardrailEvaluator, history: HistoryReader) -> None:
    """Read the outcomes that guardrails will ask for, so that no check waits for them; may block.

    If it cannot be read, the checks try again.
    """
    if evaluator.longest_history:
        # Without scopes, for any later query: scopes restrict only the counted outcomes, not those that are read.
        everything = HistoryQuery((), HistoryMeasure.COUNT, evaluator.longest_history)
        history.read_blocking([HistoryRequest(HistorySubject(""), "", (everything,))])


def join_histories(actions: Sequence[Action], found: Sequence[HistoryFacts]) -> Sequence[Action]:
    return [replace(action, history=facts) for action, facts in zip(actions, found, strict=True)]
