"""Makes the tables of error reasons, in each language that has one, from the options of the contract's ErrorReason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from contract import Contract
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.rpc import code_pb2

FILE = "proto/cstp/v1/errors.proto"
ENUM = "cstp.v1.ErrorReason"
OPTION = "cstp.v1.error_codes"
PREFIX = "ERROR_REASON_"

OK_STATUS = 200
"""What HTTP answers unless an option says otherwise: JSON-RPC tells of failures in its body."""

A2A_CODES = range(-32099, -32000)
"""The JSON-RPC codes to which A2A gives a meaning of its own; its TaskNotFoundError is -32001."""

CodeT = TypeVar("CodeT")


@dataclass(frozen=True)
class Reason:
    """A value of ErrorReason and its options; absent ones have their defaults."""

    name: str
    """Without the prefix of the enum."""
    comment: str
    grpc_code: str
    json_rpc_code: int
    http_status: int
    a2a_code: int
    a2a_http_status: int
    retriable: bool
    parent: str | None
    bridge_only: bool
    bare_grpc_codes: tuple[str, ...]
    bare_json_rpc_codes: tuple[int, ...]
    bare_http_statuses: tuple[int, ...]


def read_reasons(files: FileDescriptorSet) -> list[Reason]:
    """Return the reasons of the contract in their order. Exits if a value lacks its options or they are wrong."""
    reasons = list(iterate_reasons(Contract(files)))
    for reason in reasons:
        if problem := find_problem(reason, reasons):
            sys.exit(f"{FILE}: {PREFIX}{reason.name}: {problem}")
    return reasons


def iterate_reasons(contract: Contract) -> Iterator[Reason]:
    """Yield the values of ErrorReason with their options, without the unspecified one."""
    enum = contract.enum(ENUM)
    for value in enum.values[1:]:
        codes = contract.option(value, "google.protobuf.EnumValueOptions", OPTION)
        parent = enum.values_by_number[codes.parent].name.removeprefix(PREFIX) if codes.parent else None
        yield Reason(
            name=value.name.removeprefix(PREFIX),
            comment=contract.value_comment(value),
            grpc_code=codes.grpc_code,
            json_rpc_code=codes.json_rpc_code,
            http_status=codes.http_status or OK_STATUS,
            a2a_code=codes.a2a_code or codes.json_rpc_code,
            a2a_http_status=codes.a2a_http_status,
            retriable=codes.retriable,
            parent=parent,
            bridge_only=codes.bridge_only,
            bare_grpc_codes=tuple(codes.bare_grpc_codes),
            bare_json_rpc_codes=tuple(codes.bare_json_rpc_codes),
            bare_http_statuses=tuple(codes.bare_http_statuses),
        )


def find_problem(reason: Reason, reasons: Iterable[Reason]) -> str | None:
    """Return the problem of the options of a reason; None if they can be used."""
    if not (reason.grpc_code or reason.json_rpc_code or reason.a2a_http_status):
        return "add the option error_codes with grpc_code, json_rpc_code and a2a_http_status"
    known = set(code_pb2.Code.keys()) - {"OK"}
    for code in (reason.grpc_code, *reason.bare_grpc_codes):
        if code not in known:
            return f"grpc_code and bare_grpc_codes must name a status of google.rpc.Code that is not OK, not {code!r}"
    if reason.json_rpc_code >= 0 or reason.a2a_code >= 0:
        return "json_rpc_code is required, and it and a2a_code must be negative"
    if reason.a2a_code in A2A_CODES:
        return (
            f"a2a_code is required and must not be from {A2A_CODES[0]} to {A2A_CODES[-1]}, which mean something else "
            "in A2A; use json_rpc_code + 1000"
        )
    if not 400 <= reason.a2a_http_status <= 599:
        return "a2a_http_status is required and must be from 400 to 599"
    for earlier in reasons:
        if earlier.name == reason.parent and earlier.parent:
            return f"parent must not have a parent itself, which {earlier.name} has"
    for earlier in reasons:
        if earlier is reason:
            return None
        shared = bare_codes(earlier) & bare_codes(reason)
        if shared:
            return f"{earlier.name} has {', '.join(sorted(map(str, shared)))} among its bare codes already"
    return None


def bare_codes(reason: Reason) -> set[str | int]:
    """Return all codes that mean the reason without naming it; those of JSON-RPC and HTTP differ in sign."""
    return {*reason.bare_grpc_codes, *reason.bare_json_rpc_codes, *reason.bare_http_statuses}


def invert_bare_codes(
    reasons: Iterable[Reason], codes_of: Callable[[Reason], Iterable[CodeT]]
) -> list[tuple[CodeT, str]]:
    """Return each bare code of one kind with the name of the reason that it means."""
    return [(code, reason.name) for reason in reasons for code in codes_of(reason)]


def python_module(reasons: list[Reason]) -> str:
    """Return the Python module."""
    columns = {
        "grpc_code": "str",
        "json_rpc_code": "int",
        "http_status": "int",
        "a2a_code": "int",
        "a2a_http_status": "int",
        "retriable": "bool",
        "parent": "str | None",
        "bridge_only": "bool",
    }
    lines = [
        '"""The codes of each reason of the contract, by its name without the prefix of ErrorReason."""',
        "",
        "from typing import TypedDict",
        "",
        "",
        "class ErrorCodes(TypedDict):",
        '    """The options of one value of ErrorReason."""',
        "",
        *(f"    {name}: {annotation}" for name, annotation in columns.items()),
        "",
        "",
        "ERROR_CODES: dict[str, ErrorCodes] = {",
    ]
    for reason in reasons:
        lines.append(f"    {reason.name!r}: {{")
        lines += [f"        {name!r}: {getattr(reason, name)!r}," for name in columns]
        lines.append("    },")
    lines.append("}")
    tables: list[tuple[str, list[tuple[str, str]] | list[tuple[int, str]]]] = [
        ("BARE_GRPC_CODES: dict[str, str]", invert_bare_codes(reasons, lambda reason: reason.bare_grpc_codes)),
        ("BARE_JSON_RPC_CODES: dict[int, str]", invert_bare_codes(reasons, lambda reason: reason.bare_json_rpc_codes)),
        ("BARE_HTTP_STATUSES: dict[int, str]", invert_bare_codes(reasons, lambda reason: reason.bare_http_statuses)),
    ]
    for declared, rows in tables:
        lines += ["", f"{declared} = {{", *(f"    {code!r}: {name!r}," for code, name in rows), "}"]
    return "\n".join(lines) + "\n"
