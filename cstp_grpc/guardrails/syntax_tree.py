"""The syntax tree of a compiled expression, read from what the engine serializes: cel.expr.CheckedExpr in an Any.

The fields are numbered as in cel/expr/syntax.proto, whose classes come with no package that we use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf import empty_pb2, unknown_fields


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal; `characters` is the length of a text in bytes, 0 of anything else."""

    characters: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable, or what a comprehension declares."""

    name: str


@dataclass(frozen=True, slots=True)
class FieldAccess:
    """A field of a value, or whether the value has it."""

    operand: Node
    is_test: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A function or operator, with the value that it is called on as the first argument."""

    function: str
    arguments: Sequence[Node]


@dataclass(frozen=True, slots=True)
class Literal:
    """A list or map with its items, keys and values alike."""

    items: Sequence[Node]


@dataclass(frozen=True, slots=True)
class Comprehension:
    """What the macros, such as `exists` and `map`, are expanded to."""

    variables: Sequence[str]
    over: Node
    accumulator: str
    initial: Node
    condition: Node
    step: Node
    result: Node


Node: TypeAlias = Constant | Variable | FieldAccess | Call | Literal | Comprehension
Fields: TypeAlias = Mapping[int, Sequence[Any]]


def read_syntax_tree(serialized: bytes) -> Node:
    """Return the tree of a serialized expression. Raises ValueError if it has an unknown kind of node."""
    (checked,) = read_fields(serialized)[2]
    (root,) = read_fields(checked)[4]
    return read_node(root)


def read_fields(message: bytes) -> Fields:
    """Return the fields of a message by number; those that are messages or texts are bytes."""
    found: defaultdict[int, list[Any]] = defaultdict(list)
    # To a message without fields all are unknown. The set can be iterated, which its stub does not say.
    fields: Iterable[Any] = unknown_fields.UnknownFieldSet(empty_pb2.Empty.FromString(message))  # type: ignore[assignment]
    for field in fields:
        found[field.field_number].append(field.data)
    return found


def read_node(message: bytes) -> Node:
    """Return an Expr. Raises ValueError if its kind is unknown."""
    fields = read_fields(message)
    for number, read in READERS.items():
        if number in fields:
            return read(read_fields(fields[number][0]))
    raise ValueError(f"no known kind of node among the fields {sorted(fields)}")


def read_constant(fields: Fields) -> Constant:
    """Return a Constant."""
    return Constant(sum(len(text) for number in (6, 7) for text in fields[number]))


def read_field_access(fields: Fields) -> FieldAccess:
    """Return a Select."""
    return FieldAccess(read_node(fields[1][0]), bool(fields[3]))


def read_call(fields: Fields) -> Call:
    """Return a Call."""
    return Call(fields[2][0].decode(), [read_node(each) for each in (*fields[1], *fields[3])])


def read_map(fields: Fields) -> Literal:
    """Return a CreateStruct."""
    entries = [read_fields(entry) for entry in fields[2]]
    return Literal([read_node(each) for entry in entries for each in (*entry[3], *entry[4])])


def read_comprehension(fields: Fields) -> Comprehension:
    """Return a Comprehension."""
    over, initial, condition, step, result = (read_node(fields[number][0]) for number in (2, 4, 5, 6, 7))
    variables = [name.decode() for name in (*fields[1], *fields[8])]
    return Comprehension(variables, over, fields[3][0].decode(), initial, condition, step, result)


READERS: Mapping[int, Callable[[Fields], Node]] = {
    3: read_constant,
    4: lambda fields: Variable(fields[1][0].decode()),
    5: read_field_access,
    6: read_call,
    7: lambda fields: Literal([read_node(each) for each in fields[1]]),
    8: read_map,
    9: read_comprehension,
}
"""What reads each kind of Expr, by the number of its field."""
