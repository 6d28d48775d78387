"""The error of an invalid expression."""

from __future__ import annotations


class RuleExpressionError(Exception):
    """An expression is invalid; the message completes `RULE …`."""
