"""Judge actions by the rule set and record each check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, Protocol

from cstp_grpc.audit.judged_actions import JudgedAction
from cstp_grpc.audit.model import AuditEntry, AuditEvent, AuditSink
from cstp_grpc.errors import CstpError, GuardrailEvalFailed, InvalidArgument, error_reason
from cstp_grpc.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.guardrails.history_lookup import (
    HistoryReader,
    NoHistoryReader,
    add_histories,
    add_histories_blocking,
)
from cstp_grpc.guardrails.model import NO_INTENTS, Action, CheckResult, IntentFacts, Verdict
from cstp_grpc.storage.background_work import RunBlocking
from cstp_grpc.storage.pagination import ITEM_BYTES, estimate_message_bytes


def verdict_audit_fields(verdict: Verdict | None) -> dict[str, Any]:
    """Return the fields of an audit entry that record a verdict; none without one."""
    if verdict is None:
        return {}
    return {
        "allowed": verdict.allowed,
        "violations": tuple(map(GUARDRAIL_ID, verdict.violations)),
        "warnings": tuple(map(GUARDRAIL_ID, verdict.warnings)),
        "dryrun": tuple(map(GUARDRAIL_ID, verdict.dryrun)),
        "evaluated": verdict.evaluated,
        "rule_set_version": verdict.rule_set_version,
    }


GUARDRAIL_ID = attrgetter("guardrail_id")


def judged_audit_fields(action: Action, verdict: Verdict | None) -> dict[str, Any]:
    """Return the fields of an audit entry that record a verdict and what it is on; none without a verdict."""
    if verdict is None:
        return {}
    judged = JudgedAction(
        category=action.category,
        stakes=action.stakes,
        confidence=action.confidence,
        context=action.context,
        project=action.project,
        announced_context=action.announced_context,
        paths=action.code.paths,
        permissions=action.permissions,
        approval_required=verdict.approval_required,
    )
    return verdict_audit_fields(verdict) | {"judged": judged}


class IntentFactsReader(Protocol):
    """Looks up which intents of other agents resemble an action."""

    async def read_facts(self, text: str, caller: str, reader: str) -> IntentFacts:
        """Return the facts for an action in words.

        The intents are those of other agents than `caller` that `reader` may read. Facts that cannot be read say why.
        """


class NoRelatedIntents:
    """Knows no intents; for checkers whose actions resemble none."""

    async def read_facts(self, text: str, caller: str, reader: str) -> IntentFacts:  # noqa: ARG002
        """Return that there are none."""
        return NO_INTENTS


@dataclass(frozen=True, slots=True)
class RuleSnapshot:
    """The rules at one instant, for an answer of several steps that must all come from one version."""

    evaluator: GuardrailEvaluator | None
    clock: Callable[[], datetime]
    history: HistoryReader

    @property
    def reads_intents(self) -> bool:
        """Whether any guardrail reads the related intents, which the action must have then."""
        return self.evaluator is not None and self.evaluator.reads_intents

    def judge(self, action: Action) -> Verdict:
        """Return the verdict without recording it. Raises GuardrailEvalFailed and InvalidArgument."""
        if self.evaluator is None:
            raise GuardrailEvalFailed("There is no usable rule set")
        if action.now is None and self.evaluator.reads_time:
            action = replace(action, now=self.clock())
        return self.evaluator.evaluate(action)

    async def add_histories(self, actions: Sequence[Action], reader: str) -> Sequence[Action]:
        """Return the actions with what guardrails read of the past, as far as `reader` may read it."""
        return actions if self.evaluator is None else await add_histories(self.evaluator, self.history, actions, reader)

    def judge_blocking(self, action: Action, reader: str) -> Verdict:
        """Return the verdict without recording it; may block, to read what guardrails ask about the past.

        Raises GuardrailEvalFailed and InvalidArgument.
        """
        if self.evaluator is not None:
            (action,) = add_histories_blocking(self.evaluator, self.history, [action], reader)
        return self.judge(action)

    def try_to_judge(self, action: Action) -> Verdict | Exception:
        """Return the verdict on an action, or why there is none."""
        try:
            return self.judge(action)
        except Exception as error:  # noqa: BLE001 - recorded, and then answered or raised
            return error


class GuardrailChecker:
    """Evaluates actions against the rule set, if there is one, and records the checks."""

    def __init__(
        self,
        evaluator: GuardrailEvaluator | None,
        sink: AuditSink,
        clock: Callable[[], datetime],
        intents: IntentFactsReader | None = None,
        history: HistoryReader | None = None,
    ) -> None:
        # Replaced by one assignment, which is atomic; whoever takes several steps with it takes it once.
        self._rules = RuleSnapshot(evaluator, clock, history or NoHistoryReader())
        self._sink = sink
        self._clock = clock
        self._intents = intents or NoRelatedIntents()

    def use_evaluator(self, evaluator: GuardrailEvaluator) -> None:
        """Judge by other rules from now on; from any thread."""
        self._rules = replace(self._rules, evaluator=evaluator)

    def take_snapshot(self) -> RuleSnapshot:
        """Return the rules as they are now."""
        return self._rules

    def judge(self, action: Action) -> Verdict:
        """Return the verdict without recording it. Raises GuardrailEvalFailed and InvalidArgument."""
        return self._rules.judge(action)

    def judge_blocking(self, action: Action, reader: str) -> Verdict:
        """Return the verdict as `RuleSnapshot.judge_blocking` does."""
        return self._rules.judge_blocking(action, reader)

    async def add_facts(
        self, rules: RuleSnapshot, actions: Sequence[Action], caller: str, reader: str
    ) -> Sequence[Action]:
        """Return actions of a caller with what guardrails read of others and of the past.

        Only what `reader` may read counts.
        """
        # The lookup is a search, which rule sets that do not ask for intents need not wait for.
        if rules.reads_intents:
            actions = [
                replace(action, intents=await self._intents.read_facts(action.description, caller, reader))
                for action in actions
            ]
        return await rules.add_histories(actions, reader)

    async def judge_and_record(
        self, action: Action, caller: str, claimed_agent: str | None, request_id: str, reader: str | None = None
    ) -> CheckResult:
        """Return the verdict after recording it; a failed check is recorded too, with the reason.

        `caller` is the authenticated agent, `claimed_agent` the one that the request names, which is never trusted.
        Related intents and outcomes are those that `reader` may read; None means the caller. The evaluation is short
        enough to run on the event loop; the record is awaited. Raises GuardrailEvalFailed, InvalidArgument, and
        Unavailable if the record cannot be written.
        """
        rules = self._rules
        verdict: Verdict | None = None
        failure: Exception | None = None
        reader = caller if reader is None else reader
        try:
            (action,) = await self.add_facts(rules, [action], caller, reader)
            verdict = rules.judge(action)
        except Exception as error:  # noqa: BLE001 - it is raised once it is on record
            failure = error
        evaluated_at = self._clock()
        # Recorded before the caller gets the verdict: if this fails or the process is killed, the action was not
        # allowed.
        await self._sink.write(
            AuditEntry(
                timestamp=evaluated_at,
                event=AuditEvent.GUARDRAIL_CHECK,
                requesting_agent=caller,
                request_id=request_id,
                claimed_agent=claimed_agent,
                action=action.description,
                error=None if failure is None else error_reason(failure),
                **judged_audit_fields(action, verdict),
            )
        )
        if failure is not None:
            raise failure
        assert verdict is not None
        return CheckResult(verdict, evaluated_at)

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
        """Return the result for each action, or the error of one that cannot be judged, after recording all of them.

        The request id of an entry is that of `batch_check_id`. The evaluation, which may take long for hundreds of
        actions, runs by `run_blocking`; all entries are one durable write. Raises InvalidArgument, and records nothing,
        if the verdicts take more than `max_bytes`, by estimate; Unavailable if the entries cannot be written; and what
        is unexpected once it is on record.
        """
        rules = self._rules
        actions = await self.add_facts(rules, actions, caller, reader)
        outcomes = await run_blocking(lambda: [rules.try_to_judge(action) for action in actions])
        # Before the checks are on record: an answer that does not fit into a message would never arrive.
        if sum(estimate_verdict_bytes(each) for each in outcomes if isinstance(each, Verdict)) > max_bytes:
            raise InvalidArgument.field("actions", "have verdicts that are too long for one answer; send fewer actions")
        evaluated_at = self._clock()
        await self._sink.write_all(
            [
                AuditEntry(
                    timestamp=evaluated_at,
                    event=AuditEvent.GUARDRAIL_CHECK,
                    requesting_agent=caller,
                    request_id=batch_check_id(request_id, place),
                    claimed_agent=claimed_agent,
                    action=action.description,
                    error=error_reason(outcome) if isinstance(outcome, Exception) else None,
                    **judged_audit_fields(action, outcome if isinstance(outcome, Verdict) else None),
                )
                for place, (action, outcome) in enumerate(zip(actions, outcomes, strict=True))
            ]
        )
        results: list[CheckResult | CstpError] = []
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, CstpError):
                raise outcome
            results.append(CheckResult(outcome, evaluated_at) if isinstance(outcome, Verdict) else outcome)
        return results


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
    """Return the id of the check of the action at a place of a batch, from 0."""
    return f"{request_id}/{place}"
