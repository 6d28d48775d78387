"""The syntax tree of a CEL expression, read from the engine's serialized form: a cel.expr.CheckedExpr in an Any.

Its messages are declared here with the field numbers of cel/expr/syntax.proto, because none of our dependencies has
their generated classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from cstp_grpc.common.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CelConstant:
    """A literal; `characters` is the length of a string in bytes, 0 for anything else."""

    characters: int


@dataclass(frozen=True, slots=True)
class CelVariable:
    """A variable, or one that a comprehension declares."""

    name: str


@dataclass(frozen=True, slots=True)
class CelFieldAccess:
    """A field access, or a test for a field."""

    operand: CelNode
    is_test: bool


@dataclass(frozen=True, slots=True)
class CelCall:
    """A function or operator call; the receiver is the first argument."""

    function: str
    arguments: Sequence[CelNode]


@dataclass(frozen=True, slots=True)
class CelLiteral:
    """A list or map literal with its items, keys and values alike."""

    items: Sequence[CelNode]


@dataclass(frozen=True, slots=True)
class CelComprehension:
    """The expansion of a macro, such as `exists` and `map`."""

    variables: Sequence[str]
    over: CelNode
    accumulator: str
    initial: CelNode
    condition: CelNode
    step: CelNode
    result: CelNode


CelNode: TypeAlias = CelConstant | CelVariable | CelFieldAccess | CelCall | CelLiteral | CelComprehension

# A nested expression is declared as bytes, which are the same on the wire, and parsed by itself: the parser of protobuf
# limits how deep messages are nested.
EXPR: Final = "bytes"
SYNTAX: Final[Mapping[str, str]] = {
    "Any": "value=2:bytes",
    "CheckedExpr": f"expr=4:{EXPR}",
    "Expr": "const_expr=3:Constant ident_expr=4:Ident select_expr=5:Select call_expr=6:Call list_expr=7:CreateList"
    " struct_expr=8:CreateStruct comprehension_expr=9:Comprehension",
    "Constant": "string_value=6:bytes bytes_value=7:bytes",
    "Ident": "name=1:string",
    "Select": f"operand=1:{EXPR} test_only=3:bool",
    "Call": f"target=1:{EXPR} function=2:string args=3:{EXPR}*",
    "CreateList": f"elements=1:{EXPR}*",
    "CreateStruct": "entries=2:Entry*",
    "Entry": f"map_key=3:{EXPR} value=4:{EXPR}",
    "Comprehension": f"iter_var=1:string iter_range=2:{EXPR} accu_var=3:string accu_init=4:{EXPR}"
    f" loop_condition=5:{EXPR} loop_step=6:{EXPR} result=7:{EXPR} iter_var2=8:string",
}
"""The messages with their fields as `name=number:type`, with `*` for repeated ones."""


def build_message_classes(syntax: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the classes of messages, in a pool of their own."""
    field_type = descriptor_pb2.FieldDescriptorProto
    scalars = {"bytes": field_type.TYPE_BYTES, "string": field_type.TYPE_STRING, "bool": field_type.TYPE_BOOL}
    file = descriptor_pb2.FileDescriptorProto(name="cel_tree.proto", package="cel_tree", syntax="proto3")
    for name, fields in syntax.items():
        message = file.message_type.add(name=name)
        for field, number, kind in (each.replace("=", ":").split(":") for each in fields.split()):
            kind, repeated, _ = kind.partition("*")
            message.field.add(
                name=field,
                number=int(number),
                label=field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL,
                type=scalars.get(kind, field_type.TYPE_MESSAGE),
                type_name=None if kind in scalars else f".cel_tree.{kind}",
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"cel_tree.{name}")) for name in syntax}


MESSAGES: Final = build_message_classes(SYNTAX)


def read_syntax_tree(serialized: bytes) -> CelNode:
    """Parse a serialized expression. Raises ValueError for an unknown kind of node."""
    envelope = MESSAGES["Any"].FromString(serialized)
    return read_node(MESSAGES["CheckedExpr"].FromString(envelope.value).expr)


def read_node(serialized: bytes) -> CelNode:
    """Parse an Expr. Raises ValueError for an unknown kind."""
    expr = MESSAGES["Expr"].FromString(serialized)
    (kind, node), *_ = [(field.name, value) for field, value in expr.ListFields()] or [("", None)]
    match kind:
        case "const_expr":
            return CelConstant(len(node.string_value) + len(node.bytes_value))
        case "ident_expr":
            return CelVariable(node.name)
        case "select_expr":
            return CelFieldAccess(read_node(node.operand), node.test_only)
        case "call_expr":
            # Only a method call has a target.
            return CelCall(
                node.function, [read_node(each) for each in ([node.target] if node.target else []) + list(node.args)]
            )
        case "list_expr":
            return CelLiteral([read_node(each) for each in node.elements])
        case "struct_expr":
            # A field of a message has no map key.
            return CelLiteral([read_node(part) for each in node.entries for part in (each.map_key, each.value) if part])
        case "comprehension_expr":
            return CelComprehension(
                [name for name in (node.iter_var, node.iter_var2) if name],
                read_node(node.iter_range),
                node.accu_var,
                read_node(node.accu_init),
                read_node(node.loop_condition),
                read_node(node.loop_step),
                read_node(node.result),
            )
    raise ValueError("no known kind of node")
