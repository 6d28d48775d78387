"""Which variables an expression reads, found in its text.

Variables have dotted names, `context.x`, so that the engine knows the type of each and refuses a misspelt one. The
price: for a dotted variable the engine's own `has` returns the value instead of telling whether there is one. So
`has(context.x)` becomes a variable of its own here, `has.context.x`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ROOTS = frozenset({"action", "context", "stakes", "code"})
GROUPS = frozenset({"code.boundaries"})
"""Names that hold further ones, so that a variable's name goes on after them."""
RESERVED = frozenset(
    {"as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop"}
    | {"namespace", "null", "package", "return", "true", "var", "void", "while"}
)
"""Names that CEL keeps for itself; an input cannot be called so."""

TOKEN = re.compile(
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


class ExpressionError(Exception):
    """An expression cannot be used; the message completes `RULE …`."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression: its `source`, its `text` for the engine, and the variables it reads.

    `values` are those whose value it reads, `presences` those of which it asks whether there is one.
    """

    source: str
    text: str
    values: frozenset[str]
    presences: frozenset[str]


class Token(NamedTuple):
    """A piece of an expression, and where it starts."""

    kind: str
    text: str
    start: int


def presence_variable(name: str) -> str:
    """Return the variable that says whether another has a value."""
    return f"has.{name}"


def scan(source: str) -> Expression:
    """Return an expression with what it reads. Raises ExpressionError where a variable is not read by its full name."""
    tokens = tokenize(source)
    text = list(source)
    values, presences = set(), set()
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token.kind == "name" and starts_operand(tokens, position):
            if token.text == "has" and tested(tokens, position):
                presences.add(variable_at(tokens, position + 2))
                # As long as before, so that the columns in messages stay right: `has(context.x)`, `has.context.x `.
                text[tokens[position + 1].start] = "."
                text[tokens[position + 5].start] = " "
                position += 5
            elif token.text in ROOTS:
                values.add(variable_at(tokens, position))
        position += 1
    return Expression(source, "".join(text), frozenset(values), frozenset(presences))


def tokenize(source: str) -> list[Token]:
    """Return the pieces of an expression without spaces and comments."""
    found = ((match.lastgroup or "", match[0], match.start()) for match in TOKEN.finditer(source))
    return [Token(kind, text, start) for kind, text, start in found if kind != "space"]


def starts_operand(tokens: Sequence[Token], position: int) -> bool:
    """Whether a name stands for itself, rather than for a field of what is before it."""
    before = [token.text for token in tokens[max(0, position - 2) : position]]
    if before[-2:] == [".", "?"]:
        return False
    if before[-1:] != ["."]:
        return True
    # A dot with no operand before it: `.context.x` means the same as `context.x`.
    return position < 2 or not ends_operand(tokens[position - 2])


def ends_operand(token: Token) -> bool:
    """Whether a field can be taken from what ends with this."""
    if token.kind == "name":
        return token.text != "in"
    return token.kind in ("string", "number") or token.text in (")", "]", "}", "`")


def tested(tokens: Sequence[Token], position: int) -> bool:
    """Whether `has` at `position` asks for a variable, not for a field of a value. Raises ExpressionError."""
    texts = [token.text for token in tokens[position + 1 : position + 6]]
    if texts[:1] != ["("] or texts[1:2] in (["("], ["."]):
        raise ExpressionError("has() takes a plain path such as context.x")
    if texts[1:2] == ["code"]:
        raise ExpressionError("has() of code is always true; ask for its size: size(code.checks) > 0")
    return len(texts) == 5 and texts[1] in ROOTS and texts[2] == "." and texts[4] == ")"


def variable_at(tokens: Sequence[Token], position: int) -> str:
    """Return the dotted name that starts at `position`. Raises ExpressionError."""
    name = tokens[position].text
    while name in ROOTS or name in GROUPS:
        rest = tokens[position + 1 : position + 3]
        if len(rest) < 2 or rest[0].text != "." or rest[1].kind != "name":
            raise ExpressionError(f"reads {name} as a whole; read it by name: {name}.NAME")
        name = f"{name}.{rest[1].text}"
        position += 2
    return name
