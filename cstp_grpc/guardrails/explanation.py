"""Explain what guardrails make of an action: whether each fires, which parts of its condition decide it, and what it
reads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cstp_grpc.enums import Enforcement, InputOrigin, RuleOutcome
from cstp_grpc.guardrails.cel_engine import CelEvaluationError
from cstp_grpc.guardrails.condition_parts import ConditionPart, find_decisive_parts, split_condition
from cstp_grpc.guardrails.evaluation_plan import CompiledGuardrail, input_converter, input_names_of
from cstp_grpc.guardrails.evaluator import GuardrailEvaluator, PreparedAction
from cstp_grpc.guardrails.input_values import InputValueError
from cstp_grpc.guardrails.model import EVALUATION_ERROR, Action, Guardrail, InputDeclaration, Verdict, Violation
from cstp_grpc.guardrails.rule_selection import fold_name
from cstp_grpc.guardrails.text_templates import format_value

TIMED_EVALUATIONS: Final = 3
"""How often a guardrail is evaluated to find how long it takes; the least counts."""


@dataclass(frozen=True, slots=True)
class ExplainedPart:
    """A part of a condition; `value` is a text, None with an `error`. A decisive one settles the condition's value."""

    expression: str
    value: str | None
    error: str | None
    is_decisive: bool


@dataclass(frozen=True, slots=True)
class ExplainedInput:
    """An input that a guardrail reads.

    `value` is a text, None if there is none; `given_as` the key of the context if it is another spelling of the name;
    `problem` why the value is invalid.
    """

    name: str
    origin: InputOrigin
    value: str | None = None
    given_as: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class GuardrailExplanation:
    """What becomes of a guardrail for an action, and why.

    `reason` says why it is skipped or cannot be evaluated; `violation` is what it reports. `microseconds` is how long
    its condition takes, 0 if it is not evaluated.
    """

    guardrail: Guardrail
    outcome: RuleOutcome
    reason: str | None = None
    violation: Violation | None = None
    parts: tuple[ExplainedPart, ...] = ()
    inputs: tuple[ExplainedInput, ...] = ()
    microseconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ExplainedVerdict:
    """A verdict with what became of each guardrail, in the order in which violations are reported."""

    verdict: Verdict
    guardrails: tuple[GuardrailExplanation, ...]


class GuardrailExplainer:
    """Explains guardrails of an evaluator's rule set for one action.

    Raises InvalidArgument if the context is nested too deeply or too large.
    """

    def __init__(self, evaluator: GuardrailEvaluator, inputs: Mapping[str, InputDeclaration], action: Action) -> None:
        self._evaluator = evaluator
        self._inputs = inputs
        self._prepared = evaluator.prepare(action)

    def explain(self, guardrail: Guardrail) -> GuardrailExplanation:
        """Explain a guardrail."""
        names = sorted(input_names_of(tuple(guardrail.expressions)))
        inputs = tuple(self._explain_input(self._inputs[name]) for name in names)
        rule = self._prepared.rules.get(guardrail.id)
        if rule is None:
            reason = find_exclusion(guardrail, self._prepared.action)
            return GuardrailExplanation(guardrail, RuleOutcome.SKIPPED, reason, inputs=inputs)
        violation = self._evaluator.evaluate_rule(self._prepared, rule)
        if violation is None:
            outcome, reason = RuleOutcome.NOT_MATCHED, None
        elif violation.code == EVALUATION_ERROR:
            outcome, reason = RuleOutcome.UNEVALUABLE, violation.message
        else:
            outcome, reason = RuleOutcome.MATCHED, None
        parts = tuple(self._explain_parts(guardrail)) if guardrail.when.rewritten else ()
        microseconds = 0.0 if outcome is RuleOutcome.UNEVALUABLE else measure_evaluation(rule, self._prepared)
        return GuardrailExplanation(guardrail, outcome, reason, violation, parts, inputs, microseconds)

    def _explain_parts(self, guardrail: Guardrail) -> Iterator[ExplainedPart]:
        """Yield the parts of a guardrail's condition."""
        whole = split_condition(guardrail.when)
        found = {part: self._evaluate(part) for part in whole.leaves}
        values = {part: value if isinstance(value, bool) else None for part, value in found.items()}
        decisive = set(find_decisive_parts(whole, values))
        for part, value in found.items():
            shown, error = None, None
            if isinstance(value, CelEvaluationError):
                error = self._evaluator.explain_error(value, self._prepared.resolved)
            else:
                shown = describe_value(value)
            yield ExplainedPart(part.expression.source, shown, error, part in decisive)

    def _evaluate(self, part: ConditionPart) -> object:
        """Return the value of a part, or the error that it has in its place."""
        try:
            return self._evaluator.evaluate_part(self._prepared, part.expression)
        except CelEvaluationError as error:
            return error

    def _explain_input(self, declared: InputDeclaration) -> ExplainedInput:
        """Return where the value of an input comes from."""
        name = declared.name
        given = self._prepared.resolved.context.get(name)
        if given is None:
            if declared.default is None:
                return ExplainedInput(name, InputOrigin.MISSING)
            return ExplainedInput(name, InputOrigin.DEFAULT, describe_value(declared.default))
        key = self._evaluator.find_given_key(self._prepared.action, name)
        given_as = None if key == name else key
        shown = describe_value(self._prepared.action.context[key]) if key is not None else None
        try:
            input_converter(declared)(given)
        except InputValueError as error:
            return ExplainedInput(name, InputOrigin.INVALID, shown, given_as, str(error))
        return ExplainedInput(name, InputOrigin.GIVEN, shown, given_as)


def describe_value(value: object) -> str:
    """Return a value as JSON, cut if it is long; instants and durations as texts of rulebooks."""
    shown = format_value(value)
    return json.dumps(shown, ensure_ascii=False) if isinstance(value, str) else shown


def measure_evaluation(rule: CompiledGuardrail, prepared: PreparedAction) -> float:
    """Return how many microseconds the condition of a guardrail takes that can be evaluated."""
    taken = []
    for _ in range(TIMED_EVALUATIONS):
        begun = time.perf_counter_ns()
        rule.program.is_true(prepared.bound)
        taken.append(time.perf_counter_ns() - begun)
    return min(taken) / 1_000


def find_exclusion(guardrail: Guardrail, action: Action) -> str | None:
    """Return why a guardrail does not concern an action; None if it does."""
    if guardrail.enforcement is Enforcement.DISABLED:
        return "it is disabled"
    if guardrail.expires is not None and action.now is not None and guardrail.expires <= action.now:
        return f"it expired at {guardrail.expires.isoformat()}"
    match, scope = guardrail.match, guardrail.scope
    for what, accepted, value in (
        ("stakes", match.stakes, action.stakes),
        ("category", match.categories, action.category),
        ("agent", match.agents, action.agent),
        ("project", match.projects, action.project),
        ("agent", scope.agents, action.agent),
    ):
        if accepted and value not in accepted:
            other = f"not {value}" if value else "and the action has none"
            return f"it is for the {what} {' or '.join(sorted(accepted))}, {other}"
    project = fold_name(action.project or "")
    if scope.projects and project and project not in map(fold_name, scope.projects):
        return f"it is for the project {' or '.join(sorted(scope.projects))}, not {action.project}"
    return None
