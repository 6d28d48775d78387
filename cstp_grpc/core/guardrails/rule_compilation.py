"""Compile guardrails: groups with the same conditions, batches that are evaluated together, and texts with expressions.

A text such as `Only ${context.limit} rows, not ${context.rows}` holds expressions; `$${` stands for `${` itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cstp_grpc.contract.enums import Enforcement
from cstp_grpc.core.guardrails.cel_cost import (
    MAX_TEXT_STEPS,
    ValueSize,
)
from cstp_grpc.core.guardrails.cel_engine import (
    CelActivation,
    CelEnvironment,
    CelEvaluationError,
    CelPredicateBatch,
    CelProgram,
)
from cstp_grpc.core.guardrails.cel_variables import (
    RuleExpression,
    tokenize_expression,
)
from cstp_grpc.core.guardrails.evaluation_plan import (
    CONTEXT_PREFIX,
    CompiledGuardrail,
    GuardrailBatch,
)
from cstp_grpc.core.guardrails.model import (
    Guardrail,
    InputDeclaration,
    MissingInput,
    RuleMatch,
    RuleScope,
    TextTemplate,
    Violation,
)
from cstp_grpc.core.guardrails.rule_errors import RuleExpressionError

OPENING = "${"
ESCAPED_OPENING = "$${"
MAX_VALUE_CHARACTERS = 200
"""Maximum length of a value in a text. Chosen: a message is read by people."""


def split_template(text: str) -> tuple[list[str], list[str]]:
    """Return the parts of a text and the expressions between them. Raises RuleExpressionError."""
    parts, expressions = [""], []
    position = 0
    while (start := text.find(OPENING, position)) >= 0:
        if text[start - 1 : start] == "$" and start > position:
            parts[-1] += text[position : start - 1] + OPENING
            position = start + len(OPENING)
            continue
        parts[-1] += text[position:start]
        length = find_expression_end(text[start + len(OPENING) :])
        expressions.append(text[start + len(OPENING) :][:length])
        parts.append("")
        position = start + len(OPENING) + length + 1
    parts[-1] += text[position:]
    return parts, expressions


def find_expression_end(rest: str) -> int:
    """Return the position of the brace that ends the expression at the beginning of a text.

    Raises RuleExpressionError if there is none.
    """
    depth = 0
    for token in tokenize_expression(rest):
        if token.text == "}" and depth == 0:
            return token.start
        depth += (token.text == "{") - (token.text == "}")
    raise RuleExpressionError(f"opens {OPENING} without the brace that closes it; {ESCAPED_OPENING} is the text itself")


def parse_template(text: str | None, environment: CelEnvironment) -> TextTemplate | None:
    """Return the template of a text, or None for one without expressions. Raises RuleExpressionError."""
    if text is None or OPENING not in text:
        return None
    parts, sources = split_template(text)
    return TextTemplate(tuple(parts), tuple(environment.parse_text(source) for source in sources))


ExplainError = Callable[[CelEvaluationError], str]
"""Says why an expression cannot be evaluated."""


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """A template with compiled expressions."""

    template: TextTemplate
    programs: Sequence[CelProgram]

    def render(self, bound: CelActivation, sizes: Mapping[str, ValueSize], explain: ExplainError) -> str:
        """Return the text with values in the place of expressions, or with the reason why they have none."""
        try:
            values = [program.evaluate_within(bound, sizes, MAX_TEXT_STEPS) for program in self.programs]
        except CelEvaluationError as error:
            # Whoever is judged may not read expressions, and could make them fail.
            return f"{self.template.outline} ({explain(error)})"
        first, *rest = self.template.parts
        return first + "".join(format_value(value) + part for value, part in zip(values, rest, strict=True))


def compile_template(template: TextTemplate, environment: CelEnvironment) -> CompiledTemplate:
    return CompiledTemplate(template, [environment.compile_one(part) for part in template.expressions])


def format_value(value: object) -> str:
    """Return a value as it is shown in a text."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        # All numbers are doubles, and nobody has written 5.0.
        text = str(int(value))
    elif isinstance(value, datetime):
        text = value.isoformat().replace("+00:00", "Z")
    elif isinstance(value, timedelta):
        text = f"{value.total_seconds():g}s"
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}…"


@dataclass(frozen=True, slots=True)
class GroupConditions:
    """What the guardrails of a group have in common."""

    match: RuleMatch
    scope: RuleScope
    expires: datetime | None


@dataclass(frozen=True, slots=True)
class GuardrailGroup:
    """Guardrails with the same conditions, each with its position in the rule set."""

    conditions: GroupConditions
    guardrails: Sequence[tuple[int, Guardrail]]


def group_guardrails(guardrails: Sequence[Guardrail]) -> list[GuardrailGroup]:
    groups: dict[GroupConditions, list[tuple[int, Guardrail]]] = {}
    for position, item in enumerate(guardrails):
        if item.enforcement is not Enforcement.DISABLED:
            conditions = GroupConditions(item.match, item.scope, item.expires)
            groups.setdefault(conditions, []).append((position, item))
    return [GuardrailGroup(conditions, members) for conditions, members in groups.items()]


def find_expired_guardrails(guardrails: Iterable[Guardrail], now: datetime) -> list[Guardrail]:
    """Return the guardrails that do nothing any more."""
    return [item for item in guardrails if item.expires is not None and item.expires <= now]


BATCH_GUARDRAILS = 50
"""Guardrails per batch. Chosen: smaller batches need more engine calls; in a larger one, all rules are evaluated again
if one fails. SHARED_STEPS is MAX_STEPS divided by it."""
BATCH_CHARACTERS = 50_000
"""Maximum length of a batch's expressions together; the engine accepts 100 000."""


class GuardrailCompiler:
    """Compiles guardrails that read the given inputs."""

    def __init__(self, environment: CelEnvironment, inputs: Mapping[str, InputDeclaration]) -> None:
        self._environment = environment
        self._inputs = inputs

    def compile_group(self, group: GuardrailGroup) -> Sequence[GuardrailBatch]:
        rules = [self._compile(position, guardrail) for position, guardrail in group.guardrails]
        return [GuardrailBatch(part, self._compile_batch(part)) for part in batch_rules(rules)]

    def _compile_batch(self, rules: Sequence[CompiledGuardrail]) -> CelPredicateBatch:
        try:
            return self._environment.compile_batch([rule.guardrail.when for rule in rules])
        except RuleExpressionError:
            # Each alone, for the message about the one that fails.
            for rule in rules:
                _ = rule.program.program
            raise

    def _compile(self, position: int, guardrail: Guardrail) -> CompiledGuardrail:
        # The tested ones too: `!has(context.reviewer)` matches just because the caller has not sent it.
        declared = [self._inputs[name] for name in sorted(input_names_of([guardrail.when]))]
        return CompiledGuardrail(
            position,
            guardrail,
            self._environment.defer_one(guardrail.when),
            Violation(
                guardrail.id,
                guardrail.name,
                guardrail.message,
                guardrail.severity,
                guardrail.suggestion,
                approvers=guardrail.approvers,
            ),
            [describe_missing_input(each) for each in declared],
            [CONTEXT_PREFIX + each.name for each in declared if each.is_required],
            self._compile_text(guardrail.message_template),
            self._compile_text(guardrail.suggestion_template),
        )

    def _compile_text(self, template: TextTemplate | None) -> CompiledTemplate | None:
        return None if template is None else compile_template(template, self._environment)


def batch_rules(rules: Sequence[CompiledGuardrail]) -> Iterator[Sequence[CompiledGuardrail]]:
    """Yield guardrails in batches."""
    part: list[CompiledGuardrail] = []
    characters = 0
    for rule in rules:
        length = len(rule.guardrail.when.text)
        characters += length
        # Closed before the guardrail that would be too much. One alone always fits, by MAX_EXPRESSION_CHARACTERS.
        if part and (len(part) == BATCH_GUARDRAILS or characters > BATCH_CHARACTERS):
            yield part
            part, characters = [], length
        part.append(rule)
    if part:
        yield part


def describe_missing_input(declared: InputDeclaration) -> MissingInput:
    """Return how an input is described to those who have not given it."""
    return MissingInput(declared.name, declared.type, declared.description, declared.values)


def input_names_of(expressions: Sequence[RuleExpression]) -> frozenset[str]:
    """Return the names of the inputs that expressions read or test for presence."""
    return frozenset(
        name.removeprefix(CONTEXT_PREFIX)
        for expression in expressions
        for name in expression.values | expression.presences
        if name.startswith(CONTEXT_PREFIX)
    )
