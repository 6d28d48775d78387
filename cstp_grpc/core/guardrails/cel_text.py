"""The text of CEL expressions: tokens, literals of values, and messages about invalid expressions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple


class RuleExpressionError(Exception):
    """An expression is invalid; the message completes `RULE …`."""


# After the lexical grammar of CEL (language definition, section Syntax). It need not reject anything: the engine does.
# It must only not take a name within a string or a comment for a variable.
TOKEN_PATTERN = re.compile(
    r"""
      (?P<space>   \s+ | //[^\n]* )
    | (?P<string>  [bB]?[rR] (?: \"{3}.*?\"{3} | '{3}.*?'{3} | "[^"\r\n]*" | '[^'\r\n]*' )
                 | [bB]? (?: \"{3}(?:\\.|[^\\])*?\"{3} | '{3}(?:\\.|[^\\])*?'{3}
                           | "(?:\\.|[^"\\\r\n])*" | '(?:\\.|[^'\\\r\n])*' ) )
    | (?P<name>    [A-Za-z_][A-Za-z0-9_]* )
    | (?P<number>  [0-9]+ (?:\.[0-9]+)? )
    | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL,
)


class CelToken(NamedTuple):
    """A token of an expression and its start."""

    kind: str
    text: str
    start: int


def tokenize_expression(source: str) -> list[CelToken]:
    """Return the tokens of an expression without spaces and comments."""
    found = ((match.lastgroup or "", match[0], match.start()) for match in TOKEN_PATTERN.finditer(source))
    return [CelToken(kind, text, start) for kind, text, start in found if kind != "space"]


def starts_operand(tokens: Sequence[CelToken], position: int) -> bool:
    """Return True if a name is an operand, rather than a field of the preceding value."""
    before = [token.text for token in tokens[max(0, position - 2) : position]]
    # `value.?field`, which the engine's extension for optional values adds to the syntax.
    if before[-2:] == [".", "?"]:
        return False
    if before[-1:] != ["."]:
        return True
    # A dot with no operand before it: `.context.x` means the same as `context.x`.
    return position < 2 or not ends_operand(tokens[position - 2])


def ends_operand(token: CelToken) -> bool:
    """Return True if a token can end an operand, so that a field access may follow."""
    if token.kind == "name":
        # The one operator that is a word: `x in .context.names`.
        return token.text != "in"
    return token.kind in ("string", "number") or token.text in (")", "]", "}", "`")


def depths_of(tokens: Sequence[CelToken]) -> Iterator[int]:
    """Yield for each token how many brackets are open before it."""
    depth = 0
    for token in tokens:
        if token.kind == "other" and token.text in ")]}":
            depth -= 1
        yield depth
        if token.kind == "other" and token.text in "([{":
            depth += 1


AND: Final = "&&"
OR: Final = "||"


def find_operators(tokens: Sequence[CelToken]) -> Mapping[str, Sequence[int]]:
    """Return the places of `&&` and `||` outside of brackets; none if a condition `… ? … : …` binds more weakly."""
    found: dict[str, list[int]] = {AND: [], OR: []}
    texts = [token.text for token in tokens]
    for place, depth in enumerate(depths_of(tokens)):
        # In `value.?field` the sign belongs to the field.
        if not depth and texts[place] == "?" and texts[place - 1] != ".":
            return {AND: [], OR: []}
        operator = "".join(texts[place : place + 2])
        # The second character of an operator follows the first one; nothing else has either of them outside of texts.
        if not depth and operator in found and found[operator][-1:] != [place - 1]:
            found[operator].append(place)
    return found


NESTING_SIGN = re.compile(r"[^\w\s)\]}\"',&|]|\bin\b")
MAX_SHALLOW_SIGNS = 20
MAX_SHARED_OPERANDS = 2
"""How many first operands of `&&` a disjunction shares. Chosen: each nests the others deeper."""


def is_shallow(text: str) -> bool:
    """Return whether an expression has too few signs to reach the engine's limit of about 25 levels of nesting."""
    return len(NESTING_SIGN.findall(text)) <= MAX_SHALLOW_SIGNS


def split_conjunction(text: str) -> list[str]:
    """Return the first operands of `&&` outside of brackets, then the rest; a deep expression is not split."""
    tokens = tokenize_expression(text) if AND in text and is_shallow(text) else []
    places = find_operators(tokens)
    operators = [tokens[place].start for place in places[AND][:MAX_SHARED_OPERANDS] if not places[OR]]
    starts, ends = [0, *(start + 2 for start in operators)], [*operators, len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def write_disjunction(conjunctions: Iterable[Sequence[str]]) -> str:
    """Return an expression that is false if and only if all of these conjunctions are, and skips most of them.

    A first operand that several share is evaluated once, and they are skipped if it is false. Errors change nothing in
    that: `&&` is the minimum and `||` the maximum of false < error < true, of which each distributes over the other.
    """
    rests: dict[str, list[Sequence[str]]] = {}
    for first, *rest in conjunctions:
        rests.setdefault(first, []).append(rest)
    # The line break ends a comment at the end of an operand, which would hide the parenthesis.
    return f" {OR} ".join(
        f"({first}\n)" + (f" {AND} ({write_disjunction(found)})" if all(found) else "")
        for first, found in rests.items()
    )


# The engine reports errors as text only.
ENGINE_ERROR = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")

MAX_ENGINE_MESSAGE_CHARACTERS = 300
"""Maximum length of an engine message in a response. Chosen: it may quote a value as long as the whole context."""

TIME_HINTS: Mapping[str, str] = {
    "duration": 'the units are h, m, s and ms, so that a week is duration("168h")',
    "timestamp": 'write an instant such as timestamp("2026-03-01T12:00:00Z")',
}
"""How the functions are called whose argument is a text of some form."""


def find_time_literals(text: str) -> Iterator[str]:
    """Yield the calls of `duration` and `timestamp` with a literal text, as they are written."""
    # Most rules have no such literal, which this check finds without parsing them.
    tokens = tokenize_expression(text) if any(name in text for name in TIME_HINTS) else []
    for place, token in enumerate(tokens[:-3]):
        kinds = [each.kind if each.kind == "string" else each.text for each in tokens[place + 1 : place + 4]]
        if token.text in TIME_HINTS and kinds == ["(", "string", ")"] and starts_operand(tokens, place):
            yield text[token.start : tokens[place + 3].start + 1]


def value_literal(value: object) -> str:
    if isinstance(value, float):
        # In parentheses, so that a negative one can follow a minus.
        return f"({value!r})"
    if isinstance(value, datetime):
        return f"timestamp({json.dumps(value.isoformat())})"
    if isinstance(value, timedelta):
        return f'duration("{value.total_seconds():.6f}s")'
    if isinstance(value, list):
        return f"[{', '.join(map(value_literal, value))}]"
    # Texts and bools are written as in JSON.
    return json.dumps(value, ensure_ascii=False)


def explain_compile_error(text: str) -> str:
    """Return the first compile error with its position, and a hint where there is one."""
    match = ENGINE_ERROR.search(text)
    if not match:
        return clean_engine_message(text)
    line, column, reason = int(match[1]), int(match[2]), match[3].removesuffix(" (in container '')")
    # The parser lists every token that it would have accepted there.
    reason = reason.partition(" expecting ")[0].removesuffix(" [INVALID_ARGUMENT]")
    place = f"column {column}: " if line == 1 else f"line {line}, column {column}: "
    hint = ""
    if "'_%_'" in reason and "double" in reason:
        hint = "; % takes whole numbers only: write int(x) % 2"
    elif re.search(r"\((double, (list\()?int|int, (list\()?double)", reason):
        hint = "; numbers other than sizes are doubles: write 5.0 instead of 5"
    elif re.search(r"\((int, string|string, int)\)", reason):
        hint = "; stakes compare with stakes.low, stakes.medium, stakes.high and stakes.critical"
    return f"{place if line > 0 else ''}{reason}{hint}"


def clean_engine_message(text: str) -> str:
    """Return an engine message without its status codes, truncated."""
    text = re.sub(r"^[A-Z_]+: | \[[A-Z_]+\]$", "", text.strip())
    return text if len(text) <= MAX_ENGINE_MESSAGE_CHARACTERS else text[:MAX_ENGINE_MESSAGE_CHARACTERS] + "…"
