"""Texts with expressions.

In `Only ${context.limit} rows, not ${context.rows}` the braces hold expressions; `$${` stands for `${` itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.guardrails.cel_cost import MAX_TEXT_STEPS, ValueSize
from cstp_grpc.core.guardrails.cel_engine import CelActivation, CelEnvironment, CelEvaluationError, CelProgram
from cstp_grpc.core.guardrails.cel_text import RuleExpressionError, tokenize_expression
from cstp_grpc.core.guardrails.model import TextTemplate

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

    Raises RuleExpressionError if it is missing.
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
        """Return the text with values in the place of expressions, or with the errors of their evaluation."""
        try:
            values = [program.evaluate(bound, sizes, MAX_TEXT_STEPS) for program in self.programs]
        except CelEvaluationError as error:
            # Whoever is judged may not read expressions, and could make them fail.
            return f"{self.template.outline} ({explain(error)})"
        first, *rest = self.template.parts
        return first + "".join(format_value(value) + part for value, part in zip(values, rest, strict=True))


def format_value(value: object) -> str:
    if isinstance(value, str):
        text = value
    elif isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        # All numbers are doubles; an author who wrote 5 expects 5, not 5.0.
        text = str(int(value))
    elif isinstance(value, datetime):
        text = value.isoformat().replace("+00:00", "Z")
    elif isinstance(value, timedelta):
        text = f"{value.total_seconds():g}s"
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}…"
