"""The tokens of CEL expressions, and the error of an invalid expression."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


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
