"""CEL, by Google's engine: the only module that knows it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import TypeAlias

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from cstp_grpc.guardrails.evaluation_cost import MAX_STEPS, SHARED_STEPS, Size, UnknownCost, estimate
from cstp_grpc.guardrails.scanner import Expression, ExpressionError, presence_variable, scan
from cstp_grpc.guardrails.syntax_tree import read_syntax_tree
from cstp_grpc.guardrails.values import InputType
from cstp_grpc.vocabulary import Stakes

MAX_LENGTH = 10_000
"""How many characters an expression may have."""

STAKES_ORDER: Mapping[Stakes, int] = {stakes: order for order, stakes in enumerate(Stakes)}
"""What the stakes are in expressions; only their order means anything."""

ACTION_TYPES = {
    "action.description": cel.Type.STRING,
    "action.category": cel.Type.STRING,
    "action.stakes": cel.Type.INT,
    "action.confidence": cel.Type.DOUBLE,
}
OPTIONAL_FIELDS = frozenset({"action.category", "action.confidence"})
CODE_NAMES = frozenset(
    {
        "code.paths",
        "code.boundaries.never",
        "code.boundaries.ask_first",
        "code.boundaries.always",
        "code.checks",
        "code.pitfalls",
    }
)
"""Lists of texts."""
STAKES_NAMES = frozenset(f"stakes.{stakes}" for stakes in Stakes)

INPUT_TYPES = {
    InputType.BOOL: cel.Type.BOOL,
    InputType.NUMBER: cel.Type.DOUBLE,
    InputType.STRING: cel.Type.STRING,
    InputType.LIST: cel.Type.List(cel.Type.DYN),
    InputType.MAP: cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
}

SMALL_SIZE = 25
"""Inputs of this many values with four times as many characters must not be too large for a rule."""
LARGEST_SIZE = 1 << 20
"""More than all inputs of an action together can have."""

ENGINE_ERROR = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
MISSING_VARIABLE = re.compile(r'No value with name "([a-zA-Z0-9_.]+)" found in Activation')
MAX_ENGINE_TEXT = 300

Bound: TypeAlias = cel.Activation
"""The values of variables as the engine takes them."""


class EvaluationError(Exception):
    """An expression has no value here; `variable` is the one without a value, where that is the cause."""

    def __init__(self, message: str, variable: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.variable = variable


class Predicate:
    """A compiled expression that reads the given variables. Raises ExpressionError if its cost cannot be estimated."""

    def __init__(self, program: cel.Expression, reads: Iterable[str]) -> None:
        self._program = program
        self._reads = frozenset(reads)
        try:
            self._tree = read_syntax_tree(program.serialize())
            if self._steps_at(SMALL_SIZE) > MAX_STEPS:
                raise ExpressionError(
                    f"may take more than {MAX_STEPS} steps even on inputs of {4 * SMALL_SIZE} characters"
                )
        except (UnknownCost, ValueError) as error:
            raise ExpressionError(f"uses what cannot be bounded: {error}") from None

    @cached_property
    def light_size(self) -> int:
        """Return the size of all that it reads up to which it may be evaluated together with others."""
        size = LARGEST_SIZE
        while size and self._steps_at(size) > SHARED_STEPS:
            size //= 2
        return size

    def estimate_steps(self, sizes: Mapping[str, Size]) -> int:
        """Return how many steps an evaluation takes at most, where variables have these sizes."""
        return estimate(self._tree, sizes).steps

    def _steps_at(self, size: int) -> int:
        """Return how many steps an evaluation takes at most, where each variable has this many values and characters.

        A character has up to four bytes.
        """
        return self.estimate_steps(dict.fromkeys(self._reads, Size(size, 4 * size)))

    def holds(self, bound: Bound) -> bool:
        """Return the expression's value. Raises EvaluationError."""
        try:
            result = self._program.eval(bound).plain_value()
        except RuntimeError as error:
            raise EvaluationError(engine_text(str(error))) from None
        # An error comes as a value too, and its text is truthy: only a bool is an answer.
        if result is True or result is False:
            return bool(result)
        message = engine_text(str(result))
        # The whole message, because one about a value may quote whatever the caller has sent.
        missing = MISSING_VARIABLE.fullmatch(message)
        raise EvaluationError(message, missing[1] if missing else None)


class Selection:
    """Several compiled expressions that are evaluated in one go."""

    def __init__(self, program: cel.Expression) -> None:
        self._program = program

    def holding(self, bound: Bound) -> list[int] | None:
        """Return the positions of those that hold, or None where any of them cannot be evaluated."""
        try:
            result = self._program.eval(bound).plain_value()
        except RuntimeError:
            return None
        # An error comes as a value too, a text: only a list is an answer.
        return result if isinstance(result, list) else None


class Environment:
    """The variables that expressions may read: the action, the stakes, its code and the declared inputs.

    The type of an input is None where its declaration is broken; it is not checked then.
    """

    def __init__(self, inputs: Mapping[str, InputType | None]) -> None:
        self._inputs = frozenset(f"context.{name}" for name in inputs)
        variables = dict(ACTION_TYPES) | dict.fromkeys(CODE_NAMES, cel.Type.List(cel.Type.STRING))
        for name, kind in inputs.items():
            variables[f"context.{name}"] = INPUT_TYPES[kind] if kind else cel.Type.DYN
        for name in self._inputs | OPTIONAL_FIELDS:
            variables[presence_variable(name)] = cel.Type.BOOL
        self._env = cel.NewEnv(
            config=cel.NewEnvConfigFromYaml(base_config()),
            variables=variables,
            extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        )

    def parse(self, source: str) -> Expression:
        """Return an expression that can be a rule. Raises ExpressionError."""
        if len(source) > MAX_LENGTH:
            raise ExpressionError(f"is longer than {MAX_LENGTH} characters")
        expression = scan(source)
        for name in sorted(expression.values | expression.presences):
            self._check_name(name)
        for name in sorted(expression.presences - self._inputs - OPTIONAL_FIELDS):
            raise ExpressionError(f"has({name}) is always true")
        program = self._compile(expression.text)
        result = program.return_type()
        if result != cel.Type.BOOL:
            hint = "; compare it, for instance with == true" if result == cel.Type.DYN else ""
            raise ExpressionError(f"must be a bool, but is {result.name().lower()}{hint}")
        Predicate(program, expression.values)
        # A selection nests it deeper, and the engine limits depth.
        self.selection([expression])
        return expression

    def predicate(self, expression: Expression) -> Predicate:
        """Return an expression, compiled."""
        return Predicate(self._compile(expression.text), expression.values)

    def selection(self, expressions: Sequence[Expression]) -> Selection:
        """Return several expressions, compiled into one."""
        # The line break ends a comment that ends an expression.
        items = (
            f"?({expression.text}\n) ? optional.of({position}) : optional.none()"
            for position, expression in enumerate(expressions)
        )
        return Selection(self._compile(f"[{', '.join(items)}]"))

    def bind(self, values: Mapping[str, object]) -> Bound:
        """Return the values of variables as the engine takes them; one without a value is left out."""
        return self._env.Activation(values)

    def _compile(self, text: str) -> cel.Expression:
        try:
            return self._env.compile(text)
        except RuntimeError as error:
            raise ExpressionError(explain(str(error))) from None

    def _check_name(self, name: str) -> None:
        root, _, last = name.partition(".")
        names = {
            "action": ACTION_TYPES.keys(),
            "code": CODE_NAMES,
            "context": self._inputs,
            "stakes": STAKES_NAMES,
        }[root]
        if name in names:
            return
        close = difflib.get_close_matches(last, sorted(known.partition(".")[2] for known in names), 1)
        hint = f"; did you mean {root}.{close[0]}?" if close else ""
        if root == "context":
            raise ExpressionError(f"{name} is not declared in inputs{hint}")
        raise ExpressionError(f"there is no {name}{hint or '; there are ' + ', '.join(sorted(names))}")


@cache
def base_config() -> str:
    """Return what every environment has, in the engine's own format: the stakes, and comparisons of mixed numbers.

    The engine compares numbers of different types, but its checker refuses `context.percent > 10`, because 10 is an
    int and inputs are doubles. So the comparisons are declared anew, with the mixed ones.
    """
    same = ["int", "uint", "double", "bool", "string", "bytes", "timestamp", "duration"]
    mixed = [("double", "int"), ("int", "double")]
    ordered = [(kind, kind) for kind in same] + mixed
    functions = [operator(name, ordered) for name in ("_<_", "_<=_", "_>_", "_>=_")]
    functions += [operator(name, [("A", "A"), *mixed]) for name in ("_==_", "_!=_")]
    config = {
        "stdlib": {"exclude_functions": [{"name": function["name"]} for function in functions]},
        "variables": [
            {"name": f"stakes.{stakes}", "type": "int", "value": order} for stakes, order in STAKES_ORDER.items()
        ],
        "functions": functions,
    }
    return json.dumps(config)


def operator(name: str, operands: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Return the declaration of a comparison for pairs of types; the type A is any."""
    overloads = [
        {
            "id": f"{name}({left},{right})",
            "args": [{"type_name": kind, "is_type_param": kind == "A"} for kind in (left, right)],
            "return": {"type_name": "bool"},
        }
        for left, right in operands
    ]
    return {"name": name, "overloads": overloads}


def explain(text: str) -> str:
    """Return what the engine says is wrong with an expression: the first thing, where it is, and how to help it."""
    match = ENGINE_ERROR.search(text)
    if not match:
        return engine_text(text)
    line, column, reason = int(match[1]), int(match[2]), match[3].removesuffix(" (in container '')")
    reason = reason.partition(" expecting ")[0].removesuffix(" [INVALID_ARGUMENT]")
    place = f"column {column}: " if line == 1 else f"line {line}, column {column}: "
    hint = ""
    if re.search(r"\((double, (list\()?int|int, (list\()?double)", reason):
        hint = "; numbers other than sizes are doubles: write 5.0 instead of 5"
    elif re.search(r"\((int, string|string, int)\)", reason):
        hint = "; stakes compare with stakes.low, stakes.medium, stakes.high and stakes.critical"
    return f"{place if line > 0 else ''}{reason}{hint}"


def engine_text(text: str) -> str:
    """Return a message of the engine without its status codes, of a bearable length."""
    text = re.sub(r"^[A-Z_]+: | \[[A-Z_]+\]$", "", text.strip())
    return text if len(text) <= MAX_ENGINE_TEXT else text[:MAX_ENGINE_TEXT] + "…"
