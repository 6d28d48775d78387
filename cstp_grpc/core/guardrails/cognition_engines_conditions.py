"""The conditions and requirements of cognition-engines' guardrails, and the expressions that mean the same here.

Anything that can be understood in two ways is refused with the reason: the format was read by programs that differ, and
skipped conditions that they did not understand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from cstp_grpc.contract.enums import Stakes
from cstp_grpc.core.guardrails.cel_text import value_literal
from cstp_grpc.core.guardrails.cel_variables import RESERVED_NAMES
from cstp_grpc.core.guardrails.inputs import InputType
from cstp_grpc.core.guardrails.rulebook_schema import INPUT_NAME_PATTERN
from cstp_grpc.core.guardrails.yaml_document import FLOAT_PATTERN

ACTION_FIELDS: Final = frozenset({"category", "confidence", "description", "project", "stakes"})
"""The fields of an action; all others are inputs."""
ALWAYS_GIVEN: Final = frozenset({"description", "stakes"})
"""The fields that no action is without: stakes are medium if they are not stated."""
COMPUTED_FIELDS: Final = frozenset(
    {"deliberation_inputs_count", "has_deliberation", "has_pattern", "has_reasoning", "has_tags", "pattern", "phase"}
    | {"quality_score", "reason_count", "scope", "tags"}
)
"""Fields that cognition-engines computed itself, or read from the decision being recorded."""
COMPARISON: Final = re.compile(r"(<=|>=|==|!=|<|>|=)\s*([^\s<>=!].*)", re.DOTALL)
ORDERING: Final = frozenset({"<", ">", "<=", ">="})
AMBIGUOUS_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "none", "~"})
MAX_WHOLE: Final = 2.0**53
"""Below it each whole number is a double of its own."""
SUFFIXED_NAME: Final = re.compile(r"(.+)_(lt|gt|lte|gte)")
UNSUITABLE_CHARACTERS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")


class RefusedCondition(Exception):
    """A condition can be understood in two ways, or not at all; the text says why and how to go on."""


class Comparison(NamedTuple):
    """The operator and the value that a field is compared with: `==`, `!=`, `<`, `<=`, `>` or `>=`."""

    operator: str
    value: bool | float | str

    @property
    def type(self) -> InputType:
        if isinstance(self.value, bool):
            return InputType.BOOL
        return InputType.STRING if isinstance(self.value, str) else InputType.NUMBER


def parse_condition(value: object) -> Comparison:
    """Parse the value of a condition. Raises RefusedCondition."""
    if not isinstance(value, str):
        return Comparison("==", parse_plain(value))
    if not value.startswith(("<", ">", "=", "!")):
        return Comparison("==", parse_text(value))
    match = COMPARISON.fullmatch(value)
    if match is None:
        raise RefusedCondition(f"{value!r} is not a comparison such as '< 0.5'")
    operator, operand = "==" if match[1] == "=" else match[1], match[2].strip()
    if FLOAT_PATTERN.fullmatch(operand):
        return Comparison(operator, parse_number(float(operand)))
    if operator in ORDERING:
        raise RefusedCondition(f"{value!r} compares with a text, which has no order; it failed and was skipped")
    return Comparison(operator, parse_text(operand))


def parse_requirement(value: object) -> Comparison:
    """Parse the value that a requirement demands. Raises RefusedCondition."""
    if isinstance(value, str) and value.startswith(("=", "!")):
        raise RefusedCondition(f"{value!r} was compared as a text and was never met; write the required value")
    return parse_condition(value)


def parse_plain(value: object) -> bool | float:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return parse_number(float(value))
    kind = "a list" if isinstance(value, list) else "a map" if isinstance(value, dict) else "empty"
    raise RefusedCondition(f"is {kind}, but must be a text, a number or a bool; write a rule for each value")


def parse_number(number: float) -> float:
    if not math.isfinite(number):
        raise RefusedCondition("is too large a number")
    return number


def parse_text(text: str) -> str:
    """Return a text. Raises RefusedCondition if it could be meant as something else."""
    if text.strip().lower() in AMBIGUOUS_WORDS or FLOAT_PATTERN.fullmatch(text.strip()):
        raise RefusedCondition(f"{text!r} may be meant as a text or as a value; write the value without quotes")
    if not text.strip():
        raise RefusedCondition("is blank")
    if UNSUITABLE_CHARACTERS.search(text):
        raise RefusedCondition("contains control characters or line breaks")
    return text


def check_field(name: str, comparison: Comparison) -> None:
    """Check that a field exists here and can be compared so. Raises RefusedCondition."""
    if name in COMPUTED_FIELDS:
        raise RefusedCondition(
            "no action has it: cognition-engines worked it out, or knew it of a decision that was being recorded;"
            " declare an input of another name that agents state"
        )
    if name == "stakes" and (comparison.operator in ORDERING or comparison.value not in list(Stakes)):
        raise RefusedCondition(
            f"must be compared with one of {', '.join(Stakes)}, by == or !=; nothing else was ever met"
        )
    if name == "confidence" and not (isinstance(comparison.value, float) and 0 <= comparison.value <= 1):
        raise RefusedCondition("must be compared with a number from 0 to 1")
    if name in ("category", "description", "project") and comparison.type is not InputType.STRING:
        raise RefusedCondition("must be compared with a text")
    if name in ACTION_FIELDS:
        return
    if not INPUT_NAME_PATTERN.fullmatch(name) or name in RESERVED_NAMES:
        raise RefusedCondition("is not a name that an expression can read")
    suffixed = SUFFIXED_NAME.fullmatch(name)
    if suffixed:
        raise RefusedCondition(f"may be a name, or {suffixed[1]} with a comparison; write {suffixed[1]}: '< 0.5'")


def variable_name(field: str) -> str:
    return f"action.{field}" if field in ACTION_FIELDS else f"context.{field}"


def comparison_expression(field: str, comparison: Comparison) -> str:
    """Return the expression that is true if a field compares so."""
    name, (operator, value) = variable_name(field), comparison
    if isinstance(value, bool):
        return name if value else f"!{name}"
    literal = f"stakes.{value}" if field == "stakes" else operand_literal(value)
    return f"{name} {operator} {literal}"


def operand_literal(value: float | str) -> str:
    if isinstance(value, str):
        return value_literal(value)
    # As a person would write it: expressions compare doubles with whole numbers, too.
    return str(int(value)) if value.is_integer() and abs(value) < MAX_WHOLE else repr(value)


def condition_expression(field: str, comparison: Comparison, *, skips_absent: bool) -> str:
    """Return the expression of a condition; `skips_absent` makes it false for an action without the field."""
    expression = comparison_expression(field, comparison)
    if not skips_absent or field in ALWAYS_GIVEN:
        return expression
    return f"has({variable_name(field)}) && {expression}"


def failure_expression(field: str, comparison: Comparison, defaults: Mapping[str, bool]) -> str:
    """Return the expression that is true unless a requirement is met; `defaults` are those of inputs."""
    if isinstance(comparison.value, bool):
        negated = comparison_expression(field, Comparison(comparison.operator, not comparison.value))
    else:
        negated = f"!({comparison_expression(field, comparison)})"
    if field in ALWAYS_GIVEN or field in defaults:
        return negated
    return f"!has({variable_name(field)}) || {negated}"
