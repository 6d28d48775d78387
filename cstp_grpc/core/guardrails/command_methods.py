"""The methods that rules call on a command, such as `c.runs("git push")`, and their form for the engine."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from cstp_grpc.core.commands.model import UNKNOWN, Place, Unresolved
from cstp_grpc.core.guardrails.cel_text import RuleExpressionError


class CommandMethod(NamedTuple):
    """A method: the field that it searches, the texts that it takes, and an example."""

    field: str
    example: str
    values: Collection[str] = ()
    """The only texts that it takes; empty for any."""
    is_optional: bool = False
    """Whether it may be called without a text, which asks for any value."""
    is_every: bool = False
    """Whether all values of the field must be among the texts, rather than one."""


PLACES: Final = tuple(Place)
COMMAND_METHODS: Final[Mapping[str, CommandMethod]] = {
    "runs": CommandMethod("phrases", 'c.runs("git push", "aws * delete-*")'),
    "hasFlag": CommandMethod("flags", 'c.hasFlag("--force", "-f")'),
    "hasOperand": CommandMethod("operands", 'c.hasOperand("prod")'),
    "deletes": CommandMethod("deletes", 'c.deletes("root", "home")', PLACES, is_optional=True),
    "deletesOnly": CommandMethod("deletes", 'c.deletesOnly("build", "temporary")', PLACES, is_every=True),
    "writes": CommandMethod("writes", 'c.writes("device")', PLACES, is_optional=True),
    "reads": CommandMethod("reads", 'c.reads("secret")', PLACES, is_optional=True),
    "readsSecret": CommandMethod("reads", "c.readsSecret()", is_optional=True),
    "sql": CommandMethod("sql", 'c.sql("drop table", "delete all")', is_optional=True),
    "unresolved": CommandMethod("unresolved", 'c.unresolved("downloaded")', tuple(Unresolved), is_optional=True),
    "hasUnknownOperand": CommandMethod("operands", "c.hasUnknownOperand()", is_optional=True),
    "sendsOut": CommandMethod("sends_out", "c.sendsOut()", is_optional=True),
}
WITHOUT_ARGUMENTS: Final = {
    "readsSecret": f'reads.exists(each, each == "{Place.SECRET}")',
    "sendsOut": "sends_out",
    "hasUnknownOperand": f'operands.exists(each, each.contains("{UNKNOWN}"))',
}
"""The methods that take no text, in the form of the engine."""


def check_method_arguments(name: str, texts: Sequence[str]) -> None:
    """Check the arguments of a method. Raises RuleExpressionError."""
    method = COMMAND_METHODS[name]
    if name in WITHOUT_ARGUMENTS and texts:
        raise RuleExpressionError(f"{name}() takes no text")
    if not texts and not method.is_optional:
        raise RuleExpressionError(f"{name}() needs a text, as in {method.example}")
    for text in texts:
        if not text.strip():
            raise RuleExpressionError(f"{name}() has a blank text")
        if method.values and text not in method.values:
            close = difflib.get_close_matches(text, list(method.values), 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(method.values))}"
            noun = "reason" if name == "unresolved" else "kind of path"
            raise RuleExpressionError(f'{name}("{text}") names no {noun}; {hint}')
        if name == "runs" and re.search(r"\s-", text):
            raise RuleExpressionError(f'runs("{text}") names a flag; ask for it with hasFlag')
        if name == "hasFlag" and not text.startswith("-"):
            raise RuleExpressionError(f'hasFlag("{text}") names no flag; flags begin with a dash')


def write_method(name: str, texts: Sequence[str]) -> str:
    """Return the call of a method behind its dot, as the engine gets it.

    Membership in a list is faster there than any function in Python.
    """
    if name in WITHOUT_ARGUMENTS:
        return WITHOUT_ARGUMENTS[name]
    method = COMMAND_METHODS[name]
    if not texts:
        return f"{method.field}.exists(each, true)"
    quantifier = "all" if method.is_every else "exists"
    return f"{method.field}.{quantifier}(each, each in {json.dumps(list(texts), ensure_ascii=False)})"
