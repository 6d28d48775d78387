"""Checking actions and taking the checks down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from cstp_grpc.errors import GuardrailEvalFailed, reason_of
from cstp_grpc.guardrails.evaluator import Evaluator
from cstp_grpc.guardrails.model import Action, Verdict


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """A check as the trail keeps it.

    `caller` is the authenticated agent, `claimed_agent` the one that the request names, never trusted; `evaluated_at`
    is aware, in UTC. Where nothing could be judged, there is no `verdict`, and `error` is the reason as in
    `errors.CstpError`.
    """

    evaluated_at: datetime
    caller: str
    claimed_agent: str | None
    request_id: str
    action: Action
    verdict: Verdict | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to a check."""

    verdict: Verdict
    evaluated_at: datetime


class CheckTrail(Protocol):
    """Keeps what was checked."""

    async def write(self, check: CheckRecord) -> None:
        """Return when the record is safe, without holding the event loop. Raises Unavailable if it cannot be kept."""


class GuardrailChecks:
    """Judges actions by the rule set, if there is one."""

    def __init__(self, evaluator: Evaluator | None, trail: CheckTrail, clock: Callable[[], datetime]) -> None:
        self._evaluator = evaluator
        self._trail = trail
        self._clock = clock

    def judge(self, action: Action) -> Verdict:
        """Return the verdict without recording it. Raises GuardrailEvalFailed and InvalidArgument."""
        if self._evaluator is None:
            raise GuardrailEvalFailed("There is no usable rule set")
        return self._evaluator.evaluate(action)

    async def judge_and_record(self, action: Action, caller: str, claimed_agent: str | None, request_id: str) -> Check:
        """Return the verdict once it is on record; a check that fails is on record too, with the reason.

        The rules are short enough to be evaluated on the event loop; the record is awaited. Raises
        GuardrailEvalFailed, InvalidArgument, and Unavailable if the record cannot be kept.
        """
        verdict: Verdict | None = None
        failure: Exception | None = None
        try:
            verdict = self.judge(action)
        except Exception as error:  # noqa: BLE001 - it is raised once it is on record
            failure = error
        evaluated_at = self._clock()
        reason = None if failure is None else reason_of(failure)
        await self._trail.write(CheckRecord(evaluated_at, caller, claimed_agent, request_id, action, verdict, reason))
        if failure is not None:
            raise failure
        assert verdict is not None
        return Check(verdict, evaluated_at)
