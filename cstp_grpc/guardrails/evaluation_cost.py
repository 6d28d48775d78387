"""How many steps an evaluation can take at most, estimated from the syntax tree and the sizes of what it reads.

The engine limits iterations, but one iteration may copy or search whatever the caller has sent, and nothing that an
evaluation makes is freed before its end. A step is about what the engine needs to look at one character: 10 ns, and at
most some bytes of memory. Every estimate grows at least in proportion to a size (it is superadditive but for its
constant part), so that a comprehension costs no more than if one element were all of the list and the others empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cstp_grpc.guardrails.syntax_tree import Call, Comprehension, Constant, FieldAccess, Literal, Node, Variable

MAX_STEPS = 20_000_000
"""How many steps the evaluation of a rule may take: about 0.2 s."""
SHARED_STEPS = MAX_STEPS // 50
"""How many steps a rule may take to be evaluated together with others, of which nothing is freed in between."""

COPIED_ELEMENT = 8
"""Steps to copy an element of a list: `map` and `filter` copy what they have for each that they add."""
WRITTEN_CHARACTER = 3
"""Steps to write a character that replaces another."""
COMPARED_CHARACTERS = 16
"""How many characters are compared in a step."""
SEARCHED_CHARACTERS = 128
"""How many characters of what is searched for are compared in a step."""
PATTERN_CHARACTER = 100
"""Steps for a character of a text and one of a pattern that is only known when evaluated; `a{1000}` is seven."""
FORMATTED_VALUE = 400
"""How long a number can be when formatted."""
FORMAT_CHARACTER = 200
"""How much a character of a format can make: `%.1000f` is seven."""
CONVERTED_CHARACTERS = 64
"""How long a number or time is as a text."""
MAX_DEPTH = 4
"""How many comprehensions within each other are estimated closely; each doubles the effort."""


class UnknownCost(Exception):
    """An expression uses something of which it is not known what it costs."""


class Size(NamedTuple):
    """How large a value is: itself and all values in it, and the bytes of their texts and keys."""

    values: int
    characters: int

    @property
    def total(self) -> int:
        """Return values and characters together."""
        return self.values + self.characters


SCALAR = Size(1, 0)
NOTHING = Size(0, 0)


class Estimate(NamedTuple):
    """The largest possible size of a value, and how many steps it takes at most to make it."""

    size: Size
    steps: int


Scope = Mapping[str, Size]


def measure(value: object) -> Size:
    """Return the size of a variable's value."""
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
    return Size(values, characters)


def estimate(node: Node, scope: Scope, depth: int = 0) -> Estimate:
    """Return what a node makes and takes at most; a variable that `scope` lacks is a scalar. Raises UnknownCost."""
    if isinstance(node, Constant):
        return Estimate(Size(1, node.characters), 1)
    if isinstance(node, Variable):
        return Estimate(scope.get(node.name, SCALAR), 1)
    if isinstance(node, FieldAccess):
        operand = estimate(node.operand, scope, depth)
        return Estimate(SCALAR if node.is_test else operand.size, operand.steps + 1)
    if isinstance(node, Literal):
        items = [estimate(item, scope, depth) for item in node.items]
        size = add([SCALAR, *(item.size for item in items)])
        # Items are not copied, but what walks a list walks an item as often as it is in there.
        return Estimate(size, sum(item.steps for item in items) + size.total)
    if isinstance(node, Call):
        arguments = [estimate(argument, scope, depth) for argument in node.arguments]
        made = estimate_call(node, [argument.size for argument in arguments])
        return Estimate(made.size, made.steps + sum(argument.steps for argument in arguments) + 1)
    return estimate_comprehension(node, scope, depth)


def estimate_comprehension(node: Comprehension, scope: Scope, depth: int) -> Estimate:
    """Return what a comprehension makes and takes at most. Raises UnknownCost."""
    over, initial = estimate(node.over, scope, depth), estimate(node.initial, scope, depth)
    steps = over.steps + initial.steps
    if isinstance(node.over, Literal) and not node.over.items:
        # `optMap` and `optFlatMap` loop over nothing, to give what they start with a name.
        result = estimate(node.result, {**scope, node.accumulator: initial.size}, depth)
        return Estimate(result.size, steps + result.steps)
    collects = isinstance(node.initial, Literal) and not node.initial.items
    if not collects and not isinstance(node.initial, Constant):
        raise UnknownCost("a comprehension that is none of CEL's macros")
    count = over.size.values

    def iterate(element: Size) -> Estimate:
        inner = {**scope, **dict.fromkeys(node.variables, element), node.accumulator: NOTHING if collects else SCALAR}
        condition, step = estimate(node.condition, inner, depth + 1), estimate(node.step, inner, depth + 1)
        return Estimate(step.size, condition.steps + step.steps)

    whole = iterate(over.size)
    empty = iterate(SCALAR) if depth < MAX_DEPTH else whole
    steps += whole.steps + count * empty.steps
    made = SCALAR
    if collects:
        made = add([SCALAR, whole.size, multiply(empty.size, count)])
        steps += COPIED_ELEMENT * count * count // 2 + made.total
    result = estimate(node.result, {**scope, node.accumulator: made}, depth)
    return Estimate(result.size, steps + result.steps)


def estimate_call(call: Call, sizes: Sequence[Size]) -> Estimate:
    """Return what a function makes of arguments and takes at most. Raises UnknownCost."""
    name = call.function
    total = add(sizes)
    if name in SCALARS:
        return Estimate(SCALAR, total.values + total.characters // COMPARED_CHARACTERS)
    if name in READING:
        return Estimate(SCALAR, total.total)
    if name in PASSING:
        return Estimate(total, 1)
    if name in COPYING:
        return Estimate(
            Size(total.values, 2 * total.characters + CONVERTED_CHARACTERS),
            COPIED_ELEMENT * total.values + WRITTEN_CHARACTER * total.characters,
        )
    if name == "_+_":
        return Estimate(total, COPIED_ELEMENT * total.values + total.characters)
    if found := MULTIPLYING.get(name):
        return found(call, sizes)
    raise UnknownCost(f"the function {name}")


def estimate_search(_: Call, sizes: Sequence[Size]) -> Estimate:
    """Return what it takes to search a text for another."""
    text, sought = sizes[0].characters, sizes[1].characters
    return Estimate(SCALAR, text + sought + text * sought // SEARCHED_CHARACTERS)


def estimate_match(call: Call, sizes: Sequence[Size]) -> Estimate:
    """Return what it takes to match a text with a pattern."""
    text, pattern = sizes[0].characters, sizes[1].characters
    if isinstance(call.arguments[1], Constant):
        return Estimate(SCALAR, text + pattern)
    return Estimate(SCALAR, (text + PATTERN_CHARACTER) * pattern * PATTERN_CHARACTER + text)


def estimate_replacement(call: Call, sizes: Sequence[Size]) -> Estimate:
    """Return what `replace` makes: in the worst case every character is replaced."""
    text, sought, replacement = sizes[0].characters, call.arguments[1], sizes[2].characters
    shortest = max(1, sought.characters) if isinstance(sought, Constant) else 1
    made = text + (text // shortest + 1) * replacement
    return Estimate(Size(1, made), WRITTEN_CHARACTER * made + estimate_search(call, sizes).steps)


def estimate_split(call: Call, sizes: Sequence[Size]) -> Estimate:
    """Return what `split` makes: in the worst case a text of every character."""
    made = Size(sizes[0].characters + 2, sizes[0].characters)
    return Estimate(made, COPIED_ELEMENT * made.values + estimate_search(call, sizes).steps)


def estimate_join(_: Call, sizes: Sequence[Size]) -> Estimate:
    """Return what `join` makes: the separator stands between any two elements."""
    separator = sizes[1].characters if len(sizes) > 1 else 0
    made = sizes[0].characters + sizes[0].values * separator
    return Estimate(Size(1, made), made + sizes[0].values)


def estimate_format(_: Call, sizes: Sequence[Size]) -> Estimate:
    """Return what `format` makes."""
    template, arguments = sizes[0], sizes[1]
    made = FORMAT_CHARACTER * template.characters + 8 * arguments.characters + FORMATTED_VALUE * arguments.values
    return Estimate(Size(1, made), made)


def add(sizes: Sequence[Size]) -> Size:
    """Return the size of several values together."""
    return Size(sum(size.values for size in sizes), sum(size.characters for size in sizes))


def multiply(size: Size, times: int) -> Size:
    """Return the size of a value that is there several times."""
    return Size(size.values * times, size.characters * times)


SCALARS = frozenset(
    {"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in", "in", "_in_", "_&&_", "_||_", "!_", "-_", "_-_", "_*_"}
    | {"_/_", "_%_", "@not_strictly_false", "__not_strictly_false__", "startsWith", "endsWith", "hasValue", "type"}
    | {"getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMilliseconds"}
    | {"getMinutes", "getMonth", "getSeconds"}
)
"""Functions that only compare or calculate."""
READING = frozenset({"size", "int", "uint", "double", "bool", "timestamp", "duration"})
"""Functions that make a scalar of a text, or measure it."""
PASSING = frozenset(
    {"_[_]", "_[?_]", "_?._", "_?_:_", "dyn", "or", "orValue", "value", "first", "last"}
    | {"optional.of", "optional.ofNonZeroValue", "optional.none", "optional.unwrap", "unwrapOpt"}
)
"""Functions that give one of their arguments, or a part of it, without a copy."""
COPYING = frozenset(
    {"lowerAscii", "upperAscii", "trim", "reverse", "substring", "charAt", "strings.quote", "string", "bytes"}
)
"""Functions that make a text about as large as the one that they are given."""
MULTIPLYING: Mapping[str, Callable[[Call, Sequence[Size]], Estimate]] = {
    "contains": estimate_search,
    "indexOf": estimate_search,
    "lastIndexOf": estimate_search,
    "matches": estimate_match,
    "replace": estimate_replacement,
    "split": estimate_split,
    "join": estimate_join,
    "format": estimate_format,
}
"""Functions whose cost depends on more than one argument."""
