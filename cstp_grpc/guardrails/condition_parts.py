"""Take a rule's expression apart at its `&&` and `||`, and find the parts that decide its value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from cstp_grpc.guardrails.cel_variables import CelToken, RuleExpression, tokenize_expression

AND: Final = "&&"
OR: Final = "||"
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
"""The value of a part; None if it cannot be evaluated, or is no bool."""


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
    own = ConditionPart(expression.cut(tokens[0].start, end_of(tokens[-1]))) if tokens else ConditionPart(expression)
    places = find_operators(tokens)
    operator = OR if places[OR] else AND
    if not places[operator]:
        return own
    # Each operator is two tokens, one for each of its characters.
    starts = [0, *(place + 2 for place in places[operator])]
    ends = [*places[operator], len(tokens)]
    parts = tuple(split_tokens(expression, tokens[start:end]) for start, end in zip(starts, ends, strict=True))
    return ConditionPart(own.expression, operator, parts)


def end_of(token: CelToken) -> int:
    """Return the position behind a token."""
    return token.start + len(token.text)


def depths_of(tokens: Sequence[CelToken]) -> Iterator[int]:
    """Yield for each token how many brackets are open before it."""
    depth = 0
    for token in tokens:
        if token.kind == "other" and token.text in ")]}":
            depth -= 1
        yield depth
        if token.kind == "other" and token.text in "([{":
            depth += 1


def is_parenthesized(tokens: Sequence[CelToken]) -> bool:
    """Return whether the first token opens a parenthesis that the last one closes."""
    if len(tokens) < 3 or tokens[0].text != "(" or tokens[-1].text != ")":
        return False
    return all(depth > 0 for depth in list(depths_of(tokens))[1:-1])


def find_operators(tokens: Sequence[CelToken]) -> Mapping[str, Sequence[int]]:
    """Return the places of `&&` and `||` outside of brackets; none if a condition `… ? … : …` binds more weakly."""
    found: dict[str, list[int]] = {AND: [], OR: []}
    for place, depth in enumerate(depths_of(tokens)):
        token = tokens[place]
        if depth or token.kind != "other":
            continue
        # In `value.?field` the sign belongs to the field.
        if token.text == "?" and tokens[place - 1].text != ".":
            return {AND: [], OR: []}
        # The second character of an operator follows the first one; nothing else has either of them outside of texts.
        if token.text in "&|" and place + 1 < len(tokens) and tokens[place + 1].text == token.text:
            operator = token.text * 2
            if not found[operator] or found[operator][-1] != place - 1:
                found[operator].append(place)
    return found


def combine_values(operator: str, values: Sequence[PartValue]) -> PartValue:
    """Return the value of parts that an operator connects: either side settles it, whatever the other is.

    As in the CEL language definition, section Logical Operators.
    """
    settling = operator == OR
    if settling in values:
        return settling
    return None if None in values else not settling


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
    """Return the value of a part, given those of the parts that are not taken apart."""
    if not part.parts:
        return values[part]
    return combine_values(part.operator, [value_of(each, values) for each in part.parts])
