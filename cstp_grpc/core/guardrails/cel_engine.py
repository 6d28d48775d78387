"""Compile and evaluate CEL expressions with Google's engine; the only module that imports it."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from cstp_grpc.contract.enums import Stakes
from cstp_grpc.core.guardrails import cel_cost, cel_text, cel_variables
from cstp_grpc.core.guardrails.cel_text import RuleExpressionError
from cstp_grpc.core.guardrails.cel_tree import CelNode, read_syntax_tree
from cstp_grpc.core.guardrails.cel_variables import STAKES_ORDER
from cstp_grpc.core.guardrails.compiled_expressions import CompiledExpressions
from cstp_grpc.core.guardrails.fact_readers import CODE_READERS, COMMAND_TYPE, DESCRIPTORS
from cstp_grpc.core.guardrails.history import HISTORY_SCOPES
from cstp_grpc.core.guardrails.inputs import InputType

MAX_EXPRESSION_CHARACTERS = 10_000
"""Maximum length of an expression. Chosen: ten fill the engine's limit of 100 000 characters for one compilation."""

ACTION_TYPES = {
    "action.description": cel.Type.STRING,
    "action.category": cel.Type.STRING,
    "action.stakes": cel.Type.INT,
    "action.confidence": cel.Type.DOUBLE,
    "action.project": cel.Type.STRING,
    "action.command": cel.Type.STRING,
}
OPTIONAL_FIELDS = frozenset({"action.category", "action.confidence", "action.project", "action.command"})
AGENT_TYPES = {"agent.id": cel.Type.STRING, "agent.permissions": cel.Type.List(cel.Type.STRING)}
RELATED_AGES = cel.Type.List(cel.Type.DOUBLE)
"""The type of the variable `intents`: seconds since each related intent was announced."""
HISTORY_ANSWERS = cel.Type.Map(cel.Type.STRING, cel.Type.INT)
"""The type of the variables that hold the answers about the past by `HistoryQuery.key`."""

PLAIN_VARIABLES: Mapping[str, cel.Type] = {
    cel_variables.INTENTS_VARIABLE: RELATED_AGES,
    cel_variables.NOW_VARIABLE: cel.Type.TIMESTAMP,
    cel_variables.MENTIONS_VARIABLE: cel.Type.STRING,
    cel_variables.INTENDS_VARIABLE: cel.Type.List(cel.Type.STRING),
    cel_variables.COMMANDS_VARIABLE: cel.Type.List(cel.Type(COMMAND_TYPE)),
    **dict.fromkeys(HISTORY_SCOPES, HISTORY_ANSWERS),
}
"""Variables whose names have no root in common."""
STAKES_NAMES = frozenset(f"stakes.{stakes}" for stakes in Stakes)

INPUT_TYPES = {
    InputType.BOOL: cel.Type.BOOL,
    InputType.NUMBER: cel.Type.DOUBLE,
    InputType.STRING: cel.Type.STRING,
    InputType.LIST: cel.Type.List(cel.Type.DYN),
    InputType.MAP: cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
    InputType.TIMESTAMP: cel.Type.TIMESTAMP,
    InputType.DURATION: cel.Type.DURATION,
}
TEXT_TYPES = (
    *(cel.Type.STRING, cel.Type.BOOL, cel.Type.INT, cel.Type.UINT, cel.Type.DOUBLE),
    *(cel.Type.TIMESTAMP, cel.Type.DURATION, cel.Type.DYN),
)
"""The types of values that a message can hold."""

SMALL_SIZE = 25
"""Size of the inputs on which every rule must stay within MAX_STEPS: 25 values and 100 characters. Chosen: a rule that
does not would fail in every real call, so the rulebook is refused when it is loaded."""
LARGEST_SIZE = 1 << 20
"""A size beyond all inputs of an action: above MAX_CONTEXT_VALUES plus MAX_CONTEXT_CHARACTERS. A power of two, since
`light_size` halves it."""

MISSING_VARIABLE = re.compile(r'No value with name "([a-zA-Z0-9_.]+)" found in Activation')

CelActivation: TypeAlias = cel.Activation
"""Variable values in the engine's form."""


class ParameterValue(NamedTuple):
    """A parameter of a rulebook: its type and its converted value."""

    type: InputType
    value: object


class CelEvaluationError(Exception):
    """An evaluation failed; `variable` is the missing variable if that is the cause."""

    def __init__(self, message: str, variable: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.variable = variable


class CelProgram:
    """An expression that reads the given variables, compiled when it is first needed.

    `tree` is its syntax tree if that was read and checked before. Raises RuleExpressionError if its cost cannot be
    estimated.
    """

    def __init__(
        self, compile_program: Callable[[], cel.Expression], reads: Iterable[str], tree: CelNode | None = None
    ) -> None:
        self._compile_program = compile_program
        # Except variables whose size is bounded where they are read.
        self._growing = frozenset(reads) - {cel_variables.COMMANDS_VARIABLE, cel_variables.INTENDS_VARIABLE}
        if tree is not None:
            self.tree = tree
            return
        try:
            self.tree = read_syntax_tree(self.program.serialize())
            if self._steps_at(SMALL_SIZE) > cel_cost.MAX_STEPS:
                raise RuleExpressionError(
                    f"may take more than {cel_cost.MAX_STEPS} steps even on inputs of {4 * SMALL_SIZE} characters"
                )
        except (cel_cost.UnknownCost, ValueError) as error:
            raise RuleExpressionError(f"has an unbounded cost: it uses {error}") from None

    @cached_property
    def program(self) -> cel.Expression:
        return self._compile_program()

    @cached_property
    def light_size(self) -> int:
        """Return the largest input size up to which it may be evaluated in a batch."""
        # Halved instead of searched: within a factor of two is close enough, and this runs for each rule at the start.
        size = LARGEST_SIZE
        if not self._growing:
            return size if self._steps_at(size) <= cel_cost.SHARED_STEPS else 0
        while size and self._steps_at(size) > cel_cost.SHARED_STEPS:
            size //= 2
        return size

    def estimate_steps(self, sizes: Mapping[str, cel_cost.ValueSize]) -> int:
        return cel_cost.estimate_cost(self.tree, sizes).steps

    def _steps_at(self, size: int) -> int:
        """Return the maximum number of steps if each variable has `size` values and characters.

        A character has up to four bytes.
        """
        return self.estimate_steps(dict.fromkeys(self._growing, cel_cost.ValueSize(size, 4 * size)))

    def evaluate(
        self, bound: CelActivation, sizes: Mapping[str, cel_cost.ValueSize], most: int = cel_cost.MAX_STEPS
    ) -> object:
        """Return the value of the expression as JSON, an instant or a duration.

        Raises CelEvaluationError, also if variables of these sizes may take more than `most` steps.
        """
        if self.estimate_steps(sizes) > most:
            raise CelEvaluationError(f"it may take more than {most} steps on its inputs")
        return read_plain_value(self._evaluate(bound))

    def is_true(self, bound: CelActivation) -> bool:
        result = self._evaluate(bound)
        if result.type() == cel.Type.BOOL:
            return bool(result.plain_value())
        # So that nothing else ever counts as a match or as none.
        raise CelEvaluationError(f"it must be a bool, but is {result.type().name().lower()}")

    def _evaluate(self, bound: CelActivation) -> cel.Value:
        try:
            result = self.program.eval(bound)
        except RuntimeError as error:
            raise CelEvaluationError(cel_text.clean_engine_message(str(error))) from None
        check_no_error(result)
        return result


def check_no_error(result: cel.Value) -> None:
    """Raise CelEvaluationError if a value is an error, or an optional value."""
    # The engine returns errors as values too, whose plain value is a text.
    if result.type() != cel.Type.ERROR:
        return
    try:
        message = cel_text.clean_engine_message(str(result.plain_value()))
    except TypeError:
        # Optional values have the same type, and no form in Python.
        raise CelEvaluationError("it is an optional value; orValue makes one of it that can be written") from None
    # The whole message, because a message about a value may quote any text of the caller.
    missing = MISSING_VARIABLE.fullmatch(message)
    raise CelEvaluationError(message, missing[1] if missing else None)


def read_plain_value(value: cel.Value) -> object:
    """Return a value as JSON, an instant or a duration. Raises CelEvaluationError."""
    # Item by item, and never by the engine's `plain_value` of a list or map: that ends the process if it holds an
    # optional value.
    check_no_error(value)
    if value.type() in (cel.Type.BYTES, cel.Type.TYPE):
        raise CelEvaluationError(f"a value of the type {value.type().name().lower()} cannot be written")
    plain = value.value()
    if isinstance(plain, list):
        return [read_plain_value(item) for item in plain]
    if isinstance(plain, dict):
        return {str(key): read_plain_value(item) for key, item in plain.items()}
    return plain


class CelPredicateBatch:
    """Several expressions that are evaluated together: `screen` tells whether all are false, which is the usual case.

    `compile_selection` returns an expression whose value lists the positions of those that are true.
    """

    def __init__(self, screen: cel.Expression, compile_selection: Callable[[], cel.Expression]) -> None:
        self._screen = screen
        self.selection = cache(compile_selection)

    def matching_positions(self, bound: CelActivation) -> list[int] | None:
        """Return the positions of the expressions that are true, or None if any evaluation fails."""
        try:
            if self._screen.eval(bound).plain_value() is False:
                return []
            result = self.selection().eval(bound).plain_value()
        except RuntimeError:
            return None
        # An error is returned as a value too, a text.
        return result if isinstance(result, list) else None


COMPILED: Final = CompiledExpressions(Path(cel.__file__))
"""The expressions of packaged rules that this installation compiled before."""
MAX_REMEMBERED: Final = 1000
"""How many conditions an environment remembers. Chosen: twice as many as large rulebooks have."""
MAX_ENVIRONMENTS: Final = 50
"""How many environments are remembered. Chosen: twice as many as the packaged rulebooks need."""


class CelEnvironment:
    """The variables that expressions may read: the action, the stakes, its code and the declared inputs.

    The type of an input is None if its declaration is invalid; it is not type-checked then. Parameters are known by
    their name, type and value, the latter as a literal. Of each kind the `remembered` conditions, programs and batches
    that were used last are kept.
    """

    def __init__(
        self,
        inputs: Iterable[tuple[str, InputType | None]],
        parameters: Iterable[tuple[str, InputType, str]] = (),
        remembered: int = MAX_REMEMBERED,
    ) -> None:
        types, parameters = dict(inputs), tuple(parameters)
        self._constants = {cel_variables.PARAMETER_PREFIX + name: literal for name, _, literal in parameters}
        # For each environment: on the class, a cache would keep environments that are no longer used.
        self.parse_condition = lru_cache(remembered)(self._parse_condition)
        """Parse and check the expression of a rule, which is a bool. Raises RuleExpressionError."""
        self.defer_one = lru_cache(remembered)(self._make_program)
        """Return the program of an expression that compiles, as part of a batch, without compiling it yet."""
        self.compile_batch = lru_cache(remembered)(self._compile_batch)
        """Return several expressions as one program."""
        self._inputs = frozenset(f"context.{name}" for name in types)
        variables = {
            **ACTION_TYPES,
            **AGENT_TYPES,
            **dict.fromkeys(CODE_READERS, cel.Type.List(cel.Type.STRING)),
            **PLAIN_VARIABLES,
        }
        for name, kind in types.items():
            variables[f"context.{name}"] = INPUT_TYPES[kind] if kind else cel.Type.DYN
        variables |= {cel_variables.PARAMETER_PREFIX + name: INPUT_TYPES[kind] for name, kind, _ in parameters}
        for name in self._inputs | OPTIONAL_FIELDS:
            variables[cel_variables.presence_variable(name)] = cel.Type.BOOL
        self._signature = hashlib.sha256(
            repr(sorted((name, str(kind)) for name, kind in variables.items())).encode()
        ).digest()
        self._env = cel.NewEnv(
            descriptor_pool=DESCRIPTORS,
            config=base_environment_config(),
            variables=variables,
            extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings()],
            functions=[related_declaration()],
        )

    def _parse(self, source: str) -> tuple[cel_variables.RuleExpression, cel.Type]:
        """Parse an expression and check its names, types and cost; return it with its type."""
        if len(source) > MAX_EXPRESSION_CHARACTERS:
            raise RuleExpressionError(f"is longer than {MAX_EXPRESSION_CHARACTERS} characters")
        expression = cel_variables.scan_expression(source, self._constants)
        for name in sorted(expression.values | expression.presences):
            self._check_name(name)
        # The rest, such as the description, is never absent, and so has no variable for its presence.
        for name in sorted(expression.presences - self._inputs - OPTIONAL_FIELDS):
            raise RuleExpressionError(f"has({name}) is always true")
        try:
            program = self._compile(expression.text)
        except RuleExpressionError:
            # For the positions in the engine's messages.
            self._compile(expression.aligned)
            raise
        for literal in cel_text.find_time_literals(expression.text):
            self._check_time_literal(literal)
        # To check its cost; the program that evaluates it is compiled with the whole rule set and has the same tree.
        tree = CelProgram(lambda: program, expression.values).tree
        return replace(expression, tree=tree), program.return_type()

    def _parse_condition(self, source: str) -> cel_variables.RuleExpression:
        expression, result = self._parse(source)
        if result != cel.Type.BOOL:
            hint = "; compare it, for instance with == true" if result == cel.Type.DYN else ""
            raise RuleExpressionError(f"must be a bool, but is {result.name().lower()}{hint}")
        # Compiled as in a batch too, whose list and condition nest it deepest: the engine limits the depth.
        if not cel_text.is_shallow(expression.text):
            self._compile_selection((expression,))
        return expression

    def parse_text(self, source: str) -> cel_variables.RuleExpression:
        """Parse and check an expression whose value is written into a message. Raises RuleExpressionError."""
        expression, result = self._parse(source)
        if result not in TEXT_TYPES:
            raise RuleExpressionError(f"is {result.name().lower()}, which cannot be written into a text")
        return expression

    def compile_one(self, expression: cel_variables.RuleExpression) -> CelProgram:
        program = self.defer_one(expression)
        _ = program.program
        return program

    def _make_program(self, expression: cel_variables.RuleExpression) -> CelProgram:
        return CelProgram(lambda: self._compile(expression.text), expression.values, expression.tree)

    def _compile_batch(self, expressions: tuple[cel_variables.RuleExpression, ...]) -> CelPredicateBatch:
        screen = cel_text.write_disjunction(cel_text.split_conjunction(each.text) for each in expressions)
        return CelPredicateBatch(self._compile(screen), lambda: self._compile_selection(expressions))

    def _compile_selection(self, expressions: Iterable[cel_variables.RuleExpression]) -> cel.Expression:
        # The line break ends a comment at the end of the expression, which would hide the parenthesis.
        items = [
            f"?({expression.text}\n) ? optional.of({position}) : optional.none()"
            for position, expression in enumerate(expressions)
        ]
        return self._compile(f"[{', '.join(items)}]")

    def bind(self, values: Mapping[str, object]) -> CelActivation:
        return self._env.Activation(values)

    def _compile(self, text: str) -> cel.Expression:
        key = hashlib.sha256(self._signature + text.encode("utf-8", "surrogatepass")).digest()
        if (known := COMPILED.find(key)) is not None:
            return self._env.deserialize(known)
        try:
            expression = self._env.compile(text)
        except RuntimeError as error:
            raise RuleExpressionError(cel_text.explain_compile_error(str(error))) from None
        COMPILED.add(key, expression.serialize())
        return expression

    def _check_time_literal(self, literal: str) -> None:
        """Check that a call such as `duration("24h")` has a value. Raises RuleExpressionError."""
        # A rule with a literal without a value would load, and then fail at every evaluation.
        try:
            check_no_error(self._compile(literal).eval(self.bind({})))
        except (RuntimeError, CelEvaluationError):
            hint = cel_text.TIME_HINTS[literal.partition("(")[0].strip()]
            raise RuleExpressionError(f"reads {literal}, which has no value; {hint}") from None

    def _check_name(self, name: str) -> None:
        if name in PLAIN_VARIABLES:
            return
        root, _, last = name.partition(".")
        names = {
            "action": ACTION_TYPES.keys(),
            "agent": AGENT_TYPES.keys(),
            "code": CODE_READERS.keys(),
            "context": self._inputs,
            "parameters": self._constants.keys(),
            "stakes": STAKES_NAMES,
        }[root]
        if name in names:
            return
        close = difflib.get_close_matches(last, sorted(known.partition(".")[2] for known in names), 1)
        hint = f"; did you mean {root}.{close[0]}?" if close else ""
        if root == "context":
            raise RuleExpressionError(f"{name} is not declared in inputs{hint}")
        known = f"; there are {', '.join(sorted(names))}" if names else ""
        raise RuleExpressionError(f"there is no {name}{hint or known}")


def environment_for(
    inputs: Mapping[str, InputType | None], parameters: Mapping[str, ParameterValue] = MappingProxyType({})
) -> CelEnvironment:
    """Return the environment for declarations.

    Equal declarations share an environment and its compiled programs: rules that did not change load at once.
    """
    return known_environment(
        tuple(sorted(inputs.items())),
        tuple((name, each.type, cel_text.value_literal(each.value)) for name, each in sorted(parameters.items())),
    )


known_environment = lru_cache(MAX_ENVIRONMENTS)(CelEnvironment)


def count_recent(ages: Sequence[float], window: str) -> int:
    """Return how many ages, in seconds, are within a time such as `1h`."""
    seconds = cel_variables.parse_window_seconds(window)
    return sum(age <= seconds for age in ages)


def related_declaration() -> cel.FunctionDecl:
    overload = cel.Overload(
        "intents_related_string",
        return_type=cel.Type.INT,
        parameters=[RELATED_AGES, cel.Type.STRING],
        is_member=True,
        impl=count_recent,
    )
    return cel.FunctionDecl(cel_cost.RELATED_FUNCTION, [overload])


@cache
def base_environment_config() -> cel.EnvConfig:
    """Return the configuration of every environment: stakes, and mixed-type comparisons.

    The engine compares numbers of different types, but its checker rejects `context.percent > 10`, because 10 is an int
    and inputs are doubles. So the comparisons are declared again, including the mixed ones.
    """
    same = ["int", "uint", "double", "bool", "string", "bytes", "timestamp", "duration"]
    mixed = [("double", "int"), ("int", "double")]
    ordered = [(kind, kind) for kind in same] + mixed
    functions = [comparison_declaration(name, ordered) for name in ("_<_", "_<=_", "_>_", "_>=_")]
    functions += [comparison_declaration(name, [("A", "A"), *mixed]) for name in ("_==_", "_!=_")]
    config = {
        "stdlib": {"exclude_functions": [{"name": function["name"]} for function in functions]},
        "variables": [
            {"name": f"stakes.{stakes}", "type": "int", "value": order} for stakes, order in STAKES_ORDER.items()
        ],
        "functions": functions,
    }
    # Read once: that takes five times as long as the rest of an environment, which changes nothing in it.
    return cel.NewEnvConfigFromYaml(json.dumps(config))


def comparison_declaration(name: str, operands: Iterable[tuple[str, str]]) -> dict[str, object]:
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
