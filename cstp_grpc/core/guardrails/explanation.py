"""Explain the outcome of guardrails for an action: whether each fires, which parts of its condition decide it, and
which inputs it reads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import fold_name
from cstp_grpc.contract.enums import Enforcement, InputOrigin, RuleOutcome
from cstp_grpc.core.guardrails.cel_engine import CelEvaluationError
from cstp_grpc.core.guardrails.cel_text import AND, OR, CelToken, depths_of, find_operators, tokenize_expression
from cstp_grpc.core.guardrails.cel_variables import RuleExpression
from cstp_grpc.core.guardrails.evaluation_plan import CompiledGuardrail, fold_names, fold_optional, input_converter
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator, PreparedAction
from cstp_grpc.core.guardrails.guardrail_compiler import input_names_of
from cstp_grpc.core.guardrails.inputs import InputValueError
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, Action, Guardrail, InputDeclaration, Verdict, Violation
from cstp_grpc.core.guardrails.text_templates import format_value

MAX_PARTS: Final = 50
"""Maximum number of parts of an expression. Chosen: each is compiled, which takes about 0.2 ms; people write ten."""


@dataclass(frozen=True, slots=True, eq=False)
class ConditionPart:
    """A part of an expression: either one that is not taken apart, or parts that an operator connects."""

    expression: RuleExpression
    operator: str = ""
    parts: tuple[ConditionPart, ...] = ()

    @property
    def leaves(self) -> Iterator[ConditionPart]:
        """Yield the parts that are not taken apart, from left to right."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves


PartValue: TypeAlias = bool | None
"""The value of a part; None if it cannot be evaluated, or is not a bool."""


def split_condition(expression: RuleExpression) -> ConditionPart:
    """Take an expression apart, also within parentheses, as far as there are at most MAX_PARTS parts."""
    whole = split_tokens(expression, tokenize_expression(expression.source))
    if sum(1 for _ in whole.leaves) <= MAX_PARTS:
        return whole
    shallow = ConditionPart(
        expression, whole.operator, tuple(ConditionPart(part.expression) for part in whole.parts[: MAX_PARTS + 1])
    )
    return shallow if len(shallow.parts) <= MAX_PARTS else ConditionPart(expression)


def split_tokens(expression: RuleExpression, tokens: Sequence[CelToken]) -> ConditionPart:
    """Take a part of an expression apart, which consists of these tokens of it."""
    while is_parenthesized(tokens):
        tokens = tokens[1:-1]
    own = ConditionPart(expression)
    if tokens:
        own = ConditionPart(expression.cut(tokens[0].start, tokens[-1].start + len(tokens[-1].text)))
    places = find_operators(tokens)
    operator = OR if places[OR] else AND
    if not places[operator]:
        return own
    # Each operator is two tokens, one for each of its characters.
    starts = [0, *(place + 2 for place in places[operator])]
    ends = [*places[operator], len(tokens)]
    parts = tuple(split_tokens(expression, tokens[start:end]) for start, end in zip(starts, ends, strict=True))
    return ConditionPart(own.expression, operator, parts)


def is_parenthesized(tokens: Sequence[CelToken]) -> bool:
    """Return whether the first token opens a parenthesis that the last one closes."""
    if len(tokens) < 3 or tokens[0].text != "(" or tokens[-1].text != ")":
        return False
    return all(depth > 0 for depth in list(depths_of(tokens))[1:-1])


def find_decisive_parts(whole: ConditionPart, values: Mapping[ConditionPart, PartValue]) -> Iterator[ConditionPart]:
    """Yield the parts, of all those with these values that are not taken apart, that decide the value of the whole."""
    if not whole.parts:
        yield whole
        return
    own = value_of(whole, values)
    for part in whole.parts:
        # Where one side settles it, those that do; otherwise every side is needed, and has this value.
        if value_of(part, values) == own:
            yield from find_decisive_parts(part, values)


def value_of(part: ConditionPart, values: Mapping[ConditionPart, PartValue]) -> PartValue:
    """Return the value of a part, given those of the parts that are not taken apart.

    Either side of an operator settles it, whatever the other is (CEL language definition, section Logical Operators).
    """
    if not part.parts:
        return values[part]
    settling, found = part.operator == OR, [value_of(each, values) for each in part.parts]
    if settling in found:
        return settling
    return None if None in found else not settling


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

    `value` is a text, or None without a value; `given_as` the key of the context if it is another spelling of the name;
    `problem` why the value is invalid.
    """

    name: str
    origin: InputOrigin
    value: str | None = None
    given_as: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class GuardrailExplanation:
    """The outcome of a guardrail for an action, with the reasons.

    `reason` says why it is skipped or cannot be evaluated; `violation` is its report. `microseconds` is the time of
    evaluating its condition, 0 if it is not evaluated.
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
    """A verdict with the outcome of each guardrail, in the order in which violations are reported."""

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
        try:
            return self._evaluator.evaluate_part(self._prepared, part.expression)
        except CelEvaluationError as error:
            return error

    def _explain_input(self, declared: InputDeclaration) -> ExplainedInput:
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
        if accepted and fold_name(value or "") not in fold_names(accepted):
            other = f"not {value}" if value else f"but the action has no {what}"
            return f"it is for the {what} {' or '.join(sorted(accepted))}, {other}"
    project = fold_optional(action.project)
    # Fail closed, as the selection does: an action of no project is in the scope of each.
    if scope.projects and project and project not in fold_names(scope.projects):
        return f"it is for the project {' or '.join(sorted(scope.projects))}, not {action.project}"
    return None
