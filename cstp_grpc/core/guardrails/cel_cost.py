"""Estimate the maximum number of steps of a CEL evaluation, from the syntax tree and the sizes of its inputs.

The engine limits iterations, but one iteration may copy or search everything that the caller has sent, and an
evaluation frees no memory before its end. A step is about the cost of looking at one character: 10 ns and at most some
bytes of memory. Every estimate grows at least in proportion to a size (it is superadditive except for its
constant part), so that a comprehension costs at most as much as if one element were the whole list and the others
empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cstp_grpc.core.guardrails import cel_tree
from cstp_grpc.core.guardrails.cel_variables import MENTIONS_VARIABLE

MAX_STEPS = 20_000_000
"""Maximum number of steps of one rule's evaluation. Chosen: about 0.2 s, for which the event loop is blocked."""
SHARED_STEPS = MAX_STEPS // 50
"""Maximum number of steps of a rule in a batch. As a batch has at most 50 rules (BATCH_GUARDRAILS), each evaluation
of it stays within MAX_STEPS; it frees no memory before its end."""
MAX_TOTAL_STEPS = 5 * MAX_STEPS
"""Maximum number of steps of all rules together that are too heavy for a batch. Chosen: about a second."""
MAX_TEXT_STEPS = SHARED_STEPS
"""Maximum number of steps of an expression in a message or suggestion: a thousand rules may fire at once."""

# The factors below are upper bounds of the engine's time for an operation, in steps of 10 ns. They are rounded up,
# since an estimate that is too high only makes a rule be evaluated alone, and one that is too low blocks the server.

COPIED_ELEMENT = 8
"""Steps to copy an element of a list: `map` and `filter` copy the whole result for each element added."""
WRITTEN_CHARACTER = 3
"""Steps to write a replaced character."""
COMPARED_CHARACTERS = 16
"""Characters compared per step."""
SEARCHED_CHARACTERS = 128
"""Characters of the search term compared per step."""
WORD_CHARACTERS = 4
"""Characters of the action's words that are searched per step: words of one letter take 2.4 ns per character, others
less than 1 ns."""
PATTERN_CHARACTER = 100
"""Steps per character of the text and of a pattern known only at run time; `a{1000}` has seven characters."""
FORMATTED_VALUE = 400
"""Maximum length of a formatted number."""
FORMAT_CHARACTER = 200
"""Maximum output per character of a format string: `%.1000f` has seven."""
CONVERTED_CHARACTERS = 64
"""Maximum length of a number or timestamp converted to a string."""
PYTHON_CALL = 2_000
"""Steps to call a Python function and convert its result: 20 us."""
PYTHON_ELEMENT = 50
"""Steps to convert an element of a list for a Python function, and to look at it."""
RELATED_FUNCTION = "related"
"""The name of the function in `intents.related("1h")`."""
MAX_ESTIMATED_NESTING = 4
"""Nested comprehensions that are estimated closely; each level doubles the effort."""


class UnknownCost(Exception):
    """The cost of an expression cannot be estimated."""


class ValueSize(NamedTuple):
    """The size of a value: itself and all nested values, and the bytes of their strings and keys."""

    values: int
    characters: int

    @property
    def total(self) -> int:
        return self.values + self.characters


SCALAR_SIZE = ValueSize(1, 0)
EMPTY_SIZE = ValueSize(0, 0)


class CostEstimate(NamedTuple):
    """The maximum size of a value, and the maximum number of steps to compute it."""

    size: ValueSize
    steps: int


VariableSizes = Mapping[str, ValueSize]


def measure_size(value: object) -> ValueSize:
    values, characters, pending = 0, 0, [value]
    while pending:
        one = pending.pop()
        values += 1
        if isinstance(one, str):
            characters += len(one) if one.isascii() else len(one.encode())
        elif isinstance(one, list):
            pending.extend(one)
        elif isinstance(one, dict):
            characters += sum(len(key) if key.isascii() else len(key.encode()) for key in one)
            pending.extend(one.values())
    return ValueSize(values, characters)


def measure_sizes(values: Mapping[str, object]) -> VariableSizes:
    return {name: measure_size(value) for name, value in values.items()}


def estimate_cost(node: cel_tree.CelNode, scope: VariableSizes, depth: int = 0) -> CostEstimate:
    """Estimate the size and cost of a node; a variable missing in `scope` is a scalar. Raises UnknownCost."""
    if isinstance(node, cel_tree.CelConstant):
        return CostEstimate(ValueSize(1, node.characters), 1)
    if isinstance(node, cel_tree.CelVariable):
        return CostEstimate(scope.get(node.name, SCALAR_SIZE), 1)
    if isinstance(node, cel_tree.CelFieldAccess):
        operand = estimate_cost(node.operand, scope, depth)
        return CostEstimate(SCALAR_SIZE if node.is_test else operand.size, operand.steps + 1)
    if isinstance(node, cel_tree.CelLiteral):
        items = [estimate_cost(item, scope, depth) for item in node.items]
        size = add_sizes([SCALAR_SIZE, *(item.size for item in items)])
        # Items are not copied, but a traversal of the list traverses an item as often as it occurs.
        return CostEstimate(size, sum(item.steps for item in items) + size.total)
    if isinstance(node, cel_tree.CelCall):
        arguments = [estimate_cost(argument, scope, depth) for argument in node.arguments]
        made = estimate_call(node, [argument.size for argument in arguments])
        return CostEstimate(made.size, made.steps + sum(argument.steps for argument in arguments) + 1)
    return estimate_comprehension(node, scope, depth)


def estimate_comprehension(node: cel_tree.CelComprehension, scope: VariableSizes, depth: int) -> CostEstimate:
    """Estimate the size and cost of a comprehension. Raises UnknownCost."""
    over, initial = estimate_cost(node.over, scope, depth), estimate_cost(node.initial, scope, depth)
    steps = over.steps + initial.steps
    if isinstance(node.over, cel_tree.CelLiteral) and not node.over.items:
        # `optMap` and `optFlatMap` expand to a loop over an empty list, only to bind the initial value to a name.
        result = estimate_cost(node.result, {**scope, node.accumulator: initial.size}, depth)
        return CostEstimate(result.size, steps + result.steps)
    # `map` and `filter` collect into a list that starts empty; `all`, `exists` and `exists_one` start with a constant.
    collects = isinstance(node.initial, cel_tree.CelLiteral) and not node.initial.items
    if not collects and not isinstance(node.initial, cel_tree.CelConstant):
        raise UnknownCost("a comprehension that is not one of CEL's macros")
    count = over.size.values

    def iterate(element: ValueSize) -> CostEstimate:
        inner = {
            **scope,
            **dict.fromkeys(node.variables, element),
            node.accumulator: EMPTY_SIZE if collects else SCALAR_SIZE,
        }
        condition, step = estimate_cost(node.condition, inner, depth + 1), estimate_cost(node.step, inner, depth + 1)
        return CostEstimate(step.size, condition.steps + step.steps)

    # The bound of the module docstring: one element as large as the whole list, and `count` that are empty. Beyond
    # MAX_ESTIMATED_NESTING every element counts as the whole list, because two estimates a level double the effort.
    whole = iterate(over.size)
    empty = iterate(SCALAR_SIZE) if depth < MAX_ESTIMATED_NESTING and over.size != SCALAR_SIZE else whole
    steps += whole.steps + count * empty.steps
    made = SCALAR_SIZE
    if collects:
        others = ValueSize(empty.size.values * count, empty.size.characters * count)
        made = add_sizes([SCALAR_SIZE, whole.size, others])
        # The engine copies the result for every element it adds: 1 + 2 + … + count elements.
        steps += COPIED_ELEMENT * count * count // 2 + made.total
    result = estimate_cost(node.result, {**scope, node.accumulator: made}, depth)
    return CostEstimate(result.size, steps + result.steps)


def estimate_call(call: cel_tree.CelCall, sizes: Sequence[ValueSize]) -> CostEstimate:
    """Estimate the size and cost of a function call. Raises UnknownCost."""
    name = call.function
    total = add_sizes(sizes)
    if name in SCALAR_FUNCTIONS:
        return CostEstimate(SCALAR_SIZE, total.values + total.characters // COMPARED_CHARACTERS)
    if name in CONVERSION_FUNCTIONS:
        return CostEstimate(SCALAR_SIZE, total.total)
    if name in REFERENCE_FUNCTIONS:
        return CostEstimate(total, 1)
    if name in COPY_FUNCTIONS:
        return CostEstimate(
            ValueSize(total.values, 2 * total.characters + CONVERTED_CHARACTERS),
            COPIED_ELEMENT * total.values + WRITTEN_CHARACTER * total.characters,
        )
    if name == "_+_":
        return CostEstimate(total, COPIED_ELEMENT * total.values + total.characters)
    if found := PRODUCT_COST_FUNCTIONS.get(name):
        return found(call, sizes)
    # Fail closed: a function that a later engine adds is refused until its cost is known here.
    raise UnknownCost(f"the function {name}")


def estimate_search(call: cel_tree.CelCall, sizes: Sequence[ValueSize]) -> CostEstimate:
    text, sought = sizes[0].characters, sizes[1].characters
    within, term = call.arguments[:2]
    if within == cel_tree.CelVariable(MENTIONS_VARIABLE) and isinstance(term, cel_tree.CelConstant):
        # A search among words that are separated by single spaces compares at each space only.
        return CostEstimate(SCALAR_SIZE, text // WORD_CHARACTERS + sought)
    return CostEstimate(SCALAR_SIZE, text + sought + text * sought // SEARCHED_CHARACTERS)


def estimate_match(call: cel_tree.CelCall, sizes: Sequence[ValueSize]) -> CostEstimate:
    """Estimate matching a string against a pattern."""
    text, pattern = sizes[0].characters, sizes[1].characters
    # RE2 takes time in proportion to the text. A pattern in the rule is compiled once, and its author is trusted; one
    # from the inputs is the caller's, and may compile to many states.
    if isinstance(call.arguments[1], cel_tree.CelConstant):
        return CostEstimate(SCALAR_SIZE, text + pattern)
    return CostEstimate(SCALAR_SIZE, (text + PATTERN_CHARACTER) * pattern * PATTERN_CHARACTER + text)


def estimate_replacement(call: cel_tree.CelCall, sizes: Sequence[ValueSize]) -> CostEstimate:
    """Estimate `replace`; in the worst case every character is replaced."""
    text, sought, replacement = sizes[0].characters, call.arguments[1], sizes[2].characters
    shortest = max(1, sought.characters) if isinstance(sought, cel_tree.CelConstant) else 1
    made = text + (text // shortest + 1) * replacement
    return CostEstimate(ValueSize(1, made), WRITTEN_CHARACTER * made + estimate_search(call, sizes).steps)


def estimate_split(call: cel_tree.CelCall, sizes: Sequence[ValueSize]) -> CostEstimate:
    """Estimate `split`; in the worst case every character becomes a string."""
    made = ValueSize(sizes[0].characters + 2, sizes[0].characters)
    return CostEstimate(made, COPIED_ELEMENT * made.values + estimate_search(call, sizes).steps)


def estimate_join(_: cel_tree.CelCall, sizes: Sequence[ValueSize]) -> CostEstimate:
    """Estimate `join`; the separator is inserted between any two elements."""
    separator = sizes[1].characters if len(sizes) > 1 else 0
    made = sizes[0].characters + sizes[0].values * separator
    return CostEstimate(ValueSize(1, made), made + sizes[0].values)


def estimate_format(_: cel_tree.CelCall, sizes: Sequence[ValueSize]) -> CostEstimate:
    template, arguments = sizes[0], sizes[1]
    made = FORMAT_CHARACTER * template.characters + 8 * arguments.characters + FORMATTED_VALUE * arguments.values
    return CostEstimate(ValueSize(1, made), made)


def estimate_related(_: cel_tree.CelCall, sizes: Sequence[ValueSize]) -> CostEstimate:
    """Estimate `intents.related`, which is a Python function."""
    return CostEstimate(SCALAR_SIZE, PYTHON_CALL + PYTHON_ELEMENT * sizes[0].values)


def add_sizes(sizes: Sequence[ValueSize]) -> ValueSize:
    return ValueSize(sum(size.values for size in sizes), sum(size.characters for size in sizes))


SCALAR_FUNCTIONS = frozenset(
    {"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in", "in", "_in_", "_&&_", "_||_", "!_", "-_", "_-_", "_*_"}
    | {"_/_", "_%_", "@not_strictly_false", "__not_strictly_false__", "startsWith", "endsWith", "hasValue", "type"}
    | {"getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMilliseconds"}
    | {"getMinutes", "getMonth", "getSeconds"}
)
"""Functions that only compare or compute."""
CONVERSION_FUNCTIONS = frozenset({"size", "int", "uint", "double", "bool", "timestamp", "duration"})
"""Functions that convert a string to a scalar, or measure it."""
REFERENCE_FUNCTIONS = frozenset(
    {"_[_]", "_[?_]", "_?._", "_?_:_", "dyn", "or", "orValue", "value", "first", "last"}
    | {"optional.of", "optional.ofNonZeroValue", "optional.none", "optional.unwrap", "unwrapOpt"}
)
"""Functions that return an argument, or a part of it, without copying."""
COPY_FUNCTIONS = frozenset(
    {"lowerAscii", "upperAscii", "trim", "reverse", "substring", "charAt", "strings.quote", "string", "bytes"}
)
"""Functions whose output is a string about as large as the input."""
PRODUCT_COST_FUNCTIONS: Mapping[str, Callable[[cel_tree.CelCall, Sequence[ValueSize]], CostEstimate]] = {
    "contains": estimate_search,
    "indexOf": estimate_search,
    "lastIndexOf": estimate_search,
    "matches": estimate_match,
    "replace": estimate_replacement,
    "split": estimate_split,
    "join": estimate_join,
    "format": estimate_format,
    RELATED_FUNCTION: estimate_related,
}
"""Functions whose cost depends on more than one argument."""
