"""Explain the rules in force to administrators, page by page."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime

from cstp_grpc.guardrails.checker import GuardrailChecker
from cstp_grpc.guardrails.explanation import GuardrailExplainer, GuardrailExplanation
from cstp_grpc.guardrails.model import Action, CheckResult
from cstp_grpc.guardrails.rule_listing import ListedGuardrail
from cstp_grpc.guardrails.rules_in_force import LoadedRules, RulesInForce
from cstp_grpc.storage.background_work import RunBlocking
from cstp_grpc.storage.pagination import Page, PageRequest


@dataclass(frozen=True, slots=True)
class ExplainedAction:
    """The verdict on an action, which is not recorded, and a page of what became of each guardrail."""

    result: CheckResult
    guardrails: Page[tuple[ListedGuardrail, GuardrailExplanation]]


class RuleExplainer:
    """Explains what the rules in force make of actions; `run_blocking` runs what takes long."""

    def __init__(
        self,
        rules: RulesInForce,
        checker: GuardrailChecker,
        clock: Callable[[], datetime],
        run_blocking: RunBlocking,
    ) -> None:
        self._rules = rules
        self._checker = checker
        self._clock = clock
        self._run_blocking = run_blocking

    async def explain(self, action: Action, ids: Collection[str], request: PageRequest, reader: str) -> ExplainedAction:
        """Return the verdict on an action, and a page of the guardrails with these ids, or of all without any.

        Related intents and outcomes are those that `reader` may read. Raises InvalidArgument for a context out of
        bounds, an unknown id and a token of another listing.
        """
        loaded = self._rules.current
        now = self._clock()
        if action.now is None:
            action = replace(action, now=now)
        snapshot = replace(self._checker.take_snapshot(), evaluator=loaded.evaluator)
        (action,) = await self._checker.add_facts(snapshot, [action], action.agent, reader)
        return await self._run_blocking(explain_action, loaded, action, ids, request, now)


def explain_action(
    loaded: LoadedRules, action: Action, ids: Collection[str], request: PageRequest, now: datetime
) -> ExplainedAction:
    """Explain an action that has all facts. Raises InvalidArgument."""
    explainer = GuardrailExplainer(loaded.evaluator, loaded.rule_set.inputs, action)
    page = loaded.listing.explain_guardrails(request, ids, explainer.explain)
    return ExplainedAction(CheckResult(loaded.evaluator.evaluate(action), now), page)
