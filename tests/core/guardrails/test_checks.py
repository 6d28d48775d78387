from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from cstp_grpc.contract.errors import CstpError, GuardrailEvalFailed, InvalidArgument, Unavailable
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, JudgedAction, NullAuditSink
from cstp_grpc.core.guardrails.checker import ApprovalQuestion, GuardrailChecker, ResultT
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.model import Action, CheckResult, Verdict
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from tests.core.guardrails.rulebooks import rule, rule_set
from tests.lanes import ObservedLane

NOW = datetime(2026, 2, 4, 21, tzinfo=UTC)
EVALUATOR = GuardrailEvaluator(
    rule_set([rule("no", "context.bad"), rule("hm", "true", "warn")], {"bad": {"type": "bool"}})
)


class Memory(NullAuditSink):
    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []
        self.writes = 0

    async def write(self, entry: AuditEntry) -> None:
        await self.write_all([entry])

    async def write_all(self, entries: Sequence[AuditEntry]) -> None:
        await asyncio.sleep(0)
        self.entries += entries
        self.writes += 1


class Unreadable(dict[str, Any]):
    """A context that fails whoever looks into it."""

    def __len__(self) -> int:
        raise RuntimeError("a bug")


class Broken(NullAuditSink):
    async def write(self, entry: AuditEntry) -> None:
        raise Unavailable("The journal does not answer")

    async def write_all(self, entries: Sequence[AuditEntry]) -> None:
        raise Unavailable("The journal does not answer")


def check(checks: GuardrailChecker, action: Action, caller: str, claimed: str | None, request_id: str) -> CheckResult:
    return asyncio.run(checks.judge_and_record(action, caller, claimed, request_id))


def recorded(**members: Any) -> AuditEntry:
    """Return the entry for a check of "do it" that emerson made for someone else."""
    return AuditEntry(
        NOW,
        AuditEvent.GUARDRAIL_CHECK,
        "emerson",
        "req-1",
        claimed_agent="someone else",
        action="do it",
        **members,
    )


def test_a_check_is_on_record_with_caller_claim_request_and_verdict() -> None:
    trail = Memory()
    action = Action("do it", context={"bad": True})

    answer = check(GuardrailChecker(EVALUATOR, trail, lambda: NOW), action, "emerson", "someone else", "req-1")

    assert trail.entries == [
        recorded(
            allowed=False,
            violations=("no",),
            warnings=("hm",),
            evaluated=2,
            rule_set_version=answer.verdict.rule_set_version,
            judged=JudgedAction(context={"bad": True}),
        )
    ]
    assert (answer.verdict.allowed, answer.evaluated_at) == (False, NOW)
    assert [v.guardrail_id for v in answer.verdict.violations] == ["no"]


def test_there_is_no_answer_without_a_record() -> None:
    with pytest.raises(Unavailable):
        check(GuardrailChecker(EVALUATOR, Broken(), lambda: NOW), Action("do it"), "emerson", None, "req-1")


def test_judging_leaves_no_record() -> None:
    trail = Memory()

    verdict = (
        GuardrailChecker(EVALUATOR, trail, lambda: NOW).take_snapshot().judge(Action("do it", context={"bad": False}))
    )

    assert verdict.allowed
    assert trail.entries == []


def test_without_a_rule_set_nothing_is_judged() -> None:
    trail = Memory()
    checks = GuardrailChecker(None, trail, lambda: NOW)

    with pytest.raises(GuardrailEvalFailed):
        checks.take_snapshot().judge(Action("do it"))
    assert trail.entries == []
    with pytest.raises(GuardrailEvalFailed):
        check(checks, Action("do it"), "emerson", None, "req-1")
    assert [(entry.allowed, entry.error) for entry in trail.entries] == [(None, "GUARDRAIL_EVAL_FAILED")]


def test_a_context_out_of_bounds_is_refused_and_on_record() -> None:
    trail = Memory()
    action = Action("do it", context={"x": "y" * 300_000})

    with pytest.raises(InvalidArgument):
        check(GuardrailChecker(EVALUATOR, trail, lambda: NOW), action, "emerson", "someone else", "req-1")

    assert trail.entries == [
        recorded(
            error="INVALID_ARGUMENT",
        )
    ]


def test_what_nobody_foresaw_is_on_record_as_internal() -> None:
    trail = Memory()
    action = Action("do it", context=Unreadable())

    with pytest.raises(RuntimeError, match="a bug"):
        check(GuardrailChecker(EVALUATOR, trail, lambda: NOW), action, "emerson", None, "req-1")

    assert [(entry.allowed, entry.error) for entry in trail.entries] == [(None, "INTERNAL")]


def test_a_failure_that_cannot_be_recorded_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        check(GuardrailChecker(None, Broken(), lambda: NOW), Action("do it"), "emerson", None, "req-1")


def check_batch(
    sink: NullAuditSink, actions: Sequence[Action], max_bytes: int = 100_000
) -> Sequence[CheckResult | CstpError]:
    checker = GuardrailChecker(EVALUATOR, sink, lambda: NOW)
    return asyncio.run(
        checker.judge_and_record_batch(actions, "emerson", None, "req-1", "emerson", ObservedLane().run, max_bytes)
    )


def test_a_batch_is_on_record_in_one_write_with_an_entry_for_each_action() -> None:
    trail = Memory()
    too_large = Action("three", context={"note": "x" * 300_000})

    answers = check_batch(trail, [Action("one", context={"bad": True}), Action("two"), too_large])

    assert [answer.verdict.allowed for answer in answers[:2] if isinstance(answer, CheckResult)] == [False, False]
    assert isinstance(answers[2], InvalidArgument)
    assert trail.writes == 1
    assert [(entry.request_id, entry.action, entry.allowed, entry.error) for entry in trail.entries] == [
        ("req-1/0", "one", False, None),
        ("req-1/1", "two", False, None),
        ("req-1/2", "three", None, "INVALID_ARGUMENT"),
    ]


def test_a_bug_in_one_action_of_a_batch_fails_the_call_once_all_are_on_record() -> None:
    trail = Memory()

    with pytest.raises(RuntimeError, match="a bug"):
        check_batch(trail, [Action("one"), Action("two", context=Unreadable(x=1))])

    assert [entry.error for entry in trail.entries] == [None, "INTERNAL"]


def test_a_batch_that_cannot_be_recorded_has_no_verdicts() -> None:
    with pytest.raises(Unavailable):
        check_batch(Broken(), [Action("one")])


def test_a_batch_whose_answer_would_be_too_long_is_refused_and_not_on_record() -> None:
    trail = Memory()

    with pytest.raises(InvalidArgument, match="send fewer actions"):
        check_batch(trail, [Action("one", context={"bad": True})] * 50, max_bytes=10_000)

    assert trail.entries == []


class RefusingGate:
    """A gate that nothing may ask."""

    def prepare(self, question: ApprovalQuestion) -> Callable[[UnitOfWork], Verdict]:
        raise AssertionError(question)

    async def write(self, job: Callable[[UnitOfWork], ResultT]) -> ResultT:
        raise AssertionError(job)


@pytest.mark.parametrize("context", [{"bad": False}, {"bad": True}, {"bad": "no bool"}])
def test_what_is_allowed_or_blocked_asks_for_no_approval(context: dict[str, Any]) -> None:
    memory = Memory()
    rules = rule_set([rule("no", "context.bad"), rule("ask", "context.bad", "approve")], {"bad": {"type": "bool"}})
    checks = GuardrailChecker(GuardrailEvaluator(rules), memory, lambda: NOW, approvals=RefusingGate())
    verdict = check(checks, Action("do it", context=context), "emerson", None, "r-1").verdict
    assert not verdict.approval_required
    assert memory.writes == 1
